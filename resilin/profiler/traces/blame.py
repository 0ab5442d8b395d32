"""Names the rank, and what it did, that made the others wait: in collectives and messages that were late. Pure.

A collective waits for the last rank to enter. What that rank did is told by comparison: since it left the collective
before, each name's time on it, less the median of that name's time on the others. The largest excess made it late. If
that is itself a wait for another rank, the cause is looked for there.
"""

from __future__ import annotations

import statistics
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from resilin.profiler.traces.innermost import Timeline
from resilin.profiler.traces.meetings import DeliveredMessage, Meeting, is_collective, meetings, messages
from resilin.profiler.traces.rank_trace import RankTrace, TraceEvent, step_number

OUTSIDE = "(outside of spans)"
_MOST_LINKS = 16  # of a chain of ranks that waited for one another


@dataclass(frozen=True, kw_only=True)
class Cause:
    """One wait, and what caused it."""

    rank: int
    """Which made the others wait."""
    name: str
    """What it did meanwhile: its innermost span, or OUTSIDE."""
    excess_ns: int
    """How much longer that took than on the other ranks."""
    after: str
    """Where it was outside of spans: the last span before. Else empty."""
    waited_ns: int
    """How long the others waited, together."""
    waiting: tuple[int, ...]
    at: str
    """The collective or message they waited in."""
    start_ns: int
    """When the first began to wait."""
    step: int | None
    """The profile's step, where there is one."""
    via: tuple[int, ...] = ()
    """Ranks between, which were late only because they waited themselves."""


class Blame:
    """All ranks' traces, aligned, and what is asked of them."""

    def __init__(self, traces: Sequence[RankTrace]) -> None:
        self.meetings: list[Meeting] = meetings(traces)
        self.messages: list[DeliveredMessage] = messages(traces)
        self._lines = {id(trace): Timeline(trace.by_thread.get(trace.main_thread, [])) for trace in traces}
        self._steps = {id(trace): _steps(trace) for trace in traces}
        self._met: dict[int, Meeting] = {}  # by event
        self._left: dict[int, list[TraceEvent]] = {id(trace): [] for trace in traces}  # what each left, by end
        self._got: dict[int, DeliveredMessage] = {id(message.receive): message for message in self.messages}
        for meeting in self.meetings:
            for trace, event in meeting.entries.values():
                self._met[id(event)] = meeting
                if meeting.waits_for_all:
                    self._left[id(trace)].append(event)
        for left in self._left.values():
            left.sort(key=_end)

    def causes(self, least_ns: int) -> list[Cause]:
        """Return the causes of waits of at least `least_ns`, all waiting ranks together; by time."""
        found = [*self._of_meetings(least_ns), *self._of_messages(least_ns)]
        return sorted(found, key=lambda cause: cause.start_ns)

    def _of_meetings(self, least_ns: int) -> Iterator[Cause]:
        for meeting in self.meetings:
            waits: dict[int, list[tuple[int, TraceEvent]]] = {}  # by who was last
            for rank, (_, event) in meeting.entries.items():
                last = meeting.last_before(rank)
                if last is not None and last[1].start_ns <= event.end_ns:
                    waits.setdefault(last[0], []).append((rank, event))
            for late, waiting in waits.items():
                trace, entered = meeting.entries[late]
                waited_ns = sum(entered.start_ns - event.start_ns for _, event in waiting)
                if waited_ns >= least_ns:
                    others = [entry for rank, entry in meeting.entries.items() if rank != late]
                    ranks = tuple(rank for rank, _ in waiting)
                    start_ns = min(event.start_ns for _, event in waiting)
                    yield self._cause(trace, entered, others, str(meeting), ranks, waited_ns, start_ns)

    def _of_messages(self, least_ns: int) -> Iterator[Cause]:
        for message in self.messages:
            waited_ns = message.send.start_ns - message.receive.start_ns
            if waited_ns >= least_ns and message.send.start_ns <= message.receive.end_ns:
                at = f"the message from rank {message.sender.rank} to rank {message.receiver.rank}"
                waiting = (message.receiver.rank,)
                yield self._cause(message.sender, message.send, [], at, waiting, waited_ns, message.receive.start_ns)

    def _cause(
        self, trace: RankTrace, entered: TraceEvent, others: Sequence[tuple[RankTrace, TraceEvent]], at: str,
        waiting: tuple[int, ...], waited_ns: int, start_ns: int,
    ) -> Cause:  # fmt: skip
        via: list[int] = []
        for _ in range(_MOST_LINKS):
            name, excess_ns, longest = self._excess(trace, entered.start_ns, others, start_ns)
            back = self._waited_for(longest)
            if back is None or back[0] is trace:
                break
            via.append(trace.rank)
            trace, entered, others = back
        line = self._lines[id(trace)]
        before = line.last_ended(entered.start_ns - excess_ns) if name == OUTSIDE else None
        return Cause(
            rank=trace.rank, name=name, excess_ns=excess_ns, after=before.name if before else "", waited_ns=waited_ns,
            waiting=waiting, at=at, start_ns=start_ns, step=self._step(trace, entered), via=tuple(via),
        )  # fmt: skip

    def _excess(
        self, trace: RankTrace, until_ns: int, others: Sequence[tuple[RankTrace, TraceEvent]], start_ns: int
    ) -> tuple[str, int, TraceEvent | None]:
        """What took longer on `trace` than on `others`, by how much, and its longest span of that name."""
        own, longest = self._times(trace, until_ns, start_ns)
        theirs = [self._times(other, event.start_ns, start_ns)[0] for other, event in others]
        excess = {name: ns - _median(each.get(name, 0) for each in theirs) for name, ns in own.items()}
        left = self._last_left(trace, until_ns)
        if left is not None and theirs:  # it may have left the collective before later than they did
            ends = [end.end_ns for other, event in others if (end := self._last_left(other, event.start_ns))]
            excess[left.name] = max(excess.get(left.name, 0), left.end_ns - _median(ends or [left.end_ns]))
        name = max(excess, key=lambda each: excess[each], default=OUTSIDE)
        return name, max(0, excess.get(name, 0)), longest.get(name)

    def _times(self, trace: RankTrace, until_ns: int, start_ns: int) -> tuple[dict[str, int], dict[str, TraceEvent]]:
        """By name: the main thread's own time since it left the collective before, and the longest span."""
        left = self._last_left(trace, until_ns)
        begin_ns = left.end_ns if left is not None else min(trace.start_ns, start_ns)
        times: dict[str, int] = {}
        longest: dict[str, TraceEvent] = {}
        for start, end, event in self._lines[id(trace)].between(begin_ns, until_ns):
            name = OUTSIDE if event is None else event.name
            times[name] = times.get(name, 0) + end - start
            if event is not None and (name not in longest or event.duration_ns > longest[name].duration_ns):
                longest[name] = event
        return times, longest

    def _last_left(self, trace: RankTrace, until_ns: int) -> TraceEvent | None:
        """The collective that the rank left last before a time."""
        left = self._left[id(trace)]
        place = bisect_right(left, until_ns, key=_end)
        return left[place - 1] if place else None

    def _step(self, trace: RankTrace, event: TraceEvent) -> int | None:
        """The step of the profile in which a span began."""
        steps = self._steps[id(trace)]
        place = bisect_right(steps, event.start_ns, key=lambda step: step[0])
        return steps[place - 1][2] if place and event.start_ns <= steps[place - 1][1] else None

    def _waited_for(
        self, event: TraceEvent | None
    ) -> tuple[RankTrace, TraceEvent, list[tuple[RankTrace, TraceEvent]]] | None:
        """Whom a span waited for: the trace, its span there, and the spans of the others; None: for nobody."""
        if event is None or not is_collective(event):
            return None
        message = self._got.get(id(event))
        if message is not None:
            return (message.sender, message.send, []) if message.send.start_ns > event.start_ns else None
        meeting = self._met.get(id(event))
        if meeting is None:
            return None
        rank = next(rank for rank, (_, entry) in meeting.entries.items() if entry is event)
        last = meeting.last_before(rank)
        if last is None:
            return None
        others = [entry for other, entry in meeting.entries.items() if other != last[0]]
        return meeting.entries[last[0]][0], last[1], others


def _end(event: TraceEvent) -> int:
    return event.end_ns


def _median(values: Iterable[int]) -> int:
    found = list(values)
    return round(statistics.median(found)) if found else 0


def _steps(trace: RankTrace) -> list[tuple[int, int, int]]:
    """Of each step of the profile its start, end and number."""
    numbered = ((event, step_number(event.name)) for event in trace.events)
    return [(event.start_ns, event.end_ns, number) for event, number in numbered if number is not None]


def totals(causes: Iterable[Cause]) -> list[dict[str, object]]:
    """Return a row for each rank and name: how often it was the cause, and how long others waited; the worst first."""
    found: dict[tuple[int, str], list[int]] = {}
    for cause in causes:
        found.setdefault((cause.rank, cause.name), []).append(cause.waited_ns)
    rows = [
        {"rank": rank, "name": name, "times": len(waits), "others_waited(us)": sum(waits) / 1000}
        for (rank, name), waits in found.items()
    ]
    return sorted(rows, key=lambda row: -row["others_waited(us)"])  # type: ignore[operator]
