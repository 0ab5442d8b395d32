"""Metrics in fixed-shard mode: numbers summed over shards along the tree of the gradients."""

from __future__ import annotations

from typing import Any

import numpy as np

import resilin.distributed as dist
from resilin._base.shard_ranges import run_of, turns_of
from resilin.core.tensor import Tensor
from resilin.ddp.flat_buffer import Array
from resilin.distributed.wire import shard_tree
from resilin.distributed.wire.shard_tree import Subtree
from resilin.errors import UsageError
from resilin.shards import progress
from resilin.shards.block import Shard


class ShardSums:
    """Sums of numbers over the shards of one step: the same bits on all ranks and for any number of them.

        sums = ShardSums("loss", "correct", shards=8)           # in each generation, as DistributedDataParallel
        for plan in sampler.steps():
            for shard in plan.shards:
                with model.shard(shard):
                    ...
                    sums.add(shard, loss=loss.detach() * len(shard), correct=(out.argmax(1) == y).sum())
            totals = sums.reduce()                              # {"loss": 12.3, "correct": 57.0}
            state.loss_of_epoch += totals["loss"]               # before commit: a redone step counts once

    names:          what is summed, the same on all ranks. Values are float64, so counts are exact up to 2**53.
    shards:         the number that the sampler and DistributedDataParallel have.
    process_group:  default: the world.

    A shard that adds nothing counts as zero; what it adds in several calls is summed in their order; what a shard adds
    that does not count (`Shard.counts`, of a sampler with `in_rounds`) is left out. In evaluation it works the same:
    give an `ElasticSampler(..., shuffle=False)` over the other data, and no `model.shard` is needed.
    """

    def __init__(self, *names: str, shards: int, process_group: dist.ProcessGroup | None = None) -> None:
        if not names or len(set(names)) != len(names):
            raise UsageError(f"ShardSums: expected different names of what is summed, got {names}")
        group = process_group or (dist.default_group() if dist.is_initialized() else None)
        if group is None:
            raise UsageError(
                "ShardSums: there is no process group; call resilin.distributed.init_process_group() first, run inside "
                "elastic.run, or pass process_group"
            )
        if not isinstance(shards, int) or shards < group.size():
            raise UsageError(
                f"ShardSums(shards={shards!r}): expected an integer of at least the world size ({group.size()})"
            )
        self._places = {name: place for place, name in enumerate(names)}
        self._group = group
        self._root, self._total = shard_tree.plan(shards, 1).root, shards
        self._values: dict[int, Array] = {}  # of the shards that added something since the last reduce()

    def add(self, shard: Shard, **values: Any) -> None:
        """Add numbers, or tensors of one element, to the sums of `shard`, which must be one of this rank's."""
        rank, world = self._group.rank(), self._group.size()
        dealt = turns_of if getattr(shard, "in_rounds", False) else run_of
        own = dealt(rank, world, self._total)
        if shard.total != self._total or shard.number not in own:
            raise UsageError(
                f"ShardSums.add: expected one of the shards {list(own)} of {self._total}, got shard {shard.number} of "
                f"{shard.total}"
            )
        unknown = values.keys() - self._places.keys()
        if unknown:
            raise UsageError(f"ShardSums.add: {sorted(unknown)} is not among the names {list(self._places)}")
        if not getattr(shard, "counts", True):
            return
        sums = self._values.setdefault(shard.number, self._zeros())
        for name, value in values.items():
            sums[self._places[name]] += float(value.item() if isinstance(value, Tensor) else value)

    def reduce(self) -> dict[str, float]:
        """The sums over all shards of all ranks, by name; the next step starts from zero. A collective.

        Errors: those of any collective; UsageError in the middle of a step of a module in the same group.
        """
        progress.check_complete(self._group, "ShardSums.reduce")
        every = np.zeros((self._total, len(self._places)))
        for number, values in self._values.items():
            every[number] = values
        self._values = {}
        if self._group.size() > 1:  # no two ranks have one shard, so this adds nothing but zeros
            dist.all_reduce(Tensor._wrap(every), group=self._group)
        every += 0.0  # as the all-reduce does to negative zeros
        return dict(zip(self._places, _sum(self._root, every).tolist(), strict=True))

    def _zeros(self) -> Array:
        return np.zeros(len(self._places))


def _sum(node: Subtree, values: Array) -> Array:
    children = node.children()
    if children is None:
        leaf: Array = values[node.start]
        return leaf
    left, right = children
    summed: Array = _sum(left, values) + _sum(right, values)
    return summed
