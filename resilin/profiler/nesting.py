"""Decides which spans of a thread lie within which. Pure.

What a thread marks by entering and leaving nests by itself. A collective or a call to another worker may be recorded
as a whole, on the thread that saw it end, and then overlap what that thread did meanwhile. Viewers and self times need
spans that nest exactly: what overlaps is placed in a lane of its own beside the thread.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from resilin._base.trace import SpanKind
from resilin._base.trace_ring import Span

LOOSE = frozenset(
    {SpanKind.COLLECTIVE, SpanKind.RPC, SpanKind.ELASTIC, SpanKind.CHECKPOINT}
)  # these make room for the others
_FUNCTIONS = frozenset({SpanKind.PYTHON, SpanKind.MODULE})
_EMPTY = np.iinfo(np.int64).max  # in place of an end: whatever comes nests there


@dataclass(slots=True)
class Placed:
    """A span with an end, and its place among the others of its thread."""

    span: Span
    start_ns: int
    end_ns: int
    open: bool
    """Whether it had not ended when the recording did, which is taken for its end."""
    lane: int = 0
    """0: it nests in its thread; else the number of the lane beside it."""
    parent: Placed | None = None
    """The innermost span around it in its lane."""
    function: Placed | None = None
    """The innermost function of Python, or module, around it in its lane."""


def place(spans: Sequence[Span], start_ns: int, stop_ns: int) -> list[Placed]:
    """Return all spans but moments, in their order: by start, the longer one first.

    Spans are cut at `start_ns` and `stop_ns`, when the recording began and ended.
    """
    placed = []
    for span in spans:
        if not span.instant and span.start_ns <= stop_ns:
            start = max(span.start_ns, start_ns)
            ended = span.end_ns is not None and span.end_ns <= stop_ns
            end = span.end_ns if ended and span.end_ns is not None else stop_ns
            placed.append(Placed(span, start, max(end, start), not ended))
    placed.sort(key=lambda one: (one.start_ns, -one.end_ns, one.span.number))
    threads: dict[int, list[Placed]] = {}
    for one in placed:
        threads.setdefault(one.span.thread, []).append(one)
    for of_thread in threads.values():
        _place_beside(_place_within(of_thread))
    for one in placed:
        around = one.parent  # it stands before what lies in it
        if around is not None:
            one.function = around if around.span.kind in _FUNCTIONS else around.function
    return placed


def _place_within(spans: list[Placed]) -> list[Placed]:
    """Place in the thread's own lane what nests there, and return what does not."""
    around: list[Placed] = []
    left: list[Placed] = []
    for one in spans:
        while around and around[-1].end_ns <= one.start_ns and around[-1].end_ns < one.end_ns:
            around.pop()
        while around and around[-1].end_ns < one.end_ns and _gives_way(around[-1], one):
            left.append(around.pop())
        if around and around[-1].end_ns < one.end_ns:
            left.append(one)
            continue
        one.parent = around[-1] if around else None
        around.append(one)
    if left:
        left.sort(key=lambda one: (one.start_ns, -one.end_ns, one.span.number))
        gone = set(map(id, left))
        for one in spans:
            while one.parent is not None and id(one.parent) in gone:
                one.parent = one.parent.parent
        for one in left:
            one.parent = None
    return left


def _place_beside(spans: list[Placed]) -> None:
    """Place each in the first lane beside the thread in which it nests. Thousands of calls may be under way at once."""
    lanes: list[list[Placed]] = []  # what is open in each, the outermost first
    ends = np.zeros(16, np.int64)  # of the innermost of each
    for one in spans:
        start, end = one.start_ns, one.end_ns
        known = ends[: len(lanes)]
        for place in np.flatnonzero((known <= start) & (known < end)).tolist():
            around = lanes[place]
            while around and around[-1].end_ns <= start and around[-1].end_ns < end:
                around.pop()
            known[place] = around[-1].end_ns if around else _EMPTY
        fits = known >= end
        place = int(fits.argmax()) if fits.any() else len(lanes)
        if place == len(lanes):
            lanes.append([])
            if place == len(ends):
                ends = np.concatenate([ends, np.zeros_like(ends)])
        around = lanes[place]
        one.lane, one.parent = place + 1, around[-1] if around else None
        around.append(one)
        ends[place] = end


def _gives_way(first: Placed, second: Placed) -> bool:
    """Of two that overlap, whether the first is the one that leaves the thread's own lane."""
    return first.span.kind in LOOSE and second.span.kind not in LOOSE
