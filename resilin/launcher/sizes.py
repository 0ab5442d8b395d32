"""`resilin drain JOB NODE` and `resilin scale JOB SIZE`: change which nodes of a running job take part."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from dataclasses import replace

from resilin._base.clock import SYSTEM, Deadline
from resilin.elastic.membership import scaling
from resilin.elastic.records import Node, Wanted
from resilin.errors import RendezvousClosed, StoreError, UsageError
from resilin.launcher import jobs, output
from resilin.launcher.jobs import Access, Job

_POLL_S = 0.1
_ATTEMPTS = 10  # people who change a job at the same time


def add_drain_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of `resilin drain`."""
    jobs.add_arguments(parser, optional=False)
    parser.add_argument("node", help="a node's id, or a host: all nodes on it, also those that come later")
    parser.add_argument("--undo", action="store_true", help="let the node take part again")
    _add_wait(parser)


def add_scale_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of `resilin scale`."""
    jobs.add_arguments(parser, optional=False)
    parser.add_argument("size", help="nodes: a number (the most; the least stays, unless it is more), or MIN:MAX")
    _add_wait(parser)


def _add_wait(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--timeout", type=float, default=60.0, metavar="S", help="how long to wait until it is so; 0: do not (60)"
    )


def drain(args: argparse.Namespace) -> int:
    """Have a node's workers finish their step and end, and the node take no part; or, with --undo, take part again.

    0 once it is so, 1 when it still was not after --timeout. UsageError: no such node, or too few would be left.
    """

    def changed(job: Job) -> Wanted:
        if args.undo:
            return _undrained(job, args.node)
        name = _named(job, args.node)
        wanted = replace(job.wanted, drained=tuple(dict.fromkeys((*job.wanted.drained, name))))
        left = sum(not node.leaving and not scaling.is_drained(node, wanted) for node in job.nodes)
        if left < job.size[0]:
            raise UsageError(
                f"without {args.node}, {left} of at least {job.size[0]} nodes would be left: add one, or change the "
                "least number first (resilin scale JOB MIN:MAX); to end the job send SIGTERM to its elastic-run"
            )
        return wanted

    def is_so(job: Job) -> bool:
        return args.undo or not any(_at_work(job, node) for node in job.nodes if scaling.is_drained(node, job.wanted))

    done = f"{args.node} {'may take part again' if args.undo else 'is drained'}"
    return _change(args, changed, is_so, lambda _: done)


def scale(args: argparse.Namespace) -> int:
    """Change the least and the most nodes of the job. Members beyond the most finish their step and end.

    0 once as many nodes take part as are wanted and there, 1 when it still was not so after --timeout. UsageError: no
    size.
    """

    def changed(job: Job) -> Wanted:
        low, high = _size(args.size, job)
        return replace(job.wanted, min_nodes=low, max_nodes=high)

    def is_so(job: Job) -> bool:
        low, high = job.size
        able = sum(not (node.leaving or node.excluded or scaling.is_drained(node, job.wanted)) for node in job.nodes)
        least = max(low, min(able, high))
        members = len(job.generation.nodes) if job.generation is not None else 0
        return sum(_at_work(job, node) for node in job.nodes) <= high and (members >= least or _is_full(job))

    return _change(args, changed, is_so, _scaled)


def _scaled(job: Job) -> str:
    """What was asked for; how many take part, where that is less."""
    members = len(job.generation.nodes) if job.generation is not None else 0
    fewer = f", {members} of which {'takes' if members == 1 else 'take'} part: no more are there, or have work"
    return f"scaled to {jobs.size_of(job.wanted)}{fewer if members < job.size[1] else ''}"


def _change(
    args: argparse.Namespace, changed: Callable[[Job], Wanted], is_so: Callable[[Job], bool], done: Callable[[Job], str]
) -> int:
    with jobs.opened(args) as (access, name):
        if access.alone:
            raise UsageError(f"job {name!r} is one of this node alone: nothing listens where another could come")
        job = _write(access, name, changed)
        deadline = Deadline(args.timeout)
        while args.timeout and not is_so(job) and not deadline.passed():
            SYSTEM.sleep(_POLL_S)
            job = jobs.read(access, name)
        if args.timeout and not is_so(job):
            output.show(
                f"asked, but after {args.timeout:g} s it is not so yet: `resilin status {name}` shows who takes part"
            )
            return 1
    output.show(done(job) if args.timeout else f"asked: {done(job)}")
    return 0


def _write(access: Access, name: str, changed: Callable[[Job], Wanted]) -> Job:
    for _ in range(_ATTEMPTS):
        job = jobs.read(access, name)
        if job.closed is not None:
            raise RendezvousClosed(f"job {name!r} has {job.closed.outcome} ({job.closed.reason})")
        wanted = changed(job)
        if wanted == job.wanted or jobs.write_wanted(access, job, wanted):
            return jobs.read(access, name)
    raise StoreError(f"job {name!r} was changed by others {_ATTEMPTS} times meanwhile; try again")


def _named(job: Job, name: str) -> str:
    """`name`, if it is a node or a host of the job."""
    known = {node.id for node in job.nodes} | {node.host for node in job.nodes}
    if name not in known:
        raise UsageError(f"{name!r} is no node of job {job.name!r}, expected one of {', '.join(sorted(known))}")
    return name


def _undrained(job: Job, name: str) -> Wanted:
    if name not in job.wanted.drained:
        known = ", ".join(job.wanted.drained) or "nothing"
        raise UsageError(f"{name!r} is not drained in job {job.name!r}; what is: {known}")
    return replace(job.wanted, drained=tuple(known for known in job.wanted.drained if known != name))


def _is_full(job: Job) -> bool:
    """Whether the world is as large as the program's batch allows, so that further nodes stand by."""
    limits = [slot.limit for node in job.nodes for slot in node.slots if slot.limit]
    return job.generation is not None and 0 < min(limits, default=0) <= len(job.generation.members)


def _at_work(job: Job, node: Node) -> bool:
    """Whether it is a member or still has workers."""
    member = job.generation is not None and node.id in job.generation.nodes
    return member or any(slot.alive for slot in node.slots)


def _size(text: str, job: Job) -> tuple[int, int]:
    low, colon, high = text.partition(":")
    try:
        result = (int(low), int(high)) if colon else (min(job.size[0] or 1, int(low)), int(low))
    except ValueError:
        result = (0, 0)
    if not 1 <= result[0] <= result[1]:
        raise UsageError(f"size: expected a number of nodes or MIN:MAX with 1 <= MIN <= MAX, got {text!r}")
    return result
