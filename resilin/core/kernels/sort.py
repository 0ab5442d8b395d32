"""Sorts rows, and finds what is distinct in them. Equal elements keep their order; NaN is the largest; -0 equals 0."""

from __future__ import annotations

from typing import Any

import numpy as np

from resilin.core.kernels import pack
from resilin.core.kernels.common import Array
from resilin.core.kernels.loader import kernel

_native_sort = kernel("sort_last")
_native_distinct_elements = kernel("distinct_elements")
_native_distinct_rows = kernel("distinct_rows")
_native_count_integers = kernel("count_integers")
_KEYED = np.dtype(np.int64)  # what narrower integers are sorted as


def order(x: Array, largest: bool = False) -> Array:
    """Where the elements of the last dimension are in ascending order, or with `largest` in descending order."""
    found = _native_sort(pack.widened(x), largest, False) if isinstance(x, np.ndarray) else None
    return reference_order(x, largest) if found is None else found[1]


def values_and_order(x: Array, largest: bool = False) -> tuple[Array, Array]:
    """The sorted elements of the last dimension of a numpy array, and their `order`."""
    found: tuple[Array, Array] | None = _native_sort(x, largest, True)
    if found is not None:
        return found
    places = order(x, largest)
    return np.take_along_axis(x, places, -1), places


def reference_order(x: Array, largest: bool = False) -> Array:
    """numpy form of `order`."""
    if not largest:
        return np.argsort(x, axis=-1, kind="stable")
    backwards = np.flip(x, -1)  # sorting the reversed order and reversing it keeps equal elements in order
    places: Array = x.shape[-1] - 1 - np.flip(np.argsort(backwards, axis=-1, kind="stable"), -1)
    return places


def keyed(x: Array) -> Array:
    """`x`, or its elements in a dtype that has native code, in the same order."""
    if x.dtype.kind in "biu" and x.dtype.itemsize < _KEYED.itemsize and x.dtype != np.int32:
        return x.astype(_KEYED)
    found: Array = pack.widened(x)
    return found


def distinct(flat: Array, first: bool, inverse: bool, counts: bool) -> tuple[Any, Any, Any, Any]:
    """The distinct elements of a vector, where each is first, which of them every element is, how often each occurs.

    None for what is not asked for. NaNs are distinct from one another; of equal elements the first one is found.
    """
    half = pack.is_half(flat)
    native = isinstance(flat, np.ndarray)  # what vmap follows says by itself that it has no rule
    found = _native_distinct_elements(keyed(flat), first or half, inverse, counts) if native else None
    if found is None:
        return reference_distinct(flat)
    values, starts, *others = found
    return (flat[starts] if half else values.astype(flat.dtype, copy=False), starts, *others)


def reference_distinct(flat: Array) -> tuple[Any, Any, Any, Any]:
    """numpy form of `distinct`, with all that can be asked for."""
    places = order(flat)
    ordered = flat[places]
    new = np.ones(len(flat), bool)
    np.not_equal(ordered[1:], ordered[:-1], out=new[1:])
    starts = np.flatnonzero(new)
    inverse = np.empty(len(flat), np.int64)
    inverse[places] = np.cumsum(new) - 1
    return ordered[starts], places[starts], inverse, np.diff(np.append(starts, len(flat)))


def distinct_slices(x: Array, axis: int) -> tuple[Any, Any, Any, Any]:
    """The distinct slices along `axis` in lexicographic order, and the rest of `distinct`."""
    length = x.shape[axis]
    if x.size and isinstance(x, np.ndarray):
        found = _native_distinct_rows(keyed(np.moveaxis(x, axis, 0).reshape(length, -1)))
        if found is not None:
            return (np.take(x, found[0], axis), *found)
    _, *found = np.unique(pack.widened(x), True, True, True, axis, equal_nan=False)  # no NaN in 16 bits for numpy
    return (np.take(x, found[0], axis), *found)


def counted(x: Array, least: int) -> Array | None:
    """`np.bincount` without weights; None for numbers below 0, and where numpy counts."""
    found: Array | None = _native_count_integers(keyed(x), least)
    return found
