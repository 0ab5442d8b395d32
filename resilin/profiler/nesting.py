"""Decides which spans of a thread lie within which. Pure.

What a thread marks by entering and leaving nests by itself. A collective or a call to another worker may be recorded
as a whole, on the thread that saw it end, and then overlap what that thread did meanwhile. Viewers and self times need
spans that nest exactly: what overlaps is placed in a lane of its own beside the thread.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from resilin._base.trace import Kind
from resilin._base.trace_ring import Span

LOOSE = frozenset({Kind.COLLECTIVE, Kind.RPC, Kind.ELASTIC, Kind.CHECKPOINT})  # these make room for the others


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


def function_around(one: Placed) -> Placed | None:
    """Return the innermost function of Python, or module, that a span lies in."""
    around = one.parent
    while around is not None and around.span.kind not in (Kind.PYTHON, Kind.MODULE):
        around = around.parent
    return around


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
        lane = 0
        while of_thread:
            of_thread = _fill(of_thread, lane)
            lane += 1
    return placed


def _fill(spans: list[Placed], lane: int) -> list[Placed]:
    """Place in `lane` what nests there, and return what does not."""
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
        one.lane, one.parent = lane, around[-1] if around else None
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


def _gives_way(first: Placed, second: Placed) -> bool:
    """Of two that overlap, whether the first is the one that leaves the thread's own lane."""
    return first.span.kind in LOOSE and second.span.kind not in LOOSE
