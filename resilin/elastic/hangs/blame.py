"""Find who is to blame when training stands still: the one that the others wait for and that waits for nobody. Pure.

stopped     one that a signal has stopped, wherever it stands
absent      one that has not begun to form the world that others form: of these the ones that use no processor first;
            but where such wait in their old world for one another, whoever is to blame there
outside     one that others wait for and that waits for nobody, in no collective and no message, or in a collective that
            those others have finished: of these the ones that use no processor first
strays      where all are inside the same collective: one whose main thread has gone from there into other code
ring        ranks that wait for one another: the one that most wait for, of these the highest
nobody      all are inside the same collective, or nobody waits, or a rank has announced a pause or is debugged, or
            whoever the others may wait for is on a node that says nothing: that node's lease tells
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence, Set
from dataclasses import dataclass, replace

from resilin._base.flight import Flight
from resilin._base.flight_record import Call, CallState
from resilin.elastic.hangs import flight_analysis
from resilin.elastic.hangs.flight_analysis import Group, Wait
from resilin.elastic.hangs.stall_record import Standing

_NAMED = 4  # ranks in a sentence
_DOINGS = 8  # and different things that ranks do


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """`ranks` are to blame, and why nobody else, or why nobody (then they are empty)."""

    ranks: tuple[int, ...] = ()
    reason: str

    def complaint(self, who: Standing) -> str:
        """Say what is said of one of `ranks`."""
        return f"{describe(who)}; {self.reason}"


def judge(standings: Sequence[Standing], size: int) -> Verdict:
    """Find whom the workers of one generation of `size` wait for. Those not in `standings` are not heard of."""
    for who in standings:
        if who.doing == "traced":
            return Verdict(reason=f"rank {who.rank} is in a debugger")
    by_rank = {who.rank: who for who in standings}
    found = flight_analysis.newest(flight_analysis.groups([who.flight() for who in standings]))
    waits = _waits(found, by_rank)
    inside = {int(m.flight.path.name) for group in found for m in group.members.values() if _is_waiting(m.flight)}
    if stopped := tuple(who.rank for who in standings if who.doing == "stopped"):
        late = _absent([who for who in standings if who.rank in stopped or not who.absent])
        return Verdict(ranks=stopped, reason=late.reason if late else _others(inside.difference(stopped), found))
    for who in standings:
        if who.pause:
            return Verdict(reason=f"rank {who.rank} has announced a pause ({who.pause})")
    unheard = set(range(size)).difference(by_rank)
    if late := _absent(standings):
        return late
    if not waits:
        verdict = _unheard(unheard, inside, found) if unheard else _nobody_waits(standings, inside, found)
        return replace(verdict, reason=verdict.reason + _unread(standings))
    waiting = set().union(*waits.values(), inside if unheard else _talking(found))
    outside = {other: len(ranks) for other, ranks in waits.items() if other not in waiting}
    if outside:
        idle = {rank: count for rank, count in outside.items() if by_rank[rank].doing == "idle"}
        chosen = _most(idle or outside)
        rest = doings(standings, but=waiting | set(chosen))  # of a rank that neither waits nor is waited for most
        for_them = {rank for other in chosen for rank in waits[other]}
        if len(chosen) <= len(waiting):
            return Verdict(ranks=chosen, reason=_others(for_them, found) + (f", {rest}" if rest else ""))
        return Verdict(reason=f"{_ranks(chosen)} are all still on their way to {_ranks(for_them)}")
    return _deadlock(flight_analysis.cycle(found), waits)


def _absent(standings: Sequence[Standing]) -> Verdict | None:
    """Who has not begun to form a world that others form: they wait there for all. None: nobody, or all."""
    absent = [who for who in standings if who.absent]
    here = [who.rank for who in standings if not who.absent]
    if not absent or not here:
        return None
    wait = "waits" if len(here) == 1 else "wait"
    reason = f"{_ranks(here)} {wait} for it in generation {absent[0].absent}, which it has not taken up"
    if held := _held_up(absent):
        within = judge([replace(who, absent=0) for who in absent], 0)
        late = [who for who in absent if who.rank not in held]
        if within.ranks or not late:
            return replace(within, reason=f"{within.reason}; {reason}" if within.ranks else within.reason)
        absent = late
    chosen = [who for who in absent if who.doing == "idle"] or absent
    return Verdict(ranks=tuple(who.rank for who in chosen), reason=reason)


def _held_up(absent: Sequence[Standing]) -> set[int]:
    """Those that wait in their old world for one another, and cannot leave it. Where others have left it, they can."""
    found = flight_analysis.newest(flight_analysis.groups([who.flight() for who in absent]))
    return {
        _rank(group, rank) for group in found if not group.unknown() for rank in (*group.running(), *group.talking())
    }


def describe(who: Standing) -> str:
    """Say what a worker does, for people: "it is stopped ...", "it uses no processor, at train.py:3 in step"."""
    if who.doing == "stopped":
        return "it is stopped (SIGSTOP)"
    what = "it is busy" if who.doing == "busy" else "it is blocked"
    return f"{what} at {who.at}" if who.at else what


def doings(standings: Sequence[Standing], but: Collection[int] = ()) -> str:
    """Say what each rank does, for people; equal doings once, and nothing of the ranks in `but`.

    "ranks 0, 2 wait in all_reduce #4 float32[8] SUM of group 'world' for rank 1 (train.py:7 in step), rank 1 is ..."
    """
    by_rank = {who.rank: who for who in standings}
    found = flight_analysis.newest(flight_analysis.groups([who.flight() for who in standings]))
    awaited = _waits(found, by_rank)
    calls: dict[int, str] = {}
    for text, ranks in _calls(found).items():
        calls |= {rank: calls.get(rank, text) for rank in ranks}
    same: dict[str, list[int]] = {}
    for who in standings:
        if who.rank not in but:
            others = [other for other, ranks in awaited.items() if who.rank in ranks]
            same.setdefault(_doing(who, calls.get(who.rank, ""), others), []).append(who.rank)
    told = [f"{_ranks(ranks)} {text}" for text, ranks in same.items()]
    more = [f"{len(told) - _DOINGS} more elsewhere"] if len(told) > _DOINGS else []
    return ", ".join((*told[:_DOINGS], *more))


def _doing(who: Standing, call: str, awaited: Collection[int]) -> str:
    """What `doings` says of one rank, behind its number."""
    if who.doing in ("stopped", "traced"):
        return "stopped (SIGSTOP)" if who.doing == "stopped" else "in a debugger"
    if who.pause:
        return f"in an announced pause ({who.pause})"
    if not call:
        return describe(who).removeprefix("it is ")
    others = f" for {_ranks(awaited)}" if awaited else ""
    return f"in {call}{others}{f' ({who.at})' if who.at else ''}"


def _waits(found: Sequence[Group], by_rank: Mapping[int, Standing]) -> dict[int, set[int]]:
    """By rank of the job: the ranks that wait for it."""
    waits: dict[int, set[int]] = {}

    for group in found:
        for wait in group.waits():
            waits.setdefault(_rank(group, wait.other), set()).add(_rank(group, wait.rank))
        for rank in group.running():
            for other in _forgotten(group, by_rank):
                waits.setdefault(other, set()).add(_rank(group, rank))
        for rank, calls in group.talking().items():
            for call in calls:
                others = group.members.keys() - {rank} if call.root < 0 else group.members.keys() & {call.root}
                for other in others if _runs(call) else ():
                    waits.setdefault(_rank(group, other), set()).add(_rank(group, rank))
    return waits


def _talking(found: Sequence[Group]) -> set[int]:
    """Ranks of the job that are in a message, though the other end may be unknown."""
    return {_rank(g, rank) for g in found for rank, calls in g.talking().items() for c in calls if _runs(c)}


def _forgotten(group: Group, by_rank: Mapping[int, Standing]) -> set[int]:
    """Ranks of the job that are in `group`, though their recorders have lost all that they did there, long ago."""
    others = set(by_rank) - {_rank(group, rank) for rank in group.members}
    told = all(by_rank[rank].calls and not by_rank[rank].unread for rank in others)
    return others if told and len(others) == len(group.unknown()) else set()


def _unheard(unheard: Collection[int], inside: Collection[int], found: Sequence[Group]) -> Verdict:
    """A rank that waits for nobody known may wait for one of these, or, when it is dead, for the next world."""
    where = f" ({_others(inside, found)})" if inside else ""
    return Verdict(reason=f"nothing is heard of {_ranks(unheard)}, so nobody can be named{where}")


def _nobody_waits(standings: Sequence[Standing], inside: Set[int], found: Sequence[Group]) -> Verdict:
    if len(standings) == 1 and not inside:
        return Verdict(ranks=(standings[0].rank,), reason="it is the only worker")
    strayed = tuple(who.rank for who in standings if who.strays and who.rank in inside)
    if 0 < len(strayed) <= len(inside) - len(strayed):
        return Verdict(ranks=strayed, reason=_others(inside - set(strayed), found))
    if len(inside) == len(standings):
        return Verdict(
            reason=f"all ranks are in the same collective, so none waits for another: {_others(inside, found)}; look "
            "at the links between their hosts, and with `resilin trace` at their calls; their group's timeout ends it"
        )
    if inside:
        return Verdict(reason=f"all that are in a collective are in the same one: {_others(inside, found)}")
    return Verdict(reason="no rank waits for another")


def _unread(standings: Sequence[Standing]) -> str:
    """What may be the reason that nobody can be named."""
    lost = [f"of rank {who.rank} its calls are not known ({who.unread})" for who in standings if who.unread]
    more = [f"and {len(lost) - _NAMED} more"] if len(lost) > _NAMED else []
    return "".join(f"; {text}" for text in (*lost[:_NAMED], *more))


def _deadlock(ring: Sequence[Wait], waits: Mapping[int, Collection[int]]) -> Verdict:
    if not ring:
        return Verdict(reason="each rank waits for another, and no ring of them was found")
    counts = {_rank(wait.group, wait.rank): 0 for wait in ring}
    chosen = _most({rank: len(waits.get(rank, ())) for rank in counts})[-1:]
    steps = [f"rank {_rank(w.group, w.rank)} waits in {w.call} for rank {_rank(w.group, w.other)}" for w in ring]
    return Verdict(ranks=chosen, reason=f"a deadlock, each waits for the next: {', '.join(steps)}")


def _others(waiting: Collection[int], found: Sequence[Group]) -> str:
    """ "ranks 0, 2 wait in all_reduce #4 float32[8] SUM of group 'world'"; of several the first few."""
    where = {text: mine for text, ranks in _calls(found).items() if (mine := ranks & set(waiting))}
    told: list[str] = []
    left = set(waiting)
    for text, ranks in sorted(where.items(), key=lambda each: -len(each[1])):  # of a rank in several calls only one
        if mine := ranks & left:
            told.append(f"{_ranks(mine)} {'waits' if len(mine) == 1 else 'wait'} in {text}")
            left -= mine
    more = [f"{len(told) - _NAMED} more wait elsewhere"] if len(told) > _NAMED else []
    return ", ".join((*told[:_NAMED], *more)) or "nobody waits"


def _calls(found: Sequence[Group]) -> dict[str, set[int]]:
    """By call, as people know it: the ranks of the job that are in it."""
    where: dict[str, set[int]] = {}
    for group in found:
        for rank, call in (*group.running().items(), *((r, c) for r, cs in group.talking().items() for c in cs)):
            where.setdefault(f"{call} of group {group.name!r}", set()).add(_rank(group, rank))
    return where


def _rank(group: Group, rank: int) -> int:
    """The rank in the job of rank `rank` of `group`."""
    return int(group.members[rank].flight.path.name)


def _is_waiting(flight: Flight) -> bool:
    return any(map(_runs, flight.calls))


def _runs(call: Call) -> bool:
    return call.state == CallState.RUNNING


def _most(counts: Mapping[int, int]) -> tuple[int, ...]:
    return tuple(rank for rank in sorted(counts) if counts[rank] == max(counts.values()))


def _ranks(numbers: Collection[int]) -> str:
    named = sorted(numbers)
    text = ", ".join(map(str, named[:_NAMED])) + (f" and {len(named) - _NAMED} more" if len(named) > _NAMED else "")
    return f"rank {text}" if len(named) == 1 else f"ranks {text}"
