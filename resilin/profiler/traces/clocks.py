"""Brings traces of several clocks to one time. Pure.

Processes of one machine share a clock and are left as they are. Between two clocks causality gives bounds: who leaves a
collective does so after all have entered it, and a receive ends after its send began. Each is a bound on the offset at
a time, from below or from above; the offset that drifts evenly is a line between both sets of points. The line that
stays farthest from all of them is taken: it assumes that the fastest ways there and back are equally fast, as NTP does.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from resilin.profiler.traces.meetings import Meeting, meetings, messages
from resilin.profiler.traces.rank_trace import RankTrace

MOST_DRIFT = 500e-6  # of clocks that run: quartz is off by 100 ppm at most, NTP slews by 500
_TOLERANCE_NS = 50_000  # by which spans of one clock may contradict each other: threads are told apart no better
_ROUNDS = 4
_WORTH_A_DRIFT = 1.05  # how much more room a drift has to give than none does

Point = tuple[int, int]  # time of the clock that is corrected, offset that must be less, or more


@dataclass(frozen=True)
class Line:
    """What is added to a clock's time: `offset_ns` at its time `at_ns`, and `drift` for each nanosecond since."""

    at_ns: int = 0
    offset_ns: float = 0.0
    drift: float = 0.0
    room_ns: float = 0.0
    """How far the line stays from all bounds: the error is not larger. Less than 0: bounds contradict each other."""

    def __call__(self, time_ns: int) -> int:
        """Return the corrected time."""
        return time_ns + round(self.offset_ns + self.drift * (time_ns - self.at_ns))

    def then(self, other: Line) -> Line:
        """Return both, one after the other."""
        drift = self.drift + other.drift + self.drift * other.drift
        return Line(self.at_ns, other(self(self.at_ns)) - self.at_ns, drift, other.room_ns)


@dataclass
class Bounds:
    """What is known of the offset between two clocks."""

    lower: list[Point]
    upper: list[Point]

    def line(self) -> Line | None:
        """Return the line in the middle; None when one side has no bound."""
        if not self.lower or not self.upper:
            return None
        at_ns = min(self.lower[0][0], self.upper[0][0])
        base = self.lower[0][1]  # small numbers are exact
        lower = _hull([(t - at_ns, v - base) for t, v in self.lower], above=True)
        upper = _hull([(t - at_ns, v - base) for t, v in self.upper], above=False)
        slopes = {_slope(a, b) for hull in (lower, upper) for a, b in pairwise(hull)}
        rooms = {slope: _room(lower, upper, slope) for slope in slopes if abs(slope) <= MOST_DRIFT}
        rooms[0.0] = level = _room(lower, upper, 0.0)
        drift = max(rooms, key=lambda slope: rooms[slope])
        if rooms[drift] <= level * _WORTH_A_DRIFT and level > 0:
            drift = 0.0
        low = max(v - drift * t for t, v in lower)
        high = min(v - drift * t for t, v in upper)
        return Line(at_ns, base + (low + high) / 2, drift, (high - low) / 2)


def _slope(a: tuple[float, float], b: tuple[float, float]) -> float:
    return (b[1] - a[1]) / (b[0] - a[0])


def _room(lower: Sequence[Point], upper: Sequence[Point], slope: float) -> float:
    return (min(v - slope * t for t, v in upper) - max(v - slope * t for t, v in lower)) / 2


def _hull(points: Sequence[Point], *, above: bool) -> list[Point]:
    """The points that bound all others from above, or from below; by time."""
    sign = 1 if above else -1
    best: dict[int, int] = {}
    for t, v in points:
        best[t] = max(best.get(t, sign * v), sign * v)
    hull: list[Point] = []
    for t, v in sorted(best.items()):
        while len(hull) >= 2 and _slope(hull[-2], hull[-1]) <= _slope(hull[-1], (t, v)):
            hull.pop()
        hull.append((t, v))
    return [(t, sign * v) for t, v in hull]


def align(traces: Sequence[RankTrace]) -> list[str]:
    """Bring all traces to the first one's clock, in place. Return what is to be said of it."""
    notes = []
    together = meetings(traces)
    if (worst := _contradiction(together)) > _TOLERANCE_NS:
        notes.append(
            f"clocks: processes that should share one contradict each other by {worst / 1000:.0f} us; "
            "each is aligned on its own"
        )
        for number, trace in enumerate(traces):
            trace.clock = f"{trace.clock}, process {number}"
    clocks: dict[str, list[RankTrace]] = {}
    for trace in traces:
        clocks.setdefault(trace.clock, []).append(trace)
    if len(clocks) < 2:
        return notes
    known = _all_bounds(traces, together)
    names = list(clocks)
    placed = {names[0]: Line()}
    while len(placed) < len(names):
        ways = [(name, _pooled(known, name, placed).line()) for name in names if name not in placed]
        usable = [(line.room_ns < 0, abs(line.room_ns), name, line) for name, line in ways if line is not None]
        if not usable:
            notes += _by_wall(clocks, placed)
            break
        *_, name, placed[name] = min(usable, key=lambda each: each[:2])
        _move(clocks[name], known, name, placed[name])
    for _ in range(_ROUNDS if len(placed) > 2 else 0):  # the first ones were placed before there was more to go by
        for name in list(placed)[1:]:
            line = _pooled(known, name, placed.keys() - {name}).line()
            if line is not None:
                _move(clocks[name], known, name, line)
                placed[name] = placed[name].then(line)
    return notes + [_said(clocks[name], line) for name, line in list(placed.items())[1:]]


def _said(traces: Sequence[RankTrace], line: Line) -> str:
    ranks = ", ".join(str(trace.rank) for trace in traces)
    room_us = line.room_ns / 1000
    how = f"within {room_us:.0f} us" if room_us >= 0 else f"bounds contradict each other by {-room_us:.0f} us"
    moved = f"moved by {line.offset_ns / 1e9:+.6f} s, {line.drift * 1e6:+.1f} us a second"
    return f"clocks: ranks {ranks} {moved} ({how})"


def _pooled(known: Mapping[tuple[str, str], Bounds], name: str, others: Collection[str]) -> Bounds:
    """What all of `others`, whose times are one, say of the clock `name`."""
    found = Bounds([], [])
    for (stays, corrected), bounds in known.items():
        if corrected == name and stays in others:
            found.lower += bounds.lower
            found.upper += bounds.upper
    return found


def _contradiction(together: Iterable[Meeting]) -> int:
    """The most by which a rank left a collective before another of its clock had entered it."""
    worst = 0
    for meeting in together:
        for rank, (trace, event) in meeting.entries.items():
            if event.open or event.args.get("Failed") or trace.killed:
                continue
            for other in meeting.waits_for(rank):
                if other in meeting.entries and meeting.entries[other][0].clock == trace.clock:
                    worst = max(worst, meeting.entries[other][1].start_ns - event.end_ns)
    return worst


def _all_bounds(traces: Sequence[RankTrace], together: Iterable[Meeting]) -> dict[tuple[str, str], Bounds]:
    """By the clock that stays and the one that is corrected."""
    found: dict[tuple[str, str], Bounds] = {}

    def after(first: RankTrace, began_ns: int, second: RankTrace, ended_ns: int) -> None:
        """What `first` began at `began_ns` came before what `second` ended at `ended_ns`."""
        if first.clock != second.clock:
            lower = found.setdefault((first.clock, second.clock), Bounds([], [])).lower
            lower.append((ended_ns, began_ns - ended_ns))
            upper = found.setdefault((second.clock, first.clock), Bounds([], [])).upper
            upper.append((began_ns, ended_ns - began_ns))

    for meeting in together:
        for rank, (trace, event) in meeting.entries.items():
            if event.open or event.args.get("Failed"):
                continue
            last: dict[str, tuple[int, RankTrace]] = {}  # of each clock, who entered last
            for other in meeting.waits_for(rank):
                if other in meeting.entries:
                    there, entered = meeting.entries[other]
                    if there.clock not in last or entered.start_ns > last[there.clock][0]:
                        last[there.clock] = entered.start_ns, there
            for began_ns, there in last.values():
                after(there, began_ns, trace, event.end_ns)
    for message in messages(traces):
        if not message.receive.open and not message.receive.args.get("Failed"):
            after(message.sender, message.send.start_ns, message.receiver, message.receive.end_ns)
    return found


def _move(traces: Iterable[RankTrace], known: dict[tuple[str, str], Bounds], name: str, line: Line) -> None:
    """Correct the clock `name`: of its traces, and of what is known about it."""
    _moved(known, name, line)
    for trace in traces:
        trace.start_ns, trace.stop_ns = line(trace.start_ns), line(trace.stop_ns)
        for event in trace.events:
            event.start_ns, event.end_ns = line(event.start_ns), line(event.end_ns)
        for one in trace.others:
            if "ts" in one:
                one["ts"] = line(one["ts"])


def _moved(known: dict[tuple[str, str], Bounds], name: str, line: Line) -> None:
    """Let bounds between the clock `name` and others speak of its corrected time."""
    for (stays, corrected), bounds in known.items():
        for side in (bounds.lower, bounds.upper):
            if stays == name:  # its time is the offset and the corrected clock's
                side[:] = [(t, line(t + v) - t) for t, v in side]
            elif corrected == name:
                side[:] = [(line(t), t + v - line(t)) for t, v in side]


def _by_wall(clocks: dict[str, list[RankTrace]], placed: Collection[str]) -> list[str]:
    """Nothing ties the rest to those that are placed: their wall clocks have to do."""
    first = next(iter(clocks.values()))[0]
    notes = []
    for name, traces in clocks.items():
        if name not in placed:
            _move(traces, {}, name, Line(0, traces[0].to_wall_ns - first.to_wall_ns))
            ranks = ", ".join(str(trace.rank) for trace in traces)
            notes.append(
                f"clocks: no collective or message ties ranks {ranks} to the others; their wall clocks do, which may "
                "differ by milliseconds"
            )
    return notes
