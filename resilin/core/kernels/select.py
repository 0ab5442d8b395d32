"""Places of the smallest or largest elements of rows. Equal elements keep their order; NaN is the largest."""

from __future__ import annotations

import numpy as np

from resilin.core.kernels import sort
from resilin.core.kernels.common import Array
from resilin.core.kernels.loader import kernel

_native_select_places = kernel("select_places")


def places(x: Array, k: int, largest: bool, only: bool = False, nan_wins: bool = False) -> Array:
    """Where the `k` smallest (or largest) elements of the last dimension are, in order; with `only` the k-th alone.

    With `only` and `nan_wins` where the first NaN is in rows that have one.
    """
    found: Array | None = _native_select_places(sort.keyed(x), k, largest, only, nan_wins)
    return reference_places(x, k, largest, only, nan_wins) if found is None else found


def reference_places(x: Array, k: int, largest: bool, only: bool = False, nan_wins: bool = False) -> Array:
    """numpy form of `places`."""
    order = sort.reference_order(x, largest)
    found: Array = order[..., k - 1 if only else 0 : k]
    return _or_first_nan(x, found) if nan_wins else found


def _or_first_nan(x: Array, places: Array) -> Array:
    """`places`, one of each row, or the first NaN's where there is one."""
    if x.dtype.kind in "biu":
        return places
    nan = x != x
    chosen: Array = np.where(nan.any(-1, keepdims=True), np.argmax(nan, -1, keepdims=True), places)
    return chosen
