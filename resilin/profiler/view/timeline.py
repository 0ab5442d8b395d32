"""The spans of all ranks as the page draws them: by thread and depth, so many that a browser stays quick. Pure.

Where there are more than MOST_SPANS, short ones that follow each other closely are one block that says how many they
are: shorter than a time that is doubled until it suffices.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from resilin.profiler.traces import merged_file
from resilin.profiler.traces.rank_trace import RankTrace, TraceEvent
from resilin.profiler.view import words
from resilin.profiler.view.operators import nested
from resilin.profiler.view.places import Places

MOST_SPANS = 150_000
MOST_ARROWS = 20_000
MOST_DEPTH = 100  # deeper spans are left out: recursion without an end, say
_FIRST_SHORT_NS = 1000


@dataclass
class _Names:
    """Texts, each once."""

    numbers: dict[Any, int] = field(default_factory=dict)

    def number(self, text: Any) -> int:
        return self.numbers.setdefault(text, len(self.numbers))

    def listed(self) -> list[Any]:
        return list(self.numbers)


@dataclass
class _Track:
    """A thread of a rank, and its spans by depth."""

    rank: int
    thread: int | str
    name: str
    levels: list[list[TraceEvent]] = field(default_factory=list)


def timeline(traces: Sequence[RankTrace], base_ns: int, places: Places, most: int = MOST_SPANS) -> dict[str, Any]:
    """Return `tracks`, in which names, details and places are numbers in lists, and `arrows` between their spans.

    Times are nanoseconds from `base_ns` on.
    """
    tracks, where = _tracks(traces)
    count = sum(len(level) for track in tracks for level in track.levels)
    short_ns = 0
    while count > most and short_ns < 1 << 62:
        short_ns = 2 * short_ns or _FIRST_SHORT_NS
        count = sum(1 for track in tracks for level in track.levels for _ in _blocks(level, short_ns))
    names, details = _Names(), _Names()
    details.number("")
    shown = [_shown(track, short_ns, base_ns, names, details, places) for track in tracks]
    found = list(merged_file.arrows(traces))
    arrows = [
        [*where[id(start[1])], start[2] - base_ns, *where[id(end[1])], end[2] - base_ns, kind]
        for start, end, kind in found[:MOST_ARROWS]
        if id(start[1]) in where and id(end[1]) in where
    ]
    return {
        "kinds": words.KINDS,
        "names": [{"text": text, "kind": kind, "place": place} for text, kind, place in names.listed()],
        "details": details.listed(),
        "tracks": shown,
        "arrows": arrows,
        "arrows_left_out": max(0, len(found) - MOST_ARROWS),
        "short(us)": short_ns / 1000,
        "end": max((event.end_ns for trace in traces for event in trace.events), default=base_ns) - base_ns,
    }


def _tracks(traces: Sequence[RankTrace]) -> tuple[list[_Track], dict[int, tuple[int, int]]]:
    """The tracks, and of each event its track and depth; of a rank the main thread first."""
    tracks: dict[tuple[int, int | str], _Track] = {}
    where: dict[int, tuple[int, int]] = {}
    for place, trace in enumerate(traces):
        known = _names_of_threads(trace)
        for thread in sorted(trace.by_thread, key=lambda one: (one != trace.main_thread, str(one))):
            name = known.get(str(thread), "") or f"thread {thread}"
            tracks[place, thread] = _Track(trace.rank, thread, words.cut(name))
    numbers = {id(track): number for number, track in enumerate(tracks.values())}
    for place, trace in enumerate(traces):
        for event, depth in nested(trace):
            track = tracks[place, event.thread]
            if depth < MOST_DEPTH:
                track.levels += [[] for _ in range(depth + 1 - len(track.levels))]
                track.levels[depth].append(event)
                where[id(event)] = numbers[id(track)], depth
    return list(tracks.values()), where


def _names_of_threads(trace: RankTrace) -> dict[str, str]:
    found = {}
    for one in trace.others:
        if one.get("ph") == "M" and one.get("name") == "thread_name" and isinstance(one.get("args"), dict):
            found[str(one.get("tid", 0))] = str(one["args"].get("name", "")).strip()
    return found


def _blocks(level: Sequence[TraceEvent], short_ns: int) -> Iterator[tuple[int, int, int, TraceEvent]]:
    """From, to, how many spans, the first of them. Spans shorter than `short_ns` join across gaps shorter than that."""
    start = end = count = 0
    first: TraceEvent | None = None
    for event in level:
        if event.duration_ns >= short_ns:
            if first is not None:
                yield start, end, count, first
                first = None
            yield event.start_ns, event.end_ns, 1, event
        elif first is not None and event.start_ns - end < short_ns and event.end_ns - start < short_ns * 8:
            end, count = max(end, event.end_ns), count + 1
        else:
            if first is not None:
                yield start, end, count, first
            start, end, count, first = event.start_ns, event.end_ns, 1, event
    if first is not None:
        yield start, end, count, first


def _shown(
    track: _Track, short_ns: int, base_ns: int, names: _Names, details: _Names, places: Places
) -> dict[str, Any]:
    levels = []
    for level in track.levels:
        columns: dict[str, list[int]] = {"start": [], "length": [], "name": [], "detail": []}
        for start_ns, end_ns, count, event in _blocks(level, short_ns):
            if count == 1:
                name = names.number((words.cut(event.name), words.kind(event), places.number(event.name)))
                detail = details.number(words.details(event))
            else:
                name, detail = names.number(("short spans", "together", -1)), details.number(f"{count} spans")
            columns["start"].append(start_ns - base_ns)
            columns["length"].append(end_ns - start_ns)
            columns["name"].append(name)
            columns["detail"].append(detail)
        levels.append(columns)
    return {"rank": track.rank, "thread": str(track.thread), "name": track.name, "levels": levels}
