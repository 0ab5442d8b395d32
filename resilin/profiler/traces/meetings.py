"""Matches what ranks did together: the spans of one collective, and those of a message's two ends. Pure.

Collectives match by group, generation and number within it, as spans say them. A message has no number of its own:
messages between two ranks with one tag arrive in order, so the first sent is the first received.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from resilin.profiler.traces.rank_trace import RankTrace, TraceEvent, ranks_of

_FROM_ROOT = frozenset({"broadcast", "scatter"})
_TO_ROOT = frozenset({"reduce", "gather"})
_MATCHED_BY = ("Process Group Name", "Generation", "Src Rank", "Dst Rank", "Tag")  # plain values, if undamaged


@dataclass(slots=True)
class Meeting:
    """A collective: each rank's span of it, as far as there are traces of the ranks."""

    name: str
    group: str
    generation: int
    number: int
    ranks: tuple[int, ...]
    """Of the world, all that take part."""
    root: int = -1
    entries: dict[int, tuple[RankTrace, TraceEvent]] = field(default_factory=dict)
    """By rank of the world."""

    @property
    def waits_for_all(self) -> bool:
        """Whether no rank can leave before all have entered."""
        return self.name not in _FROM_ROOT and self.name not in _TO_ROOT

    def waits_for(self, rank: int) -> Sequence[int]:
        """The other ranks that must have entered before `rank` can leave."""
        if self.waits_for_all or self.root < 0:
            return [other for other in self.ranks if other != rank]
        if self.name in _FROM_ROOT:
            return [] if rank == self.root else [self.root]
        return [other for other in self.ranks if other != rank] if rank == self.root else []

    def last_before(self, rank: int) -> tuple[int, TraceEvent] | None:
        """The last to enter of those that `rank` waits for, if it came after `rank` did."""
        own = self.entries[rank][1]
        others = [(self.entries[one][1].start_ns, one) for one in self.waits_for(rank) if one in self.entries]
        start_ns, other = max(others, default=(own.start_ns, rank))
        return (other, self.entries[other][1]) if start_ns > own.start_ns else None

    def __str__(self) -> str:
        again = f" generation {self.generation}" if self.generation else ""
        return f"{self.name} #{self.number} of group {self.group!r}{again}"


@dataclass(slots=True)
class DeliveredMessage:
    """A message whose two ends are both there."""

    sender: RankTrace
    send: TraceEvent
    receiver: RankTrace
    receive: TraceEvent


def is_collective(event: TraceEvent) -> bool:
    """Whether the event is a collective or a message between ranks, with what it takes to match it."""
    args = event.args
    return "Collective name" in args and not any(isinstance(args.get(key), (list, dict)) for key in _MATCHED_BY)


def is_message(event: TraceEvent) -> bool:
    """Whether it is one end of a message."""
    return is_collective(event) and "Src Rank" in event.args and "Dst Rank" in event.args


def _whole(value: object, otherwise: int) -> int:
    """A number of a file that may hold anything."""
    return value if isinstance(value, int) else otherwise


def meetings(traces: Iterable[RankTrace]) -> list[Meeting]:
    """Return all collectives that at least one rank is in, by the time of the first to enter."""
    found: dict[tuple[object, ...], Meeting] = {}
    for trace in traces:
        times: dict[tuple[object, ...], int] = {}
        for event in trace.events:
            number = event.args.get("Seq", -1)
            if not is_collective(event) or is_message(event) or not isinstance(number, int) or number < 0:
                continue
            args, ranks = event.args, tuple(ranks_of(event.args))
            generation = _whole(args.get("Generation", 0), 0)
            name, group = str(args["Collective name"]), str(args.get("Process Group Name", ""))
            key: tuple[object, ...] = (group, generation, ranks, number, name)
            times[key] = times.get(key, 0) + 1  # parts of one call have its number, too: in their order
            key = (*key, times[key])
            meeting = found.get(key)
            if meeting is None:
                root = _whole(args.get("Root rank"), -1)
                meeting = found[key] = Meeting(name, group, generation, number, ranks, root)
            place = args.get("Rank")
            rank = ranks[place] if isinstance(place, int) and 0 <= place < len(ranks) else trace.rank
            meeting.entries.setdefault(rank, (trace, event))
    return sorted(found.values(), key=lambda each: min(event.start_ns for _, event in each.entries.values()))


def messages(traces: Iterable[RankTrace]) -> list[DeliveredMessage]:
    """Return all messages whose both ends are known, but those of traces that lost spans: their order says nothing."""
    sent: dict[tuple[object, ...], list[tuple[RankTrace, TraceEvent]]] = {}
    received: dict[tuple[object, ...], list[tuple[RankTrace, TraceEvent]]] = {}
    torn: set[int] = set()
    for trace in traces:
        if trace.dropped:
            torn.add(trace.rank)
        for event in trace.events:
            if is_message(event):
                args = event.args
                who = _whole(args["Src Rank"], -1), _whole(args["Dst Rank"], -1)
                group = str(args.get("Process Group Name")), _whole(args.get("Generation", 0), 0)
                key: tuple[object, ...] = (*group, *who, _whole(args.get("Tag", 0), 0))
                side = received if "recv" in str(args["Collective name"]) else sent
                side.setdefault(key, []).append((trace, event))
    found = []
    for key, sends in sent.items():
        if key[2] in torn or key[3] in torn:
            continue
        for (sender, send), (receiver, receive) in zip(sends, received.get(key, ()), strict=False):
            found.append(DeliveredMessage(sender, send, receiver, receive))
    return sorted(found, key=lambda each: each.send.start_ns)
