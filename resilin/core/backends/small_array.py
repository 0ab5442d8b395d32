"""Functions of numpy that spend more on their arguments than on a small array, done with less.

Each gives what the function of its name gives for the arguments that rules use; the rest is left to numpy.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from resilin.core.kernels import joining, pack
from resilin.core.kernels.loader import kernel

Array = np.ndarray[Any, Any]
_native_broadcast_to = kernel("broadcast_to")
_native_extreme_last = kernel("extreme_last")
_native_count_last = kernel("count_last")
_native_stack = kernel("stack")
_native_largest_place, _native_smallest_place = kernel("largest_place"), kernel("smallest_place")
_or: Any = np.logical_or.reduce
_and: Any = np.logical_and.reduce


def broadcast_to(x: Array, shape: tuple[int, ...]) -> Array:
    """A read-only view of `x` with dimensions of length 1 stretched to `shape`."""
    view: Array | None = _native_broadcast_to(x, shape)
    return reference_broadcast_to(x, shape) if view is None else view


def reference_broadcast_to(x: Array, shape: tuple[int, ...]) -> Array:
    """The form of `broadcast_to` without native code."""
    extra = len(shape) - x.ndim
    if extra < 0 or not x.size or not x.flags.c_contiguous or x.dtype.kind == "V":  # bfloat16 has no buffer to view
        return np.broadcast_to(x, shape)
    strides = [0] * extra
    for here, there, stride in zip(x.shape, shape[extra:], x.strides, strict=True):
        if here != there and here != 1:
            return np.broadcast_to(x, shape)  # says what does not fit
        strides.append(stride if here == there else 0)
    view = np.ndarray(shape, x.dtype, x, 0, strides)
    view.flags.writeable = False
    return view


def expand_dims(x: Array, axis: Any) -> Array:
    """A view of `x` with a dimension of length 1 at `axis`, or at several places."""
    if isinstance(axis, int) and 0 <= axis <= x.ndim:
        return x.reshape((*x.shape[:axis], 1, *x.shape[axis:]))
    return np.expand_dims(x, axis)


def squeeze(x: Array, axis: Any = None) -> Array:
    """A view of `x` without dimensions of length 1."""
    return x.squeeze(axis)


def ones_like(x: Array) -> Array:
    """Ones of the shape, dtype and layout of `x`."""
    ones = np.empty_like(x)
    ones.fill(1)
    return ones


def stack(arrays: Sequence[Array], axis: int = 0) -> Array:
    """Arrays of one shape joined along a new dimension."""
    found: Array | None = _native_stack(arrays, axis)
    if found is not None:
        return found
    shape = arrays[0].shape
    for x in arrays:
        if x.shape != shape:
            return np.stack(arrays, axis)  # says what does not fit
    if axis == 0 and shape:
        return joining.concatenate(arrays, 0).reshape(len(arrays), *shape)
    wider = (*shape[:axis], 1, *shape[axis:])
    return joining.concatenate([x.reshape(wider) for x in arrays], axis)


def any(x: Array, axis: Any = None, keepdims: bool = False) -> Any:
    """Whether some element over `axis` is true."""
    if x.dtype.kind != "b" and (count := _native_count_last(x, axis, keepdims)) is not None:
        return count != 0
    return _or(x, axis, None, None, keepdims)


def all(x: Array, axis: Any = None, keepdims: bool = False) -> Any:
    """Whether all elements over `axis` are true."""
    return _and(x, axis, None, None, keepdims)


def count_nonzero(x: Array, axis: Any = None, keepdims: bool = False) -> Any:
    """How many elements over `axis` are not 0."""
    y = _native_count_last(x, axis, keepdims)
    return np.count_nonzero(pack.widened(x), axis, keepdims=keepdims) if y is None else y


def max(x: Array, axis: Any = None, keepdims: bool = False, **initial: Any) -> Any:
    """The largest element over `axis`; NaN wins."""
    y = None if initial else _native_extreme_last(x, axis, keepdims, True)
    return np.maximum.reduce(x, axis, keepdims=keepdims, **initial) if y is None else y


def min(x: Array, axis: Any = None, keepdims: bool = False, **initial: Any) -> Any:
    """The smallest element over `axis`; NaN wins."""
    y = None if initial else _native_extreme_last(x, axis, keepdims, False)
    return np.minimum.reduce(x, axis, keepdims=keepdims, **initial) if y is None else y


def argmax(x: Array, axis: Any = None, keepdims: bool = False) -> Any:
    """Where the largest element over `axis` is, the first of equals; NaN wins."""
    y = _native_largest_place(x, axis, keepdims)
    return np.argmax(x, axis, keepdims=keepdims) if y is None else y


def argmin(x: Array, axis: Any = None, keepdims: bool = False) -> Any:
    """Where the smallest element over `axis` is, the first of equals; NaN wins."""
    y = _native_smallest_place(x, axis, keepdims)
    return np.argmin(x, axis, keepdims=keepdims) if y is None else y
