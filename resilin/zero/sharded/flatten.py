"""Cuts rows among the ranks, and puts them together again."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import resilin.distributed as dist
from resilin.zero.sharded.buffer_pool import Slab
from resilin.zero.sharded.unit import Unit, shares

Array = Any
Keep = Callable[[Unit, Slab], None]


def cut(units: Sequence[Unit], rank: int, world: int, keep: Keep | None, filled: bool) -> None:
    """Give every unit the range of `rank` among `world` ranks, in new memory.

    keep:   told of the memory of the whole row where the range is a part of it (stage 2).
    filled: values are those of the unit's parameters, which go away, one unit after the other: no more than one exists
            twice. Else they are not to be trained with until others are loaded.
    """
    for unit, share in zip(units, shares(units, world), strict=True):
        if keep is not None and unit.dtype == unit.here_dtype and unit.home_dev is unit.dev:
            slab = Slab(unit.dev.xp.zeros(share * world * unit.dtype.itemsize, "uint8"))
            keep(unit, slab)
            whole = slab.array(unit.dtype, share * world)
            mine = whole[rank * share : (rank + 1) * share]
        else:
            mine = unit.home_dev.xp.zeros(share, unit.dtype)
        unit.cut(rank, world, share, mine)
        if filled:
            _fill(unit)
            unit.vanish()
        else:
            _unset(unit)


def equalise(unit: Unit, group: dist.ProcessGroup) -> None:
    """Give a unit's parameters, which are still whole, the values that they have on rank 0."""
    row = unit.dev.xp.concatenate([param._array.reshape(-1) for param in unit.params])
    if not row.size:
        return
    dist.broadcast(unit.tensor(row), group_src=0, group=group)
    for param, start, stop in zip(unit.params, unit.starts, unit.starts[1:], strict=False):
        if group.rank():
            param._array[...] = row[start:stop].reshape(param._array.shape)
            param._bump()


def _fill(unit: Unit) -> None:
    """Take this rank's range from the unit's parameters."""
    for piece, param in zip(unit.pieces, unit.params, strict=True):
        part = param._array.reshape(-1)[piece.start : piece.start + piece.numel()]
        piece._array[...] = part if unit.home_dev is unit.dev else unit.dev.backend.to_host(part)


def _unset(unit: Unit) -> None:
    """Make values that nobody must train with, until others are loaded."""
    if unit.dtype.kind in "fVc":
        for array in unit.spread(unit.shard):
            array[...] = float("nan")


def gathered_whole(unit: Unit, group: dist.ProcessGroup | None, row: Array = None) -> Array:
    """The whole row of `row`, this rank's range of something (default: of the parameters), on the pieces' device."""
    mine = unit.shard if row is None else row
    if group is None:  # a world of one, which needs none
        return mine.copy()
    whole = unit.home_dev.xp.empty(unit.length, mine.dtype)
    dist.all_gather_into_tensor(unit.tensor(whole, home=True), unit.tensor(mine, home=True), group=group)
    return whole
