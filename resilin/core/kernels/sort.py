"""The places that sort rows. Equal elements keep their order; NaN is the largest, and -0 equals 0."""

from __future__ import annotations

import numpy as np

from resilin.core.kernels import pack
from resilin.core.kernels.common import Array
from resilin.core.kernels.loader import kernel

_native_sort_order = kernel("sort_order")


def order(x: Array, largest: bool = False) -> Array:
    """Where the elements of the last dimension are in ascending order, or with `largest` in descending order."""
    found: Array | None = _native_sort_order(pack.widened(x), largest) if isinstance(x, np.ndarray) else None
    return reference_order(x, largest) if found is None else found


def reference_order(x: Array, largest: bool = False) -> Array:
    """numpy form of `order`."""
    if not largest:
        return np.argsort(x, axis=-1, kind="stable")
    backwards = np.flip(x, -1)  # sorting the reversed order and reversing it keeps equal elements in order
    places: Array = x.shape[-1] - 1 - np.flip(np.argsort(backwards, axis=-1, kind="stable"), -1)
    return places
