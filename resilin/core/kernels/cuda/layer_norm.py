"""Launches `layer_norm.cu`: layer normalization over the last D elements of each row, on a device's arrays.

The numpy reference is `kernels/layer_norm.py`; functions and results are the same, so is the order that they state for
sums over rows up to the size of blocks. `xp` is the namespace of `backends/cupy.py`.
"""

# N rows, D features, P partial sums over rows

from __future__ import annotations

import math
from typing import Any

import numpy as np

from resilin.core.kernels.common import compute_dtype
from resilin.core.kernels.cuda.sources import FLOATS

THREADS = 256  # THREADS of elements.cuh
COLUMNS = 32  # COLUMNS of the source
ROW_BLOCK = 512  # ROW_BLOCK of the source


def forward(xp: Any, x: Any, weight: Any, bias: Any, eps: float, D: int) -> tuple[Any, Any, Any]:
    """(y, mean_N, rstd_N) of `kernels.layer_norm.forward`. RuntimeError where weight or bias are not D elements."""
    acc = compute_dtype(x.dtype)
    N = x.size // D if D else 0
    for name, value in (("weight", weight), ("bias", bias)):
        if value is not None and value.size != D:
            raise RuntimeError(f"layer_norm: {name} has {value.size} elements, expected {D}")
    x = xp.ascontiguousarray(x)
    y = xp.empty(x.shape, x.dtype)
    mean, rstd = xp.empty(N, acc), xp.empty(N, acc)
    if x.size:
        args = (x, _as(xp, weight, acc), _as(xp, bias, acc), y, mean, rstd, np.int64(D), acc.type(eps))
        xp.launch("layer_norm", f"layer_norm_forward<{_types(x)}>", (N,), (THREADS,), args)
    return y, mean, rstd


def backward(xp: Any, g: Any, x: Any, weight: Any, mean: Any, rstd: Any, more: Any = None) -> tuple[Any, Any, Any]:
    """(dx, dw, db) of `kernels.layer_norm.backward`, in one launch; `more`, of x's shape and dtype, is added to dx."""
    acc = compute_dtype(x.dtype)
    N = mean.size
    D = weight.size if weight is not None else x.size // max(N, 1)
    g, x = xp.ascontiguousarray(g), xp.ascontiguousarray(x)
    dx = xp.empty(x.shape, x.dtype)
    made = xp.empty if x.size else xp.zeros
    dw, db = made(D, acc), made(D, acc)
    if x.size:
        P, groups = math.ceil(N / ROW_BLOCK), math.ceil(D / COLUMNS)
        partial = xp.empty((2, P, D), acc) if P > 1 else np.uintp(0)
        added = np.uintp(0) if more is None else xp.ascontiguousarray(more)
        arrived = _arrived(xp, groups) if P > 1 else np.uintp(0)
        args = (g, x, _as(xp, weight, acc), mean, rstd, added, dx, partial, arrived, dw, db, *map(np.int64, (N, D, P)))
        xp.launch("layer_norm", f"layer_norm_backward<{_types(x)}>", (groups * P + N,), (THREADS,), args)
    if weight is None:
        return dx, None, db.astype(x.dtype, copy=False)
    shape, dtype = weight.shape, weight.dtype
    return dx, dw.astype(dtype, copy=False).reshape(shape), db.astype(dtype, copy=False).reshape(shape)


def _arrived(xp: Any, groups: int) -> Any:
    """Zeros by which blocks count themselves; kernels of one stream, which follow one another, may share them."""
    stream = xp.module.cuda.get_current_stream().ptr
    kept = xp.arrived.get(stream)
    if kept is None or kept.size < groups:
        kept = xp.arrived[stream] = xp.zeros(max(groups, 1024), np.uint32)
    return kept


def _types(x: Any) -> str:
    return ", ".join(FLOATS[x.dtype.name])


def _as(xp: Any, array: Any, dtype: Any) -> Any:
    """`array` in one piece and in `dtype`; None, the kernel's null pointer, is passed as the integer 0."""
    return np.uintp(0) if array is None else xp.ascontiguousarray(array.astype(dtype, copy=False))
