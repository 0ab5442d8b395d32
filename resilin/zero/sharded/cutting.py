"""Cuts rows among the ranks, and puts them together again."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import resilin.dist as dist
from resilin.zero.sharded.slabs import Slab
from resilin.zero.sharded.unit import Unit, shares

Array = Any


def cut(units: Sequence[Unit], group: dist.ProcessGroup, keep: Callable[[Unit, Slab], None] | None) -> None:
    """Give every unit this rank's range for the ranks of `group`, in new memory that is not set.

    keep: told of the memory of the whole row where the range is a part of it (stage 2).
    """
    for unit, share in zip(units, shares(units, group.size()), strict=True):
        if keep is not None and unit.dtype == unit.here_dtype and unit.home_dev is unit.dev:
            slab = Slab(unit.dev.xp.zeros(share * group.size() * unit.dtype.itemsize, "uint8"))
            keep(unit, slab)
            whole = slab.array(unit.dtype, share * group.size())
            mine = whole[group.rank() * share : (group.rank() + 1) * share]
        else:
            mine = unit.home_dev.xp.zeros(share, unit.dtype)
        unit.cut(group.rank(), group.size(), share, mine)


def fill(unit: Unit, group: dist.ProcessGroup, equal: bool) -> None:
    """Take this rank's range from the unit's parameters, of rank 0's where they may not be `equal`."""
    row = unit.home_dev.xp.zeros(unit.length, unit.dtype)
    for param, start, stop in zip(unit.params, unit.starts, unit.starts[1:], strict=False):
        array = param._array.reshape(-1)
        row[start:stop] = array if unit.home_dev is unit.dev else unit.dev.backend.to_host(array)
    if not equal and group.size() > 1 and unit.total:
        dist.broadcast(unit.tensor(row, home=True), group_src=0, group=group)
    unit.shard[...] = row[unit.rank * unit.share : (unit.rank + 1) * unit.share]


def unset(unit: Unit) -> None:
    """Make values that nobody must train with, until others are loaded."""
    if unit.dtype.kind in "fVc":
        for array in unit.spread(unit.shard):
            array[...] = float("nan")


def gathered_whole(unit: Unit, group: dist.ProcessGroup, row: Array = None) -> Array:
    """The whole row of `row`, this rank's range of something (default: of the parameters), on the pieces' device."""
    mine = unit.shard if row is None else row
    whole = unit.home_dev.xp.empty(unit.length, mine.dtype)
    dist.all_gather_into_tensor(unit.tensor(whole, home=True), unit.tensor(mine, home=True), group=group)
    return whole
