"""Arrays in C order. Where another dimension than the last is the fastest, numpy's own copy misses the cache."""

from __future__ import annotations

from typing import Any

import numpy as np

from resilin.core.kernels.common import Array
from resilin.core.kernels.loader import kernel

_native_contiguous_copy = kernel("contiguous_copy")


def ascontiguousarray(x: Any) -> Array:
    """`x` in C order, of the same shape: `np.ascontiguousarray` makes one dimension of none."""
    if isinstance(x, np.ndarray) and not x.flags.c_contiguous:
        y: Array | None = _native_contiguous_copy(x)
        if y is not None:
            return y
    return np.asarray(x, order="C")
