"""Stages whose gradients are reduced over replicas: when a micro-batch's gradients are to be, and when not.

A module that reduces by itself (`DistributedDataParallel` does) offers

    prepare_for_backward(reduce)   the next backward reduces gradients, or accumulates them on this rank
    shard(shard)                   a block around the backward of one shard, with `module`, what is computed outside it
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from resilin.errors import UsageError
from resilin.nn.modules.module import Module
from resilin.shards.block import Shard

__all__ = ["Shard", "check_shards", "reduces", "reducing"]


def reduces(module: Module) -> bool:
    """Whether `module` reduces gradients by itself."""
    return hasattr(module, "prepare_for_backward")


@contextlib.contextmanager
def reducing(
    module: Module, shards: Sequence[Shard] | None, microbatch: int, last: bool, completes: bool
) -> Iterator[None]:
    """Compute the gradients of a micro-batch inside. completes: those of weights, too; last: of the step's."""
    if not completes:
        yield
    elif shards is not None:
        with module.shard(shards[microbatch]):
            yield
    else:
        if reduces(module):
            prepare: Any = module.prepare_for_backward
            prepare(last)
        yield


def check_shards(modules: Sequence[Module], shards: Sequence[Any], microbatches: int, tied: Iterable[str] = ()) -> None:
    """UsageError for modules that do not sum in fixed shards, or another number of shards than of micro-batches.

    tied: weights of these stages that other stages have, too; for them there is no sum in shards.
    """
    for key in tied:
        raise UsageError(
            f"step_shards: weight {key!r} is tied: each stage would sum its own part of the gradient over replicas; "
            "use a weight in one stage only, or step() with DistributedDataParallel(find_unused_parameters=True)"
        )
    if len(shards) != microbatches:
        raise UsageError(
            f"step_shards: expected {microbatches} shards, as many as the schedule has micro-batches, got {len(shards)}"
        )
    for module in modules:
        if not hasattr(module, "shard") or not hasattr(module, "module"):
            raise UsageError(
                f"step_shards: a stage's module is a {type(module).__name__}; wrap it, "
                "DistributedDataParallel(module, process_group=replicas, shards=V), so that shards are summed in a tree"
            )
        floats = [name for name, buffer in module.named_buffers() if buffer.dtype.is_floating_point]
        if floats:
            raise UsageError(
                f"step_shards: buffer {floats[0]!r} would be averaged over shards, whose forwards overlap in a "
                "pipeline; use norms without running statistics (track_running_stats=False, LayerNorm, GroupNorm)"
            )
