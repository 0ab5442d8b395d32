"""Ranks that leave give what nobody else has to those that stay, before they go. Collective, right after a commit.

A rank that leaves alone needs none of it: its buddy has its slices. A rank and its buddy that leave together, and any
rank in a world without buddies, do.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

import resilin.dist as dist
from resilin._base import moments
from resilin.core.tensor import Tensor
from resilin.dist.reconfigurable import Version
from resilin.elastic.worker import divided
from resilin.elastic.worker.divided import DividedPart


def agree(asked: bool, group: dist.ProcessGroup) -> frozenset[int]:
    """The ranks of `group` that were asked to leave when they came here, the same on all. Cost: a byte of each."""
    flags = np.zeros(group.size(), np.uint8)
    flags[group.rank()] = asked
    dist.all_reduce(Tensor._wrap(flags), op=dist.ReduceOp.MAX, group=group)
    return frozenset(np.flatnonzero(flags).tolist())


def hand_over(
    parts: Mapping[str, DividedPart], versions: Mapping[str, Version], leaving: frozenset[int], group: dist.ProcessGroup
) -> int:
    """Give those that stay what only ranks in `leaving` have, divided as in a world of those that stay.

    versions: of the last commit, by object. Returns the bytes sent and received here. Nobody comes out of it before
    all have what they need. Nothing happens when nobody stays.
    """
    stay = [rank for rank in range(group.size()) if rank not in leaving]
    if not leaving or not stay:
        return 0
    own = {name: part.stand(versions[name]) for name, part in parts.items()}
    stands: list[Any] = [None] * group.size()
    dist.all_gather_object(stands, own, group=group)
    moved = 0
    for name, part in parts.items():
        told = [each[name] for each in stands]
        if divided.plan(part.thing, told, stay, stay).complete:
            continue
        division = divided.plan(part.thing, told, range(group.size()), range(group.size()), seats=stay)
        divided.check(name, part.thing, division, told, range(group.size()))
        moments.reached("state")
        lot, some = divided.gather(part.thing, division, group, range(group.size()))
        part.thing.hold(lot)
        moved += some
    dist.barrier(group=group)
    return moved
