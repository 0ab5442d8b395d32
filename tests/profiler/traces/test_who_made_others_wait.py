"""Who made the others wait: planted delays in real ranks, and cases made by hand."""

from __future__ import annotations

import pytest
from trace_jobs import DELAY_S, run_job

from resilin.profiler.traces import blame
from resilin.profiler.traces.blame import OUTSIDE, Blame

RIGHT = 0.95  # of planted delays: another process's turn may be longer than one
TRIES = 3  # a machine that is busy with something else delays ranks that no plan names


def _wrong(job):
    causes = Blame(job.traces().ranks).causes(int(DELAY_S * 0.5e9))
    wrong = []
    for step, rank, name in job.plan:
        at = f"all_reduce #{20 * step} of group 'test' generation 1"
        found = [(cause.rank, cause.name) for cause in causes if cause.at == at]
        if found != [(rank, name)]:
            wrong.append((step, rank, name, found))
    return wrong


@pytest.mark.multiproc
def test_planted_delays_are_found_with_rank_and_span(job, tmp_path):
    wrong = _wrong(job)
    for seed in range(1, TRIES):
        if len(wrong) <= (1 - RIGHT) * len(job.plan):
            break
        (tmp_path / str(seed)).mkdir()
        wrong = _wrong(run_job(tmp_path / str(seed), len(job.plan), seed))
    assert len(wrong) <= (1 - RIGHT) * len(job.plan), wrong


@pytest.mark.multiproc
@pytest.mark.deep
@pytest.mark.parametrize("seed", range(2))
def test_two_hundred_planted_delays_are_found(seed, tmp_path):
    job = run_job(tmp_path, 100, seed)
    wrong = _wrong(job)
    assert len(wrong) <= (1 - RIGHT) * len(job.plan), wrong


def test_the_span_that_took_longer_than_elsewhere_is_named(made):
    ranks = (0, 1, 2)
    traces = []
    for rank in ranks:
        extra = 50 if rank == 1 else 0
        one = made(rank).span("load", 0, 10).span("forward", 10, 90 + extra).collective(90 + extra, 142, 0, ranks)
        traces.append(one.ready())
    (cause,) = Blame(traces).causes(1)
    assert (cause.rank, cause.name, cause.excess_ns) == (1, "forward", 50_000)
    assert (cause.waiting, cause.waited_ns) == ((0, 2), 100_000)


def test_a_longer_span_does_not_count_where_it_is_as_long_on_all_ranks(made):
    traces = [
        made(rank).span("forward", 0, 900).span("log", 900, 900 + 30 * rank).collective(900 + 30 * rank, 940, 0, (0, 1))
        for rank in (0, 1)
    ]
    (cause,) = Blame([one.ready() for one in traces]).causes(1)
    assert (cause.rank, cause.name) == (1, "log")


def test_time_outside_of_spans_is_told_by_the_span_before(made):
    first = made(0).span("load", 0, 10).collective(20, 80, 0, (0, 1)).ready()
    second = made(1).span("load", 0, 10).collective(75, 80, 0, (0, 1)).ready()
    (cause,) = Blame([first, second]).causes(1)
    assert (cause.rank, cause.name, cause.after, cause.excess_ns) == (1, OUTSIDE, "load", 55_000)


def test_who_left_the_collective_before_late_is_told_so(made):
    first = made(0).collective(0, 10, 0, (0, 1)).collective(12, 62, 1, (0, 1)).ready()
    second = made(1).collective(0, 58, 0, (0, 1)).collective(60, 62, 1, (0, 1)).ready()
    (cause,) = Blame([first, second]).causes(1)
    assert (cause.rank, cause.name, cause.excess_ns) == (1, "cpu:all_reduce", 48_000)


def test_who_waited_for_another_rank_is_not_the_cause(made):
    ranks = (0, 1, 2)
    first = made(0).collective(5, 100, 0, ranks).ready()
    second = made(1).message(5, 90, 2, 1).collective(95, 100, 0, ranks).ready()
    third = made(2).span("save", 0, 85).message(85, 88, 2, 1).collective(89, 100, 0, ranks).ready()
    causes = Blame([first, second, third]).causes(1)
    assert {(cause.rank, cause.name) for cause in causes} == {(2, "save")}
    assert {cause.via for cause in causes if cause.at.startswith("all_reduce")} == {(1,)}
    assert [row["rank"] for row in blame.totals(causes)] == [2]


def test_a_broadcast_waits_for_its_root_only(made):
    fields = {"name": "broadcast", "Root rank": 0}
    first = made(0).collective(0, 5, 0, (0, 1), **fields).ready()
    second = made(1).span("load", 0, 50).collective(50, 52, 0, (0, 1), **fields).ready()
    assert Blame([first, second]).causes(1) == []
    late_root = made(0).span("load", 0, 50).collective(50, 52, 0, (0, 1), **fields).ready()
    early = made(1).collective(0, 53, 0, (0, 1), **fields).ready()
    (cause,) = Blame([late_root, early]).causes(1)
    assert (cause.rank, cause.name, cause.waiting) == (0, "load", (1,))


def test_waits_shorter_than_asked_for_are_left_out(made):
    first = made(0).collective(0, 12, 0, (0, 1)).ready()
    second = made(1).span("load", 0, 10).collective(10, 12, 0, (0, 1)).ready()
    assert Blame([first, second]).causes(10_001) == []
    assert len(Blame([first, second]).causes(10_000)) == 1


def test_the_step_of_the_profile_is_told(made):
    first = made(0).span("ProfilerStep#7", 0, 100).collective(0, 52, 0, (0, 1)).ready()
    second = made(1).span("ProfilerStep#7", 0, 100).span("load", 0, 50).collective(50, 52, 0, (0, 1)).ready()
    (cause,) = Blame([first, second]).causes(1)
    assert (cause.step, cause.name) == (7, "load")
