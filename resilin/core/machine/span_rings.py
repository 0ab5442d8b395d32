"""Records into rings of spans and reads them: with native code where it is there, else as `_base.trace_ring` does."""

from __future__ import annotations

import json
from typing import Any

from resilin._base import trace, trace_ring
from resilin._base.trace_ring import KINDS, Recording, Span, TensorInput
from resilin.core.kernels.loader import native


def make_recorder(
    buffer: Any,
    *,
    record_shapes: bool = False,
    with_stack: bool = False,
    profile_memory: bool = False,
    with_modules: bool = False,
) -> trace.SpanRecorder:
    """Return who writes spans into `buffer`, laid out anew. Without native code it is slower and says less."""
    ring = trace_ring.Ring(buffer)
    if native is None:
        return ring
    recorder: trace.SpanRecorder = native.Recorder(
        buffer,
        record_shapes=record_shapes,
        with_stack=with_stack,
        profile_memory=profile_memory,
        with_modules=with_modules,
    )
    return recorder


def read(buffer: Any) -> Recording:
    """Read all spans from a buffer; see `trace_ring.read`."""
    return trace_ring.read(buffer, spans_in)


def spans_in(buffer: Any, first: int, thread: int = 0) -> tuple[list[Span], int]:
    """Return the spans from number `first` on, and how many arguments were lost; see `trace_ring.spans_in`."""
    if native is None:
        return trace_ring.spans_in(memoryview(buffer).cast("B"), first, thread)
    found: tuple[list[Span], int] = native.spans_in(buffer, first, thread, Span, KINDS, TensorInput, json.loads)
    return found
