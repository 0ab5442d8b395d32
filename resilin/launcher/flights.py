"""What the flight recorders of a job say together: which rank is missing from which collective. Pure."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from resilin._base.clock import spell
from resilin._base.flight import Call, Flight, State

MESSAGES = ("send", "recv")
_OPEN = (State.QUEUED, State.RUNNING)


@dataclass(frozen=True, kw_only=True)
class Member:
    """One rank of a group: its file, and its calls there, oldest first."""

    rank: int
    flight: Flight
    collectives: tuple[Call, ...]
    messages: tuple[Call, ...]

    def finished(self) -> int:
        """The number of its last collective that ended well; of those in the file, the one before the first did."""
        ran = [call for call in self.collectives if call.sequence >= 0]
        before = min((call.sequence for call in ran), default=0) - 1
        return max((call.sequence for call in ran if call.state == State.DONE), default=before)

    def at(self, sequence: int) -> Call | None:
        """Its collective of that number."""
        return next((call for call in self.collectives if call.sequence == sequence), None)

    def last(self) -> Call | None:
        """Its last collective that has run."""
        ran = [call for call in self.collectives if call.sequence >= 0]
        return ran[-1] if ran else None


@dataclass(frozen=True, kw_only=True)
class Group:
    """One generation of a group, as far as files tell."""

    name: str
    generation: int
    size: int
    members: Mapping[int, Member]

    def frontier(self) -> int:
        """The first collective that not every rank with a file has finished."""
        return min(member.finished() for member in self.members.values()) + 1

    def unknown(self) -> list[int]:
        """Ranks without a file."""
        return [rank for rank in range(self.size) if rank not in self.members]


def groups(flights: Sequence[Flight]) -> list[Group]:
    """The groups in the order of their first calls."""
    calls: dict[tuple[str, int], dict[int, tuple[Flight, list[Call]]]] = defaultdict(dict)
    sizes: dict[tuple[str, int], int] = {}
    for flight in flights:
        for call in flight.calls:
            key = call.group, call.generation
            sizes[key] = call.size
            calls[key].setdefault(call.rank, (flight, []))[1].append(call)
    found = []
    for (name, generation), by_rank in calls.items():
        members = {
            rank: Member(
                rank=rank,
                flight=flight,
                collectives=tuple(call for call in made if call.what not in MESSAGES),
                messages=tuple(call for call in made if call.what in MESSAGES),
            )
            for rank, (flight, made) in sorted(by_rank.items())
        }
        found.append(Group(name=name, generation=generation, size=sizes[name, generation], members=members))
    return found


def report(group: Group, now: float, alive: Callable[[Flight], bool | None]) -> list[str]:
    """Lines for people: where the group stands. `alive`: whether a file's process is there; None when unknown."""
    title = f"group {group.name!r} generation {group.generation}, {group.size} ranks"
    at = group.frontier()
    here = {rank: call for rank, member in group.members.items() if (call := member.at(at)) is not None}
    lines = [f"{title}: {_standing(group, at, here)}"]
    lines += [f"  {_ranks([rank])} {_state(call, now)}" for rank, call in here.items()]
    if here:
        for rank, member in group.members.items():
            if rank not in here:
                lines.append(f"  {_ranks([rank])} MISSING: {_elsewhere(member, now)}{_fate(alive(member.flight))}")
    for rank, member in group.members.items():
        for call in member.messages:
            if call.state in _OPEN:
                lines.append(f"  {_ranks([rank])} {call} waits since {spell(now - call.made)}, at {call.line}")
    if group.unknown():
        lines.append(f"  {_ranks(group.unknown())}: no file here: on another host, or it never made a call")
    return lines


def _standing(group: Group, at: int, here: Mapping[int, Call]) -> str:
    if not here:
        return "no collective has run" if at == 0 else f"all ranks finished #{at - 1}, nothing is under way"
    said = {str(call) for call in here.values()}
    if len(said) > 1:
        return f"ranks DISAGREE on #{at}"
    call = next(iter(here.values()))
    missing = [rank for rank in group.members if rank not in here]
    return f"{call}: " + (f"{_ranks(missing)} missing" if missing else "all ranks are in it")


def _state(call: Call, now: float) -> str:
    if call.state == State.RUNNING:
        return f"{call} waits since {spell(now - call.started)}, at {call.line}"
    if call.state == State.QUEUED:
        return f"{call} is queued since {spell(now - call.made)}, at {call.line}"
    ended = "failed" if call.state == State.FAILED else "finished"
    return f"{call} {ended} {spell(now - call.ended)} ago, at {call.line}"


def _elsewhere(member: Member, now: float) -> str:
    queued = [call for call in member.collectives if call.state == State.QUEUED]
    last = member.last()
    said = "it made no collective" if last is None else f"its last was {_state(last, now)}"
    return said + (f"; {len(queued)} more are queued" if queued else "")


def _fate(alive: bool | None) -> str:
    return {True: "; its process is alive", False: "; its process is GONE", None: ""}[alive]


def _ranks(ranks: Sequence[int]) -> str:
    return f"rank {ranks[0]}" if len(ranks) == 1 else f"ranks {', '.join(map(str, ranks))}"
