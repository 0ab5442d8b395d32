"""The rectifier. NaN passes through, as in PyTorch."""

from __future__ import annotations

import numpy as np

from resilin.core.kernels import pack
from resilin.core.kernels.common import Array
from resilin.core.kernels.loader import kernel

_native_relu_forward = kernel("relu_forward")
_looped = kernel("looped")(None, "relu")  # of other dtypes and strides
_native_relu_backward = kernel("relu_backward")
_native_relu_backward_bits = kernel("relu_backward_bits")
_INFINITY = {np.dtype(np.float16): 0x7C00, pack.BFLOAT16: 0x7F80}  # of 16-bit floats, as bits


def forward(x: Array) -> Array:
    """max(x, 0); NaN stays NaN."""
    if (y := _native_relu_forward(x)) is not None:
        return y  # type: ignore[no-any-return]
    if _looped is not None and (y := _looped(x)) is not None:
        return y  # type: ignore[no-any-return]
    return reference_forward(x)


def backward(g: Array, y: Array) -> Array:
    """g where the result y of `forward` is not <= 0, else 0."""
    if (dx := _native_relu_backward(g, y)) is not None:
        return dx  # type: ignore[no-any-return]
    if g.dtype == y.dtype and (infinity := _INFINITY.get(g.dtype)) is not None:
        dx = _native_relu_backward_bits(g.view(np.uint16), y.view(np.uint16), infinity)
        if dx is not None:
            return dx.view(g.dtype)  # type: ignore[no-any-return]
    return reference_backward(g, y)


def reference_forward(x: Array) -> Array:
    """numpy form of `forward`."""
    return np.maximum(x, x.dtype.type(0))  # type: ignore[no-any-return]


def reference_backward(g: Array, y: Array) -> Array:
    """numpy form of `backward`."""
    return np.where(y <= 0, g.dtype.type(0), g)
