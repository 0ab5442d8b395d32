"""The mean over ranks: a reduce-scatter for each unit, and its pieces' gradients at the end of the backward."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

import resilin.distributed as dist
from resilin.core.tensor import Tensor, wrap
from resilin.zero.sharded.unit import Unit
from resilin.zero.sharded.unshard import Fetcher

Array = Any


class _Pending(NamedTuple):
    unit: Unit
    work: dist.Work
    mean: Array  # this rank's range
    fired: frozenset[int]  # the parameters that had a gradient here


class Averaging:
    """See `reducing.Way`. find_unused: parameters that have a gradient on no rank keep none."""

    def __init__(self, fetcher: Fetcher, find_unused: bool) -> None:
        self._fetcher, self._find_unused = fetcher, find_unused
        self._pending: list[_Pending] = []

    def expect(self) -> str:
        """See Way."""
        return ""

    def start(self, unit: Unit, given: Array, home: bool) -> dist.Work:
        """See Way."""
        mean = unit.home_dev.xp.empty(unit.share, given.dtype)
        work = dist.reduce_scatter_tensor(
            unit.tensor(mean, home),
            unit.tensor(given, home),
            op=dist.ReduceOp.AVG,
            group=self._fetcher.group,
            async_op=True,
        )
        assert work is not None, "async_op gives a Work"
        self._pending.append(_Pending(unit, work, mean, frozenset(unit.ready)))
        return work

    def finish(self) -> bool:
        """See Way."""
        pending, self._pending = self._pending, []
        for one in pending:
            one.work.wait()
        used = self._used(pending) if self._find_unused else None
        for one in pending:
            self._deliver(one, used)
        return True

    def give_up(self) -> None:
        """See Way."""
        self._pending = []

    def _used(self, pending: list[_Pending]) -> dict[int, Array]:
        """By unit: which of its parameters had a gradient on any rank."""
        units = self._fetcher.units
        flags = np.zeros(sum(len(unit.params) for unit in units), np.uint8)
        places, at = {}, 0
        for unit in units:
            places[unit.index] = flags[at : at + len(unit.params)]
            at += len(unit.params)
        for one in pending:
            places[one.unit.index][list(one.fired)] = 1
        dist.all_reduce(Tensor._wrap(flags), op=dist.ReduceOp.MAX, group=self._fetcher.group)
        return places

    def _deliver(self, one: _Pending, used: dict[int, Array] | None) -> None:
        unit, mean = one.unit, one.mean
        if mean.dtype != unit.dtype:
            mean = mean.astype(unit.dtype)
        for number, (piece, part) in enumerate(zip(unit.pieces, unit.spread(mean), strict=True)):
            if not piece._rg or (used is not None and not used[unit.index][number]):
                continue
            if piece._grad is None:
                piece._grad = wrap(part, unit.home_dev)
            else:
                piece._grad._array += part
                piece._grad._bump()
