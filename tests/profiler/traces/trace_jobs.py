"""Jobs of real ranks whose delays are known, and traces made by hand."""

from __future__ import annotations

import json
import random
from dataclasses import dataclass
from pathlib import Path

from resilin.profiler.traces import folder
from resilin.profiler.traces.folder import Traces
from resilin.profiler.traces.rank_trace import RankTrace, TraceEvent
from resilin.testing.ranks import start_ranks

RANKS = 3
DELAYS = 20
DELAY_S = 0.06  # some times what another process's turn on a busy machine takes
NAMES = ("load", "forward", "log")

JOB = """
import json, os, sys, time
import resilin
from resilin import dist
from resilin.profiler import record_function
from resilin.testing.ranks import join_from_environment
group = join_from_environment(timeout_s=60)
rank, size = dist.get_rank(), dist.get_world_size()
plan = {step: (who, name) for step, who, name in json.loads(os.environ["PLAN"])}
delay = float(os.environ["DELAY"])
x, total, token = resilin.ones(64, 64), resilin.ones(16), resilin.zeros(1)
for step in range(max(plan) + 3):
    for name in ("load", "forward", "log"):
        with record_function(name):
            if plan.get(step) == (rank, name):
                time.sleep(delay)
            y = x @ x
    if rank == step % size:
        dist.send(total, (rank + 1) % size)
    elif rank == (step + 1) % size:
        dist.recv(total, step % size)
    dist.all_reduce(total)
    dist.barrier()
    for turn in range(18):
        dist.all_reduce(total)
"""


@dataclass
class Job:
    """A job that has ended: where its files are, and which delays were planted."""

    folder: Path
    plan: list[tuple[int, int, str]]
    """Step, rank and name of the span that was long."""

    def traces(self) -> Traces:
        """Read anew, to be changed as one likes."""
        return folder.read([self.folder])


def run_job(place: Path, delays: int, seed: int = 7) -> Job:
    """Three processes that record from their start, with delays; all_reduce number 20 * step is the first of a step."""
    draw = random.Random(seed)
    plan = [(2 + 2 * number, draw.randrange(RANKS), draw.choice(NAMES)) for number in range(delays)]
    variables = {"PLAN": json.dumps(plan), "DELAY": str(DELAY_S), "RESILIN_RECORD_DIR": str(place / "spans")}
    ranks = start_ranks(RANKS, JOB, str(place), RESILIN_RECORD_BYTES=str(8 << 20), **variables)
    ended = [rank.finish() for rank in ranks]
    assert [code for code, _, _ in ended] == [0] * RANKS, ended
    return Job(place / "spans", plan)


class Made:
    """A rank's trace made by hand, times in microseconds."""

    def __init__(self, rank: int, clock: str = "one") -> None:
        self.trace = RankTrace(f"rank{rank}.json", rank, "host", 100 + rank, clock, [], [], 0, 0)

    def span(self, name, start, end, category="user_annotation", thread=1, **args):
        """Add a span; `end` None: it is open until the recording ends, which `ready` says."""
        stop = start if end is None else end
        fields = (name, category, thread, int(start * 1000), int(stop * 1000), args, end is None)
        self.trace.events.append(TraceEvent(*fields))
        return self

    def collective(self, start, end, number, ranks, name="all_reduce", **args):
        """Add this rank's part of a collective of `ranks`."""
        about = {"Collective name": name, "Process Group Name": "g", "Process Group Ranks": list(ranks)}
        about |= {"Rank": list(ranks).index(self.trace.rank), "Generation": 0, "Seq": number, **args}
        return self.span(f"cpu:{name}", start, end, **about)

    def message(self, start, end, source, target, **args):
        """Add this rank's end of a message."""
        name = "send" if self.trace.rank == source else "recv"
        about = {"Collective name": name, "Process Group Name": "g", "Src Rank": source, "Dst Rank": target, "Tag": 0}
        return self.span(f"cpu:{name}", start, end, **about, **args)

    def ready(self, stop=None, *, alive=None, unfinished=False):
        """The trace; it ended at `stop`, by default with its last span."""
        trace = self.trace
        last = max((event.end_ns for event in trace.events), default=0)
        trace.stop_ns = last if stop is None else int(stop * 1000)
        trace.start_ns = min((event.start_ns for event in trace.events), default=0)
        for event in trace.events:
            if event.open:
                event.end_ns = trace.stop_ns
        trace.alive, trace.unfinished = alive, unfinished
        trace.sort()
        return trace
