"""`elastic-run --dry-run`: says what would be run, where and with which environment. Starts and opens nothing."""

from __future__ import annotations

import argparse
import shlex
from collections.abc import Iterator
from pathlib import Path

from resilin._base import env, log
from resilin.elastic.spawn import environment
from resilin.elastic.spawn.environment import WorkerPlace
from resilin.elastic.spawn.program import Program
from resilin.launcher import arguments, exit_codes, output, plan, store_bootstrap
from resilin.launcher.plan import LaunchPlan

_HIDDEN = ("RESILIN_SECRET",)
_LATER = "(made when it starts)"


def run(args: argparse.Namespace, program: Program) -> int:
    """Print what would be run; returns the exit code."""
    log.configure(arguments.log_level(args.verbose))
    output.show(*lines(plan.make(args, program)))
    return exit_codes.OK


def lines(what: LaunchPlan) -> Iterator[str]:
    """The plan, line by line: where the nodes meet, what is kept, and each worker's command and variables.

    Ranks are those of a first generation of the least number of nodes in which this node has the rank it asked for,
    else 0: the real ones are agreed on when the nodes meet.
    """
    low, high = what.membership.min_nodes, what.membership.max_nodes
    if what.notice:
        yield f"found     {what.notice}"
    yield f"job       {what.job.name}, at most {what.membership.max_restarts} restarts"
    size = str(low) if low == high else f"{low} to {high}"
    yield f"nodes     {size}, {what.workers} worker{'s' if what.workers > 1 else ''} on this one"
    yield f"meeting   {_meeting(what)}"
    yield f"address   {what.address}"
    yield f"secret    {'yes' if what.job.secret else 'none'}"
    yield f"logs      {what.log_dir or 'none are kept'}"
    node_rank = max(what.rank_hint, 0)
    for slot in range(what.workers):
        place = WorkerPlace(
            rank=node_rank * what.workers + slot,
            local_rank=slot,
            world_size=max(low, node_rank + 1) * what.workers,
            local_world_size=what.workers,
            node_rank=node_rank,
            node_count=max(low, node_rank + 1),
            generation=1,
            restarts_used=0,
            master_addr=what.address if node_rank == 0 else "(node rank 0)",
            master_port=what.master_port,
        )
        yield ""
        yield from _worker(what, place)


def _meeting(what: LaunchPlan) -> str:
    meeting = what.meeting
    if meeting.backend == "standalone":
        return "in the memory of this process; nothing listens"
    if meeting.backend != "embedded":
        return f"{meeting.backend} {meeting.endpoint}"
    served = (
        "served by this node, unless somebody serves it already"
        if store_bootstrap.may_serve(meeting)
        else "served elsewhere"
    )
    return f"embedded {meeting.endpoint}, {served}"


def _worker(what: LaunchPlan, place: WorkerPlace) -> Iterator[str]:
    folder = what.log_dir / f"{what.job.name}_..." if what.log_dir else Path(_LATER)
    error_file = folder / "attempt_0" / str(place.local_rank) / "error.json"
    variables = environment.variables(place, what.job, env.snapshot(), str(error_file))
    if not place.master_port:
        variables["MASTER_PORT"] = _LATER
    yield f"worker {place.local_rank}: {shlex.join(what.program.command)}"
    for name, value in sorted(variables.items()):
        yield f"  {name}={'(hidden)' if name in _HIDDEN else value}"
