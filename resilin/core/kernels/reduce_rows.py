"""Sums that stay accurate whatever the axis: numpy's own are pairwise only along the fastest dimension in memory.

Order of a sum over one dimension: along the fastest one numpy's pairwise order; along any other in blocks of `FAN`,
elements ascending inside a block, then blocks of `FAN` of these sums, and so on. Of several dimensions the fastest in
memory goes first; leading ones of a contiguous array count as one. 16-bit floats are summed in float32.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.lib.array_utils import normalize_axis_tuple

from resilin.core.kernels.common import Array, compute_dtype
from resilin.core.kernels.loader import kernel

_native_sum_rows = kernel("sum_rows")

FAN = 16  # sums added one after another; kernels.hpp has the same number, so both forms give the same bits


def total(x: Any, axis: Any = None, keepdims: Any = False) -> Any:
    """Sum of any array over `axis` (None, an int or several), in the order of the module's text.

    Integers and booleans as numpy sums them.
    """
    x = np.asarray(x)
    if x.dtype.itemsize == 2 and x.dtype.kind in "fV":
        return total(x.astype(np.float32), axis, keepdims).astype(x.dtype)
    if x.dtype.kind not in "fc" or x.size <= FAN or (axis is None and x.flags.forc):
        return np.add.reduce(x, axis, keepdims=keepdims)
    axes = tuple(range(x.ndim)) if axis is None else normalize_axis_tuple(axis, x.ndim)
    if _is_accurate_in_numpy(x, axes):
        return np.add.reduce(x, axis, keepdims=keepdims)
    y = x
    if x.flags.c_contiguous and sorted(axes) == list(range(len(axes))):
        last = len(axes) - 1
        y = _along(x.reshape(*(1,) * last, -1, *x.shape[last + 1 :]), last)
    else:
        for place in sorted(axes, key=lambda i: abs(x.strides[i])):
            y = _along(y, place)
    return y if keepdims else np.squeeze(y, axes)


def mean(x: Any, axis: Any = None, keepdims: Any = False) -> Any:
    """`total` divided by the number of elements summed, in x's dtype; NaN of none. Integers as numpy averages them."""
    x = np.asarray(x)
    if x.dtype.kind not in "fcV":
        return np.mean(x, axis, keepdims=keepdims)
    wide = x.astype(compute_dtype(x.dtype), copy=False)
    y = total(wide, axis, keepdims)
    return (y / y.dtype.type(x.size // max(y.size, 1))).astype(x.dtype, copy=False)


def _is_accurate_in_numpy(x: Array, axes: tuple[int, ...]) -> bool:
    """Few elements, or the trailing dimensions of a contiguous array, which numpy takes as one."""
    if math.prod([x.shape[i] for i in axes]) <= FAN:
        return True
    return x.flags.c_contiguous and sorted(axes) == list(range(x.ndim - len(axes), x.ndim))


def _along(x: Array, axis: int) -> Array:
    """Sum over one dimension, which is kept with length 1."""
    if x.shape[axis] <= FAN:
        return np.add.reduce(x, axis, keepdims=True)
    step = abs(x.strides[axis])
    if all(n == 1 or s == 0 or abs(s) >= step for n, s in zip(x.shape, x.strides, strict=True)):
        # as the last dimension: numpy sums pairwise along its inner loop, for which it takes the last of equals
        return np.expand_dims(np.add.reduce(np.moveaxis(x, axis, -1), -1), axis)
    if x.flags.c_contiguous and math.prod(x.shape[:axis]) == 1:
        return sum_rows(x.reshape(x.shape[axis], -1)).reshape(*x.shape[:axis], 1, *x.shape[axis + 1 :])
    return _in_blocks(x, axis)


def _in_blocks(x: Array, axis: int) -> Array:
    while (length := x.shape[axis]) > FAN:
        blocks = length // FAN
        head, tail = np.split(x, [blocks * FAN], axis)
        sums = np.add.reduce(head.reshape(*x.shape[:axis], blocks, FAN, *x.shape[axis + 1 :]), axis + 1)
        if tail.shape[axis]:
            sums = np.concatenate((sums, np.add.reduce(tail, axis, keepdims=True)), axis)
        x = sums
    return np.add.reduce(x, axis, keepdims=True)


def sum_rows(x: Array) -> Array:
    """Sum of x (N, D) over its rows: (D,).

    Order: blocks of `FAN` rows, ascending inside a block, then blocks of these sums; the same for any thread count.
    """
    if (y := _native_sum_rows(x)) is not None:
        return y  # type: ignore[no-any-return]
    return reference_sum_rows(x)


def reference_sum_rows(x: Array) -> Array:
    """numpy form of `sum_rows`."""
    return _in_blocks(x.astype(compute_dtype(x.dtype), copy=False), 0)[0].astype(x.dtype, copy=False)  # type: ignore[no-any-return]
