"""Decide which nodes go on when not all of them reach one another. Pure: a function over who cannot connect with whom.

Each node says in its record with whom it could not connect (`Node.unreachable`, by its own tries). A pair is apart when
either says so, until that one's try succeeds; of a world in which training stands still when all have tried, so that
one choice is made of all cuts. `staying` chooses, of the nodes of a world, those that go on; the others
look to every decision as if they were leaving, but keep their processes, and join again when the pair has met.

The choice is a largest set that is whole in itself: a largest independent set of the graph of pairs that are apart.
Nodes that are apart from exactly the same others count as one vertex, so a network that is cut in two is two vertices
whatever its size; of more than `EXACT` vertices the ones that are apart from most are left out one by one instead.

Where state is divided, each worker has told in its slot which parts it has (`Slot.parts`), once for each world it took
up. Those of the newest such world count, also of nodes that were left out of worlds which nobody took up since. Of
state that is whole, those have it that were left out of no world since (`Slot.left_out_after`), or of the latest. A set
that does not have all parts, though all nodes together do, cannot go on: if there is no other, all wait (`View.torn`).
"""

from __future__ import annotations

import functools
import operator
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass

from resilin.elastic.membership.view import Seen, View
from resilin.elastic.records import Slot

EXACT = 16  # vertices of which all sets are looked at: 65,536 at most
_NAMED = 4


@dataclass(frozen=True, kw_only=True)
class Candidate:
    """A node of the world whose network is cut, and what speaks for it."""

    id: str
    workers: int
    """How many of the world are on it; 0 of one that has said nothing since the store lost its record."""
    holders: int
    """How many of these have the job's state."""
    rank: int
    """The lowest rank among them."""
    leads: bool = False
    """Whether it leads the job."""
    parts: frozenset[int] = frozenset()
    """What it has of the job's state. State that is not divided is one part."""


@dataclass(frozen=True, kw_only=True)
class _Division:
    """Into which parts the job's state is divided, as the workers that have it tell."""

    generation: int = 0
    """The newest world that any of them took up; 0: state is whole, or parts of it are gone for good."""
    parts: frozenset[int] = frozenset({0})
    left_out_after: int = 0
    """Where it is whole: what those that have the newest say of themselves (`Slot.left_out_after`)."""


Pair = tuple[str, str]
_Weight = tuple[bool, int, int, bool, tuple[int, ...]]


def staying(candidates: Sequence[Candidate], apart: Collection[Pair]) -> frozenset[str]:
    """Return the ids of the nodes that go on: every two of them reach one another. None: no such set has all the state.

    What all candidates have of the job's state, they have together. Of such sets the one with most workers; then most
    that have state, then the leader's, then that of the lowest rank at which two sets differ. Of a graph with more than
    `EXACT` vertices a set with all the state may be missed, but none is returned without it.
    """
    known = {each.id: each for each in candidates}
    foes = _foes([pair for pair in apart if pair[0] in known and pair[1] in known])
    free = frozenset(known.keys() - foes.keys())
    twins = _twins(foes)
    if len(twins) > EXACT:
        twins = _thinned(twins, foes, known)
    everything = frozenset().union(*(each.parts for each in candidates))
    place = {part: bit for bit, part in enumerate(everything)}
    parts = {each.id: sum(1 << place[part] for part in each.parts) for each in candidates}
    whole = (1 << len(everything)) - 1

    def has_all(chosen: AbstractSet[str]) -> bool:
        return functools.reduce(operator.or_, (parts[name] for name in chosen | free), 0) == whole

    def weight(chosen: AbstractSet[str]) -> _Weight:
        found = [known[name] for name in chosen | free]
        holders = sum(each.holders for each in found)
        ranks = tuple(sorted(-each.rank for each in found)[::-1])
        leads = any(each.leads for each in found)
        return has_all(chosen), sum(each.workers for each in found), holders, leads, ranks

    best: frozenset[str] = max(_whole(twins, foes), key=weight)
    return free | best if has_all(best) else frozenset()


def apart(view: View) -> dict[str, str]:
    """Return the nodes that take no part because of a cut, and why, by their ids.

    Nodes of the present world that go on come first; others must reach all of these, the oldest first. All of them,
    where no nodes that reach one another have all of the state.
    """
    pairs = pairs_apart(view)
    if not pairs:
        return {}
    there = [seen for seen in view.nodes if not seen.node.leaving]
    current = view.generation.nodes if view.generation is not None else ()
    division = _division(there)
    candidates = [_candidate(view, seen, division) for seen in there if seen.node.id in current]
    bereft = not any(each.parts for each in candidates)  # who waits beyond a cut has older state, but has some
    others = (_outsider(view, seen, division, bereft) for seen in there if seen.node.id not in current)
    candidates += [each for each in others if each.parts]
    kept = staying(candidates, pairs)
    foes = _foes(pairs)
    if candidates and not kept:
        return {seen.node.id: _waits(view, seen, candidates, foes, division) for seen in there}
    here = set(kept)
    for seen in there:
        if seen.node.id not in here and seen.node.id not in current and not foes.get(seen.node.id, frozenset()) & here:
            here.add(seen.node.id)
    return {
        seen.node.id: _reason(view, foes[seen.node.id] & here or foes[seen.node.id])
        for seen in there
        if seen.node.id not in here
    }


def pairs_apart(view: View) -> frozenset[Pair]:
    """Return the pairs of live nodes of which one could not connect with the other."""
    live = {seen.node.id for seen in view.nodes}
    told = ((seen.node.id, other) for seen in view.nodes for other in seen.node.unreachable if other in live)
    pairs = frozenset((min(pair), max(pair)) for pair in told if pair[0] != pair[1])
    within = _still_looked_at(view)
    return frozenset(pair for pair in pairs if not within.issuperset(pair))


def cuts_within(view: View, nodes: Collection[str]) -> str:
    """Say, for people, who of `nodes` cannot connect with whom; empty: all reach one another, as far as is known."""
    pairs = sorted(pair for pair in pairs_apart(view) if set(pair).issubset(nodes))
    told = [f"{_host(view, one)} and {_host(view, other)} cannot connect with one another" for one, other in pairs]
    more = [f"{len(told) - _NAMED} more pairs neither"] if len(told) > _NAMED else []
    return ", ".join((*told[:_NAMED], *more))


def _still_looked_at(view: View) -> frozenset[str]:
    """The nodes of a world in which some have begun to look why training stands still, and have not told all yet."""
    current = view.generation
    if current is None:
        return frozenset()
    stalls = (seen.node.stall for seen in view.nodes if seen.node.id in current.nodes)
    looking = any(stall and stall.generation == current.number and not stall.workers for stall in stalls)
    return frozenset(current.nodes) if looking else frozenset()


def _host(view: View, name: str) -> str:
    node = view.node(name)
    return node.host if node is not None else name


def parts_there(view: View) -> dict[tuple[str, int], frozenset[int]]:
    """Return what workers have of the state, by node and slot. State that is not divided is one part."""
    there = [seen for seen in view.nodes if not seen.node.leaving]
    division = _division(there)
    return {(seen.node.id, slot.index): _parts((slot,), division) for seen in there for slot in seen.node.slots}


def _division(there: Sequence[Seen]) -> _Division:
    """What counts as parts of the state: those of the newest world that a worker took up, if all of them are there."""
    holders = [slot for seen in there for slot in seen.node.slots if _holds(slot)]
    slots = [slot for slot in holders if slot.parts]
    newest = max((slot.parts_in for slot in slots), default=0)
    slots = [slot for slot in slots if slot.parts_in == newest]
    total = max((slot.parts_of for slot in slots), default=0)
    parts = frozenset(part for slot in slots for part in slot.parts if 0 <= part < total)
    if 0 < len(parts) == total:
        return _Division(generation=newest, parts=parts)
    left_out = [slot.left_out_after for slot in holders]
    return _Division(left_out_after=0 if 0 in left_out else max(left_out, default=0))


def _holds(slot: Slot) -> bool:
    return slot.has_state and slot.state in ("ready", "done")


def _parts(slots: Iterable[Slot], division: _Division) -> frozenset[int]:
    """What the workers in `slots` have of it."""
    found: set[int] = set()
    for slot in slots:
        if _holds(slot) and division.generation and slot.parts:
            found |= division.parts.intersection(slot.parts) if slot.parts_in == division.generation else set()
        elif _holds(slot) and (division.generation or slot.left_out_after == division.left_out_after):
            found |= division.parts
    return frozenset(found)


def _outsider(view: View, seen: Seen, division: _Division, bereft: bool) -> Candidate:
    """A node that is not in the world counts for the parts that it has of divided state, and for nothing else. Where
    the world is `bereft` of all state, it counts for what it has of any.
    """
    assert view.generation is not None
    parts = _parts(seen.node.slots, division) if division.generation or bereft else frozenset[int]()
    return Candidate(id=seen.node.id, workers=0, holders=0, rank=len(view.generation.members), parts=parts)


def _candidate(view: View, seen: Seen, division: _Division) -> Candidate:
    assert view.generation is not None
    silent = seen.node.put_back  # dead, perhaps: whatever else can go on does
    mine = [member for member in view.generation.members if member.node == seen.node.id]
    slots = [seen.node.slots[m.slot] for m in mine if seen.node.slots[m.slot].incarnation == m.incarnation]
    return Candidate(
        id=seen.node.id,
        workers=0 if silent else len(mine),
        holders=sum(bool(_parts((slot,), division)) for slot in slots),
        rank=min((member.rank for member in mine if not silent), default=len(view.generation.members)),
        leads=not silent and view.leader() == seen.node.id,
        parts=_parts(slots, division),
    )


def _waits(
    view: View,
    seen: Seen,
    candidates: Sequence[Candidate],
    foes: Mapping[str, frozenset[str]],
    division: _Division,
) -> str:
    """Why a node takes no part when nobody does."""
    mine = foes.get(seen.node.id, frozenset())
    here = frozenset().union(*(each.parts for each in candidates if each.id not in mine))
    ranks = sorted(division.parts - here)
    names = ", ".join(map(str, ranks[:_NAMED])) + (f" and {len(ranks) - _NAMED} more" if len(ranks) > _NAMED else "")
    of = f"that of rank{'s' if len(ranks) > 1 else ''} {names} of generation {division.generation}"
    beyond = f": {of} is beyond the cut" if ranks else ""
    cut = f"{_reason(view, mine)}, and " if mine else ""
    return f"{cut}no nodes that all reach one another have the whole divided state{beyond}"


def _reason(view: View, foes: Iterable[str]) -> str:
    nodes = [node for each in sorted(foes) if (node := view.node(each)) is not None]
    names = ", ".join(node.host for node in nodes[:_NAMED])
    more = f" and {len(nodes) - _NAMED} more" if len(nodes) > _NAMED else ""
    return f"it and {names}{more} cannot connect with one another"


def _foes(pairs: Iterable[Pair]) -> dict[str, frozenset[str]]:
    found: dict[str, set[str]] = {}
    for one, other in pairs:
        found.setdefault(one, set()).add(other)
        found.setdefault(other, set()).add(one)
    return {name: frozenset(others) for name, others in found.items()}


def _twins(foes: Mapping[str, frozenset[str]]) -> list[frozenset[str]]:
    """Nodes with the same foes together: all of them go on, or none."""
    by_foes: dict[frozenset[str], set[str]] = {}
    for name, others in foes.items():
        by_foes.setdefault(others, set()).add(name)
    return [frozenset(names) for _, names in sorted((min(names), names) for names in by_foes.values())]


def _whole(twins: Sequence[frozenset[str]], foes: Mapping[str, frozenset[str]]) -> Iterator[frozenset[str]]:
    """Every set of `twins` without a pair that is apart."""
    if not twins:
        yield frozenset()
        return
    first, rest = twins[0], twins[1:]
    yield from _whole(rest, foes)
    against = foes[next(iter(first))]
    for chosen in _whole([each for each in rest if not each & against], foes):
        yield first | chosen


def _thinned(
    twins: Sequence[frozenset[str]], foes: Mapping[str, frozenset[str]], known: Mapping[str, Candidate]
) -> list[frozenset[str]]:
    """At most EXACT of `twins`: left out are first those without state, then those of which others have the same parts
    of it, and then those that are apart from most."""
    left = list(twins)
    parts = {names: frozenset().union(*(known[name].parts for name in names)) for names in twins}
    among = Counter(part for names in twins for part in parts[names])

    def badness(names: frozenset[str]) -> tuple[bool, bool, int, int, int]:
        members = [known[name] for name in names]
        spare = all(among[part] > 1 for part in parts[names])
        against = foes[next(iter(names))] & frozenset().union(*left)
        workers = sum(each.workers for each in members)
        lowest = min(each.rank for each in members)
        return not parts[names], spare, len(against) - workers, -workers, lowest

    while len(left) > EXACT:
        worst = max(left, key=badness)
        left.remove(worst)
        among.subtract(parts[worst])
    return left
