"""Events say what was recorded: names, shapes, stacks, memory, operations of floating point."""

from __future__ import annotations

import logging
import time

import pytest

from resilin._base.trace import SpanKind
from resilin._base.trace_ring import Span, TensorInput
from resilin.profiler.event_list import EventList
from resilin.profiler.source_names import shorten


def events(recorded, **options):
    found = EventList(recorded.events(**options))
    found._build_tree()
    return {event.trace_name or event.name: event for event in found}


def test_a_step_is_averaged_with_others_and_keeps_its_number(made):
    step = events(made.span("ProfilerStep#12", 0, 1, SpanKind.STEP).recorded())["ProfilerStep#12"]
    assert (step.name, step.key, step.is_user_annotation, step.scope) == ("ProfilerStep*", "ProfilerStep*", True, 7)


def test_times_count_from_the_beginning_in_microseconds(made):
    event = events(made.span("aten::mm", 1.5, 4, thread=9, link=2).recorded())["aten::mm"]
    assert (event.time_range.start, event.time_range.end, event.thread, event.sequence_nr) == (1.5, 4, 9, 2)
    assert (event.scope, event.is_user_annotation, event.activity_type) == (0, False, "cpu_op")


def test_a_node_of_backward_knows_its_forward_thread_and_stack(made):
    made.span("loop.py(3): train", 0, 50, SpanKind.PYTHON).span("net.py(9): forward", 5, 40, SpanKind.PYTHON)
    made.span("aten::mm", 10, 20, link=4)
    made.span("MmBackward0", 100, 200, SpanKind.BACKWARD, thread=2, link=4).span("aten::t", 110, 120, thread=2)
    found = events(made.recorded(with_stack=True))
    assert found["aten::mm"].stack == ["net.py(9): forward", "loop.py(3): train"]
    assert (found["MmBackward0"].fwd_thread, found["MmBackward0"].scope) == (1, 1)
    assert found["MmBackward0"].stack == found["aten::t"].stack == found["aten::mm"].stack
    assert found["net.py(9): forward"].is_python_function
    assert found["net.py(9): forward"].stack == ["loop.py(3): train"]


def test_modules_stand_in_stacks(made):
    made.span("nn.Module: Net_0", 0, 50, SpanKind.MODULE).span("aten::mm", 10, 20)
    assert events(made.recorded())["aten::mm"].stack == ["nn.Module: Net_0"]


def test_inputs_are_shapes_strides_and_numbers(made):
    x = TensorInput((2, 3), (3, 1), "V2")
    event = events(made.span("aten::cat", 0, 1, inputs=[[x, x], x, 1, ..., [..., 2]]).recorded())["aten::cat"]
    assert event.input_shapes == [[], [2, 3], [], [], []]
    assert event.structured_input_shapes == [[[2, 3], [2, 3]], [2, 3], [], [], []]
    assert event.structured_input_strides == [[[3, 1], [3, 1]], [3, 1], [], [], []]
    assert event.input_dtypes == ["TensorList", "c10::BFloat16", "Scalar", "", "ScalarList"]
    assert event.concrete_inputs == [None, None, 1, None, [None, 2]]


def test_memory_counts_for_the_spans_around_it_on_its_thread(made):
    made.span("outer", 0, 100).span("inner", 10, 20).span("elsewhere", 0, 100, thread=2)
    made.memory(15, 64, address=8).memory(50, -64, address=8).memory(60, 100, address=9)
    found = events(made.recorded(profile_memory=True))
    usage = {name: (event.cpu_memory_usage, event.self_cpu_memory_usage) for name, event in found.items()}
    assert usage == {"outer": (100, 36), "inner": (64, 64), "elsewhere": (0, 0)}


def test_memory_outside_of_all_spans_is_an_event_of_its_own(made):
    made.span("aten::mm", 10, 20).memory(5, 64, address=8).memory(15, 32, address=9).memory(25, -64, address=8)
    made.memory(15, 7, address=10, thread=2)
    found = [event for event in made.recorded(profile_memory=True).events() if event.name == "[memory]"]
    assert [event.cpu_memory_usage for event in found] == [64, 7, -64]
    assert {event.trace_name for event in found} == {None}


def test_as_much_is_given_back_as_was_taken(made):
    memory = made.memory(1, 64, address=8).memory(2, -1, address=8).memory(3, -9, address=8).recorded().memory
    assert [moment.value for moment in memory] == [64, -64, -9]


def test_what_overlaps_is_asynchronous_and_has_no_part_in_self_times(made):
    made.span("gloo:all_reduce", 0, 100, SpanKind.COLLECTIVE, **{"Seq": 3, "Group size": 2}).span("aten::mm", 50, 150)
    found = events(made.recorded())
    call, product = found["gloo:all_reduce"], found["aten::mm"]
    assert (call.is_async, call.self_cpu_time_total, call.cpu_time_total) == (True, 0, 100)
    assert (product.is_async, product.self_cpu_time_total, product.cpu_parent) == (False, 100, None)
    assert (call.event_metadata.seq, call.event_metadata.group_size, call.event_metadata.dtype) == (3, 2, None)
    assert product.event_metadata is None


def test_a_call_at_another_worker_says_whose_it_is(made):
    event = events(made.span("aten::add", 0, 1, SpanKind.RPC, node_id=2, is_remote=True).recorded())["aten::add"]
    assert (event.node_id, event.is_remote) == (2, True)


def test_after_the_time_allowed_the_rest_is_left_out_and_that_is_said(made, caplog):
    for number in range(10):
        made.span(f"{number}", number, number + 1)
    with caplog.at_level(logging.WARNING):
        assert made.recorded().events(timeout_s=0) == []
    assert "the rest of the events is left out" in caplog.text
    assert len(made.recorded().events(timeout_s=1e6)) == 10


def test_files_are_named_as_an_import_finds_them():
    names = ["/a/b/net.py(1): f", "/a/x.py(2): g", "/c/y.py(3): h", "<string>(1): k"]
    spans = [Span(0, name, SpanKind.PYTHON, 0, 1, 1, -1, 0, None, instant=False) for name in names]
    shorten(spans, ["", "/a", "/a/b", "/a/b/"])
    assert [span.name for span in spans] == ["net.py(1): f", "x.py(2): g", "/c/y.py(3): h", "<string>(1): k"]


def tensor(*shape):
    return TensorInput(shape, (0,) * len(shape), "f4")


@pytest.mark.parametrize(
    ("name", "inputs", "flops"),
    [
        ("aten::mm", [tensor(2, 3), tensor(3, 4)], 48),
        ("aten::bmm", [tensor(5, 2, 3), tensor(5, 3, 4)], 240),
        ("aten::matmul", [tensor(7, 1, 2, 3), tensor(5, 3, 4)], 7 * 240),
        ("aten::matmul", [tensor(3), tensor(3)], 6),
        ("aten::matmul", [tensor(2, 3), tensor(3)], 12),
        ("aten::dot", [tensor(3), tensor(3)], 6),
        ("aten::mv", [tensor(2, 3), tensor(3)], 12),
        ("aten::addmm", [tensor(4), tensor(2, 3), tensor(3, 4)], 48),
        ("aten::baddbmm", [tensor(5, 2, 4), tensor(5, 2, 3), tensor(5, 3, 4)], 240),
        ("aten::linear", [tensor(6, 2, 3), tensor(4, 3), tensor(4)], 6 * 48),
        ("aten::add", [tensor(2, 3), tensor(4, 1, 3)], 24),
        ("aten::add_", [tensor(2, 3), 1], 6),
        ("aten::mul", [tensor(2, 3), 2.5], 6),
        ("aten::convolution", [tensor(1, 2, 5, 5), tensor(4, 2, 3, 3), None, [1, 1], [0, 0], [1, 1], 1], 2 * 9 * 72),
        ("aten::convolution", [tensor(3, 2, 6, 5), tensor(4, 1, 3, 3), None, 2, [1, 1], 1, 2], 2 * 3 * 9 * 36),
        ("aten::convolution", [tensor(2, 9), tensor(4, 2, 3), None, [1], [0], [2], 1], 2 * 5 * 24),
        ("aten::conv2d_input", [tensor(1, 2, 5, 5), tensor(2, 4, 3, 3)], 2 * 25 * 72),
        ("aten::scaled_dot_product_attention", [tensor(2, 7, 3), tensor(2, 5, 3), tensor(2, 5, 4)], 420 + 560),
        ("aten::mm", [tensor(2, 3), tensor(4, 4)], 0),
        ("aten::mm", [], 0),
        ("aten::convolution", [tensor(1, 2, 5, 5), tensor(4, 2, 3, 3)], 0),
        ("aten::einsum", [[tensor(5, 2, 3), tensor(3, 4)], ["aij", "jk"], "aik"], 240),
        ("aten::einsum", [[tensor(2)], ["i"], ""], 0),
        ("aten::exp", [tensor(2, 3)], 0),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_operations_of_floating_point_follow_from_shapes(made, name, inputs, flops):
    event = events(made.span(name, 0, 1, inputs=inputs).recorded(with_flops=True))[name]
    assert event.flops == flops


DEEP = 10_000  # of what takes a time by depth for each event, a minute and more


@pytest.mark.parametrize("kind", [SpanKind.USER, SpanKind.PYTHON, SpanKind.BACKWARD])
def test_what_is_deep_takes_no_longer_than_what_is_wide(made, kind):
    for number in range(DEEP):
        made.span(f"within({number}): f", number, 3 * DEEP - number, kind)
    recorded = made.recorded(3 * DEEP)
    start = time.thread_time()
    found = EventList(recorded.events())
    found._build_tree()
    averages = found.key_averages(group_by_stack_n=2)
    assert time.thread_time() - start < 10
    assert len(averages) == DEEP
    innermost = next(event for event in found if event.name == f"within({DEEP - 1}): f")
    assert len(innermost.stack) == (DEEP - 1 if kind is SpanKind.PYTHON else 0)


def test_calls_that_are_under_way_at_once_take_no_time_by_their_number_each(made):
    for number in range(DEEP // 2):
        made.span(f"call {number}", number, DEEP + number, SpanKind.RPC)
    recorded = made.recorded(3 * DEEP)
    start = time.thread_time()
    lanes = [one.lane for one in recorded.placed]
    assert time.thread_time() - start < 10
    assert sorted(lanes) == list(range(DEEP // 2))
