"""Launches `row_sums.cu`: rows added into rows, repeated ones in order, without atomic additions.

The numpy form is `add_rows` of `backends/numpy.py`. `xp` is the namespace of `backends/cupy.py`.
"""

# N rows of g, D columns

from __future__ import annotations

import math
from typing import Any

import numpy as np

from resilin.core.kernels.cuda.sources import types_of

THREADS = 256  # THREADS of elements.cuh


def add_rows(xp: Any, shape: tuple[int, int], rows: Any, g: Any) -> Any:
    """Zeros of `shape` with g[i] (N, D) added to row rows[i] (N,), repeated rows in the order of `rows`.

    16-bit floats are summed in float32 and rounded once; complex numbers as two real ones; what the kernel has no
    instance for (small integers, bool) in int64.
    """
    if not g.size:
        return xp.zeros(shape, g.dtype)
    if g.dtype.kind == "c":
        parts = xp.ascontiguousarray(g).view(g.real.dtype)
        return add_rows(xp, (shape[0], 2 * shape[1]), rows, parts).view(g.dtype)
    types = types_of(g.dtype)
    if types is None:
        return add_rows(xp, shape, rows, g.astype(np.int64)).astype(g.dtype)
    out = xp.zeros(shape, g.dtype)
    N, D = g.shape
    order = xp.argsort(rows)  # stable, as CuPy's is
    text = f"index {{value}} is outside [0, {shape[0]}), the rows that are added to"
    code = xp.faults.code(IndexError, text)
    numbers = (code, np.int64(N), np.int64(shape[0]), np.int64(D))
    args = (xp.ascontiguousarray(g), order, rows[order], out, xp.faults.word, *numbers)
    xp.launch("row_sums", f"row_sums<{', '.join(types)}>", (math.ceil(N * D / THREADS),), (THREADS,), args)
    xp.faults.launched()
    return out
