"""Launches `row_sums.cu`: rows added into rows, repeated ones in order, without atomic additions.

The numpy form is `add_rows` of `backends/numpy.py`. `xp` is the namespace of `backends/cupy.py`.
"""

# N rows of g, D columns

from __future__ import annotations

import math
from typing import Any

import numpy as np

from resilin.core.kernels.cuda.sources import types_of

THREADS = 256  # THREADS of the source


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
    ordered = rows[order]
    starts = xp.concatenate((xp.zeros(1, np.int64), xp.flatnonzero(ordered[1:] != ordered[:-1]) + 1))
    args = (xp.ascontiguousarray(g), order, starts, rows, out, np.int64(N), np.int64(starts.size), np.int64(D))
    blocks = math.ceil(starts.size * D / THREADS)
    xp.launch("row_sums", f"row_sums<{', '.join(types)}>", (blocks,), (THREADS,), args)
    return out
