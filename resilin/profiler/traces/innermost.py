"""What a thread did when: the innermost span at each time, which alone counts it. Pure."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence

from resilin.profiler.traces.rank_trace import STEP, TraceEvent

Piece = tuple[int, int, TraceEvent | None]
"""From, to, and the innermost event then; None: outside of all."""


class Timeline:
    """The pieces of one thread. Steps of the profile do not count: what lies in a step and nothing else is outside."""

    def __init__(self, events: Sequence[TraceEvent]) -> None:
        """Take the thread's events, which are by start."""
        self.pieces = list(_pieces(events))
        self._starts = [start for start, _, _ in self.pieces]

    def between(self, start_ns: int, end_ns: int) -> Iterator[Piece]:
        """Yield what happened between, which together covers all of it."""
        at = start_ns
        for number in range(max(0, bisect_right(self._starts, start_ns) - 1), len(self.pieces)):
            start, end, event = self.pieces[number]
            if start >= end_ns:
                break
            start, end = max(start, at), min(end, end_ns)
            if start >= end:
                continue
            if start > at:
                yield at, start, None
            yield start, end, event
            at = end
        if at < end_ns:
            yield at, end_ns, None

    def longest(self, start_ns: int, end_ns: int) -> tuple[TraceEvent | None, int]:
        """Return the span whose own time between was longest, and that time; None: it was outside of spans."""
        own: dict[int, int] = {}
        known: dict[int, TraceEvent | None] = {}
        for start, end, event in self.between(start_ns, end_ns):
            own[id(event)] = own.get(id(event), 0) + end - start
            known[id(event)] = event
        most = max(own, key=lambda each: own[each], default=None)
        return (None, 0) if most is None else (known[most], own[most])

    def last_ended(self, at_ns: int) -> TraceEvent | None:
        """Return the last span that was over at a time."""
        for number in range(bisect_right(self._starts, at_ns) - 1, -1, -1):
            event = self.pieces[number][2]
            if event is not None and event.end_ns <= at_ns:
                return event
        return None


def _pieces(events: Sequence[TraceEvent]) -> Iterator[Piece]:
    around: list[TraceEvent] = []
    at = events[0].start_ns if events else 0
    for event in events:
        if event.name.startswith(STEP):
            continue
        while around and around[-1].end_ns <= event.start_ns:
            ended = around.pop()
            if ended.end_ns > at:
                yield at, ended.end_ns, ended
                at = ended.end_ns
        if event.start_ns > at:
            yield at, event.start_ns, around[-1] if around else None
            at = event.start_ns
        around.append(event)
    while around:
        ended = around.pop()
        if ended.end_ns > at:
            yield at, ended.end_ns, ended
            at = ended.end_ns
