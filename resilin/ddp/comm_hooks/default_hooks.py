"""Averaging, with or without halving the bytes on the wire. The state of each hook is its process group, or None."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np

from resilin.core.tensor import Tensor, wrap
from resilin.ddp import errors
from resilin.ddp.arguments import check_hook
from resilin.ddp.comm_hooks.exchange import Group, mean, members, of_group, real
from resilin.ddp.grad_bucket import GradBucket, Hook, checked_future, take_result
from resilin.distributed.work.future import Future


@of_group
def allreduce_hook(process_group: Group, bucket: GradBucket) -> Future[Tensor]:
    """Average the bucket over the ranks: what DistributedDataParallel does without a hook."""
    return mean(members(process_group), bucket, bucket.buffer())


@of_group
def fp16_compress_hook(process_group: Group, bucket: GradBucket) -> Future[Tensor]:
    """Average in float16: half the bytes of float32; gradients above 65504 become inf."""
    return _compressed(process_group, bucket, np.float16, "fp16_compress_hook")


@of_group
def bf16_compress_hook(process_group: Group, bucket: GradBucket) -> Future[Tensor]:
    """Average in bfloat16: half the bytes, float32's range, 8 bits of precision."""
    return _compressed(process_group, bucket, ml_dtypes.bfloat16, "bf16_compress_hook")


def fp16_compress_wrapper(hook: Hook) -> Hook:
    """`hook`, run on a float16 copy of the bucket."""
    return _wrapper(hook, np.float16, "fp16")


def bf16_compress_wrapper(hook: Hook) -> Hook:
    """`hook`, run on a bfloat16 copy of the bucket."""
    return _wrapper(hook, ml_dtypes.bfloat16, "bf16")


def _cast(bucket: GradBucket, dtype: Any, name: str) -> Tensor:
    with np.errstate(over="ignore"):
        return wrap(real(bucket, name).astype(dtype), bucket.buffer()._dev)


def _compressed(process_group: Group, bucket: GradBucket, dtype: Any, name: str) -> Future[Tensor]:
    return mean(members(process_group), bucket, _cast(bucket, dtype, name)).then(_back_into(bucket))


def _back_into(bucket: GradBucket) -> Callable[[Future[Tensor]], Tensor]:
    """What brings a result into the buffer that `bucket` has now."""
    target = bucket.buffer()

    def back(done: Future[Tensor]) -> Tensor:
        take_result(done.value(), target, bucket.traffic)
        return target

    return back


def _wrapper(hook: Hook, dtype: Any, prefix: str) -> Hook:
    check_hook(f"{prefix}_compress_wrapper", hook)
    name = f"{prefix}({getattr(hook, '__name__', 'hook')})"

    def wrapped(state: Any, bucket: GradBucket) -> Future[Tensor]:
        back = _back_into(bucket)
        bucket.set_buffer(_cast(bucket, dtype, name))
        return checked_future(hook(state, bucket)).then(back)

    wrapped.__name__ = name
    errors.set_state_check(wrapped, errors.state_check(hook))
    return wrapped
