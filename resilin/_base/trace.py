"""The one hook for where time goes: code marks spans and instants, a recorder keeps them. Free when nobody records.

What runs often asks `trace.recorder is not None` itself before it makes a name or arguments:

    recorder = trace.recorder
    token = -1 if recorder is None else recorder.begin("gloo:all_reduce", SpanKind.COLLECTIVE, args={...})
    ...
    if recorder is not None:
        recorder.end(token)

Everything else says `with trace.span("checkpoint.save", SpanKind.CHECKPOINT):`.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Mapping
from enum import IntEnum
from typing import Any, Protocol


class SpanKind(IntEnum):
    """What a span is a span of."""

    OP = 1  # an operation on tensors
    BACKWARD = 2  # a node of the graph in backward
    USER = 3  # `record_function`
    PYTHON = 4  # a function of Python, with `with_stack`
    MEMORY = 5  # an instant: memory taken or given back
    COLLECTIVE = 6  # a collective or a message between ranks
    RPC = 7
    CHECKPOINT = 8
    ELASTIC = 9  # a phase of recovery or of a change of the world
    DATA = 10  # loading of data
    OPTIMIZER = 11
    STEP = 12  # a step of the profiler's schedule
    MODULE = 13  # a module's call, with `with_modules`


class SpanRecorder(Protocol):
    """Who keeps spans. Every method may be called from any thread, and none raises for what it is given."""

    def begin(self, name: str, kind: int, link: int = -1, args: Mapping[str, Any] | None = None) -> int:
        """Open a span of this thread and return its token. `link`: the number that an arrow goes by, -1 for none."""
        ...

    def end(self, token: int, args: Mapping[str, Any] | None = None) -> None:
        """Close the span `token`; with `args`, in place of those that it was opened with."""
        ...

    def complete(
        self, name: str, kind: int, start_ns: int, end_ns: int, link: int = -1, args: Mapping[str, Any] | None = None
    ) -> None:
        """Record a span that is over: from `start_ns` to `end_ns` of the monotonic clock."""
        ...

    def instant(
        self, name: str, kind: int, link: int = -1, value: int = 0, args: Mapping[str, Any] | None = None
    ) -> None:
        """Record a moment. `value`: of memory, the bytes."""
        ...


class Layer(IntEnum):
    """For whom spans are recorded. Of several, the highest one's recorder has them all; the others go on after it."""

    CALLERS = 0  # workers that call this one, and are profiled
    STANDING = 1  # `resilin trace record`: whenever no profile does
    PROFILE = 2


recorder: SpanRecorder | None = None
"""Who records now. Read it anew each time: it changes while threads run."""

_layers: list[SpanRecorder | None] = [None] * len(Layer)  # guarded by _lock for writing, as `recorder`
_told: list[Callable[[SpanRecorder | None], None]] = []
_lock = threading.Lock()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_lock.acquire, after_in_parent=_lock.release, after_in_child=_lock.release)


def record_with(new: SpanRecorder | None, layer: Layer = Layer.PROFILE) -> SpanRecorder | None:
    """Let `new` record for `layer` from now on, None nobody; return who did before."""
    global recorder
    with _lock:
        before, _layers[layer] = _layers[layer], new
        now = next((one for one in reversed(_layers) if one is not None), None)
        if now is not recorder:
            recorder = now
            for tell in _told:
                tell(now)
    return before


def recorder_of(layer: Layer) -> SpanRecorder | None:
    """Return who records for `layer`, or would if no higher one did."""
    return _layers[layer]


def on_change(tell: Callable[[SpanRecorder | None], None]) -> None:
    """Call `tell` whenever somebody else records, with who does: for those that cannot read `recorder`."""
    _told.append(tell)


class span:
    """Mark the enclosed block as a span called `name`."""

    __slots__ = ("_args", "_kind", "_link", "_name", "_recorder", "_token")

    def __init__(self, name: str, kind: int = SpanKind.USER, link: int = -1, **args: Any) -> None:
        self._name, self._kind, self._link, self._args = name, kind, link, args
        self._recorder: SpanRecorder | None = None
        self._token = -1

    def __enter__(self) -> None:
        self._recorder = recorder
        if self._recorder is not None:
            self._token = self._recorder.begin(self._name, self._kind, self._link, self._args or None)

    def __exit__(self, *exc: object) -> None:
        if self._recorder is not None:
            self._recorder.end(self._token)
            self._recorder = None
