"""Launches `unscale.cu`: all gradients of a dtype divided by a loss's scale, and looked at, in one launch.

`xp` is the namespace of `backends/cupy.py`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from resilin.core.kernels.common import compute_dtype
from resilin.core.kernels.cuda import multi_tensor, sources
from resilin.core.kernels.cuda.multi_tensor import THREADS, is_dense


def is_taken(array: Any) -> bool:
    """Whether there is a kernel for this gradient: a float without gaps in memory."""
    return array.dtype.name in sources.FLOATS and is_dense(array)


def unscale(xp: Any, arrays: Sequence[Any], factor: float) -> bool:
    """Multiply arrays that are taken by `factor`, in place; whether an element was not finite. Waits for the device."""
    found = xp.zeros(1, np.int32)
    by_dtype: dict[Any, list[Any]] = {}
    for array in arrays:
        by_dtype.setdefault(array.dtype, []).append(array)
    for dtype, same in by_dtype.items():
        rows = [(array.size, array.data.ptr) for array in same if array.size]
        if not rows:
            continue
        kernel = f"unscale<{', '.join(sources.FLOATS[dtype.name])}>"
        table, blocks = multi_tensor.table_on_device(xp, kernel, rows)
        numbers = (np.int64(len(rows)), compute_dtype(dtype).type(factor))
        xp.launch("unscale", kernel, (blocks,), (THREADS,), (table, *numbers, found))
    overflowed = bool(xp.to_host(found)[0])
    xp.faults.check()
    return overflowed
