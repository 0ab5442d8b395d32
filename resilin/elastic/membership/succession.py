"""Decide which of two generations goes on, where a store has lost its records and nodes that live have them. Pure.

The embedded store is the memory of one process. When that one dies and another begins at its address, the new store is
empty, or a job has begun there that has hardly trained yet. Who was there before puts the last generation back, under
a number that leaves room for those that it had not heard of any more:

    lost store      1  2  3 ── 4 (told to some only)
                          └────────────── 171  172 ...    in the new store; a node that was told of 4 goes on with these
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Literal

from resilin.elastic.records import Closed, Generation, Node

ROOM = 100  # no node misses so many changes of the world, and comes back with state that counts
SPREAD = 900  # where two stores are lost one soon after the other, the same generation may be put back twice
REFILLED = "the store had lost this job's records: a node that was in it has put them back"
Verdict = Literal["join", "refill", "yield", "refuse"]


def goes_back_to(known: Generation, last: Generation) -> bool:
    """Return whether whoever carried out `last` may go on with `known`: no number has two worlds in their two lines."""
    if known.origin != last.origin:
        return False
    if known.refills == last.refills:
        return known.number >= last.number
    place = next((n for n, (one, two) in enumerate(zip(known.refills, last.refills, strict=False)) if one != two), None)
    place = min(len(known.refills), len(last.refills)) if place is None else place
    return place < len(known.refills) and known.refills[place][0] > last.number  # there the two lines part


def judge(
    last: Generation, known: Generation | None, closed: Closed | None, *, holds_state: bool, there: Iterable[Node]
) -> Verdict:
    """Say what a node does that carried out `last`, and finds `known` and `closed` in a store that is another one.

    holds_state: whether a worker of that node does. there: the records of the nodes of `known`. State outranks a start
    that has hardly trained. Of two nodes that have put back different ends of one job, the second begins anew in what
    the first goes on with.
    """
    if closed is not None:
        return "refuse"
    if known is None:
        return "refill"
    if goes_back_to(known, last):
        return "join"
    if known.origin != last.origin and holds_state:
        return "refuse" if any(node.stateful for node in there) else "refill"
    return "yield" if outranks(known, last) else "refuse"


def refill(last: Generation, mark: int) -> Generation:
    """`last` as it is put into a store that has lost it. `mark`: a number that nobody else has."""
    number = last.number + ROOM + mark % SPREAD
    refills = (*last.refills, (number, f"{mark:x}"))
    return replace(last, number=number, kind="inplace", fresh=False, reason=REFILLED, refills=refills)


def outranks(known: Generation, last: Generation) -> bool:
    """Return whether `known` was put back by a node that was in the job before, and `last` is of another line."""
    return bool(known.refills) and (known.origin, known.refills) != (last.origin, last.refills)
