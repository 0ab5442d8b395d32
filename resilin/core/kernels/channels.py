"""Each channel of (N, C, ...) scaled and shifted.

Order of sums: the positions of a sample in 16 lanes, folded in one tree; samples in blocks of `FAN`, ascending, and
these sums in blocks again.
"""

# N samples, C channels

from __future__ import annotations

from typing import Any

from resilin.core.kernels.common import Array, array_namespace, compute_dtype
from resilin.core.kernels.loader import kernel
from resilin.core.kernels.reduce_rows import total

_native_forward = kernel("channels_forward")
_native_backward = kernel("channels_backward")
_native_normalize = kernel("channels_normalize")


def forward(x: Array, weight_C: Array | None, bias_C: Array | None) -> Array:
    """x * weight_C + bias_C, each channel by its own numbers; None is 1 and 0."""
    y: Array | None = _native_forward(x, weight_C, bias_C)
    return reference_forward(x, weight_C, bias_C) if y is None else y


def backward(g: Array, x: Array, weight_C: Array | None, needs: tuple[bool, bool, bool]) -> tuple[Any, Any, Any]:
    """Gradients of x, weight and bias, None for those that `needs` leaves out."""
    found: tuple[Any, Any, Any] | None = _native_backward(g, x, weight_C, *needs)
    return reference_backward(g, x, weight_C, needs) if found is None else found


def normalize(x: Array, mean_C: Array, var_C: Array, weight_C: Array | None, bias_C: Array | None, eps: float) -> Array:
    """Each channel less its mean, divided by sqrt(var + eps), scaled and shifted."""
    y: Array | None = _native_normalize(x, mean_C, var_C, weight_C, bias_C, eps)
    return reference_normalize(x, mean_C, var_C, weight_C, bias_C, eps) if y is None else y


def _along(vector_C: Array, ndim: int) -> Array:
    return vector_C.reshape((-1,) + (1,) * (ndim - 2))


def reference_forward(x: Array, weight_C: Array | None, bias_C: Array | None) -> Array:
    """numpy form of `forward`."""
    y = x.astype(compute_dtype(x.dtype), copy=False)
    if weight_C is not None:
        y = y * _along(weight_C, x.ndim)
    if bias_C is not None:
        y = y + _along(bias_C, x.ndim)
    return y.astype(x.dtype, copy=y is x)


def reference_normalize(
    x: Array, mean_C: Array, var_C: Array, weight_C: Array | None, bias_C: Array | None, eps: float
) -> Array:
    """Array form of `normalize`, also for a device's arrays."""
    scale_C = 1 / array_namespace(x).sqrt(var_C + var_C.dtype.type(eps))
    if weight_C is not None:
        scale_C = scale_C * weight_C
    moved_C = mean_C * scale_C
    return reference_forward(x, scale_C, -moved_C if bias_C is None else bias_C - moved_C)


def reference_backward(
    g: Array, x: Array, weight_C: Array | None, needs: tuple[bool, bool, bool]
) -> tuple[Any, Any, Any]:
    """numpy form of `backward`."""
    axes = (0, *range(2, g.ndim))
    wide = g.astype(compute_dtype(g.dtype), copy=False)
    dx = None if not needs[0] else g if weight_C is None else (wide * _along(weight_C, g.ndim)).astype(g.dtype)
    dw = total(wide * x, axes).astype(g.dtype) if needs[1] else None
    db = total(wide, axes).astype(g.dtype) if needs[2] else None
    return dx, dw, db
