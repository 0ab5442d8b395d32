"""The block in which one shard is computed, and what can be trained in fixed shards."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any, Protocol

from resilin.core import rng
from resilin.errors import UsageError, UsageTypeError
from resilin.nn import SyncBatchNorm


class Shard(Protocol):
    """What is known of a shard; `resilin.data.Shard` is one. Those of users may lack `in_rounds`, for no."""

    number: int
    total: int
    step: int
    weight: float

    def __len__(self) -> int: ...


class Sharder(Protocol):
    """What follows the shards of a module's steps."""

    def enter(self, shard: Shard) -> None:
        """A shard's block begins; UsageError when it is not the one that comes next."""

    def leave(self, shard: Shard) -> None:
        """It ended well."""

    def abandon(self, left: bool = False) -> None:
        """It ended by an error: the step's partial sums mean nothing any more.

        left: the loop that opened it was left, by `break` or an error. Nobody can tell, so what comes next is refused,
        unless it is a step's first shard.
        """


@contextlib.contextmanager
def computing(sharder: Sharder, shard: Shard) -> Iterator[None]:
    """Compute one shard inside the block: draws keyed by (step, shard), the gradient weighted by its share.

    UsageTypeError for what is no shard, as its number.
    """
    absent = [name for name in ("number", "total", "step", "weight", "__len__") if not hasattr(shard, name)]
    if absent:
        raise UsageTypeError(
            f"shard(): expected one of `plan.shards`, which the sampler gives, got {shard!r:.80}, which has no "
            f"{', '.join(absent)}"
        )
    sharder.enter(shard)
    try:
        with rng.keyed(shard.step, shard.number):
            yield
        sharder.leave(shard)
    except GeneratorExit:  # the block is a generator's
        sharder.abandon(left=True)
        raise
    except BaseException:
        sharder.abandon()
        raise


def check_world(what: str, shards: Any, world_size: int) -> None:
    """UsageError unless every rank gets one of `shards`; what: the call that was given their number."""
    if not isinstance(shards, int) or shards < world_size:
        raise UsageError(
            f"{what}(shards={shards!r}): expected an integer of at least the world size "
            f"({world_size}), so that every rank has a shard; use fewer workers or more shards, or register the "
            "ElasticSampler in elastic.State: then workers beyond its shards stand by"
        )


def check_module(what: str, shards: int, module: Any) -> None:
    """UsageError for a module whose results depend on the number of ranks in any case."""
    for name, part in module.named_modules():
        if isinstance(part, SyncBatchNorm):
            raise UsageError(
                f"{what}(shards={shards}): {name or 'the module'} is a SyncBatchNorm, whose "
                "statistics depend on the number of ranks; use BatchNorm, which normalizes each shard alone"
            )
