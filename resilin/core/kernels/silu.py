"""The sigmoid linear unit (swish)."""

from __future__ import annotations

import numpy as np

from resilin.core.kernels.common import Array, compute_dtype
from resilin.core.kernels.loader import kernel

_native_silu_forward = kernel("silu_forward")
_native_silu_backward = kernel("silu_backward")


def forward(x: Array) -> Array:
    """x / (1 + exp(-x))."""
    if (y := _native_silu_forward(x)) is not None:
        return y  # type: ignore[no-any-return]
    return reference_forward(x)


def backward(g: Array, x: Array) -> Array:
    """g times the derivative of `forward` at x."""
    if (dx := _native_silu_backward(g, x)) is not None:
        return dx  # type: ignore[no-any-return]
    return reference_backward(g, x)


def _logistic(z: Array) -> Array:
    e = np.exp(-np.abs(z))
    return np.where(z > 0, 1, e) / (1 + e)  # type: ignore[no-any-return]


def reference_forward(x: Array) -> Array:
    """numpy form of `forward`."""
    z = x.astype(compute_dtype(x.dtype), copy=False)
    with np.errstate(invalid="ignore", under="ignore"):
        return (z * _logistic(z)).astype(x.dtype, copy=False)


def reference_backward(g: Array, x: Array) -> Array:
    """numpy form of `backward`."""
    z = x.astype(compute_dtype(x.dtype), copy=False)
    with np.errstate(invalid="ignore", under="ignore"):
        slope = _logistic(z) * (1 + z * _logistic(-z))
        return (g.astype(z.dtype, copy=False) * slope).astype(x.dtype, copy=False)  # type: ignore[no-any-return]
