"""Which samples form which step, whatever the world does. Pure: a function of (seed, epoch, position).

    epoch's order   |  i0 i1 i2 i3 i4 i5 | i6 i7 i8 i9 ...        batch_size = 6
    step's batch    |  i0 i1 i2 i3 i4 i5 |                         next 6 positions
    shards          |  i0 i1 | i2 i3 | i4 i5 |                     shards = 3, 2 samples each
    world of 2      |  rank 0| rank 1        |                     run(rank) of the shards
      in rounds     |  rank 0| rank 1| rank 0| rank 1 repeats      as many shards for each rank
    no fixed shards |  i0 i1 i2 | i3 i4 i5   |                     shards = None: one for each rank of the world

Only the last lines know the world. The position moves when a step is committed, never by iterating.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sized
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from resilin._base.shard_ranges import run_of, turns_of
from resilin.data.shuffle import permutation
from resilin.errors import UsageError


@dataclass(frozen=True, eq=False, kw_only=True)
class Shard:
    """One shard of a step's global batch: the samples that are computed together, alone, on one rank."""

    number: int
    """Which shard of the step, 0 to `total` - 1; beyond that one that only repeats (see `counts`)."""
    total: int
    """Shards per step."""
    epoch: int
    """Epoch of the step."""
    step: int
    """Number of the step since the start of training; (step, number) keys the shard's random draws."""
    indices: NDArray[np.int64]
    """Samples of the shard, in order. Empty for a late shard of a ragged batch, but with `in_rounds` or without fixed
    shards."""
    weight: float
    """`len(indices) / size of the step`: the share of the shard in the step's mean loss; 0 where it does not count."""
    counts: bool = True
    """False, only with `in_rounds` or without fixed shards: the samples are those of shard 0, so that all ranks compute
    as often. With `in_rounds` nothing that comes of them goes into gradients, buffers and sums."""
    in_rounds: bool = False
    """Whether shards were dealt out in rounds."""

    def __len__(self) -> int:
        return len(self.indices)

    @property
    def share(self) -> float:
        """`weight * total`. Without fixed shards, what the loss is multiplied by so that the mean over ranks is that
        over the step's samples: 1 where all ranks have as many, 0 where the samples only repeat."""
        return self.weight * self.total


@dataclass(frozen=True, eq=False, kw_only=True)
class StepPlan:
    """One step as one rank sees it. All ranks of a step agree on everything but `shards`."""

    epoch: int
    """Epoch of the step."""
    step: int
    """Number of the step since the start of training."""
    position: int
    """Samples of this epoch that come before the step."""
    size: int
    """Samples in the step's global batch, over all ranks."""
    ends_epoch: bool = False
    """Whether this is the last step of its epoch. What is done once an epoch (a scheduler's step) belongs before that
    step's commit: what is done after it is lost when the world changes there."""
    shards: tuple[Shard, ...]
    """This rank's shards, in order; possibly none when the world is larger than the number of shards."""

    @property
    def indices(self) -> NDArray[np.int64]:
        """The samples of all of this rank's shards that count, in order."""
        return np.concatenate([np.empty(0, np.int64), *(shard.indices for shard in self.shards if shard.counts)])


class ElasticSampler:
    """Cuts epochs into steps and steps into shards so that every sample counts once per epoch, for any world.

    length:      number of samples, or the data set itself.
    batch_size:  samples per step, over all ranks.
    shards:      shards per step; results stay the same bits for any world size while this stays the same. None: as
                 many as there are ranks, each of which trains on its part of the batch: see below.
    seed:        with the epoch, the key of the order (`resilin.data.shuffle.permutation`).
    shuffle:     False: the order is 0, 1, 2, ... in every epoch.
    drop_last:   leave out the epoch's last `length % batch_size` samples; else the last step is smaller.
    in_rounds:   deal shards out one by one, for `zero.shard(..., shards=V)`: see below.

    Rules: a step is the next `batch_size` positions of the epoch's order. Of its n samples shard s of V owns those from
    `s*n//V` up to `(s+1)*n//V`: sizes differ by one at most, weights make up for it. A ragged last step that has fewer
    than two samples for each shard fills only its first `n//2` shards, and the others are empty (with batches of
    fewer than two samples a shard: the first n).
    Rank r of W owns shards `range(r*V//W, (r+1)*V//W)`; with `in_rounds` shards r, r + W, r + 2W, ...: in each round
    every rank has one. What is missing in the last round, and an empty shard, repeats the samples of shard 0 and does
    not count (`Shard.counts`). So all ranks compute as many shards, none of them empty.
    Without fixed shards rank r of W owns shard r of W, for DistributedDataParallel and `zero.shard` without `shards`.
    Steps, and which samples they have, are the same for any world; the bits are not, because who computes what, and so
    the order of sums, follows from the world. In a last step with too few samples for all ranks those without repeat
    the samples of shard 0, as with `in_rounds`, so that all take part in the collectives. The mean over ranks then
    counts parts of other sizes alike, as with DistributedSampler; a loss times `shard.share` gives the exact mean.

        sampler = ElasticSampler(len(data), batch_size=64, shards=8)
        for plan in sampler.steps(rank, world_size):
            for shard in plan.shards:
                ...                      # data[shard.indices], loss weighted by shard.weight
            sampler.advance(plan)        # or State.commit(plan): only now has the step counted
    """

    def __init__(
        self,
        length: int | Sized,
        batch_size: int,
        shards: int | None = None,
        seed: int = 0,
        shuffle: bool = True,
        drop_last: bool = False,
        *,
        in_rounds: bool = False,
    ) -> None:
        self.length = length if isinstance(length, int) else len(length)
        self.batch_size = batch_size
        self.shards = shards
        self.seed = seed
        self.shuffle = shuffle
        self.drop_last = drop_last
        self.in_rounds = in_rounds
        for name in ("length", "batch_size", "shards"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise UsageError(f"ElasticSampler: {name} must be at least 1, got {value}")
        if in_rounds and shards is None:
            raise UsageError(
                "ElasticSampler: in_rounds=True deals out fixed shards, got shards=None; give the number that "
                "zero.shard(..., shards=V) has, or leave in_rounds out"
            )
        if self._end() == 0:
            raise UsageError(
                f"ElasticSampler: drop_last=True leaves nothing of {self.length} samples with batch_size={batch_size}; "
                "use a smaller batch_size or drop_last=False"
            )
        self.epoch = 0
        self.position = 0  # samples of this epoch that are committed
        self.step = 0  # committed steps since the start of training
        self._world: tuple[int, int] | None = None
        self._order: tuple[int, NDArray[np.int64]] | None = None  # (epoch, its order), the last one used

    def bind(self, rank: int, world_size: int) -> None:
        """Say who this process is; `steps()` without arguments then uses it. Called again for each generation."""
        _check_world(rank, world_size)
        self._world = (rank, world_size)

    def steps(self, rank: int | None = None, world_size: int | None = None) -> Iterator[StepPlan]:
        """The remaining steps of the current epoch, from the committed position, as `rank` of `world_size` sees them.

        Without arguments: the world of the last `bind()`, or a world of one. Iterating changes nothing: after an
        interruption, call it again and it starts at the first step that was not committed.
        """
        if (rank is None) != (world_size is None):
            raise UsageError("ElasticSampler.steps: give both rank and world_size, or neither")
        if rank is None or world_size is None:
            rank, world_size = self._world or (0, 1)
        _check_world(rank, world_size)
        return self._steps(rank, world_size, self.epoch, self.position, self.step)

    def _steps(self, rank: int, world_size: int, epoch: int, position: int, step: int) -> Iterator[StepPlan]:
        while position < self._end():
            plan = self.plan(rank, world_size, epoch=epoch, position=position, step=step)
            yield plan
            position += plan.size
            step += 1

    def plan(self, rank: int, world_size: int, *, epoch: int, position: int, step: int) -> StepPlan:
        """The step that starts at `position` of `epoch`: pure, whatever this sampler's own position is."""
        size = min(self.batch_size, self._end() - position)
        batch = self._order_of(epoch)[position : position + size]
        shards = world_size if self.shards is None else self.shards
        equal_work = self.in_rounds or self.shards is None  # all ranks compute, or the others' collectives wait
        least = max(1, min(2, self.batch_size // shards))  # a single sample has no batch statistics
        filled = min(shards, max(1, size // least))

        def cut(number: int) -> Shard:
            indices = batch[min(number, filled) * size // filled : min(number + 1, filled) * size // filled]
            weight, repeats = len(indices) / size, equal_work and not len(indices)
            return Shard(
                number=number,
                total=shards,
                epoch=epoch,
                step=step,
                indices=batch[: size // filled] if repeats else indices,
                weight=weight,
                counts=not repeats,
                in_rounds=self.in_rounds,
            )

        dealt = turns_of if self.in_rounds else run_of
        return StepPlan(
            epoch=epoch,
            step=step,
            position=position,
            size=size,
            ends_epoch=position + size >= self._end(),
            shards=tuple(map(cut, dealt(rank, world_size, shards))),
        )

    def advance(self, plan: StepPlan) -> None:
        """Count the step `plan` as done; the end of the epoch starts the next one. Called by `State.commit`.

        UsageError when `plan` is not the next step: it was counted already, or one before it was not.
        """
        expected = (self.epoch, self.position, self.step)
        got = (plan.epoch, plan.position, plan.step)
        if got != expected:
            raise UsageError(
                f"ElasticSampler.advance: the next step is (epoch, position, step) = {expected}, got {got}; "
                "commit each step once, in the order of steps()"
            )
        self.position += plan.size
        self.step += 1
        if self.position >= self._end():
            self.epoch += 1
            self.position = 0

    @property
    def samples_per_epoch(self) -> int:
        """`length`, less what `drop_last` leaves out."""
        return self._end()

    def __len__(self) -> int:
        """Steps per epoch."""
        return (self._end() + self.batch_size - 1) // self.batch_size

    def state_dict(self) -> dict[str, Any]:
        """Everything that `load_state_dict` needs to go on after the last committed step."""
        return {
            "epoch": self.epoch,
            "position": self.position,
            "step": self.step,
            "length": self.length,
            "batch_size": self.batch_size,
            "shards": self.shards,
            "seed": self.seed,
            "shuffle": self.shuffle,
            "drop_last": self.drop_last,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from `state`. UsageError when it was made over another number of samples.

        seed, shuffle and drop_last are taken over (they decide what the position means); batch_size, shards and
        in_rounds stay as constructed, so all three may change between runs.
        """
        if state["length"] != self.length:
            raise UsageError(
                f"ElasticSampler.load_state_dict: the state is over {state['length']} samples, this sampler over "
                f"{self.length}; positions of one mean nothing in the other"
            )
        self.seed, self.shuffle = int(state["seed"]), bool(state["shuffle"])
        self.drop_last = bool(state["drop_last"])
        self.epoch, self.position, self.step = int(state["epoch"]), int(state["position"]), int(state["step"])
        self._order = None
        if self.position >= self._end():  # only with drop_last and another batch_size: nothing is left of this epoch
            self.epoch, self.position = self.epoch + 1, 0

    @property
    def largest_world(self) -> int:
        """How many workers have something to do: a shard each or, without fixed shards, a sample each."""
        return self.batch_size if self.shards is None else self.shards

    def __repr__(self) -> str:
        return (
            f"<ElasticSampler epoch={self.epoch} position={self.position}/{self._end()} step={self.step} "
            f"batch_size={self.batch_size} shards={self.shards} seed={self.seed}>"
        )

    def _end(self) -> int:
        """Samples used per epoch."""
        return self.length - self.length % self.batch_size if self.drop_last else self.length

    def _order_of(self, epoch: int) -> NDArray[np.int64]:
        if self._order is None or self._order[0] != epoch:
            order = permutation(self.length, self.seed, epoch) if self.shuffle else np.arange(self.length)
            order.flags.writeable = False  # plans hand out views of it
            self._order = (epoch, order)
        return self._order[1]


def _check_world(rank: int, world_size: int) -> None:
    if not 0 <= rank < world_size:
        raise UsageError(f"ElasticSampler: rank must be in [0, world_size), got rank={rank}, world_size={world_size}")
