"""Who is to blame for a hang: planted ones in real processes, which run or were killed, and cases made by hand."""

from __future__ import annotations

import random
import time

import extent
import pytest

from resilin._base import trace_ring
from resilin._base.clock import Deadline
from resilin._base.span_file import About, Writer
from resilin._base.trace import SpanKind
from resilin.launcher import main
from resilin.profiler.traces import folder, hang_causes
from resilin.testing.patience import PATIENCE_S
from resilin.testing.ranks import start_ranks

RANKS = 3
AFTER_NS = 300_000_000
KINDS = ("asleep", "killed", "recv", "silent", "ended")

JOB = """
import os, signal, sys, time
import resilin
from resilin import dist
from resilin.profiler import record_function
from resilin.testing.ranks import join_from_environment
group = join_from_environment(timeout_s=60)
rank, size = dist.get_rank(), dist.get_world_size()
kind, who = os.environ["KIND"], int(os.environ["WHO"])
total = resilin.ones(16)
for step in range(3):
    with record_function("load"):
        pass
    dist.all_reduce(total)
print("here", flush=True)
if rank == who:
    if kind in ("asleep", "recv"):
        with record_function("stuck"):
            time.sleep(1000)
    elif kind == "killed":
        with record_function("doomed"):
            os.kill(os.getpid(), signal.SIGKILL)
    elif kind == "silent":
        time.sleep(1000)
    else:
        os._exit(0)
if kind == "recv" and rank == (who + 1) % size:
    dist.recv(total, who)
dist.all_reduce(total)
"""

EXPECTED = {"asleep": "stuck", "killed": "doomed", "recv": "stuck", "silent": "", "ended": ""}


@pytest.mark.multiproc
@pytest.mark.parametrize("number", extent.short(range(50), of=range(5)))
def test_planted_hangs_are_found_with_rank_and_span(number, tmp_path):
    kind, who = KINDS[number % len(KINDS)], random.Random(number).randrange(RANKS)
    variables = {"KIND": kind, "WHO": str(who), "RESILIN_RECORD_DIR": str(tmp_path / "spans")}
    ranks = start_ranks(RANKS, JOB, str(tmp_path), RESILIN_RECORD_BYTES=str(1 << 20), **variables)
    try:
        for rank in ranks:
            assert rank.read_line() == "here", rank.finish()
        state = {"killed": "killed", "ended": "ended"}.get(kind, "running")
        deadline = Deadline(PATIENCE_S)
        while True:  # looks at other processes, which cannot tell us that they wait, or that the kernel has ended them
            found = hang_causes.find(folder.read([tmp_path / "spans"]).ranks, AFTER_NS)
            all_wait = len({wait.rank for wait in found.waits}) == RANKS - 1
            if (all_wait and [cause.state for cause in found.causes] == [state]) or deadline.passed():
                break
            time.sleep(0.1)
        (cause,) = found.causes
        assert (cause.rank, cause.name) == (who, EXPECTED[kind]), found
        assert cause.waiting == tuple(rank for rank in range(RANKS) if rank != who)
        assert cause.state == state
        assert cause.name or cause.last == "load"
    finally:
        for rank in ranks:
            rank.process.kill()
            rank.finish()


def test_a_hang_is_still_known_when_all_were_killed(made):
    ranks = (0, 1, 2)
    traces = [
        made(0).collective(10, None, 0, ranks).ready(20, alive=False, unfinished=True),
        made(1).span("save", 5, None).ready(20, alive=False, unfinished=True),
        made(2).collective(11, None, 0, ranks).ready(20, alive=False, unfinished=True),
    ]
    found = hang_causes.find(traces, AFTER_NS)
    (cause,) = found.causes
    assert (cause.rank, cause.name, cause.state, cause.waiting) == (1, "save", "killed", (0, 2))


def test_ranks_that_wait_for_one_another_are_a_cycle(made):
    traces = [
        made(0).message(0, None, 1, 0).ready(10**6, alive=True, unfinished=True),
        made(1).message(0, None, 0, 1).ready(10**6, alive=True, unfinished=True),
    ]
    found = hang_causes.find(traces, AFTER_NS)
    assert (found.causes, found.cycle) == ([], [0, 1])


def test_a_rank_that_was_killed_amid_a_collective_is_to_blame(made):
    ranks = (0, 1)
    traces = [
        made(0).collective(10, 900, 0, ranks, Failed=True).ready(1000, alive=False, unfinished=True),
        made(1).collective(12, None, 0, ranks).ready(20, alive=False, unfinished=True),
    ]
    (cause,) = hang_causes.find(traces, AFTER_NS).causes
    assert (cause.rank, cause.name, cause.state) == (1, "cpu:all_reduce", "killed")


def test_a_rank_that_went_on_in_the_next_world_does_not_hang(made):
    ranks = (0, 1)
    survivor = made(0).collective(10, 900, 0, ranks, Failed=True).span("elastic.form_group", 950, 960)
    traces = [survivor.ready(2000, alive=False, unfinished=True), made(1).ready(20, alive=False, unfinished=True)]
    assert hang_causes.find(traces, AFTER_NS).waits == []


def test_a_call_that_has_just_begun_is_no_hang(made):
    ranks = (0, 1)
    traces = [
        made(0).collective(10, None, 0, ranks).ready(20, alive=True, unfinished=True),
        made(1).span("load", 5, None).ready(20, alive=True, unfinished=True),
    ]
    assert hang_causes.find(traces, AFTER_NS).waits == []
    assert len(hang_causes.find(traces, 10_000).waits) == 1


def test_what_was_open_when_a_profile_stopped_is_no_hang(made):
    traces = [made(0).collective(10, None, 0, (0, 1)).ready(10**7), made(1).span("load", 5, None).ready(10**7)]
    assert hang_causes.find(traces, AFTER_NS).waits == []


def test_a_rank_without_a_trace_is_blamed_as_unknown(made):
    trace = made(0).collective(10, None, 0, (0, 1)).ready(10**6, alive=True, unfinished=True)
    (cause,) = hang_causes.find([trace], AFTER_NS).causes
    assert (cause.rank, cause.state, cause.name) == (1, "unknown", "")


def test_what_hangs_is_told_first_and_returns_1(tmp_path, capsys):
    for rank, name in ((0, "cpu:all_reduce"), (1, "save")):
        writer = Writer(tmp_path, 1 << 16, About(host="elsewhere", boot="b1", rank=rank, world_size=2))
        ring = trace_ring.Ring(writer.buffer)
        about = {"Collective name": "all_reduce", "Process Group Name": "default", "Process Group Ranks": [0, 1]}
        about |= {"Rank": 0, "Generation": 1, "Seq": 3}
        ring.begin(name, SpanKind.USER if rank else SpanKind.COLLECTIVE, args=None if rank else about)
        writer.close()
    assert main.main(["trace", "why", str(tmp_path)]) == 1
    out, _ = capsys.readouterr()
    assert out.splitlines()[:2] == [
        "HANGS: rank 1 is in save; rank 0 waits for it",
        "  rank 0 waits for rank 1 in all_reduce #3 of group 'default' generation 1",
    ]
