"""DistributedSampler: each rank visits its own share of the samples, as in torch.utils.data.distributed."""

from __future__ import annotations

from collections.abc import Iterator, Sized

import numpy as np

from resilin._base import world
from resilin.data.sampler import Sampler
from resilin.data.shuffle import permutation
from resilin.errors import UsageError


class DistributedSampler(Sampler[int]):
    """Rank r of W visits indices r, r+W, r+2W, ... of the epoch's order; every rank gets equally many.

    num_replicas, rank:  default: the current process group, else the launcher's environment.
    shuffle, seed:       the order is a pure function of (seed, epoch); call `set_epoch(epoch)` before each epoch,
                         else every epoch repeats the same order.
    drop_last:           True: leave out the tail that does not divide evenly. False: repeat samples from the start of
                         the order to fill it up (so a few samples count twice; `ElasticSampler` has no such rest).
    """

    def __init__(
        self,
        dataset: Sized,
        num_replicas: int | None = None,
        rank: int | None = None,
        shuffle: bool = True,
        seed: int = 0,
        drop_last: bool = False,
    ) -> None:
        if num_replicas is None or rank is None:
            here = world.current()
            if here is None:
                raise UsageError(
                    "DistributedSampler: no process group and no RANK and WORLD_SIZE in the environment; call "
                    "dist.init_process_group() first, or give num_replicas and rank"
                )
            rank = here[0] if rank is None else rank
            num_replicas = here[1] if num_replicas is None else num_replicas
        if not 0 <= rank < num_replicas:
            raise UsageError(f"DistributedSampler: invalid rank {rank}, rank should be in [0, {num_replicas - 1}]")
        self.dataset = dataset
        self.num_replicas = num_replicas
        self.rank = rank
        self.epoch = 0
        self.drop_last = drop_last
        self.shuffle = shuffle
        self.seed = seed
        length = len(dataset)
        if drop_last and length % num_replicas:
            self.num_samples = -(-max(0, length - num_replicas) // num_replicas)
        else:
            self.num_samples = -(-length // num_replicas)
        self.total_size = self.num_samples * num_replicas

    def __iter__(self) -> Iterator[int]:
        length = len(self.dataset)
        order = permutation(length, self.seed, self.epoch) if self.shuffle else np.arange(length)
        # cycling covers both rests: it repeats the order's start, or cuts the tail
        mine = np.resize(order, self.total_size)[self.rank :: self.num_replicas] if length else order
        return iter(mine.tolist())

    def __len__(self) -> int:
        return self.num_samples

    def set_epoch(self, epoch: int) -> None:
        """Choose the epoch whose order the next iteration uses."""
        self.epoch = epoch
