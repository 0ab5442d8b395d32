"""The logistic function."""

from __future__ import annotations

import numpy as np

from resilin.core.kernels.common import Array, compute_dtype
from resilin.core.kernels.loader import kernel

_native_sigmoid_forward = kernel("sigmoid_forward")
_native_sigmoid_backward = kernel("sigmoid_backward")


def forward(x: Array) -> Array:
    """1 / (1 + exp(-x)), without overflow. `x` may be one of numpy's numbers, which arithmetic of 0-d arrays gives."""
    x = np.asarray(x)
    if (y := _native_sigmoid_forward(x)) is not None:
        return y  # type: ignore[no-any-return]
    return reference_forward(x)


def backward(g: Array, y: Array) -> Array:
    """g times the derivative of `forward`, for its result `y`."""
    if (dx := _native_sigmoid_backward(g, y)) is not None:
        return dx  # type: ignore[no-any-return]
    return reference_backward(g, y)


def reference_forward(x: Array) -> Array:
    """numpy form of `forward`."""
    with np.errstate(all="ignore"):
        if x.dtype.kind == "c":
            return 1 / (1 + np.exp(-x))
        z = x.astype(compute_dtype(x.dtype), copy=False)
        e = np.exp(-np.abs(z))
        return (np.where(z >= 0, 1, e) / (1 + e)).astype(x.dtype, copy=False)  # type: ignore[no-any-return]


def reference_backward(g: Array, y: Array) -> Array:
    """numpy form of `backward`."""
    with np.errstate(all="ignore"):
        z = y.astype(compute_dtype(y.dtype), copy=False)
        return (g.astype(z.dtype, copy=False) * np.conjugate(z * (1 - z))).astype(y.dtype, copy=False)  # type: ignore[no-any-return]
