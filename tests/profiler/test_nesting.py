"""Spans nest by time and thread; what overlaps lies beside its thread."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from resilin._base.trace import SpanKind
from resilin._base.trace_ring import Span
from resilin.profiler.nesting import place


def placed(made, stop=1000):
    return {one.span.name: one for one in made.recorded(stop).placed}


def tree(made):
    return {name: (one.lane, one.parent.span.name if one.parent else None) for name, one in placed(made).items()}


def test_the_innermost_span_around_is_the_parent(made):
    made.span("a", 0, 100).span("b", 10, 50).span("c", 20, 30).span("d", 60, 100).span("e", 100, 110)
    assert tree(made) == {"a": (0, None), "b": (0, "a"), "c": (0, "b"), "d": (0, "a"), "e": (0, None)}


def test_threads_do_not_nest_in_one_another(made):
    assert tree(made.span("a", 0, 100).span("b", 10, 20, thread=2)) == {"a": (0, None), "b": (0, None)}


def test_spans_of_equal_times_nest_in_the_order_in_which_they_began(made):
    assert tree(made.span("a", 5, 9).span("b", 5, 9).span("c", 9, 9)) == {"a": (0, None), "b": (0, "a"), "c": (0, "b")}


def test_a_collective_makes_room_for_an_operation_that_overlaps_it(made):
    made.span("call", 0, 100, SpanKind.COLLECTIVE).span("early", 10, 20).span("op", 50, 150).span("within", 60, 70)
    assert tree(made) == {"call": (1, None), "early": (0, None), "op": (0, None), "within": (0, "op")}


def test_a_collective_that_comes_later_makes_room_too(made):
    made.span("op", 0, 100).span("call", 50, 150, SpanKind.COLLECTIVE).span("next", 110, 120)
    assert tree(made) == {"op": (0, None), "call": (1, None), "next": (0, None)}


def test_collectives_that_overlap_one_another_have_a_lane_each(made):
    made.span("op", 5, 100)
    for number in range(3):
        made.span(f"call{number}", 10 + number, 200 + number, SpanKind.COLLECTIVE)
    assert [lane for lane, _ in tree(made).values()] == [0, 1, 2, 3]


def test_what_is_open_ends_with_the_recording_and_what_began_before_begins_with_it(made):
    found = placed(made.span("open", 10, None).span("longer", 20, 2000, thread=2).span("after", 1001, 1002))
    assert [(one.start_ns, one.end_ns, one.open) for one in found.values()] == [
        (10_000, 1_000_000, True),
        (20_000, 1_000_000, True),
    ]


TIMES = st.integers(0, 40)
KINDS = st.sampled_from([SpanKind.OP, SpanKind.COLLECTIVE, SpanKind.USER])


@given(st.lists(st.tuples(TIMES, TIMES, KINDS), max_size=20))
def test_every_span_has_a_place_and_lanes_nest(times):
    spans = [
        Span(number, "", kind, min(a, b), max(a, b), 1, -1, 0, None, instant=False)
        for number, (a, b, kind) in enumerate(times)
    ]
    found = place(spans, 0, 100)
    assert sorted(one.span.number for one in found) == list(range(len(spans)))
    for one in found:
        for other in found:
            if one is not other and one.lane == other.lane:
                apart = one.end_ns <= other.start_ns or other.end_ns <= one.start_ns
                inside = one.start_ns <= other.start_ns and other.end_ns <= one.end_ns
                outside = other.start_ns <= one.start_ns and one.end_ns <= other.end_ns
                assert apart or inside or outside
        if one.parent is not None:
            assert one.parent.lane == one.lane
            assert one.parent.start_ns <= one.start_ns <= one.end_ns <= one.parent.end_ns
