"""Where the time went: made by hand, and of real ranks, whose times add up."""

from __future__ import annotations

from itertools import pairwise

import pytest

from resilin.profiler.traces import breakdown, clocks, critical_path, intervals
from resilin.profiler.traces.innermost import Timeline
from resilin.profiler.traces.meetings import meetings

PARTS = ("idle_time(us)", "compute_time(us)", "non_compute_time(us)")


def _two_ranks(made):
    ranks = (0, 1)
    first = made(0).span("ProfilerStep#3", 0, 100).span("aten::mm", 0, 30, category="cpu_op")
    first.collective(20, 80, 0, ranks, dtype="float32")
    first.span("enumerate(DataLoader)#_Iter.__next__", 80, 90).span("checkpoint.save", 85, 95)
    second = (
        made(1).span("ProfilerStep#3", 0, 100).span("aten::mm", 0, 70, category="cpu_op").collective(70, 80, 0, ranks)
    )
    return [first.ready(), second.ready()]


def test_each_moment_counts_once_by_rank(made):
    traces = _two_ranks(made)
    first, second = breakdown.temporal_breakdown(traces, meetings(traces))
    assert (first["rank"], first["compute_time(us)"], first["idle_time(us)"]) == (0, 30, 5)
    assert first["exposed_communication_time(us)"] == 50
    assert first["hidden_communication_time(us)"] == 10
    assert first["waiting_time(us)"] == 40  # from 30, when its operation ended, to 70, when rank 1 entered
    assert (first["data_time(us)"], first["other_time(us)"], first["non_compute_time(us)"]) == (10, 5, 65)
    assert (second["waiting_time(us)"], second["idle_time(us)"], second["compute_time_pctg"]) == (0, 20, 70.0)


def test_who_waits_for_a_rank_that_never_came_waits_all_the_time(made):
    ranks = (0, 1, 2)
    traces = [made(0).collective(10, None, 0, ranks), made(1).collective(30, None, 0, ranks)]
    rows = [trace.ready(100, unfinished=True) for trace in traces]
    waited = [row["waiting_time(us)"] for row in breakdown.temporal_breakdown(rows, meetings(rows))]
    assert waited == [90, 70]


def test_of_a_trace_that_was_cut_what_lies_after_the_cut_counts(made):
    trace = made(0).span("load", 0, 100).ready()
    trace.cut(80_000)
    (row,) = breakdown.temporal_breakdown([trace], [])
    assert (row["kernel_time(us)"], row["other_time(us)"]) == (20, 20)


def test_overlap_is_the_share_of_communication_that_is_hidden(made):
    rows = breakdown.comm_comp_overlap(_two_ranks(made))
    assert rows == [{"rank": 0, "comp_comm_overlap_pctg": 16.67}, {"rank": 1, "comp_comm_overlap_pctg": 0.0}]


def test_steps_have_rows_of_their_own(made):
    traces = _two_ranks(made)
    rows = breakdown.steps(traces, meetings(traces))
    assert [(row["step"], row["rank"], sum(row[part] for part in PARTS)) for row in rows] == [(3, 0, 100), (3, 1, 100)]


def test_the_rank_that_came_last_is_the_straggler(made):
    traces = _two_ranks(made)
    worst, other = breakdown.potential_stragglers(traces, meetings(traces))
    assert (worst["rank"], worst["times_last"], worst["others_waited(us)"], worst["straggler"]) == (1, 1, 50, True)
    assert (other["rank"], other["waited(us)"], other["straggler"]) == (0, 50, False)


def test_operators_are_told_by_their_own_time(made):
    trace = (
        made(0).span("aten::linear", 0, 50, category="cpu_op").span("aten::addmm", 10, 45, category="cpu_op").ready()
    )
    rows = breakdown.kernel_breakdown([trace], 5)
    assert [(row["name"], row["sum (us)"], row["kernel_type"]) for row in rows] == [
        ("aten::addmm", 35, "COMPUTATION"),
        ("aten::linear", 15, "COMPUTATION"),
    ]
    assert len(breakdown.kernel_breakdown([trace], 1)) == 1


def test_of_a_device_its_kernels_count_alone(made):
    trace = made(0).span("aten::mm", 0, 90, category="cpu_op").span("gemm", 10, 40, category="kernel", thread=7)
    trace.span("ncclDevKernel_AllReduce", 30, 60, category="kernel", thread=8)
    (row,) = breakdown.temporal_breakdown([trace.ready()], [])
    assert (row["compute_time(us)"], row["exposed_communication_time(us)"]) == (30, 20)


def test_the_critical_path_goes_by_way_of_who_was_waited_for(made):
    traces = _two_ranks(made)
    path = critical_path.critical_path(traces, meetings(traces))
    assert [(each.rank, each.name, each.start_ns, each.end_ns) for each in path[:2]] == [
        (1, "aten::mm", 0, 70_000),
        (0, "cpu:all_reduce", 70_000, 80_000),
    ]
    assert sum(each.end_ns - each.start_ns for each in path) == 100_000
    assert critical_path.summary(path, 1) == [{"rank": 1, "name": "aten::mm", "time(us)": 70.0, "pctg": 70.0}]


def test_nothing_recorded_has_no_path():
    assert critical_path.critical_path([], []) == []


@pytest.mark.multiproc
def test_times_of_real_ranks_add_up(job):
    traces = job.traces().ranks
    clocks.align(traces)
    together = meetings(traces)
    for row in breakdown.temporal_breakdown(traces, together):
        whole = row["kernel_time(us)"]
        assert abs(sum(row[part] for part in PARTS) - whole) <= 0.02 * whole
        assert row["waiting_time(us)"] <= row["exposed_communication_time(us)"]
    path = critical_path.critical_path(traces, together)
    first, last = min(t.events[0].start_ns for t in traces), max(e.end_ns for t in traces for e in t.events)
    assert sum(each.end_ns - each.start_ns for each in path) == last - first
    assert all(a.end_ns == b.start_ns for a, b in pairwise(path))


def test_sets_of_times():
    one = intervals.union([(5, 9), (0, 3), (2, 4), (7, 7)])
    assert one == [(0, 4), (5, 9)]
    assert intervals.total(one) == 8
    assert intervals.common(one, [(3, 6), (8, 20)]) == [(3, 4), (5, 6), (8, 9)]
    assert intervals.without(one, [(1, 2), (3, 6)]) == [(0, 1), (2, 3), (6, 9)]
    assert intervals.without([(0, 10)], []) == [(0, 10)]
    assert intervals.clip(one, 3, 6) == [(3, 4), (5, 6)]
    for start, end in ((3, 6), (-1, 100), (4, 5), (0, 4), (9, 10), (6, 6)):
        assert intervals.within(one, start, end) == intervals.clip(one, start, end)


def test_the_innermost_span_counts(made):
    trace = made(0).span("outer", 0, 100).span("inner", 20, 50).span("ProfilerStep#1", 0, 200).span("later", 150, 160)
    line = Timeline(trace.ready().events)
    named = [(start, end, event.name if event else None) for start, end, event in line.between(10_000, 170_000)]
    assert named == [
        (10_000, 20_000, "outer"),
        (20_000, 50_000, "inner"),
        (50_000, 100_000, "outer"),
        (100_000, 150_000, None),
        (150_000, 160_000, "later"),
        (160_000, 170_000, None),
    ]
    most, own_ns = line.longest(0, 100_000)
    assert most is not None
    assert (most.name, own_ns) == ("outer", 70_000)
    before = line.last_ended(140_000)
    assert before is not None
    assert before.name == "outer"


def test_the_main_thread_is_the_one_that_steps_or_the_process_s_first(made):
    trace = made(0).span("waiting", 0, 900, thread=7).span("work", 0, 10, thread=1).ready()
    assert trace.main_thread == 7
    first = made(0).span("waiting", 0, 900, thread=7).span("work", 0, 10, thread=100).ready()
    assert first.main_thread == first.process == 100
    assert made(0).span("a", 0, 900, thread=7).span("ProfilerStep#1", 0, 10, thread=8).ready().main_thread == 8
