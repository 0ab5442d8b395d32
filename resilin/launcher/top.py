"""`resilin top [JOB]`: a table of a running job's workers that keeps itself up to date."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping

from resilin._base.clock import SYSTEM, Deadline
from resilin._base.text import visible
from resilin.elastic.records import Live
from resilin.launcher import jobs, output, status
from resilin.launcher.jobs import Access, Job

_COLUMNS = ("rank", "node", "slot", "pid", "state", "step", "steps/s", "at")
_FIRST_S = 4.0  # how long the nodes may take to say twice where their workers are
_POLL_S = 0.25


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of `resilin top`."""
    jobs.add_arguments(parser)
    parser.add_argument("--interval", type=float, default=2.0, metavar="S", help="between two tables (default 2)")
    parser.add_argument("--once", action="store_true", help="print one table and end")
    parser.add_argument("--json", action="store_true", help="one JSON object a table, one a line")


def run(args: argparse.Namespace) -> int:
    """Print tables until the job has ended or Ctrl-C; RendezvousError (exit code 4) when there is no such job."""
    with jobs.opened(args) as (access, name):
        jobs.watch(access, name)
        rates = Rates()
        job = _first(access, name, rates)
        while True:
            _show(job, rates, as_json=args.json, clear=not args.once and sys.stdout.isatty())
            if args.once or job.closed is not None:
                return 0
            SYSTEM.sleep(max(0.1, args.interval))
            job = jobs.read(access, name)
            rates.update(job.live)


def _first(access: Access, name: str, rates: Rates) -> Job:
    """The job, once all members that work on steps have a rate, or after a while."""
    deadline = Deadline(_FIRST_S)
    while True:
        job = jobs.read(access, name)
        rates.update(job.live)
        members = job.generation.members if job.generation is not None else ()
        if job.closed or deadline.passed() or (members and all((m.node, m.slot) in rates.per_s for m in members)):
            return job
        SYSTEM.sleep(_POLL_S)


class Rates:
    """Steps per second of each worker, from what its node said at two times by its own clock."""

    def __init__(self) -> None:
        self._before: dict[tuple[str, int], tuple[float, int]] = {}  # by node and slot: when, and the step
        self.per_s: dict[tuple[str, int], float] = {}

    def update(self, live: Mapping[str, Live]) -> None:
        """Take in what the nodes say now."""
        for node, said in live.items():
            for slot, step, _ in said.steps:
                known = self._before.get((node, slot))
                if known is not None and said.at > known[0]:
                    self.per_s[node, slot] = max(0.0, (step - known[1]) / (said.at - known[0]))
                if known is None or said.at > known[0]:
                    self._before[node, slot] = (said.at, step)


def _show(job: Job, rates: Rates, *, as_json: bool, clear: bool) -> None:
    if as_json:
        found = [{"node": node, "slot": slot, "steps_per_s": rate} for (node, slot), rate in rates.per_s.items()]
        output.show_json({**status.as_json(job), "rates": found})
        return
    output.show(*table(job, rates), clear=clear)


def table(job: Job, rates: Rates) -> list[str]:
    """The job for people, worker by worker in the order of ranks."""
    known = status.ranks(job)
    rows = []
    for node in job.nodes:
        said = {slot: (step, at) for slot, step, at in job.live[node.id].steps} if node.id in job.live else {}
        for slot in node.slots:
            rank = known.get((node.id, slot.index, slot.incarnation))
            step, at = said.get(slot.index, ("", ""))
            rate = rates.per_s.get((node.id, slot.index))
            shown = (f"{rate:.2f}" if rate is not None and step != "" else "", at)
            state = ", ".join([slot.state, *(note for note in status.notes(job, node) if note != "leads")])
            rows.append((rank, (node.host, slot.index, slot.pid or "", state, step, *shown)))
    rows.sort(key=lambda row: (row[0] is None, row[0]))
    cells: list[tuple[str, ...]] = [_COLUMNS]
    cells += [("-" if rank is None else str(rank), *(visible(str(each)) for each in rest)) for rank, rest in rows]
    widths = [max(len(row[column]) for row in cells) for column in range(len(_COLUMNS))]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in cells]
    said_last = [(node.host, job.live[node.id].failure) for node in job.nodes if node.id in job.live]
    failures = [f"last failure on {host}: {sentence}" for host, sentence in said_last if sentence]
    return [f"job {job.name}, {status.headline(job)}", *lines, *status.slow(job), *failures]
