"""What one cycle of a profile recorded: spans that nest, memory, and the events that are made of them."""

from __future__ import annotations

import contextlib
import gc
import logging
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from itertools import accumulate

from resilin._base import log
from resilin._base.clock import Deadline
from resilin._base.trace import SpanKind
from resilin._base.trace_ring import Recording, Span
from resilin.profiler import flops
from resilin.profiler.function_events import Around, FunctionEvent
from resilin.profiler.inputs import Inputs
from resilin.profiler.nesting import Placed, place

_LOG = logging.getLogger(__name__)
MEMORY = "[memory]"
STEP = "ProfilerStep#"
BACKWARD_SCOPE, USER_SCOPE = 1, 7
_CATEGORIES = {
    SpanKind.OP: "cpu_op",
    SpanKind.BACKWARD: "cpu_op",
    SpanKind.PYTHON: "python_function",
    SpanKind.MODULE: "python_function",
}
_CHECK_EVERY = 1024  # events between two looks at the clock


def category(kind: SpanKind) -> str:
    """Return what trace files call this kind of event."""
    return _CATEGORIES.get(kind, "user_annotation")


@contextlib.contextmanager
def collection_paused() -> Iterator[None]:
    """Let Python not look for cycles meanwhile, which it does often while many objects are made, for nothing."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


@dataclass(frozen=True)
class RecordingOptions:
    """What a profile was asked to record."""

    record_shapes: bool = False
    profile_memory: bool = False
    with_stack: bool = False
    with_flops: bool = False
    with_modules: bool = False


@dataclass
class Recorded:
    """A recording from `start_ns` to `stop_ns` of the monotonic clock."""

    recording: Recording
    start_ns: int
    stop_ns: int
    wanted: RecordingOptions = field(default_factory=RecordingOptions)

    @cached_property
    def placed(self) -> list[Placed]:
        """The spans, each with its place; by start."""
        return place(self.recording.spans, self.start_ns, self.stop_ns)

    @cached_property
    def memory(self) -> list[Span]:
        """The moments at which memory was taken or given back: as much given back as was taken, where that is known."""
        spans = self.recording.spans
        moments = [span for span in spans if span.kind is SpanKind.MEMORY and span.start_ns <= self.stop_ns]
        taken: dict[int, int] = {}
        for moment in moments:
            if moment.value > 0:
                taken[moment.link] = moment.value
            else:  # an allocator is not always told how much
                moment.value = -taken.pop(moment.link, -moment.value)
        return moments

    @cached_property
    def forward_of(self) -> Mapping[int, Placed]:
        """The operation that made the node of backward with this link: the last one that names it."""
        return {one.span.link: one for one in self.placed if one.span.kind is SpanKind.OP and one.span.link >= 0}

    @cached_property
    def node_id(self) -> int:
        """The id of this worker, as its calls of others say; -1 where it made none."""
        for span in self.recording.spans:
            if span.kind is SpanKind.RPC and span.args and "node_id" in span.args and "is_remote" not in span.args:
                return int(span.args["node_id"])
        return -1

    def wall_ns(self, monotonic_ns: int) -> int:
        """Return the wall clock's time, nanoseconds since 1970, at a time of the monotonic clock."""
        return self.recording.wall_ns + monotonic_ns - self.recording.monotonic_ns

    def events(self, timeout_s: float | None = None) -> list[FunctionEvent]:
        """Return all events by start. After `timeout_s` of work a warning is logged, and the rest is left out."""
        with collection_paused():
            return self._events(Deadline(timeout_s))

    def _events(self, deadline: Deadline) -> list[FunctionEvent]:
        found: list[FunctionEvent] = []
        usage = _Usage(self.memory)
        stacks: dict[int, Around] = {}
        for number, one in enumerate(self.placed):
            if number % _CHECK_EVERY == 0 and deadline.passed():
                log.event(
                    _LOG, logging.WARNING, "the rest of the events is left out", after_s=deadline.seconds, events=number
                )
                break
            found.append(self._event(one, usage, stacks))
        else:
            outside = list(self._memory_outside(len(found)))
            if outside:
                found += outside
                found.sort(key=lambda event: (event.time_range.start, -event.time_range.end))
        return found

    def _event(self, one: Placed, usage: _Usage, stacks: dict[int, Around]) -> FunctionEvent:
        span, kind = one.span, one.span.kind
        args = span.args or {}
        recorded = args.get("inputs") or []
        inputs = Inputs(recorded)
        is_user = category(kind) == "user_annotation"
        is_python = category(kind) == "python_function"
        caller = one.function if is_python else None
        forward = self.forward_of.get(span.link) if kind is SpanKind.BACKWARD else None
        count = flops.estimate(span.name, recorded) if self.wanted.with_flops and recorded else 0
        return FunctionEvent(
            id=span.number,
            name="ProfilerStep*" if span.name.startswith(STEP) else span.name,
            trace_name=span.name,
            overload_name="",
            thread=span.thread,
            start_us=(one.start_ns - self.start_ns) / 1000,
            end_us=(one.end_ns - self.start_ns) / 1000,
            fwd_thread=forward.span.thread if forward else span.thread,
            input_shapes=inputs.shapes,
            structured_input_shapes=inputs.structured_shapes,
            structured_input_strides=inputs.strides,
            input_dtypes=inputs.dtypes,
            concrete_inputs=inputs.values,
            stack=_stack(one, stacks) or [],
            scope=BACKWARD_SCOPE if kind is SpanKind.BACKWARD else USER_SCOPE if is_user else 0,
            cpu_memory_usage=usage.between(span.thread, one.start_ns, one.end_ns) if not one.lane else 0,
            is_async=one.lane > 0,
            is_remote=bool(args.get("is_remote")),
            node_id=args.get("node_id", self.node_id),
            sequence_nr=span.link if kind in (SpanKind.OP, SpanKind.BACKWARD) else -1,
            flops=count,
            is_user_annotation=is_user,
            is_python_function=is_python,
            python_id=span.number + 1 if is_python else -1,
            python_parent_id=caller.span.number + 1 if caller else -1,
            activity_type=category(kind),
            external_id=span.number + 1,
            extra_meta=args,
        )

    def _memory_outside(self, next_id: int) -> Iterator[FunctionEvent]:
        """What was taken or given back while no span was open on the thread."""
        ends: dict[int, tuple[list[int], list[int]]] = {}
        for one in self.placed:
            if one.lane == 0 and one.parent is None:
                starts, stops = ends.setdefault(one.span.thread, ([], []))
                starts.append(one.start_ns)
                stops.append(one.end_ns)
        for span in self.memory:
            starts, stops = ends.get(span.thread, ([], []))
            before = bisect_right(starts, span.start_ns)
            if before and stops[before - 1] >= span.start_ns:
                continue
            at = (span.start_ns - self.start_ns) / 1000
            fields = {"input_shapes": [], "stack": [], "overload_name": "", "cpu_memory_usage": span.value}
            fields["node_id"] = self.node_id
            yield FunctionEvent(next_id, MEMORY, span.thread, at, at, fwd_thread=span.thread, **fields)  # type: ignore[arg-type]
            next_id += 1


def _stack(one: Placed, known: dict[int, Around]) -> Around | None:
    """The Python functions and modules around a span. What lies in one shares them."""
    missing: list[Placed] = []
    around = one.function
    while around is not None and id(around) not in known:
        missing.append(around)
        around = around.function
    found = None if around is None else known[id(around)]
    for each in reversed(missing):
        found = known[id(each)] = Around(each.span.name, found)
    return found


class _Usage:
    """Bytes taken on each thread, as sums up to each moment."""

    def __init__(self, memory: list[Span]) -> None:
        self._threads: dict[int, tuple[list[int], list[int]]] = {}
        threads: dict[int, list[Span]] = {}
        for span in memory:
            threads.setdefault(span.thread, []).append(span)
        for thread, spans in threads.items():
            times = [span.start_ns for span in spans]
            self._threads[thread] = times, [0, *accumulate(span.value for span in spans)]

    def between(self, thread: int, start_ns: int, end_ns: int) -> int:
        """Bytes that the thread took, less what it gave back, from `start_ns` to `end_ns`, both included."""
        times, sums = self._threads.get(thread, ([], [0]))
        return sums[bisect_right(times, end_ns)] - sums[bisect_left(times, start_ns)]
