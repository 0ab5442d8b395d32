"""Who is to blame when training stands still: the one that the others wait for and that waits for nobody. Pure.

stopped     one that a signal has stopped, wherever it stands
outside     one that others wait for, while it is in no collective and no message: those that use no processor first
ring        ranks that wait for one another: the one that most wait for, of these the highest
nobody      all are inside the same collective, or nobody waits, or a rank has announced a pause or is debugged, or
            whoever the others may wait for is on a node that says nothing: that node's lease tells
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from resilin._base.flight import Flight, State
from resilin.elastic.hangs import flights
from resilin.elastic.hangs.flights import Group, Wait
from resilin.elastic.hangs.stalls import Standing

_NAMED = 4  # ranks in a sentence


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """`ranks` are to blame, and why nobody else, or why nobody (then they are empty)."""

    ranks: tuple[int, ...] = ()
    reason: str

    def complaint(self, who: Standing) -> str:
        """What is said of one of `ranks`."""
        return f"{describe(who)}; {self.reason}"


def judge(standings: Sequence[Standing], size: int) -> Verdict:
    """Whom the workers of one generation of `size` wait for. Those that are not in `standings` are not heard of."""
    for who in standings:
        if who.doing == "traced":
            return Verdict(reason=f"rank {who.rank} is in a debugger")
    by_rank = {who.rank: who for who in standings}
    found = flights.newest(flights.groups([who.flight() for who in standings]))
    waits = _waits(found)
    inside = {int(m.flight.path.name) for group in found for m in group.members.values() if _is_waiting(m.flight)}
    if stopped := tuple(who.rank for who in standings if who.doing == "stopped"):
        return Verdict(ranks=stopped, reason=_others(inside.difference(stopped), found))
    for who in standings:
        if who.pause:
            return Verdict(reason=f"rank {who.rank} has announced a pause ({who.pause})")
    if not waits:
        unheard = set(range(size)).difference(by_rank)
        return _unheard(unheard, inside, found) if unheard else _nobody_waits(standings, inside, found)
    outside = {other: len(ranks) for other, ranks in waits.items() if other not in inside}
    if outside:
        idle = {rank: count for rank, count in outside.items() if by_rank[rank].doing == "idle"}
        chosen = _most(idle or outside)
        waiting = {rank for other in chosen for rank in waits[other]}
        if len(chosen) <= len(inside):
            return Verdict(ranks=chosen, reason=_others(waiting, found))
        return Verdict(reason=f"{_ranks(chosen)} are all still on their way to {_ranks(waiting)}")
    return _deadlock(flights.cycle(found), waits)


def describe(who: Standing) -> str:
    """What a worker does, for people: "it is stopped ...", "it uses no processor, at train.py:3 in step"."""
    if who.doing == "stopped":
        return "it is stopped (SIGSTOP)"
    what = "it is busy" if who.doing == "busy" else "it is blocked"
    return f"{what} at {who.at}" if who.at else what


def _waits(found: Sequence[Group]) -> dict[int, set[int]]:
    """By rank of the job: the ranks that wait for it."""
    waits: dict[int, set[int]] = {}

    def add(group: Group, rank: int, other: int) -> None:
        waits.setdefault(_rank(group, other), set()).add(_rank(group, rank))

    for group in found:
        for rank in group.waiting():
            for other in group.missing():
                add(group, rank, other)
        for rank, calls in group.talking().items():
            for call in calls:
                if call.state == State.RUNNING and call.root in group.members:
                    add(group, rank, call.root)
    return waits


def _unheard(unheard: Collection[int], inside: Collection[int], found: Sequence[Group]) -> Verdict:
    """A rank that waits for nobody known may wait for one of these, or, when it is dead, for the next world."""
    where = f" ({_others(inside, found)})" if inside else ""
    return Verdict(reason=f"nothing is heard of {_ranks(unheard)}, so nobody can be named{where}")


def _nobody_waits(standings: Sequence[Standing], inside: Collection[int], found: Sequence[Group]) -> Verdict:
    if len(standings) == 1 and not inside:
        return Verdict(ranks=(standings[0].rank,), reason="it is the only worker")
    if len(inside) == len(standings):
        return Verdict(
            reason=f"all ranks are in the same collective, so none waits for another: {_others(inside, found)}; look "
            "at the links between their hosts, and with `resilin trace` at their calls; their group's timeout ends it"
        )
    if inside:
        return Verdict(reason=f"all that are in a collective are in the same one: {_others(inside, found)}")
    return Verdict(reason="no rank waits for another")


def _deadlock(ring: Sequence[Wait], waits: Mapping[int, Collection[int]]) -> Verdict:
    if not ring:
        return Verdict(reason="each rank waits for another, and no ring of them was found")
    counts = {_rank(wait.group, wait.rank): 0 for wait in ring}
    chosen = _most({rank: len(waits.get(rank, ())) for rank in counts})[-1:]
    steps = [f"rank {_rank(w.group, w.rank)} waits in {w.call} for rank {_rank(w.group, w.other)}" for w in ring]
    return Verdict(ranks=chosen, reason=f"a deadlock, each waits for the next: {', '.join(steps)}")


def _others(waiting: Collection[int], found: Sequence[Group]) -> str:
    """ "ranks 0, 2 wait in all_reduce #4 float32[8] SUM of group 'world'"."""
    where: Counter[str] = Counter()
    for group in found:
        for rank, call in (*group.waiting().items(), *((r, c) for r, cs in group.talking().items() for c in cs)):
            if _rank(group, rank) in waiting:
                where[f"{call} of group {group.name!r}"] += 1
    verb = "waits" if len(waiting) == 1 else "wait"
    return f"{_ranks(waiting)} {verb} in {where.most_common(1)[0][0]}" if where else "nobody waits"


def _rank(group: Group, rank: int) -> int:
    """The rank in the job of rank `rank` of `group`."""
    return int(group.members[rank].flight.path.name)


def _is_waiting(flight: Flight) -> bool:
    return any(call.state == State.RUNNING for call in flight.calls)


def _most(counts: Mapping[int, int]) -> tuple[int, ...]:
    return tuple(rank for rank in sorted(counts) if counts[rank] == max(counts.values()))


def _ranks(numbers: Collection[int]) -> str:
    named = sorted(numbers)
    text = ", ".join(map(str, named[:_NAMED])) + (f" and {len(named) - _NAMED} more" if len(named) > _NAMED else "")
    return f"rank {text}" if len(named) == 1 else f"ranks {text}"
