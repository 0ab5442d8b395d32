"""Give what nobody else has from ranks that leave to those that stay, before they go. Collective, right after a commit.

A rank that leaves alone needs none of it: its buddy has its slices. A rank and its buddy that leave together, and any
rank in a world without buddies, do.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

import resilin.distributed as dist
from resilin._base import fault_points
from resilin.core.tensor import Tensor
from resilin.distributed.api import records
from resilin.distributed.api.reconfigurable import Version
from resilin.elastic.worker import sharded_part
from resilin.elastic.worker.sharded_part import DividedPart, Stand


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
    stands = records.gather(dict[str, Stand], own, group)
    moved = 0
    for name, part in parts.items():
        told = [each[name] for each in stands]
        if sharded_part.plan(part.thing, told, stay, stay).complete:
            continue
        division = sharded_part.plan(part.thing, told, range(group.size()), range(group.size()), seats=stay)
        sharded_part.check(name, part.thing, division, told, range(group.size()))
        fault_points.reached("state")
        lot, some = sharded_part.gather(part.thing, division, group, range(group.size()))
        part.thing.hold(lot)
        moved += some
    dist.barrier(group=group)
    return moved
