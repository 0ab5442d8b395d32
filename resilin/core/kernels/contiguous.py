"""Arrays in C order. Where another dimension than the last is the fastest, numpy's own copy misses the cache."""

from __future__ import annotations

from typing import Any

import numpy as np

from resilin.core.kernels.common import Array
from resilin.core.kernels.loader import kernel

_native_contiguous_copy = kernel("contiguous_copy")
_native_triangle = kernel("triangle")


def ascontiguousarray(x: Any) -> Array:
    """`x` in C order, of the same shape: `np.ascontiguousarray` makes one dimension of none."""
    if isinstance(x, np.ndarray) and not x.flags.c_contiguous:
        y: Array | None = _native_contiguous_copy(x)
        if y is not None:
            return y
    return np.asarray(x, order="C")


def apart(source: Any, target: Any) -> Any:
    """`source`, or a copy of it where numpy would write `target` of one dimension over what it has yet to read.

    Of several dimensions numpy copies by itself, and of one where both run the same way with equal strides it turns.
    """
    if type(source) is not np.ndarray or not source.ndim or target.ndim != 1:
        return source
    if source.strides[-1] == target.strides[0] or not np.may_share_memory(source, target):
        return source
    return source.copy()


def triangle(x: Any, diagonal: int, upper: bool) -> Array | None:
    """The part of matrices on one side of a diagonal and zeros; None for what has no kernel."""
    return _native_triangle(x, diagonal, upper) if isinstance(x, np.ndarray) else None
