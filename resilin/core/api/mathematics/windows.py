"""What functions of windows share: lengths per dimension, and which windows exist."""

from __future__ import annotations

import operator
from typing import Any

import numpy as np

from resilin.core.tensor import Tensor

Lengths = tuple[int, ...]
_INT = {int}


def per_axis(where: str, name: str, value: Any, count: int) -> Lengths:
    """`value` for each of `count` dimensions: one integer, one in a sequence, or `count` of them.

    Integers of numpy's count, too. TypeError for what is no integer, RuntimeError for another number of them.
    """
    if type(value) is int:
        return (value,) * count
    if type(value) is tuple and len(value) == count and {*map(type, value)} == _INT:  # as modules keep them
        return value
    lengths = tuple(_length(where, name, n) for n in (value if isinstance(value, tuple | list) else (value,)))
    if len(lengths) not in (1, count):
        raise RuntimeError(f"{where}: expected {name} to be one integer or {count}, got {value!r}")
    return lengths if len(lengths) == count else lengths * count


def _length(where: str, name: str, value: Any) -> int:
    if type(value) is int:
        return value
    if isinstance(value, bool) or not hasattr(value, "__index__"):
        raise TypeError(f"{where}(): argument {name!r} must be int or a tuple of ints, got {value!r}")
    return operator.index(value)


def check_window(where: str, kernel: Any, stride: Any, padding: Any, dilation: Any) -> None:
    """RuntimeError for lengths that no window has."""
    for name, lengths in (("kernel size", kernel), ("stride", stride), ("dilation", dilation)):
        if min(lengths) < 1:
            raise RuntimeError(f"{where}: {name} should be greater than zero, but got {lengths}")
    if min(padding) < 0:
        raise RuntimeError(f"{where}: negative padding is not supported, got {padding}")


def check_pooling(where: str, kernel: Any, stride: Any, padding: Any, dilation: Any, size: Any, ceil: bool) -> None:
    """`check_window`, and that the window fits images of this `size`."""
    check_window(where, kernel, stride, padding, dilation)
    for k, s, p, d, n in zip(kernel, stride, padding, dilation, size, strict=True):
        span = d * (k - 1) + 1
        if 2 * p > span:
            raise RuntimeError(
                f"{where}: pad should be at most half of effective kernel size, but got pad={p}, kernel_size={k} and "
                f"dilation={d}"
            )
        if n + 2 * p < span and not (ceil and n + 2 * p + s > span):
            raise RuntimeError(f"{where}: a window of {span} does not fit an input of {n} with padding {p}")


def batched(where: str, input: Tensor, count: int) -> Tensor:
    """`input` (N, C, ...) with `count` spatial dimensions; (C, ...) becomes a batch of one."""
    ndim = input._array.ndim
    if ndim not in (count + 1, count + 2):
        raise RuntimeError(f"{where}: expected {count + 1}D or {count + 2}D input, got {tuple(input.shape)}")
    return input if ndim == count + 2 else input.unsqueeze(0)


_LONG = 1 << 20  # below, tables of places need no memory to speak of
_TABLE_BYTES = 64  # about what tables of places take for each place of an output dimension


def need_room(input: Tensor, lengths: Any) -> None:
    """MemoryError for an output (N, C, *lengths) that cannot exist, before tables as long as it are made."""
    if max(lengths, default=0) > _LONG:
        try:
            np.empty((*input._array.shape[:2], *lengths), input._array.dtype)
            np.empty((max(lengths), _TABLE_BYTES), np.uint8)
        except ValueError as error:  # more bytes than numpy counts
            raise MemoryError(f"{error}: {(*input._array.shape[:2], *lengths)}") from None
