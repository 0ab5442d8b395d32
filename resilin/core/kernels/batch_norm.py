"""Batch normalization with the statistics of this batch."""

# N samples, C channels, L positions (all trailing dimensions together)

from __future__ import annotations

import numpy as np

from resilin.core.kernels import reduce_rows
from resilin.core.kernels.common import Array, array_namespace, compute_dtype
from resilin.core.kernels.loader import kernel

_native_batch_norm_forward = kernel("batch_norm_forward")
_native_batch_norm_backward = kernel("batch_norm_backward")


def forward(x: Array, weight: Array | None, bias: Array | None, eps: float) -> tuple[Array, Array, Array]:
    """Normalize each channel over samples and positions, then scale and shift.

    Shape:  x (N, C, ...), weight and bias (C,).
    Gives:  y like x; mean_C and the biased var_C in x's dtype (float32 for 16-bit floats).
    """
    if (out := _native_batch_norm_forward(x, weight, bias, eps)) is not None:
        y, (mean_C, var_C) = out
        return y, mean_C, var_C
    return reference_forward(x, weight, bias, eps)


def backward(
    g: Array, x: Array, weight: Array | None, mean: Array, var: Array, eps: float
) -> tuple[Array, Array, Array]:
    """Gradients (dx, dw_C, db_C); the gradient of the statistics is part of dx."""
    if (out := _native_batch_norm_backward(g, x, weight, mean, var, eps)) is not None:
        return out  # type: ignore[no-any-return]
    return reference_backward(g, x, weight, mean, var, eps)


def _as_ncl(x: Array) -> Array:
    N, C = x.shape[:2]
    return x.reshape(N, C, x.size // (N * C) if N * C else 0).astype(compute_dtype(x.dtype), copy=False)


def reference_forward(x: Array, weight: Array | None, bias: Array | None, eps: float) -> tuple[Array, Array, Array]:
    """numpy form of `forward`, also for a device's arrays."""
    xp = array_namespace(x)
    x_NCL = _as_ncl(x)
    mean_C = xp.mean(x_NCL, axis=(0, 2))
    centred = x_NCL - mean_C[:, None]
    var_C = xp.mean(xp.square(centred), axis=(0, 2))
    scale_C = 1.0 / xp.sqrt(var_C + var_C.dtype.type(eps))
    if weight is not None:
        scale_C = scale_C * weight
    y = centred * scale_C[:, None]
    if bias is not None:
        y += bias[:, None]
    return y.astype(x.dtype, copy=False).reshape(x.shape), mean_C, var_C


def reference_backward(
    g: Array, x: Array, weight: Array | None, mean: Array, var: Array, eps: float
) -> tuple[Array, Array, Array]:
    """numpy form of `backward`."""
    x_NCL, g_NCL = _as_ncl(x), _as_ncl(g)
    count = max(x_NCL.shape[0] * x_NCL.shape[2], 1)
    rstd_C = 1.0 / np.sqrt(var + var.dtype.type(eps))
    hat = (x_NCL - mean[:, None]) * rstd_C[:, None]
    db_C = reduce_rows.total(g_NCL, (0, 2))
    dw_C = reduce_rows.total(g_NCL * hat, (0, 2))
    scale_C = rstd_C if weight is None else rstd_C * weight
    dx = (g_NCL - (db_C / count)[:, None] - hat * (dw_C / count)[:, None]) * scale_C[:, None]
    dtype = x.dtype if weight is None else weight.dtype
    return (
        dx.astype(x.dtype, copy=False).reshape(x.shape),
        dw_C.astype(dtype, copy=False),
        db_C.astype(dtype, copy=False),
    )
