"""Running sums. Order: one element after the other, added in float64 (complex128) and rounded to x's dtype."""

from __future__ import annotations

import numpy as np

from resilin.core.kernels.common import Array
from resilin.core.kernels.loader import kernel

_native_running_sum = kernel("running_sum")


def running_sum(x: Array, axis: int, reverse: bool = False) -> Array:
    """Sums along `axis` of all elements up to each; with `reverse`, of all from it on."""
    y: Array | None = _native_running_sum(x, axis, reverse) if isinstance(x, np.ndarray) else None
    return reference_running_sum(x, axis, reverse) if y is None else y


def reference_running_sum(x: Array, axis: int, reverse: bool = False) -> Array:
    """numpy form of `running_sum`."""
    if not x.ndim:
        return x.copy()
    wide = {"f": np.dtype("float64"), "V": np.dtype("float64"), "c": np.dtype("complex128")}.get(x.dtype.kind, x.dtype)
    given = np.flip(x, axis) if reverse else x
    y = np.add.accumulate(given.astype(wide, copy=False), axis).astype(x.dtype, copy=False)
    return np.flip(y, axis) if reverse else y
