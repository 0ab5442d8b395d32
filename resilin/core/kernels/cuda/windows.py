"""Launches `windows.cu`: windows of images as a matrix, and back. `xp` is the namespace of `backends/cupy.py`."""

# N samples, C channels, H W image size, KH KW kernel size, P Q number of window positions

from __future__ import annotations

import math
from typing import Any

import numpy as np

from resilin.core.kernels.cuda import sources

THREADS = 256  # THREADS of elements.cuh

Pair = tuple[int, int]


def im2col(xp: Any, x: Any, kernel: Pair, out: Pair, lengths: tuple[int, ...]) -> Any:
    """The windows of x (N, C, H, W) as (C * KH * KW, N * P * Q); None for elements of 16 bytes.

    lengths: stride, padding and dilation of both axes.
    """
    element = sources.BITS.get(x.dtype.itemsize)
    if element is None:
        return None
    columns = xp.empty((x.shape[1] * math.prod(kernel), x.shape[0] * math.prod(out)), x.dtype)
    _launch(xp, f"im2col<{element}>", xp.ascontiguousarray(x), columns, (*x.shape, *kernel, *out, *lengths))
    return columns


def col2im(xp: Any, columns: Any, shape: tuple[int, ...], kernel: Pair, out: Pair, lengths: tuple[int, ...]) -> Any:
    """Images of `shape` (N, C, H, W) that the elements of windows are added to; None for what is no float."""
    types = sources.FLOATS.get(columns.dtype.name)
    if types is None:
        return None
    x = xp.empty(shape, columns.dtype)
    _launch(xp, f"col2im<{', '.join(types)}>", xp.ascontiguousarray(columns), x, (*shape, *kernel, *out, *lengths))
    return x


def _launch(xp: Any, kernel: str, given: Any, made: Any, numbers: tuple[int, ...]) -> None:
    if made.size:
        args = (given, made, np.int64(made.size), *map(np.int32, numbers))
        xp.launch("windows", kernel, (math.ceil(made.size / THREADS),), (THREADS,), args)
