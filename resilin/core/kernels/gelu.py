"""The Gaussian error linear unit, exact and in its tanh approximation."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from resilin.core.kernels.common import Array, compute_dtype
from resilin.core.kernels.loader import kernel
from resilin.errors import UsageError

_SQRT_HALF = math.sqrt(0.5)
_INV_SQRT_2PI = 1 / math.sqrt(2 * math.pi)
_TANH_SCALE = math.sqrt(2 / math.pi)
_TANH_CUBE = 0.044715

_erf: Any = np.frompyfunc(math.erf, 1, 1)

_native_gelu_forward = kernel("gelu_forward")
_native_gelu_backward = kernel("gelu_backward")


def forward(x: Array, approximate: str) -> Array:
    """x * Phi(x): with the error function for approximate="none", with tanh for "tanh"."""
    tanh = is_tanh(approximate)
    if (y := _native_gelu_forward(x, tanh)) is not None:
        return y  # type: ignore[no-any-return]
    return reference_forward(x, approximate)


def backward(g: Array, x: Array, approximate: str) -> Array:
    """g times the derivative of `forward` at x."""
    tanh = is_tanh(approximate)
    if (dx := _native_gelu_backward(g, x, tanh)) is not None:
        return dx  # type: ignore[no-any-return]
    return reference_backward(g, x, approximate)


def is_tanh(approximate: str) -> bool:
    """Whether `approximate` asks for tanh. UsageError unless it is "none" or "tanh"."""
    if approximate not in ("none", "tanh"):
        raise UsageError(f'gelu: approximate must be "none" or "tanh", got {approximate!r}')
    return approximate == "tanh"


def _normal_cdf(x: Array) -> Array:
    # -inf..inf and NaN pass through math.erf; object arrays of size 0 cast cleanly too
    return 0.5 * (1 + np.asarray(_erf(x * x.dtype.type(_SQRT_HALF))).astype(x.dtype))


def reference_forward(x: Array, approximate: str) -> Array:
    """numpy form of `forward`."""
    z = x.astype(compute_dtype(x.dtype), copy=False)
    with np.errstate(invalid="ignore", over="ignore"):
        if is_tanh(approximate):
            y = 0.5 * z * (1 + np.tanh(_TANH_SCALE * (z + _TANH_CUBE * z * z * z)))
        else:
            y = z * _normal_cdf(z)
    return y.astype(x.dtype, copy=False)  # type: ignore[no-any-return]


def reference_backward(g: Array, x: Array, approximate: str) -> Array:
    """numpy form of `backward`."""
    z = x.astype(compute_dtype(x.dtype), copy=False)
    with np.errstate(invalid="ignore", over="ignore"):
        if is_tanh(approximate):
            t = np.tanh(_TANH_SCALE * (z + _TANH_CUBE * z * z * z))
            slope = 0.5 * (1 + t) + 0.5 * z * (1 - t * t) * _TANH_SCALE * (1 + 3 * _TANH_CUBE * z * z)
        else:
            slope = _normal_cdf(z) + z * _INV_SQRT_2PI * np.exp(-0.5 * z * z)
    return (g.astype(z.dtype, copy=False) * slope).astype(x.dtype, copy=False)  # type: ignore[no-any-return]
