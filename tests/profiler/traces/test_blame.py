"""Who made the others wait: planted delays in real ranks, and cases made by hand."""

from __future__ import annotations

import json

import pytest

from resilin.launcher import main
from resilin.profiler.traces import blame, clocks
from resilin.profiler.traces.blame import OUTSIDE, Blame

LEAST_NS = 5_000_000
RIGHT = 0.95


@pytest.mark.multiproc
def test_planted_delays_of_real_ranks_are_found(job):
    found = job.traces()
    clocks.align(found.ranks)
    causes = Blame(found.ranks).causes(LEAST_NS)
    wrong = []
    for step, rank, name in job.plan:
        at = f"#{3 * step} of"  # the message of a step has a number as well
        named = [(each.rank, each.name) for each in causes if each.waited_ns > 20e6 and _step(each, found) == step]
        if (rank, name) not in named:
            wrong.append((step, rank, name, named, at))
    assert len(wrong) <= (1 - RIGHT) * len(job.plan), wrong


def _step(cause, traces):
    return None
