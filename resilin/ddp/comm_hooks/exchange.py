"""The two ways in which hooks exchange gradients: a mean by all-reduce, or everybody's message by all-gather.

Both count what they carry in the bucket's traffic, and end with the same bits on every rank.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

import resilin.distributed as dist
from resilin.core.tensor import Tensor
from resilin.ddp import errors
from resilin.ddp.grad_bucket import GradBucket
from resilin.distributed.work.future import Future
from resilin.errors import UsageError, UsageTypeError

Array = NDArray[Any]
Group = dist.ProcessGroup | None
AnyHook = TypeVar("AnyHook", bound=Callable[..., Future[Tensor]])
Decode = Callable[[Array, Array], None]  # (a rank's message as bytes, what its gradient is added to)


def members(process_group: Group) -> dist.ProcessGroup:
    """`process_group`, or the default group of the calling thread: callbacks run in another thread."""
    check_group("its state", process_group)
    if process_group is dist.GroupMember.NON_GROUP_MEMBER:
        raise UsageError("its state is a process group that this rank is not in: reduce over one with all ranks")
    return process_group or dist.default_group()


def of_group(hook: AnyHook) -> AnyHook:
    """Marks a hook whose state is a process group or None: another one is refused when the hook is registered."""
    errors.set_state_check(hook, lambda name, state: check_group(f"{name}: its state", state))
    return hook


def check_group(what: str, process_group: Any) -> None:
    """UsageTypeError, which begins with `what`, unless `process_group` is a process group or None."""
    if process_group not in (None, dist.GroupMember.NON_GROUP_MEMBER) and not isinstance(
        process_group, dist.ProcessGroup
    ):
        raise UsageTypeError(
            f"{what} must be a ProcessGroup, as new_group() returns, or None, got {process_group!r:.80}"
        )


def at_once(tensor: Tensor) -> Future[Tensor]:
    """A future that is done: nothing is sent."""
    future: Future[Tensor] = Future()
    future.set_result(tensor)
    return future


def mean(group: dist.ProcessGroup, bucket: GradBucket, tensor: Tensor) -> Future[Tensor]:
    """Average `tensor` over `group`, in place."""
    bucket.traffic.all_reduce(tensor.numel() * tensor.element_size(), group.size())
    work = dist.all_reduce(tensor, op=dist.ReduceOp.AVG, group=group, async_op=True)
    assert work is not None, "async_op gives a Work"

    def averaged(done: Future[Any]) -> Tensor:
        done.value()
        return tensor

    return work.get_future().then(averaged)


def gathered_mean(group: dist.ProcessGroup, bucket: GradBucket, message: Array, decode: Decode) -> Future[Tensor]:
    """Write into the bucket's buffer the mean of what `decode` makes of every rank's `message`, equally long on all.

    Ranks' parts are added in the order of ranks, in the precision of `working_dtype`.
    """
    world, target = group.size(), bucket.buffer()
    mine = np.ascontiguousarray(message).reshape(-1).view(np.uint8)
    everybody = np.empty((world, mine.size), np.uint8)
    bucket.traffic.all_gather(mine.size, world)
    work = dist.all_gather_into_tensor(everybody.reshape(-1), mine, group=group, async_op=True)
    assert work is not None, "async_op gives a Work"

    def averaged(done: Future[Any]) -> Tensor:
        done.value()
        total = np.zeros(target._array.size, working_dtype(target._array))
        with np.errstate(all="ignore"):  # a gradient that is not finite goes on as such, silently as in backward
            for each in everybody:
                decode(each, total)
            total /= world
            target._array[...] = total
        return target

    return work.get_future().then(averaged)


def working_dtype(array: Array) -> np.dtype[Any]:
    """What hooks compute in: float64 for float64, else float32."""
    return np.dtype(np.float64 if array.dtype == np.float64 else np.float32)


def real(bucket: GradBucket, hook: str) -> Array:
    """The bucket's flat array. UsageError for gradients that are not real numbers: `hook` cannot compress them."""
    array: Array = bucket.buffer()._array
    if array.dtype.kind == "c":
        raise UsageError(
            f"{hook}: bucket {bucket.index()} holds {array.dtype.name} gradients; this hook takes real ones, use "
            "allreduce_hook for models with complex parameters"
        )
    return array
