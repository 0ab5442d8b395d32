"""Launches `pool.cu`: maximum pooling on a device's arrays. The numpy form is `kernels/pool.py`.

`xp` is the namespace of `backends/cupy.py`.
"""

# N samples, C channels, H W image size, P Q number of windows

from __future__ import annotations

import math
from typing import Any

import numpy as np

from resilin.core.kernels.cuda import sources

THREADS = 256  # THREADS of elements.cuh
BLOCKS = 65_535  # at most

Pair = tuple[int, int]


def max2d_forward(xp: Any, x: Any, size: Pair, *window: Pair) -> tuple[Any, Any] | None:
    """(maxima, their positions) of windows, `size` (P, Q) of them: kernel, stride, padding, dilation.

    None for what is no float.
    """
    types = sources.FLOATS.get(x.dtype.name)
    if types is None:
        return None
    y, at = (xp.empty((*x.shape[:2], *size), dtype) for dtype in (x.dtype, np.int64))
    _launch(xp, f"max_pool_forward<{', '.join(types)}>", (xp.ascontiguousarray(x), y, at), y.size, x, size, window)
    return y, at


def max2d_backward(xp: Any, g: Any, at: Any, shape: tuple[int, ...], *window: Pair) -> Any:
    """The gradient of images of `shape`, for g and the positions that `max2d_forward` gave."""
    types = sources.FLOATS[g.dtype.name]
    dx = xp.empty(shape, g.dtype)
    given = (xp.ascontiguousarray(g), at, dx)
    _launch(xp, f"max_pool_backward<{', '.join(types)}>", given, dx.size, dx, g.shape[2:], window)
    return dx


def _launch(xp: Any, kernel: str, arrays: tuple[Any, ...], size: int, images: Any, windows: Any, window: Any) -> None:
    if size:
        lengths = (*images.shape[2:], *windows, *[length for pair in window for length in pair])
        blocks = min(math.ceil(size / THREADS), BLOCKS)
        xp.launch("pool", kernel, (blocks,), (THREADS,), (*arrays, np.int64(size), *map(np.int32, lengths)))
