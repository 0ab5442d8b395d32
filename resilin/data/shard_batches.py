"""Feeds a DataLoader with the shards of an ElasticSampler."""

from __future__ import annotations

from collections.abc import Iterator

from resilin.core.kernels import philox
from resilin.data.elastic_sampler import ElasticSampler


class ShardBatches:
    """A `batch_sampler` for `DataLoader`: the shards of this rank, in order, from the last commit to the epoch's end.

        loader = DataLoader(data, batch_sampler=state.sampler, num_workers=2)   # which makes it
        for step in elastic.steps(loader, epochs=10): ...                       # the loop, or by hand:
        while state.sampler.epoch < 10:
            batches = iter(loader)                          # anew in each generation and epoch
            for plan in state.sampler.steps():
                for shard in plan.shards:
                    with model.shard(shard):
                        if len(shard):                      # empty shards have no batch
                            x, y = next(batches)
                            ...
                state.commit(plan)

    Each pass starts at the committed position, so what a loader had fetched ahead when the world changed is fetched
    again by whoever owns those shards then: nothing is lost, and nothing counts twice. The seeds of the loader's
    workers follow from the sampler's position, and no draw of the global generator is spent on them.
    """

    def __init__(self, sampler: ElasticSampler) -> None:
        self.sampler = sampler

    def __iter__(self) -> Iterator[list[int]]:
        steps = self.sampler.steps()  # now, and not with the first batch: the position may have moved by then
        return (shard.indices.tolist() for plan in steps for shard in plan.shards if len(shard))

    def __len__(self) -> int:
        """Batches that are left in this epoch."""
        return sum(len(shard) > 0 for plan in self.sampler.steps() for shard in plan.shards)

    def base_seed(self) -> int:
        """What the workers of a pass that starts now are seeded with: a function of (seed, epoch, position)."""
        high, low = philox.bits(self.sampler.seed, self.sampler.epoch + 1, self.sampler.position, 2).tolist()
        return int((high << 32 | low) >> 1)
