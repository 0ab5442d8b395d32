"""Bring what a call did at its callee into the profile of its caller.

caller   a profile records:  the call is PROFILED; its last part says whether inputs are wanted, too
callee   whoever records there, else a ring of its own while such calls run: what the threads of the call did is read
         from it; what a further call did, made within this one, has come with that one's reply
reply    PROFILED: its last part says when the call came and left, by the callee's clock, and lists the events
caller   writes them into its own profile, called as in PyTorch's: "rpc_sync#f(a -> b)#remote_op: aten::add"
"""

from __future__ import annotations

import contextlib
import logging
import mmap
import os
import pickle
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, NamedTuple

from resilin._base import log, trace, trace_ring
from resilin._base.trace import Layer, SpanKind, SpanRecorder
from resilin.core.machine import span_rings

REMOTE_OP = "#remote_op: "
MOST_EVENTS = 4096
"""That come back with one reply; the first ones."""
MOST_BYTES = 512 << 10
"""That they take there."""
_RING_BYTES = 4 << 20  # some 36,000 operations: what a callee's threads do while it is profiled
_UNSENT = frozenset({SpanKind.PYTHON, SpanKind.MEMORY, SpanKind.STEP, SpanKind.MODULE})
_LOG = log.logger("rpc.profile")


class RemoteEvent(NamedTuple):
    """Something that a call did. Times are nanoseconds of the monotonic clock of whoever has it."""

    name: str
    kind: int
    start_ns: int
    end_ns: int
    thread: int
    node: int
    """The id of the worker that did it."""
    inputs: list[Any] | None


class _Here(threading.local):
    asked: Asked | None = None
    collected: Collected | None = None


here = _Here()
"""Of this thread: the call that it makes, if its callee is to tell what that does; the call that it runs, if its caller
is to be told."""


# --- the caller's side ---


class Asked:
    """A call whose callee tells what it does. `into`: the profile that gets it; `within`: the call that made it."""

    def __init__(self, name: str, into: SpanRecorder | None, within: Collected | None) -> None:
        self._name, self._into, self._within = name, into, within
        self._begun_ns = time.monotonic_ns()
        self._left_out = 0

    def option(self) -> bytes:
        """Return the last part of the call."""
        shapes = getattr(self._into, "record_shapes", False) or (self._within is not None and self._within.shapes)
        return b"shapes" if shapes else b"names"

    def take(self, part: Any, same_clock: bool) -> None:
        """Take the last part of the reply. Never raises.

        same_clock: the callee's is this worker's. Else what it did is set amid the time between call and reply.
        """
        now_ns = time.monotonic_ns()
        try:
            self._take(part, same_clock, now_ns)
        except Exception as error:  # noqa: BLE001 - what a call returns is taken whatever becomes of its profile
            log.event(_LOG, logging.WARNING, "a profiled call's events could not be taken", exc_info=error)

    def _take(self, part: Any, same_clock: bool, now_ns: int) -> None:
        came_ns, left_ns, left_out, events = pickle.loads(part)
        shift_ns = 0 if same_clock else ((self._begun_ns - came_ns) + (now_ns - left_ns)) // 2
        self._left_out += left_out
        told = [
            RemoteEvent(f"{self._name}{REMOTE_OP}{name}", kind, start + shift_ns, end + shift_ns, *rest)
            for name, kind, start, end, *rest in events
        ]
        if self._within is not None:
            self._within.add(told, left_out)
        if self._into is not None and self._into is trace.recorder:
            for event in told:
                args: dict[str, Any] = {"is_remote": True, "node_id": event.node, "thread": event.thread}
                if event.inputs is not None:
                    args["inputs"] = event.inputs
                self._into.complete(event.name, event.kind, event.start_ns, event.end_ns, args=args)

    def args(self, of_call: Mapping[str, Any]) -> dict[str, Any] | None:
        """Return the arguments of the call's span in place of `of_call`, if there is something to add."""
        return {**of_call, "Remote events left out": self._left_out} if self._left_out else None

    def callbacks(self) -> contextlib.AbstractContextManager[None]:
        """Return a block for what follows the reply: it is part of the call that this one was made in."""
        return contextlib.nullcontext() if self._within is None else self._within.here()


def ask(name: str, recorder: SpanRecorder, caller: int, callee: int) -> Asked | None:
    """Return what a call, whose span `name` `recorder` has, asks its callee for; None: nothing."""
    if caller == callee:  # then it is in the profile as it is
        return None
    profile = trace.recorder_of(Layer.PROFILE)
    into = recorder if recorder is profile and hasattr(recorder, "buffer") else None
    return None if into is None and here.collected is None else Asked(name, into, here.collected)


def part_of(call: Collected | None) -> contextlib.AbstractContextManager[None]:
    """Return a block that is part of a call that runs here, None: of none, whichever thread it is in."""
    return contextlib.nullcontext() if call is None or here.collected is call else call.here()


@contextmanager
def asking(asked: Asked | None) -> Iterator[None]:
    """Let the call that is made within the block ask for it."""
    before, here.asked = here.asked, asked
    try:
        yield
    finally:
        here.asked = before


# --- the callee's side ---


@dataclass(eq=False)
class _Stretch:
    """What one thread did for a call: its spans in a ring, from `first` on, before `last` (None: it goes on)."""

    buffer: Any
    thread: int
    first: int
    last: int | None = None


class Collected:
    """What a call does here, from now until `close`, for a caller who is profiled."""

    def __init__(self, node: int, option: bytes) -> None:
        self.shapes = option == b"shapes"
        self._node = node
        self._came_ns = time.monotonic_ns()
        self._stretches: list[_Stretch] = []
        self._others: list[RemoteEvent] = []
        self._left_out = 0
        _serving.enter(self)

    @contextmanager
    def here(self) -> Iterator[None]:
        """Let what this thread does in the block be part of the call."""
        before, here.collected = here.collected, self
        self._begin(threading.get_native_id())
        try:
            yield
        finally:
            here.collected = before
            self._end(threading.get_native_id())

    def _begin(self, thread: int) -> None:
        buffer = getattr(trace.recorder, "buffer", None)
        if buffer is not None:  # else somebody records who keeps nothing, as NVIDIA's tools
            self._stretches.append(_Stretch(buffer, thread, trace_ring.written(buffer)))

    def _end(self, thread: int | None = None) -> list[int]:
        ended = [one for one in self._stretches if one.last is None and thread in (None, one.thread)]
        for one in ended:
            one.last = trace_ring.written(one.buffer)
        return [one.thread for one in ended]

    def moved(self) -> None:
        """Go on in the ring of who records now."""
        for thread in self._end():
            self._begin(thread)

    def add(self, events: Sequence[RemoteEvent], left_out: int) -> None:
        """Add what a call did that this one made."""
        self._others += events[: max(0, MOST_EVENTS - len(self._others))]
        self._left_out += left_out + max(0, len(events) - MOST_EVENTS)

    def encoded(self) -> bytes:
        """Return the last part of the reply."""
        now_ns = time.monotonic_ns()
        events, left_out = list(self._others), self._left_out
        try:
            for stretch in list(self._stretches):
                told, gone = self._read(stretch, now_ns)
                events += told
                left_out += gone
        except Exception as error:  # noqa: BLE001 - a call is answered whatever becomes of its profile
            log.event(_LOG, logging.WARNING, "a profiled call's events could not be read", exc_info=error)
        events.sort(key=lambda event: (event.start_ns, -event.end_ns))
        kept, data = events[:MOST_EVENTS], b""
        while len(data := self._packed(now_ns, kept, left_out + len(events) - len(kept))) > MOST_BYTES and kept:
            kept = kept[: len(kept) // 2]
        return data

    def _packed(self, now_ns: int, events: list[RemoteEvent], left_out: int) -> bytes:
        return pickle.dumps((self._came_ns, now_ns, left_out, [tuple(event) for event in events]), 5)

    def _read(self, stretch: _Stretch, now_ns: int) -> tuple[list[RemoteEvent], int]:
        """The events of a stretch, and about how many had gone from the ring before they were read."""
        oldest = trace_ring.oldest(stretch.buffer)
        spans, _ = span_rings.spans_in(stretch.buffer, stretch.first, stretch.thread)
        found = []
        for span in spans:
            args = span.args or {}
            before_end = stretch.last is None or span.number < stretch.last
            if before_end and not span.instant and span.kind not in _UNSENT and "is_remote" not in args:
                inputs = _plain(args.get("inputs")) if self.shapes else None
                end_ns = span.end_ns or now_ns
                found.append(
                    RemoteEvent(span.name, int(span.kind), span.start_ns, end_ns, span.thread, self._node, inputs)
                )
        return found, max(0, oldest - stretch.first)

    def close(self) -> None:
        """Collect no more."""
        self._end()
        _serving.leave(self)


def _plain(inputs: Any) -> Any:
    """Inputs of an operation as JSON has them: a tensor is an object, what is not known an empty one."""
    if isinstance(inputs, trace_ring.TensorInput):
        return {"shape": inputs.shape, "strides": inputs.strides, "dtype": inputs.dtype}
    if isinstance(inputs, list):
        return [_plain(one) for one in inputs]
    return {} if inputs is ... else inputs


class _Serving:
    """The calls that are collected, and a ring for them where nobody else records."""

    def __init__(self) -> None:
        self.calls: set[Collected] = set()
        self._lock = threading.Lock()  # not taken by who is told of another recorder: it holds trace's
        self._recorder: SpanRecorder | None = None

    def enter(self, call: Collected) -> None:
        """Record from now on."""
        with self._lock:
            if not self.calls:
                if self._recorder is None or (call.shapes and not getattr(self._recorder, "record_shapes", False)):
                    buffer = mmap.mmap(-1, _RING_BYTES, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
                    self._recorder = span_rings.make_recorder(buffer, record_shapes=call.shapes)
                trace.record_with(self._recorder, Layer.CALLERS)
            self.calls.add(call)

    def leave(self, call: Collected) -> None:
        """Record no more, if it was the last one. Idempotent."""
        with self._lock:
            self.calls.discard(call)
            if not self.calls:
                trace.record_with(None, Layer.CALLERS)

    def moved(self, recorder: SpanRecorder | None) -> None:
        """Take that somebody else records."""
        for call in tuple(self.calls):
            call.moved()


_serving = _Serving()
trace.on_change(lambda recorder: _serving.moved(recorder))


def _again_in_child() -> None:
    """A forked child runs none of its parent's calls."""
    global _serving
    _serving = _Serving()
    trace.record_with(None, Layer.CALLERS)
    here.asked = here.collected = None


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_again_in_child)
