"""Buffers in fixed-shard mode: every shard starts from the step's beginning; changes are averaged in the tree.

    float buffer    new = begin + sum over shards of weight * (after the shard's forward - begin), along the tree
    other buffer    must end equal on all shards that ran (batch norm's counter)

A value that no shard changed keeps its bits: only differences are summed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Protocol

import numpy as np

import resilin.distributed as dist
from resilin.core import host_copies
from resilin.core.device import CPU
from resilin.core.tensor import Tensor, wrap
from resilin.distributed.wire.shard_tree import Plan
from resilin.errors import CollectiveMismatch
from resilin.shards.tree_sum import Array, TreeSum, put


class Row:
    """One flat array for changes of buffers of one dtype and device, and a view for each."""

    __slots__ = ("array", "tensor", "views")

    def __init__(self, buffers: Sequence[Tensor]) -> None:
        arrays, place = [buffer._array for buffer in buffers], buffers[0]._dev
        self.array: Array = place.xp.zeros(sum(array.size for array in arrays), arrays[0].dtype)
        self.tensor = wrap(self.array, place)
        stops = np.cumsum([array.size for array in arrays])
        self.views: list[Array] = [
            self.array[stop - array.size : stop].reshape(array.shape) for array, stop in zip(arrays, stops, strict=True)
        ]


class Sum(Protocol):
    """Sums flat changes over all shards of a step along the tree."""

    def add(self, shard: int, weight: float, changes: Sequence[Array]) -> None:
        """The changes of this rank's `shard`, one for each view. Called for all of its shards, in their order."""

    def total(self) -> Row:
        """The finished sum, after the last shard."""

    def clear(self, reuse: bool) -> None:
        """Forget the step. reuse=False: somebody may still read its memory."""


class RunSum:
    """A `Sum` where each rank has one run of shards: the ranks complete it at the end."""

    def __init__(self, make: Callable[[], Row], plan: Plan, group: dist.ProcessGroup) -> None:
        self._plan, self._group = plan, group
        self._partials = TreeSum(plan, group.rank(), make)

    def add(self, shard: int, weight: float, changes: Sequence[Array]) -> None:
        """See Sum."""
        row, fresh = self._partials.open(shard)
        for view, change in zip(row.views, changes, strict=True):
            put(view, change, weight, fresh)
        self._partials.close(shard)

    def total(self) -> Row:
        """See Sum."""
        if self._plan.world_size == 1:
            total = self._partials.steal()
        else:
            tensors = {node: row.tensor for node, row in self._partials.parts().items()}
            total = self._partials.take()
            dist.tree_all_reduce(tensors, total.tensor, self._plan, group=self._group)
        self._partials.give(total)  # it stays as it is until the next shard begins
        return total

    def clear(self, reuse: bool) -> None:
        """See Sum."""
        self._partials.clear(reuse)


class ShardBuffers:
    """The buffers of `module` over the shards of one step. summing: how the changes of one flat array are summed."""

    def __init__(self, module: Any, group: dist.ProcessGroup, summing: Callable[[Callable[[], Row]], Sum]) -> None:
        named = [(name, buffer) for name, buffer in module.named_buffers() if buffer is not None and buffer.numel()]
        self._floats = [buffer for _, buffer in named if buffer.is_floating_point()]
        self._others = [(name, buffer) for name, buffer in named if not buffer.is_floating_point()]
        self._group = group
        kinds: dict[Any, list[int]] = {}  # numbers of float buffers, by dtype and device
        for number, buffer in enumerate(self._floats):
            kinds.setdefault((buffer._array.dtype.name, buffer._dev), []).append(number)
        self._kinds = list(kinds.values())
        self._sums = [summing(partial(Row, [self._floats[number] for number in kind])) for kind in self._kinds]
        self._begin: list[Array] = []  # float buffers at the step's beginning
        self._begin_others: list[Array] = []
        self._end_others: list[Array] | None = None  # after the first shard that ran; on the host

    def begin(self) -> None:
        """A step starts: remember the buffers."""
        self._begin = [buffer._array.copy() for buffer in self._floats]
        self._begin_others = [buffer._array.copy() for _, buffer in self._others]
        self._end_others = None

    def enter(self) -> None:
        """A shard starts: back to the step's beginning."""
        for buffer, value in zip(self._floats, self._begin, strict=True):
            _assign(buffer, value)
        for (_, buffer), value in zip(self._others, self._begin_others, strict=True):
            _assign(buffer, value)

    def leave(self, shard: int, weight: float, ran: bool) -> None:
        """A shard ends: add its weighted change. ran: whether it had samples that count; else there is none."""
        for kind, each in zip(self._kinds, self._sums, strict=True):
            each.add(shard, weight, [self._change(number, ran) for number in kind])
        if not ran or not self._others:
            return
        ends = host_copies.copies([buffer for _, buffer in self._others])
        if self._end_others is None:
            self._end_others = ends
            return
        for (name, buffer), value, end in zip(self._others, self._end_others, ends, strict=True):
            if not np.array_equal(end, value):
                raise CollectiveMismatch(
                    f"buffer {name} ({buffer.dtype}): shard {shard} ends with {end.tolist()!s:.80}, another of "
                    f"the step with {value.tolist()!s:.80}; only float buffers may depend on the samples"
                )

    def _change(self, number: int, ran: bool) -> Array:
        now, begin, xp = self._floats[number]._array, self._begin[number], self._floats[number]._dev.xp
        change: Array = xp.zeros_like(now)
        if ran and isinstance(now, np.ndarray):
            np.subtract(now, begin, out=change, where=now != begin)
        elif ran:
            change[...] = xp.where(now != begin, now - begin, change)
        return change

    def finish(self) -> None:
        """All of this rank's shards have ended: complete the sums over ranks and set the buffers."""
        for kind, each in zip(self._kinds, self._sums, strict=True):
            for number, view in zip(kind, each.total().views, strict=True):
                begin, buffer = self._begin[number], self._floats[number]
                _assign(buffer, buffer._dev.xp.where(view == 0, begin, begin + view))
            each.clear(reuse=True)
        self._agree_on_others()

    def abandon(self) -> None:
        """The step died half-way."""
        for each in self._sums:
            each.clear(reuse=False)

    def _agree_on_others(self) -> None:
        if not self._others:
            return
        if self._group.size() > 1:
            self._check_across_ranks()
        if self._end_others is not None:
            for (_, buffer), value in zip(self._others, self._end_others, strict=True):
                place = buffer._dev
                _assign(buffer, value if place is CPU else place.backend.from_host(value, place.index or 0))

    def _check_across_ranks(self) -> None:
        """One all-reduce: the maximum of (value, -value) over the ranks that ran a shard gives largest and smallest."""
        shapes = [value.shape for value in self._begin_others]
        low = np.iinfo(np.int64).min
        count = sum(value.size for value in self._begin_others)
        both = np.full(2 * count, low, np.int64)
        if self._end_others is not None:
            values = np.concatenate([value.reshape(-1).astype(np.int64) for value in self._end_others])
            both[:count], both[count:] = values, -values
        dist.all_reduce(Tensor._wrap(both), op=dist.ReduceOp.MAX, group=self._group)
        if both.max() == low:
            return  # no rank ran a shard
        at = 0
        ends: list[Array] = []
        for (name, buffer), shape in zip(self._others, shapes, strict=True):
            size = int(np.prod(shape, dtype=np.int64))
            most, least = both[at : at + size], -both[count + at : count + at + size]
            if not np.array_equal(most, least):
                raise CollectiveMismatch(
                    f"buffer {name} ({buffer.dtype}) ends the step between {least.tolist()!s:.80} and "
                    f"{most.tolist()!s:.80} on different ranks; only float buffers may depend on the samples"
                )
            ends.append(most.reshape(shape).astype(buffer._array.dtype))
            at += size
        self._end_others = ends


def _assign(buffer: Tensor, value: Array) -> None:
    """Write a value of the buffer's device. What is equal already does not count as written; on a device, to look
    would take longer than to write."""
    if not (isinstance(value, np.ndarray) and np.array_equal(buffer._array, value)):
        buffer._bump()
    buffer._array[...] = value
