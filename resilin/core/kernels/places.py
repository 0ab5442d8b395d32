"""Elements taken from places along one dimension, and added to places there.

Order of sums: what is added at one place is added one after the other, to what is there, in the order of the places;
the same for any thread count, with native code and without. Places count from the front, or from the end where they are
negative.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from resilin.core.kernels import contiguous
from resilin.core.kernels.common import Array
from resilin.core.kernels.loader import kernel

_native_take_slices = kernel("take_slices")
_native_add_slices = kernel("add_slices")
_native_take_along = kernel("take_along")
_native_add_along = kernel("add_along")
_native_add_slices_to = kernel("add_slices_to")
_native_add_along_to = kernel("add_along_to")
_native_put_along = kernel("put_along")
_native_pick_slices = kernel("pick_slices")
_native_extreme_along = kernel("extreme_along")


_ALL = slice(None)


def _single(index: Any) -> tuple[Array, int] | None:
    """(places, axis) of an index that picks whole slices of one dimension, `[:, :, places]`; None of any other."""
    if isinstance(index, np.ndarray):
        return index, 0
    if type(index) is tuple and index and isinstance(index[-1], np.ndarray):
        before = index[:-1]
        if all([type(part) is slice and part == _ALL for part in before]):
            return index[-1], len(before)
    return None


def take_slices(x: Any, index: Any) -> Array | None:
    """x[index] for an index of one array of places; None for what has no kernel."""
    if (found := _single(index)) is None or not isinstance(x, np.ndarray):
        return None
    return _native_take_slices(x, *found)  # type: ignore[no-any-return]


def add_slices(g: Array, shape: tuple[int, ...], index: Any) -> Array:
    """Zeros of `shape` with `g` added at `index`: what undoes x[index]."""
    found = _single(index) if isinstance(g, np.ndarray) else None
    out: Array | None = None
    if found is not None:
        out = _native_add_slices(contiguous.ascontiguousarray(g), shape, *found)
    return reference_add_slices(g, shape, index) if out is None else out


_native_range = kernel("integer_range")


def once(index: Array) -> Array:
    """Each element of an expanded array of places once: with dimensions of length 1 where it was expanded."""
    if 0 not in index.strides or not index.size:
        return index
    return index[tuple([slice(0, 1) if step == 0 else _ALL for step in index.strides])]


def range_of(index: Any) -> tuple[int, int]:
    """The smallest and the largest place in an array that has some."""
    if isinstance(index, np.ndarray):
        index = once(index)
        if (found := _native_range(index)) is not None:
            return found  # type: ignore[no-any-return]
    return int(index.min()), int(index.max())


def _slices(index: Any, shape: tuple[int, ...], axis: int) -> Any:
    """The index that picks whole slices where `index`, one place per element, was expanded from a place per slice."""
    if not isinstance(index, np.ndarray) or index.ndim != len(shape) or index.ndim < 2:
        return None
    for d, (step, n, m) in enumerate(zip(index.strides, index.shape, shape, strict=True)):
        if d != axis and (step or n != m):
            return None
    places = index[tuple([_ALL if d == axis else 0 for d in range(index.ndim)])]
    return (*(_ALL,) * axis, places)


def take_along(x: Array, index: Array, axis: int) -> Array:
    """`np.take_along_axis`."""
    y: Array | None = _native_take_along(x, index, axis) if isinstance(x, np.ndarray) else None
    return np.take_along_axis(x, index, axis) if y is None else y


def add_along(g: Array, shape: tuple[int, ...], axis: int, index: Array) -> Array:
    """Zeros of `shape` with `g` added at `index` along `axis`: what undoes `take_along`."""
    if index.size and g.shape == index.shape and (slices := _slices(index, shape, axis)) is not None:
        return add_slices(g, shape, slices)
    out: Array | None = None
    if isinstance(g, np.ndarray):
        out = _native_add_along(contiguous.ascontiguousarray(g), shape, axis, contiguous.ascontiguousarray(index))
    return reference_add_along(g, shape, axis, index) if out is None else out


def add_slices_to(out: Array, g: Array, index: Any) -> Array:
    """`out`, with `g` added at `index`: to what is there, one after the other in the order of the places."""
    if (found := _single(index)) is not None:
        places, axis = found
        given = contiguous.ascontiguousarray(g)
        if places.ndim != 1:
            given = given.reshape(*g.shape[:axis], places.size, *g.shape[axis + places.ndim :])
        if _native_add_slices_to(out, given, contiguous.ascontiguousarray(places.reshape(-1)), axis):
            return out
    return reference_add_slices_to(out, g, index)


def add_along_to(out: Array, g: Array, axis: int, index: Array) -> Array:
    """`out`, with `g` added at `index` along `axis`: to what is there, in the order of the index."""
    if index.size and g.shape == index.shape and (slices := _slices(index, out.shape, axis)) is not None:
        return add_slices_to(out, g, slices)
    given = contiguous.ascontiguousarray(g)
    done = _native_add_along_to(out, given, axis, contiguous.ascontiguousarray(index))
    return out if done else reference_add_along_to(out, g, axis, index)


def put_along(out: Any, index: Any, value: Any, axis: int) -> bool:
    """Write `value` into `out` at `index` along `axis`, of several for one place the last; False if it did not."""
    if not isinstance(out, np.ndarray) or not isinstance(value, np.ndarray):
        return False
    return bool(_native_put_along(out, index, value, axis))


def pick_along(out: Any, index: Any, value: Any, axis: int, largest: bool) -> bool:
    """Make elements of `out` at `index` along `axis` the larger (or smaller) of themselves and of `value`, NaN winning.

    False, and nothing is written, where there is no kernel: shapes or dtypes differ, or have none.
    """
    if not isinstance(out, np.ndarray) or not isinstance(value, np.ndarray) or value.shape != index.shape:
        return False
    if not index.size:
        return False
    slices = _slices(index, out.shape, axis)  # of an index expanded from a place per slice
    if slices is not None and _native_pick_slices(out, slices[-1], value, axis, largest):
        return True
    given = (contiguous.ascontiguousarray(index), contiguous.ascontiguousarray(value))
    return bool(_native_extreme_along(out, *given, axis, largest))


def reference_add_slices(g: Array, shape: tuple[int, ...], index: Any) -> Array:
    """numpy form of `add_slices`, for any index."""
    return reference_add_slices_to(np.zeros(shape, g.dtype), g, index)


def reference_add_slices_to(out: Array, g: Array, index: Any) -> Array:
    """numpy form of `add_slices_to`, for any index, into an `out` in C order."""
    if isinstance(index, np.ndarray) and index.dtype.kind in "iu" and out.size and g.size:
        # element by element, of which numpy's loop is many times faster than that over rows
        width = out.size // out.shape[0]
        places = (index.reshape(-1, 1) % out.shape[0]) * width + np.arange(width)
        np.add.at(out.reshape(-1), places.reshape(-1), g.reshape(-1))
    else:
        np.add.at(out, index, g)
    return out


def reference_add_along(g: Array, shape: tuple[int, ...], axis: int, index: Array) -> Array:
    """numpy form of `add_along`."""
    return reference_add_along_to(np.zeros(shape, g.dtype), g, axis, index)


def reference_add_along_to(out: Array, g: Array, axis: int, index: Array) -> Array:
    """numpy form of `add_along_to`."""
    places: list[Any] = list(np.indices(index.shape, sparse=True))
    places[axis] = index
    np.add.at(out, tuple(places), g)
    return out
