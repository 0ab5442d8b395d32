"""Read the flight recorders of a job together: which rank is missing from which collective. Pure."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise, takewhile
from typing import NamedTuple

from resilin._base.flight import Flight
from resilin._base.flight_record import JOIN, MESSAGES, Call, CallState

_NOT_IN_STEPS = ("broadcast", "barrier", "gather", "all_gather", "scatter", "new_group")  # what programs begin with
_ALIKE = 10  # of them: who has made so many is at work
_OPEN = (CallState.QUEUED, CallState.RUNNING)


@dataclass(frozen=True, kw_only=True)
class FlightMember:
    """One rank of a group: its file, and its calls there, oldest first."""

    rank: int
    flight: Flight
    joined: bool  # the beginning of its calls is in the file
    collectives: tuple[Call, ...]
    messages: tuple[Call, ...]

    @cached_property
    def ran(self) -> dict[int, Call]:
        """Its collectives that have started, by number, in order."""
        return {call.sequence: call for call in self.collectives if call.sequence >= 0}

    def finished(self) -> int | None:
        """The number of its last collective that ended well; None when the file has lost it."""
        done = [sequence for sequence, call in self.ran.items() if call.state == CallState.DONE]
        if done:
            return max(done)
        if self.ran:
            return min(self.ran) - 1
        return -1 if self.joined else None

    def reached(self) -> int | None:
        """The number of the last collective that it has begun; None when the file has lost it."""
        return max(self.ran) if self.ran else -1 if self.joined else None

    def running(self) -> Call | None:
        """The collective that it is inside of."""
        return next((call for call in reversed(self.collectives) if call.state == CallState.RUNNING), None)

    def open(self) -> list[Call]:
        """Its collectives and messages that have not ended."""
        return [call for call in (*self.collectives, *self.messages) if call.state in _OPEN]


@dataclass(frozen=True, kw_only=True)
class Group:
    """One generation of a group, as far as files tell."""

    name: str
    generation: int
    key: int
    size: int
    members: Mapping[int, FlightMember]

    def __str__(self) -> str:
        return f"group {self.name!r} generation {self.generation}"

    def frontier(self) -> int | None:
        """The first collective that not every rank with a file has finished; None when files say nothing of it."""
        known = [last for member in self.members.values() if (last := member.finished()) is not None]
        return min(known) + 1 if known else None

    @cached_property
    def here(self) -> dict[int, Call]:
        """The ranks' calls at the frontier."""
        at = self.frontier()
        found = {} if at is None else {rank: member.ran.get(at) for rank, member in self.members.items()}
        return {rank: call for rank, call in found.items() if call is not None}

    def missing(self) -> list[int]:
        """Ranks whose files say that they have not come to the frontier, when others have."""
        if not self.here:
            return []
        return [
            rank for rank, member in self.members.items() if rank not in self.here and member.finished() is not None
        ]

    def unknown(self) -> list[int]:
        """Ranks of which the files say nothing here."""
        return [rank for rank in range(self.size) if rank not in self.members]

    def disagree(self) -> bool:
        """Return whether ranks called different things under one number."""
        calls = list(self.here.values())
        told = {str(call) for call in calls if call.dtype}  # the others had not said yet what they carry
        return len(told) > 1 or len({call.what for call in calls}) > 1

    def waiting(self) -> dict[int, Call]:
        """The ranks that are inside the frontier's collective."""
        return {rank: call for rank, call in self.here.items() if call.state == CallState.RUNNING}

    def waits(self) -> list[Wait]:
        """Return who is inside a collective that others have not come to: each waits for these, however far others are.

        One that is inside, too, but has not got as far as to tell the others what it calls has not come either.
        """
        reached = {rank: at for rank, member in self.members.items() if (at := member.reached()) is not None}
        inside = self.running()
        untold = {rank: call.sequence for rank, call in inside.items() if not call.told}
        return [
            Wait(self, rank, other, call)
            for rank, call in inside.items()
            for other, at in reached.items()
            if at < call.sequence or (call.told and untold.get(other) == call.sequence)
        ]

    def running(self) -> dict[int, Call]:
        """The ranks that are inside a collective, whichever it is."""
        inside = {rank: member.running() for rank, member in self.members.items()}
        return {rank: call for rank, call in inside.items() if call is not None}

    def ahead(self) -> dict[int, Call]:
        """The ranks that have finished the frontier's collective and wait in a later one."""
        at = self.frontier()
        return {rank: call for rank, call in self.running().items() if at is not None and call.sequence > at}

    def talking(self) -> dict[int, list[Call]]:
        """The ranks' messages that are under way."""
        under_way = {
            rank: [call for call in member.messages if _is_message(call)] for rank, member in self.members.items()
        }
        return {rank: calls for rank, calls in under_way.items() if calls}

    def last(self) -> float:
        """Return when something last happened here."""
        calls = [c for m in self.members.values() for c in (*m.collectives[-1:], *m.messages[-1:])]
        return max((max(call.made, call.started, call.ended) for call in calls), default=0.0)


def groups(flights: Sequence[Flight]) -> list[Group]:
    """The groups in the order of their first calls."""
    calls: dict[tuple[str, int, int], dict[int, tuple[Flight, list[Call]]]] = defaultdict(dict)
    sizes: dict[tuple[str, int, int], int] = {}
    for flight in flights:
        for call in flight.calls:
            which = call.group, call.generation, call.key
            sizes[which] = call.size
            calls[which].setdefault(call.rank, (flight, []))[1].append(call)
    return [
        Group(
            name=name, generation=generation, key=key, size=sizes[name, generation, key],
            members={rank: _member(rank, *mine) for rank, mine in sorted(by_rank.items())},
        )
        for (name, generation, key), by_rank in calls.items()
    ]  # fmt: skip


def _member(rank: int, flight: Flight, calls: Sequence[Call]) -> FlightMember:
    """Of the calls since it last joined: a group that is made anew, of the same ranks and name, counts from 0 again."""
    begins = max((place for place, call in enumerate(calls) if call.what == JOIN), default=0)
    calls = calls[begins:]
    return FlightMember(
        rank=rank,
        flight=flight,
        joined=any(call.what == JOIN for call in calls),
        collectives=tuple(call for call in calls if call.what not in (JOIN, *MESSAGES)),
        messages=tuple(call for call in calls if call.what in MESSAGES),
    )


def jobs(found: Iterable[Group]) -> list[list[Group]]:
    """The groups by job, the latest first: what one process or one job's name connects belongs together."""
    parts: list[tuple[set[object], list[Group]]] = []
    for group in found:
        marks: set[object] = {member.flight.path for member in group.members.values()}
        marks |= {f"job {member.flight.job}" for member in group.members.values() if member.flight.job}
        of_job = [group]
        for part in [part for part in parts if part[0] & marks]:
            parts.remove(part)
            marks |= part[0]
            of_job = part[1] + of_job
        parts.append((marks, of_job))
    return sorted((part[1] for part in parts), key=lambda each: -max(group.last() for group in each))


def newest(found: Sequence[Group]) -> list[Group]:
    """Of the groups of one name those of the last generation; of these, those with the latest call."""
    best: dict[str, Group] = {}
    for group in found:
        known = best.get(group.name)
        if known is None or (group.generation, group.last()) > (known.generation, known.last()):
            best[group.name] = group
    return [group for group in found if best[group.name] is group]


class Wait(NamedTuple):
    """`rank` of `group` waits in `call` for `other`."""

    group: Group
    rank: int
    other: int
    call: Call


def cycle(found: Sequence[Group], before: float = math.inf) -> list[Wait]:
    """Ranks that wait for one another, the last one for the first. Empty when there are none.

    A chain goes from process to process: who is missing in one group may wait in another, or for a message. Of messages
    only those count that were made `before`, and after which the process has called nothing else: it may be in `irecv`.
    """
    waits: dict[object, list[Wait]] = defaultdict(list)
    for group in found:
        for wait in group.waits():
            waits[group.members[wait.rank].flight.path].append(wait)
        for rank, calls in group.talking().items():
            flight = group.members[rank].flight
            newest = list(takewhile(_is_message, reversed(flight.calls)))
            waits[flight.path] += [
                Wait(group, rank, call.root, call)
                for call in calls
                if call.made < before and call in newest and call.root in group.members
            ]
    dead_ends: set[object] = set()
    for start in list(waits):
        trail: list[Wait] = []
        seen = [start]
        while True:
            going = [w for w in waits[seen[-1]] if w.group.members[w.other].flight.path not in dead_ends]
            if not going:
                dead_ends.add(seen.pop())
                if not seen:
                    break
                trail.pop()
                continue
            trail.append(going[0])
            at = going[0].group.members[going[0].other].flight.path
            if at in seen:
                return trail[seen.index(at) :]
            seen.append(at)
    return []


def _is_message(call: Call) -> bool:
    return call.what in MESSAGES and call.state in _OPEN


def gaps(calls: Iterable[Call]) -> tuple[float, ...]:
    """Seconds between the ends of collectives that are alike, as steps make them; empty when there are too few."""
    ends: dict[tuple[object, ...], list[float]] = defaultdict(list)
    for call in calls:
        if call.state == CallState.DONE and call.what not in (JOIN, *MESSAGES, *_NOT_IN_STEPS):
            ends[call.group, call.key, call.what, call.dtype, call.shape].append(call.ended)
    most: list[float] = max(ends.values(), key=len, default=[])
    return tuple(after - before for before, after in pairwise(sorted(most))) if len(most) >= _ALIKE else ()
