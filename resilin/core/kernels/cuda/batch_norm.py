"""Launches `batch_norm.cu`: each channel normalized over samples and positions, on a device's arrays.

The numpy reference is `kernels/batch_norm.py`; functions and results are the same. `xp` is the namespace of
`backends/cupy.py`.
"""

# N samples, C channels, L positions

from __future__ import annotations

import math
from typing import Any

import numpy as np

from resilin.core.kernels.common import compute_dtype
from resilin.core.kernels.cuda.sources import FLOATS

THREADS = 256  # THREADS of elements.cuh


def forward(xp: Any, x: Any, weight: Any, bias: Any, eps: float) -> tuple[Any, Any, Any]:
    """(y, mean_C, var_C) of `kernels.batch_norm.forward`."""
    acc = compute_dtype(x.dtype)
    C = x.shape[1]
    y = xp.empty(x.shape, x.dtype)
    made = xp.empty if x.size else xp.zeros
    mean, var = made(C, acc), made(C, acc)
    args = (xp.ascontiguousarray(x), _as(xp, weight, acc), _as(xp, bias, acc), y, mean, var)
    _launch(xp, "batch_norm_forward", x, args, eps)
    return y, mean, var


def backward(xp: Any, g: Any, x: Any, weight: Any, mean: Any, var: Any, eps: float) -> tuple[Any, Any, Any]:
    """(dx, dw_C, db_C) of `kernels.batch_norm.backward`."""
    acc = compute_dtype(x.dtype)
    C = x.shape[1]
    dx = xp.empty(x.shape, x.dtype)
    made = xp.empty if x.size else xp.zeros
    dw, db = made(C, acc), made(C, acc)
    args = (xp.ascontiguousarray(g), xp.ascontiguousarray(x), _as(xp, weight, acc), mean, var, dx, dw, db)
    _launch(xp, "batch_norm_backward", x, args, eps)
    dtype = x.dtype if weight is None else weight.dtype
    return dx, dw.astype(dtype, copy=False), db.astype(dtype, copy=False)


def _launch(xp: Any, kernel: str, x: Any, args: tuple[Any, ...], eps: float) -> None:
    if x.size:
        sizes = np.int64(x.shape[0]), np.int64(x.shape[1]), np.int64(math.prod(x.shape[2:]))
        name = f"{kernel}<{', '.join(FLOATS[x.dtype.name])}>"
        xp.launch("batch_norm", name, (x.shape[1],), (THREADS,), (*args, *sizes, compute_dtype(x.dtype).type(eps)))


def _as(xp: Any, array: Any, dtype: Any) -> Any:
    """`array` in one piece and in `dtype`; None, the kernel's null pointer, is passed as the integer 0."""
    return np.uintp(0) if array is None else xp.ascontiguousarray(array.astype(dtype, copy=False))
