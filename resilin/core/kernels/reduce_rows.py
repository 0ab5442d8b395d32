"""Sums that stay accurate whatever the axis: numpy's own are pairwise only along the fastest dimension in memory.

Order of a sum over one dimension: along the fastest one numpy's pairwise order; along any other in blocks of `FAN`,
elements ascending inside a block, then blocks of `FAN` of these sums, and so on. Of several dimensions those that are
stretched go first, then the fastest in memory; neighbours in a contiguous array count as one. The whole of a part of an
array, a slice, is summed as its copy. Small arrays are summed in numpy's order, 16-bit floats in float32.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Collection
from typing import Any

import numpy as np
from numpy.lib.array_utils import normalize_axis_tuple

from resilin.core.kernels import pack
from resilin.core.kernels.common import Array, compute_dtype
from resilin.core.kernels.loader import kernel

_native_sum_rows = kernel("sum_rows")
_native_sum_axes = kernel("sum_axes")
_native_mean_axes = kernel("mean_axes")
_native_norm_last = kernel("norm_last")
_native_known_sum_last = kernel("known_sum_last")
_native_product_last = kernel("product_last")

FAN = 16  # sums added one after another; kernels.hpp has the same number, so both forms give the same bits
_add: Any = np.add.reduce
_SMALL = 256  # elements; a chain of so few is accurate in any order, and a call of numpy costs less than a look at it


def total(x: Any, axis: Any = None, keepdims: Any = False) -> Any:
    """Sum of any array over `axis` (None, an int or several), in the order of the module's text.

    Integers and booleans as numpy sums them.
    """
    if not isinstance(x, np.ndarray):
        x = np.asarray(x)
    if (y := _native_sum_axes(x, axis, keepdims)) is not None:
        return y
    return reference_total(x, axis, keepdims)


def reference_total(x: Array, axis: Any = None, keepdims: Any = False) -> Any:
    """numpy form of `total`."""
    if x.dtype.itemsize == 2 and x.dtype.kind in "fV":
        return pack.astype(total(pack.to_float32(x), axis, keepdims), x.dtype)
    if x.size <= _SMALL:
        return _add(x, axis, None, None, keepdims)  # by position: half of a small sum's time is its arguments'
    if x.dtype.kind not in "fc" or (axis is None and x.flags.forc):
        return np.add.reduce(x, axis, keepdims=keepdims)
    axes = range(x.ndim) if axis is None else normalize_axis_tuple(axis, x.ndim)
    for i in axes:
        if x.strides[i] == 0 and x.shape[i] > 1 and x.dtype.kind in "fc":
            y = total(_along(x, i), tuple(axes), True)
            return y if keepdims else y.squeeze(tuple(axes))
    if len(axes) == x.ndim and x.dtype.kind == "f" and _is_part(x):
        return np.add.reduce(np.ascontiguousarray(x), axis, keepdims=keepdims)
    y, places = _joined(x, axes)
    if math.prod([y.shape[i] for i in places]) <= FAN or (places == [y.ndim - 1] and y.flags.c_contiguous):
        return np.add.reduce(x, axis, keepdims=keepdims)
    for place in sorted(places, key=[abs(step) for step in y.strides].__getitem__):
        y = _along(y, place)
    left = [1 if i in axes else n for i, n in enumerate(x.shape) if keepdims or i not in axes]
    return y.reshape(left)


def _is_part(x: Array) -> bool:
    """Whether a step along a dimension leads beyond all elements of those behind it, as in a slice of an array."""
    extent = x.itemsize
    for n, step in zip(reversed(x.shape), reversed(x.strides), strict=True):
        if n == 1:
            continue
        if step < extent:
            return False
        extent += step * (n - 1)
    return True


def _joined(x: Array, axes: Collection[int]) -> tuple[Array, list[int]]:
    """x with neighbouring dimensions that are summed, or kept, as one, and the places of those that are summed.

    The dimensions of an array that is not contiguous stay as they are.
    """
    if not x.flags.c_contiguous:
        return x, list(axes)
    places: list[int] = []
    lengths: list[int] = []
    for summed, run in itertools.groupby(range(x.ndim), key=axes.__contains__):
        if summed:
            places.append(len(lengths))
        lengths.append(math.prod([x.shape[i] for i in run]))
    return x.reshape(lengths), places


def mean(x: Any, axis: Any = None, keepdims: Any = False) -> Any:
    """`total` divided by the number of elements summed, in x's dtype; NaN of none. Integers as numpy averages them."""
    x = np.asarray(x)
    if x.dtype.kind not in "fcV":
        return np.mean(x, axis, keepdims=keepdims)
    if (y := _native_mean_axes(x, axis, keepdims)) is not None:
        return y
    wide = pack.widened(x)
    y = (reference_total if wide is x else total)(wide, axis, keepdims)
    found = y / y.dtype.type(x.size // max(y.size, 1))
    return found if wide is x else pack.astype(found, x.dtype)


def norm(x: Array, axis: Any = None, keepdims: Any = False) -> Any:
    """The root of `total(x * x)` of real numbers, which are float32 on the way where x is of 16 bits."""
    if (y := _native_norm_last(x, axis, keepdims)) is not None:
        return y
    wide = pack.widened(x)
    found = np.sqrt(total(wide * wide, axis, keepdims))
    return found if wide is x else pack.astype(found, x.dtype)


def known_total(x: Array, axis: Any = None, keepdims: Any = False) -> Any:
    """`total` of floats, with 0 for NaN."""
    if (y := _native_known_sum_last(x, axis, keepdims)) is not None:
        return y
    return total(np.where(x != x, x.dtype.type(0), x), axis, keepdims)


def product(x: Array, axis: Any = None, keepdims: Any = False) -> Array:
    """Product over `axis`. Of the last dimensions of a contiguous array of floats in float64, as below; integers wrap.

    Order: `PRODUCTS` of them, of every `PRODUCTS`-th element, ascending, of a piece of `PIECE` elements; these in
    halves, the second times the first; then the pieces, ascending.
    """
    y: Array | None = _native_product_last(x, axis, keepdims)
    return np.multiply.reduce(x, axis, keepdims=keepdims) if y is None else y


PRODUCTS, PIECE = 32, 1 << 16  # as in products.cpp


def reference_product(x: Array) -> Any:
    """numpy form of `product` of a vector of floats."""
    whole = np.ones((), np.float64)
    for start in range(0, len(x), PIECE):
        piece = x[start : start + PIECE].astype(np.float64)
        lanes = np.append(piece, np.ones(-len(piece) % PRODUCTS)).reshape(-1, PRODUCTS)
        found = np.multiply.accumulate(lanes, 0)[-1]
        while len(found) > 1:
            found = found[: len(found) // 2] * found[len(found) // 2 :]
        whole = whole * found[0]
    return whole.astype(x.dtype)


def _along(x: Array, axis: int) -> Array:
    """Sum over one dimension, which is kept with length 1."""
    few = x.shape[axis] <= FAN
    if few and (x.strides[axis] == x.itemsize or x.dtype.char not in "fd" or not x.flags.c_contiguous):
        return np.add.reduce(x, axis, keepdims=True)
    step = abs(x.strides[axis])
    if not few and all(n == 1 or s == 0 or abs(s) >= step for n, s in zip(x.shape, x.strides, strict=True)):
        # as the last dimension: numpy sums pairwise along its inner loop, for which it takes the last of equals
        return np.expand_dims(np.add.reduce(np.moveaxis(x, axis, -1), -1), axis)
    if x.flags.c_contiguous:
        before, after = x.shape[:axis], x.shape[axis + 1 :]
        return sum_rows(x.reshape(math.prod(before), x.shape[axis], math.prod(after))).reshape(*before, 1, *after)
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
    """Sum of each matrix of x (..., N, D) over its rows: (..., D).

    Order: blocks of `FAN` rows, ascending inside a block, then blocks of these sums; the same for any thread count.
    """
    if (y := _native_sum_rows(x)) is not None:
        return y  # type: ignore[no-any-return]
    return reference_sum_rows(x)


def reference_sum_rows(x: Array) -> Array:
    """numpy form of `sum_rows`."""
    sums = _in_blocks(x.astype(compute_dtype(x.dtype), copy=False), x.ndim - 2)
    return sums[..., 0, :].astype(x.dtype, copy=False)
