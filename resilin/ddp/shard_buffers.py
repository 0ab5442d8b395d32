"""Buffers in fixed-shard mode: every shard starts from the step's beginning; changes are averaged in the tree.

    float buffer    new = begin + sum over shards of weight * (after the shard's forward - begin), along the tree
    other buffer    must end equal on all shards that ran (batch norm's counter)

A value that no shard changed keeps its bits: only differences are summed.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np

import resilin.dist as dist
from resilin.core.tensor import Tensor
from resilin.ddp import buckets
from resilin.ddp.flat import Array, Flat, specs_of
from resilin.ddp.partials import Partials, put
from resilin.dist.tree import Plan
from resilin.errors import CollectiveMismatch


class ShardBuffers:
    """The buffers of `module` over the shards of one step."""

    def __init__(self, module: Any, plan: Plan, group: dist.ProcessGroup) -> None:
        named = [(name, buffer) for name, buffer in module.named_buffers() if buffer is not None and buffer.numel()]
        self._floats = [buffer for _, buffer in named if buffer.is_floating_point()]
        self._others = [(name, buffer) for name, buffer in named if not buffer.is_floating_point()]
        self._plan = plan
        self._group = group
        float_specs = specs_of([item for item in named if item[1].is_floating_point()])
        self._specs = buckets.assign(float_specs, order=range(len(float_specs)))
        self._sums = [Partials(plan, group.rank(), partial(Flat, spec, self._floats)) for spec in self._specs]
        self._begin: list[Array] = []  # float buffers at the step's beginning
        self._begin_others: list[Array] = []
        self._end_others: list[Array] | None = None  # after the first shard that ran

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
        """A shard ends: add its weighted change."""
        for spec, partials in zip(self._specs, self._sums, strict=True):
            flat, fresh = partials.open(shard)
            for slot, view in zip(spec.slots, flat.views, strict=True):
                now, begin = self._floats[slot.param]._array, self._begin[slot.param]
                change = np.zeros_like(now)
                np.subtract(now, begin, out=change, where=now != begin)
                put(view, change, weight, fresh)
            partials.close(shard)
        if not ran or not self._others:
            return
        if self._end_others is None:
            self._end_others = [buffer._array.copy() for _, buffer in self._others]
            return
        for (name, buffer), value in zip(self._others, self._end_others, strict=True):
            if not np.array_equal(buffer._array, value):
                raise CollectiveMismatch(
                    f"buffer {name} ({buffer.dtype}): shard {shard} ends with {buffer.tolist()!s:.80}, another of "
                    f"the step with {value.tolist()!s:.80}; only float buffers may depend on the samples"
                )

    def finish(self) -> None:
        """All of this rank's shards have ended: complete the sums over ranks and set the buffers."""
        for spec, partials in zip(self._specs, self._sums, strict=True):
            if self._plan.world_size == 1:
                total = partials.steal()
            else:
                tensors = {node: flat.tensor for node, flat in partials.parts().items()}
                total = partials.take()
                dist.tree_all_reduce(tensors, total.tensor, self._plan, group=self._group)
            for slot, view in zip(spec.slots, total.views, strict=True):
                begin = self._begin[slot.param]
                _assign(self._floats[slot.param], np.where(view == 0, begin, begin + view))
            partials.give(total)
            partials.clear()
        self._agree_on_others()

    def abandon(self) -> None:
        """The step died half-way."""
        for partials in self._sums:
            partials.clear(reuse=False)

    def _agree_on_others(self) -> None:
        if not self._others:
            return
        if self._plan.world_size > 1:
            self._check_across_ranks()
        if self._end_others is not None:
            for (_, buffer), value in zip(self._others, self._end_others, strict=True):
                _assign(buffer, value)

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
    if not np.array_equal(buffer._array, value):
        buffer._bump()
    buffer._array[...] = value
