"""DistributedDataParallel inside a `Join`: what a rank without data does in place of forward and backward.

rank that trains                              rank that has joined
Join.notify_join_context, announce  ────────  Join counts, announce
broadcast of buffers                ────────  broadcast of buffers
buckets of backward                 ────────  the same buckets, of zeros
(after the last)                              parameters and buffers of a rank that trained to the end
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

import resilin.distributed as dist
from resilin.core.argument_checks import flag
from resilin.core.device import device
from resilin.core.tensor import Tensor
from resilin.ddp import errors
from resilin.ddp.placement import Placement
from resilin.ddp.reducer import Reducer
from resilin.distributed.agreement.broadcast import broadcast_tensors
from resilin.distributed.api.join import Join, Joinable, JoinHook
from resilin.errors import CollectiveMismatch, UsageError
from resilin.nn import Module

# what a rank says of its iteration
_TRAINS, _BROADCASTS, _REDUCES, _BRINGS, _LAST = 1, 2, 4, 8, 16
_DIVIDES = "DistributedDataParallel.join: divide_by_initial_world_size"


class UnevenInputs(Joinable):
    """The part of DistributedDataParallel that makes it Joinable."""

    module: Module
    process_group: dist.ProcessGroup
    broadcast_buffers: bool
    shards: int | None
    _placement: Placement
    _reducer: Reducer | None
    _sync_batch_norm: bool
    _broadcast_buffers: Callable[[int], None]

    def __init__(self) -> None:
        super().__init__()
        self._divide_by_initial_world_size = True
        self._before_backward: int | None = None  # reductions before the last forward of this join that has one

    def join(
        self,
        divide_by_initial_world_size: bool = True,
        enable: bool = True,
        throw_on_early_termination: bool = False,
    ) -> Join:
        """Train inside the block with uneven inputs across ranks; see `resilin.distributed.algorithms.join.Join`.

            with model.join():
                for x, y in batches:
                    optimizer.zero_grad()
                    loss_fn(model(x), y).backward()
                    optimizer.step()

        Each forward in training mode is an iteration, followed by one backward if it records gradients (UsageError,
        which ends the group, when another forward comes before it, or a second backward; in no_sync() several may). A
        rank whose data ended brings zero gradients, or those that it accumulated in no_sync() and nobody has yet; at
        the end all take over the model of a rank that trained to the end.
        divide_by_initial_world_size: means are over all ranks, as if those without data had brought zeros; False: over
        those that bring gradients, so that each late sample counts more.
        With an optimizer that is Joinable itself, use `Join([model, optimizer])`. UsageError with shards; options are
        compared, and refused, as `Join` says.
        """
        return Join(
            [self], enable, throw_on_early_termination, divide_by_initial_world_size=divide_by_initial_world_size
        )

    def join_hook(self, **kwargs: Any) -> JoinHook:
        """For Join; its argument `divide_by_initial_world_size` is meant for this."""
        if self.shards is not None:
            raise UsageError("join() has no meaning with shards=...: a rank enters all of its shards, also empty ones")
        self._divide_by_initial_world_size = flag(_DIVIDES, kwargs.get("divide_by_initial_world_size", True))
        self._before_backward = None
        return DDPJoinHook(self)

    @property
    def join_device(self) -> device:
        """That of the module's first parameter."""
        return self._placement.first

    @property
    def join_process_group(self) -> dist.ProcessGroup:
        """The group of all collectives of this wrapper."""
        return self.process_group


class DDPJoinHook(JoinHook):
    """What a rank without data does for `ddp`."""

    def __init__(self, ddp: UnevenInputs) -> None:
        self._ddp = ddp

    def _ended(self) -> None:
        """UsageError between a forward and its backward."""
        check_backward(self._ddp, "its data ended")

    def main_hook(self) -> None:
        """Take part in the broadcast of buffers and in the reduction of one iteration."""
        ddp, reducer = self._ddp, self._ddp._reducer
        brings = reducer is not None and reducer.unreduced
        told = _exchange(ddp, _BRINGS * brings)
        lead, scale = _followed(ddp, told)
        if told[lead] & _BROADCASTS:
            ddp._broadcast_buffers(lead)
        if told[lead] & _REDUCES and reducer is not None:
            reducer.shadow(brings, lead, scale)

    def post_hook(self, is_last_joiner: bool) -> None:
        """Take over the model of the first rank that trained to the end."""
        ddp = self._ddp
        told = _exchange(ddp, _LAST * is_last_joiner)
        source = next(rank for rank, flags in enumerate(told) if flags & _LAST)
        module = ddp.module
        tensors = [*module.parameters(), *(module.buffers() if ddp.broadcast_buffers else ())]
        if ddp.process_group.size() > 1:
            broadcast_tensors(tensors, ddp.process_group, source)


def announce(ddp: UnevenInputs, broadcasts: bool, reduces: bool) -> tuple[int, float]:
    """A forward of a rank that trains begins: tell those that have joined what it does.

    The rank whose buffers count, and what means over all ranks are to be multiplied by.
    """
    if ddp._sync_batch_norm and not ddp._join_config.throw_on_early_termination:
        errors.refuse(
            ddp.process_group,
            "",
            "the module has a SyncBatchNorm, whose collectives a rank without inputs cannot take part in; use "
            "join(throw_on_early_termination=True), or BatchNorm",
        )
    check_backward(ddp, "a forward began")
    if reduces and ddp._reducer is not None:
        ddp._before_backward = ddp._reducer.reductions
    Join.notify_join_context(ddp)
    return _followed(ddp, _exchange(ddp, _TRAINS | _BROADCASTS * broadcasts | _REDUCES * reduces))


def check_backward(ddp: UnevenInputs, what: str) -> None:
    """End the group when `what` happens before the backward that belongs to the forward before it."""
    reducer = ddp._reducer
    if reducer is not None and reducer.reductions == ddp._before_backward:
        errors.refuse(
            ddp.process_group,
            "",
            f"inside join() {what} before the backward of the last forward that recorded gradients. Ranks without data "
            "take part in one reduction for each such forward, so each is followed by one backward: make one forward "
            "of what belongs to one backward, run all its forwards but the last inside no_sync(), or evaluate under "
            "no_grad() and in eval mode",
        )


def _exchange(ddp: UnevenInputs, flags: int) -> list[int]:
    """What every rank says."""
    group = ddp.process_group
    told = np.zeros(group.size(), np.uint8)
    told[group.rank()] = flags
    if group.size() > 1:
        dist.all_reduce(Tensor._wrap(told), op=dist.ReduceOp.MAX, group=group)
    said: list[int] = told.tolist()
    return said


def _followed(ddp: UnevenInputs, told: list[int]) -> tuple[int, float]:
    """The first rank that trains, which the others follow, and the scale of means."""
    training = [rank for rank, flags in enumerate(told) if flags & _TRAINS]
    lead = training[0]
    for rank in training:
        if told[rank] != told[lead]:
            raise CollectiveMismatch(
                f"DistributedDataParallel.join: the forward of rank {lead} {_text(told[lead])}, that of rank {rank} "
                f"{_text(told[rank])}; use no_sync(), no_grad(), train() and eval() alike on all ranks"
            )
    if ddp._divide_by_initial_world_size:
        return lead, 1.0
    return lead, len(told) / sum(1 for flags in told if flags & (_TRAINS | _BRINGS))


def _text(flags: int) -> str:
    buffers = "broadcasts buffers" if flags & _BROADCASTS else "broadcasts no buffers"
    return f"{buffers} and reduces {'gradients' if flags & _REDUCES else 'no gradients'}"
