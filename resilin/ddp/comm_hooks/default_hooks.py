"""Averaging, with or without halving the bytes on the wire. The state of each hook is its process group, or None."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np

import resilin.dist as dist
from resilin.core.tensor import Tensor
from resilin.ddp.grad_bucket import GradBucket
from resilin.dist.future import Future

Group = dist.ProcessGroup | None
Hook = Callable[[Any, GradBucket], Future[Tensor]]


def allreduce_hook(process_group: Group, bucket: GradBucket) -> Future[Tensor]:
    """Average the bucket over the ranks: what DistributedDataParallel does without a hook."""
    return _average(process_group, bucket.buffer())


def fp16_compress_hook(process_group: Group, bucket: GradBucket) -> Future[Tensor]:
    """Average in float16: half the bytes of float32; gradients above 65504 become inf."""
    return _compressed(process_group, bucket, np.float16)


def bf16_compress_hook(process_group: Group, bucket: GradBucket) -> Future[Tensor]:
    """Average in bfloat16: half the bytes, float32's range, 8 bits of precision."""
    return _compressed(process_group, bucket, ml_dtypes.bfloat16)


def fp16_compress_wrapper(hook: Hook) -> Hook:
    """`hook`, run on a float16 copy of the bucket."""
    return _wrapper(hook, np.float16, "fp16")


def bf16_compress_wrapper(hook: Hook) -> Hook:
    """`hook`, run on a bfloat16 copy of the bucket."""
    return _wrapper(hook, ml_dtypes.bfloat16, "bf16")


def _average(process_group: Group, tensor: Tensor) -> Future[Tensor]:
    work = dist.all_reduce(tensor, op=dist.ReduceOp.AVG, group=process_group, async_op=True)
    assert work is not None, "async_op gives a Work"
    return work.get_future().then(lambda _: tensor)


def _cast(tensor: Tensor, dtype: Any) -> Tensor:
    with np.errstate(over="ignore"):
        return Tensor._wrap(tensor._array.astype(dtype))


def _compressed(process_group: Group, bucket: GradBucket, dtype: Any) -> Future[Tensor]:
    return _average(process_group, _cast(bucket.buffer(), dtype)).then(_back_into(bucket.buffer()))


def _back_into(target: Tensor) -> Callable[[Future[Tensor]], Tensor]:
    def back(done: Future[Tensor]) -> Tensor:
        target._array[...] = done.value()._array
        return target

    return back


def _wrapper(hook: Hook, dtype: Any, prefix: str) -> Hook:
    def wrapped(state: Any, bucket: GradBucket) -> Future[Tensor]:
        original = bucket.buffer()
        bucket.set_buffer(_cast(original, dtype))
        return hook(state, bucket).then(_back_into(original))

    wrapped.__name__ = f"{prefix}({getattr(hook, '__name__', 'hook')})"
    return wrapped
