"""Metrics in fixed-shard mode: numbers summed over shards along the tree of the gradients."""

from __future__ import annotations

from typing import Any

import numpy as np

import resilin.dist as dist
from resilin.core.tensor import Tensor
from resilin.ddp.flat import Array
from resilin.ddp.shards import Shard
from resilin.dist import tree
from resilin.dist.tree import Subtree
from resilin.errors import UsageError


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

    A shard that adds nothing counts as zero; what it adds in several calls is summed in their order. In evaluation it
    works the same: give an `ElasticSampler(..., shuffle=False)` over the other data, and no `model.shard` is needed.
    """

    def __init__(self, *names: str, shards: int, process_group: dist.ProcessGroup | None = None) -> None:
        if not names or len(set(names)) != len(names):
            raise UsageError(f"ShardSums: expected different names of what is summed, got {names}")
        group = process_group or (dist.default_group() if dist.is_initialized() else None)
        if group is None:
            raise UsageError(
                "ShardSums: there is no process group; call resilin.dist.init_process_group() first, run inside "
                "elastic.run, or pass process_group"
            )
        if not isinstance(shards, int) or shards < group.size():
            raise UsageError(
                f"ShardSums(shards={shards!r}): expected an integer of at least the world size ({group.size()})"
            )
        self._places = {name: place for place, name in enumerate(names)}
        self._group = group
        self._plan = tree.plan(shards, group.size())
        self._values: dict[int, Array] = {}  # of the shards that added something since the last reduce()

    def add(self, shard: Shard, **values: Any) -> None:
        """Add numbers, or tensors of one element, to the sums of `shard`, which must be one of this rank's."""
        run = self._plan.run(self._group.rank())
        if shard.total != self._plan.shards or shard.number not in run:
            raise UsageError(
                f"ShardSums.add: expected one of the shards {list(run)} of {self._plan.shards}, got shard "
                f"{shard.number} of {shard.total}"
            )
        unknown = values.keys() - self._places.keys()
        if unknown:
            raise UsageError(f"ShardSums.add: {sorted(unknown)} is not among the names {list(self._places)}")
        sums = self._values.setdefault(shard.number, self._zeros())
        for name, value in values.items():
            sums[self._places[name]] += float(value.item() if isinstance(value, Tensor) else value)

    def reduce(self) -> dict[str, float]:
        """The sums over all shards of all ranks, by name; the next step starts from zero. A collective.

        Errors: those of any collective.
        """
        parts = {node: Tensor._wrap(self._sum(node)) for node in self._plan.subtrees(self._group.rank())}
        self._values = {}
        if self._plan.world_size == 1:
            (total,) = parts.values()
        else:
            total = Tensor._wrap(self._zeros())
            dist.tree_all_reduce(parts, total, self._plan, group=self._group)
        return dict(zip(self._places, total._array.tolist(), strict=True))

    def _sum(self, node: Subtree) -> Array:
        children = node.children()
        if children is None:
            return self._values.get(node.start, self._zeros())
        left, right = children
        summed: Array = self._sum(left) + self._sum(right)
        return summed

    def _zeros(self) -> Array:
        return np.zeros(len(self._places))
