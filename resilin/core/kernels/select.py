"""Places of the smallest or largest elements of rows. Equal elements keep their order; NaN is the largest."""

from __future__ import annotations

import numpy as np

from resilin.core.kernels import sort
from resilin.core.kernels.common import Array
from resilin.core.kernels.loader import kernel

_native_select_places = kernel("select_places")


def places(x: Array, k: int, largest: bool, only: bool = False) -> Array:
    """Where the `k` smallest (or largest) elements of the last dimension are, in order; with `only` the k-th alone."""
    found: Array | None = _native_select_places(sort.keyed(x), k, largest, only)
    return reference_places(x, k, largest, only) if found is None else found


def reference_places(x: Array, k: int, largest: bool, only: bool = False) -> Array:
    """numpy form of `places`."""
    order = sort.reference_order(x, largest)
    found: Array = order[..., k - 1 if only else 0 : k]
    return found
