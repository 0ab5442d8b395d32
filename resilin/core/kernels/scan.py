"""Running sums, products, extremes and sums of exponentials.

Order: one element after the other, in float64 (complex128), each result rounded to x's dtype.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from resilin.core.kernels import pack
from resilin.core.kernels.common import Array
from resilin.core.kernels.loader import kernel

_native_running_sum = kernel("running_sum")
_native_running_product = kernel("running_product")
_native_running_extreme = kernel("running_extreme")
_native_running_log_sum = kernel("running_log_sum")
_native_running_log_sum_backward = kernel("running_log_sum_backward")


def running_sum(x: Array, axis: int, reverse: bool = False) -> Array:
    """Sums along `axis` of all elements up to each; with `reverse`, of all from it on."""
    y: Array | None = _native_running_sum(x, axis, reverse) if isinstance(x, np.ndarray) else None
    return reference_running_sum(x, axis, reverse) if y is None else y


def reference_running_sum(x: Array, axis: int, reverse: bool = False) -> Array:
    """numpy form of `running_sum`."""
    if not x.ndim:
        return x.copy()
    y = accumulate(np.add, np.flip(x, axis) if reverse else x, axis)
    if x.dtype.kind in "fV":
        y = y + x.dtype.type(0)  # sums start with 0, which has no sign
    return np.flip(y, axis) if reverse else y


def accumulate(ufunc: Any, x: Array, axis: int) -> Array:
    """`ufunc` over all elements up to each, in float64: a narrow float would lose its digits on the way."""
    if not x.ndim:
        return x.copy()
    wide = {"f": "float64", "V": "float64", "c": "complex128"}.get(x.dtype.kind, x.dtype)
    return ufunc.accumulate(x.astype(wide, copy=False), axis).astype(x.dtype, copy=False)  # type: ignore[no-any-return]


def _is_whole(x: Array) -> bool:
    """Whether memory holds every element: an expanded array may have more than memory can, which numpy says."""
    return isinstance(x, np.ndarray) and 0 not in x.strides


def running_product(x: Array, axis: int) -> Array:
    """Products along `axis` of all elements up to each."""
    y: Array | None = _native_running_product(x, axis) if _is_whole(x) else None
    return accumulate(np.multiply, x, axis) if y is None else y


def running_extreme(x: Array, axis: int, largest: bool) -> tuple[Array, Array]:
    """Largest (or smallest) elements up to each, and where they are: the last of equals; NaN wins."""
    wide = pack.widened(x)
    found: tuple[Array, Array] | None = _native_running_extreme(wide, axis, largest) if _is_whole(x) else None
    if found is None:
        return reference_running_extreme(x, axis, largest)
    return found if wide is x else (pack.astype(found[0], x.dtype), found[1])


def reference_running_extreme(x: Array, axis: int, largest: bool) -> tuple[Array, Array]:
    """numpy form of `running_extreme`."""
    values = (np.maximum if largest else np.minimum).accumulate(x, axis)
    new = (x == values) | (x != x)
    places = np.arange(x.shape[axis]).reshape(-1, *(1,) * (x.ndim - 1 - axis))
    return values, np.maximum.accumulate(np.where(new, places, 0), axis)


def running_log_sum(x: Array, axis: int) -> Array:
    """log of the sums along `axis` of the exponentials of all elements up to each."""
    y: Array | None = _native_running_log_sum(x, axis) if _is_whole(x) else None
    return accumulate(np.logaddexp, x, axis) if y is None else y


def running_log_sum_backward(g: Array, x: Array, axis: int) -> Array:
    """The gradient of `running_log_sum` by x."""
    whole = _is_whole(g) and _is_whole(x)
    dx: Array | None = _native_running_log_sum_backward(g, x, axis) if whole else None
    return reference_running_log_sum_backward(g, x, axis) if dx is None else dx


def reference_running_log_sum_backward(g: Array, x: Array, axis: int) -> Array:
    """numpy form of `running_log_sum_backward`: each sum's gradient is its own and what the next sum passes on."""
    if not x.ndim or not x.shape[axis]:
        return g.copy()
    lines, gradients = (np.moveaxis(v.astype(np.float64), axis, 0) for v in (x, g))
    before = np.logaddexp.accumulate(lines[:-1], 0)
    difference = lines[1:] - before
    small = np.exp(-np.abs(difference))
    large, small = 1 / (1 + small), small / (1 + small)
    by_element, by_sum = np.where(difference > 0, (large, small), (small, large))
    out, passed = np.empty_like(lines), np.zeros_like(lines[0])
    for i in range(len(lines) - 1, 0, -1):
        total = gradients[i] + passed
        out[i], passed = total * by_element[i - 1], total * by_sum[i - 1]
    out[0] = gradients[0] + passed
    return np.moveaxis(out, 0, axis).astype(x.dtype)
