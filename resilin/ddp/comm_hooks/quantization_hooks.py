"""8 bits per gradient: each rank sends its own gradients as integers, everybody averages what they stand for.

    q = clip(round(x / scale) + zero, 0, 255)        x is about scale * (q - zero)

`scale` and `zero` spread the range from the smallest to the largest gradient (0 included) over 256 numbers, per bucket
or per run of `bucket_size` gradients. The state of both hooks is the process group, or None.
"""

from __future__ import annotations

import numpy as np

from resilin.core.tensor import Tensor
from resilin.ddp.comm_hooks.exchange import Array, Group, at_once, gathered_mean, members, of_group, real
from resilin.ddp.comm_hooks.on_host import on_host
from resilin.ddp.grad_bucket import GradBucket
from resilin.distributed.work.future import Future
from resilin.errors import UsageError

_LARGEST = 255
_TINY = np.finfo(np.float32).tiny  # smallest scale: PyTorch's is 1.2e-7, which turns gradients below it into zeros
_HEADER_BYTES = 8  # scale and zero point of one row, float32


@of_group
@on_host
def quantization_pertensor_hook(process_group: Group, bucket: GradBucket) -> Future[Tensor]:
    """Average 8-bit gradients with one scale for the bucket: n + 8 bytes per rank for n gradients, by all-gather."""
    return _quantized(process_group, bucket, max(1, bucket.buffer().numel()), "quantization_pertensor_hook")


@of_group
@on_host
def quantization_perchannel_hook(process_group: Group, bucket: GradBucket, bucket_size: int = 512) -> Future[Tensor]:
    """As the other, with a scale for every `bucket_size` gradients: the last run is filled up with zeros."""
    if bucket_size < 1:
        raise UsageError(f"quantization_perchannel_hook: bucket_size must be positive, got {bucket_size}")
    return _quantized(process_group, bucket, bucket_size, "quantization_perchannel_hook")


def _quantized(process_group: Group, bucket: GradBucket, row: int, name: str) -> Future[Tensor]:
    array = real(bucket, name)
    if array.size == 0:
        return at_once(bucket.buffer())
    rows = -(-array.size // row)
    padded = np.zeros(rows * row, np.float32)
    with np.errstate(over="ignore"):
        padded[: array.size] = array
    scale, zero, numbers = quantize(padded.reshape(rows, row))
    header = np.stack([scale, zero]).astype(np.float32).view(np.uint8).reshape(-1)

    def decode(message: Array, total: Array) -> None:
        theirs = message[: rows * _HEADER_BYTES].view(np.float32).reshape(2, rows)
        values = dequantize(theirs[0], theirs[1], message[rows * _HEADER_BYTES :].reshape(rows, row))
        total += values.reshape(-1)[: total.size]

    return gathered_mean(members(process_group), bucket, np.concatenate([header, numbers.reshape(-1)]), decode)


def quantize(rows: Array) -> tuple[Array, Array, Array]:
    """Scale and zero point of each row of a float32 matrix, its elements as uint8. Not all finite: scale NaN."""
    with np.errstate(all="ignore"):
        low, high = np.minimum(rows.min(axis=1), 0), np.maximum(rows.max(axis=1), 0)
        scale = np.maximum((high - low) / np.float32(_LARGEST), _TINY)
        scale = np.where(np.isfinite(scale), scale, np.float32(np.nan)).astype(np.float32)
        zero = np.clip(-np.rint(low / scale), 0, _LARGEST)
        numbers = np.clip(np.rint(rows / scale[:, None]) + zero[:, None], 0, _LARGEST)
    return scale, zero, np.nan_to_num(numbers).astype(np.uint8)


def dequantize(scale: Array, zero: Array, numbers: Array) -> Array:
    """What the numbers of each row stand for."""
    values: Array = scale[:, None] * (numbers.astype(np.float32) - zero[:, None])
    return values
