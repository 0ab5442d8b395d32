"""Plan who gives which elements of which logical tensor to whom when a world divides its state anew. Pure.

held      rank 0: [0, 8), [16, 24)     rank 1: [8, 16), [0, 8)          own slices and those kept for others
wanted    rank 0: [0, 12)              rank 1: [12, 24)                 two of three ranks are left
gives     0 <- 0 [0, 8)   0 <- 1 [8, 12)   1 <- 1 [12, 16)   1 <- 0 [16, 24)
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

Held = Mapping[str, Sequence[range]]
"""What one rank has, by logical tensor; ranges may overlap."""
Wanted = Mapping[str, range]
"""What one rank needs."""


@dataclass(frozen=True, slots=True)
class Give:
    """Rank `source` gives elements [start, stop) of `name` to `receiver`, which may be itself."""

    source: int
    receiver: int
    name: str
    start: int
    stop: int


@dataclass(frozen=True, slots=True)
class Hole:
    """Elements [start, stop) of `name` that nobody has and somebody needs."""

    name: str
    start: int
    stop: int


@dataclass(frozen=True, slots=True)
class ReshardPlan:
    """Every element that is needed is in one give to each rank that needs it, or in a hole."""

    gives: tuple[Give, ...]
    holes: tuple[Hole, ...]


def plan(held: Sequence[Held], wanted: Sequence[Wanted], weights: Mapping[str, int] | None = None) -> ReshardPlan:
    """Find whom each rank gets what it needs from: from itself, else from whoever has it and has given least so far.

    held, wanted: by rank. weights: bytes of an element, by name (1 where there is none). The result is a function of
    the arguments: every rank computes it for all.
    """
    gives: list[Give] = []
    holes: list[Hole] = []
    given = [0] * len(held)
    for name in sorted({name for one in wanted for name in one}):
        weight = (weights or {}).get(name, 1)
        have = [(rank, part) for rank, one in enumerate(held) for part in one.get(name, ()) if part]
        need = [(rank, one[name]) for rank, one in enumerate(wanted) if one.get(name)]
        for start, stop in pairwise(_bounds(part for _, part in [*have, *need])):
            holders = sorted({rank for rank, part in have if part.start <= start and stop <= part.stop})
            receivers = [rank for rank, part in need if part.start <= start and stop <= part.stop]
            if receivers and not holders:
                holes.append(Hole(name, start, stop))
                continue
            for receiver in receivers:
                source = receiver if receiver in holders else min(holders, key=lambda rank: (given[rank], rank))
                given[source] += (stop - start) * weight * (source != receiver)
                gives.append(Give(source, receiver, name, start, stop))
    return ReshardPlan(tuple(_joined(gives)), tuple(holes))


def _bounds(parts: Iterable[range]) -> list[int]:
    return sorted({bound for part in parts for bound in (part.start, part.stop)})


def _joined(gives: Iterable[Give]) -> list[Give]:
    """Gives of neighbouring elements between the same two ranks as one."""
    last: dict[tuple[int, int, str], Give] = {}
    done: list[Give] = []
    for give in gives:
        key = (give.source, give.receiver, give.name)
        before = last.get(key)
        if before is not None and before.stop == give.start:
            give = Give(give.source, give.receiver, give.name, before.start, give.stop)
        elif before is not None:
            done.append(before)
        last[key] = give
    return [*done, *last.values()]
