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
ROW_LANES = 8  # ROW_LANES of the source
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


def backward(xp: Any, g: Any, x: Any, weight: Any, mean: Any, rstd: Any) -> tuple[Any, Any, Any]:
    """(dx, dw, db) of `kernels.layer_norm.backward`."""
    acc = compute_dtype(x.dtype)
    N = mean.size
    D = weight.size if weight is not None else x.size // max(N, 1)
    g, x = xp.ascontiguousarray(g), xp.ascontiguousarray(x)
    dx = xp.empty(x.shape, x.dtype)
    made = xp.empty if x.size else xp.zeros
    dw, db = made(D, acc), made(D, acc)
    if x.size:
        args = (g, x, _as(xp, weight, acc), mean, rstd, dx, np.int64(D))
        xp.launch("layer_norm", f"layer_norm_backward<{_types(x)}>", (N,), (THREADS,), args)
        sum_rows(xp, g, x, mean, rstd, dw, db)
    if weight is None:
        return dx, None, db.astype(x.dtype, copy=False)
    shape, dtype = weight.shape, weight.dtype
    return dx, dw.astype(dtype, copy=False).reshape(shape), db.astype(dtype, copy=False).reshape(shape)


def sum_rows(xp: Any, g: Any, x: Any, mean: Any, rstd: Any, dw: Any, db: Any) -> None:
    """Write the sums over rows of g * hat (N, D) into `dw` and of g into `db`, hat = (x - mean) * rstd."""
    N, D, acc = mean.size, dw.size, dw.dtype
    P = math.ceil(N / ROW_BLOCK)
    parts = xp.empty((2, P, D), acc)
    grid, block = (math.ceil(D / 32), P), (32, ROW_LANES)
    args = (g, x, mean, rstd, parts[0], parts[1], np.int64(N), np.int64(D))
    xp.launch("layer_norm", f"layer_norm_partials<{_types(x)}>", grid, block, args)
    name, grid = f"layer_norm_total<{FLOATS[acc.name][1]}>", (math.ceil(D / THREADS), 2)
    xp.launch("layer_norm", name, grid, (THREADS,), (parts, dw, db, np.int64(P), np.int64(D)))


def _types(x: Any) -> str:
    return ", ".join(FLOATS[x.dtype.name])


def _as(xp: Any, array: Any, dtype: Any) -> Any:
    """`array` in one piece and in `dtype`; None, the kernel's null pointer, is passed as the integer 0."""
    return np.uintp(0) if array is None else xp.ascontiguousarray(array.astype(dtype, copy=False))
