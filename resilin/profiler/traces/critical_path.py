"""The longest chain of things that had to follow each other, across ranks: from the end back to the beginning. Pure.

From the last event on, time is followed back on a rank until a collective in which it waited for another one; from
there on that rank's time counts. What is on the path makes the run shorter when it gets faster; nothing else does.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass

from resilin.profiler.traces.innermost import Timeline
from resilin.profiler.traces.meetings import Meeting
from resilin.profiler.traces.rank_trace import RankTrace

OUTSIDE = "(outside of spans)"


@dataclass(frozen=True)
class Segment:
    """A part of the path: what a rank did."""

    rank: int
    name: str
    start_ns: int
    end_ns: int


def critical_path(traces: Sequence[RankTrace], together: Sequence[Meeting]) -> list[Segment]:
    """Return the path from the first event to the last, in time's order; empty without events."""
    if not any(trace.events for trace in traces):
        return []
    waits = _waits(together)
    at_ns, current = max(
        ((max(event.end_ns for event in trace.events), trace) for trace in traces if trace.events),
        key=lambda each: each[0],
    )
    first_ns = min(trace.events[0].start_ns for trace in traces if trace.events)
    lines = {id(trace): Timeline(trace.by_thread.get(trace.main_thread, [])) for trace in traces}
    path: list[list[Segment]] = []
    while at_ns > first_ns:
        own = waits.get(id(current), [])
        place = bisect_left(own, at_ns, key=lambda each: each[0])
        begin_ns, there = own[place - 1] if place else (first_ns, current)
        path.append(_segments(current.rank, lines[id(current)], max(begin_ns, first_ns), at_ns))
        at_ns, current = begin_ns, there
    return [segment for part in reversed(path) for segment in part]


def _waits(together: Sequence[Meeting]) -> dict[int, list[tuple[int, RankTrace]]]:
    """By trace: when it went on waiting no more for another one, and for whom it had waited; by time."""
    found: dict[int, list[tuple[int, RankTrace]]] = {}
    for meeting in together:
        for rank, (trace, event) in meeting.entries.items():
            last = meeting.last_before(rank)
            if last is not None and last[1].start_ns <= event.end_ns:
                found.setdefault(id(trace), []).append((last[1].start_ns, meeting.entries[last[0]][0]))
    for waits in found.values():
        waits.sort(key=lambda each: each[0])
    return found


def _segments(rank: int, line: Timeline, start_ns: int, end_ns: int) -> list[Segment]:
    """What the rank's main thread did, neighbours of one name as one."""
    found: list[Segment] = []
    for start, end, event in line.between(start_ns, end_ns):
        name = OUTSIDE if event is None else event.name
        if found and found[-1].name == name:
            found[-1] = Segment(rank, name, found[-1].start_ns, end)
        else:
            found.append(Segment(rank, name, start, end))
    return found


def summary(path: Sequence[Segment], count: int) -> list[dict[str, object]]:
    """Return the `count` names that take most of the path: rank, name, microseconds, percent."""
    whole = sum(each.end_ns - each.start_ns for each in path)
    times: dict[tuple[int, str], int] = {}
    for each in path:
        times[each.rank, each.name] = times.get((each.rank, each.name), 0) + each.end_ns - each.start_ns
    most = sorted(times.items(), key=lambda each: -each[1])[:count]
    return [
        {"rank": rank, "name": name, "time(us)": ns / 1000, "pctg": round(100 * ns / whole, 2)}
        for (rank, name), ns in most
    ]
