"""Activations. The fused kernels run on the CPU; the forms here are their reference and serve second derivatives."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from resilin.core.kernels import gelu as gelu_kernel
from resilin.core.kernels import relu as relu_kernel
from resilin.core.kernels import sigmoid as sigmoid_kernel
from resilin.core.kernels import silu as silu_kernel
from resilin.core.kernels import softmax as softmax_kernel
from resilin.core.kernels.cuda import rows as rows_cuda
from resilin.core.kernels.loader import kernel
from resilin.core.ops.errstate import widened
from resilin.core.ops.registry import accelerate, is_complex, op, override

_SQRT_HALF = math.sqrt(0.5)
_INV_SQRT_2PI = 1 / math.sqrt(2 * math.pi)
_TANH_SCALE = math.sqrt(2 / math.pi)


@op(takes="iuf", narrow=True, samples=lambda r: [(r(3, 4),)])
def relu(xp, x):
    """max(x, 0)."""
    return xp.maximum(x, 0)


@relu.vjp
def _(xp, g, y, _x):
    return xp.where(y <= 0, xp.zeros_like(g), g)  # NaN passes it on


override(
    "relu",
    "cpu",
    lambda xp, x: relu_kernel.forward(x),
    lambda xp, needs, g, y, _x: (relu_kernel.backward(g, y),),
    quiet=False,
    kernel=kernel("relu_forward"),
)


@op(floats=True, elementwise=True, complex=True, samples=lambda r: [(r(3, 4),), (r(3, low=-40, high=40),)])
def sigmoid(xp, x):
    """1 / (1 + exp(-x)), without overflow."""
    if is_complex(x):
        return 1 / (1 + xp.exp(-x))
    z = xp.exp(-xp.absolute(x))
    return xp.where(x >= 0, 1 / (1 + z), z / (1 + z)).astype(x.dtype)


@sigmoid.vjp
def _(xp, g, y, _x):
    return g * xp.conj(y * (1 - y))


override(
    "sigmoid",
    "cpu",
    lambda xp, x: sigmoid_kernel.forward(x),
    lambda xp, needs, g, y, _x: (sigmoid_kernel.backward(g, y),),
    quiet=False,
    halves=True,
    kernel=kernel("sigmoid_forward"),
)


@op(takes="f", elementwise=True, samples=lambda r: [(r(3, 4),)])
def silu(xp, x):
    """x * sigmoid(x)."""
    return x * xp.sigmoid(x)


@silu.vjp
def _(xp, g, _y, x):
    s = xp.sigmoid(x)
    return g * s * (1 + x * (1 - s))


override(
    "silu",
    "cpu",
    lambda xp, x: silu_kernel.forward(x),
    lambda xp, needs, g, _y, x: (silu_kernel.backward(g, x),),
    quiet=False,
    halves=True,
    kernel=kernel("silu_forward"),
)


@op(takes="f", samples=lambda r: [(r(3, 4), r(3, 4)), (r(3), r(3, low=-40, high=40))])
def gated(xp, x, gate):
    """x * sigmoid(gate), of arrays of one shape."""
    return x * xp.sigmoid(gate)


@gated.vjp(0)
def _(xp, g, _y, _x, gate):
    return g * xp.sigmoid(gate)


@gated.vjp(1)
def _(xp, g, _y, x, gate):
    s = xp.sigmoid(gate)
    return g * x * (s * (1 - s))


def _gated_forward(xp: Any, x: Any, gate: Any) -> Any:
    return gated.generic.forward(xp, widened(x), widened(gate)).astype(x.dtype, copy=False)


def _gated_backward(xp: Any, needs: Any, g: Any, y: Any, x: Any, gate: Any) -> Any:
    return gated.generic.vjp(xp, needs, widened(g), y, widened(x), widened(gate))


override("gated", "cpu", _gated_forward, _gated_backward, quiet=False, halves=True, kernel=kernel("gated"))


@op(takes="f", elementwise=True, samples=lambda r: [(r(3, 4),), (r(3, low=-40, high=40),)])
def softplus(xp, x, beta=1.0, threshold=20.0):
    """log(1 + exp(beta * x)) / beta; x itself where beta * x exceeds `threshold`."""
    z = x * beta
    y = (xp.maximum(z, 0) + xp.log1p(xp.exp(-xp.absolute(z)))) / beta
    return xp.where(z > threshold, x, y)


@softplus.vjp
def _(xp, g, _y, x, beta=1.0, threshold=20.0):
    return g * xp.where(x * beta > threshold, xp.ones_like(x), xp.sigmoid(x * beta))


accelerate("softplus", kernel("softplus_forward"), kernel("softplus_backward"))


_erf: Any = np.frompyfunc(math.erf, 1, 1)
_erf_of_double = kernel("special_erf")


@op(takes="biuf", floats=True, elementwise=True, host="it is in cupyx.scipy.special", samples=lambda r: [(r(3, 4),)])
def erf(xp, x):
    """The error function."""
    y = _erf_of_double(x) if isinstance(x, np.ndarray) else None
    return np.asarray(_erf(x)).astype(x.dtype) if y is None else y


@erf.vjp
def _(xp, g, _y, x):
    return g * (2 / math.sqrt(math.pi)) * xp.exp(-(x * x))


accelerate("erf", kernel("erf_forward"), kernel("erf_backward"))


@op(takes="f", samples=lambda r: [(r(3, 4),), (r(3, 4), "tanh")])
def gelu(xp, x, approximate="none"):
    """x * Phi(x) with the normal distribution function, or its tanh approximation."""
    z = x.astype("float32") if x.dtype.itemsize == 2 else x
    if gelu_kernel.is_tanh(approximate):
        y = 0.5 * z * (1 + xp.tanh(_TANH_SCALE * (z + 0.044715 * z * z * z)))
    else:
        y = z * (0.5 * (1 + xp.erf(z * _SQRT_HALF)))
    return y.astype(x.dtype, copy=False)


@gelu.vjp
def _(xp, g, _y, x, approximate="none"):
    if approximate == "tanh":
        t = xp.tanh(_TANH_SCALE * (x + 0.044715 * x * x * x))
        slope = _TANH_SCALE * (1 + 3 * 0.044715 * x * x)
        return g * (0.5 * (1 + t) + 0.5 * x * (1 - t * t) * slope)
    cdf = 0.5 * (1 + xp.erf(x * _SQRT_HALF))
    return g * (cdf + x * _INV_SQRT_2PI * xp.exp(-0.5 * x * x))


override(
    "gelu",
    "cpu",
    lambda xp, x, approximate: gelu_kernel.forward(x, approximate),
    lambda xp, needs, g, _y, x, approximate: (gelu_kernel.backward(g, x, approximate),),
    quiet=False,
    halves=True,
)


def _axes(r: Any) -> list[tuple[Any, ...]]:
    return [(r(3, 4), 1), (r(3, 4), 0), (r(2, 3, 4), 1)]


@op(takes="f", samples=_axes)
def softmax(xp, x, axis=-1):
    """exp(x) / sum(exp(x)) along `axis`; shifted by the maximum, so it cannot overflow."""
    return softmax_kernel.reference_forward(x.swapaxes(axis, -1)).swapaxes(axis, -1)


@softmax.vjp
def _(xp, g, y, _x, axis=-1):
    z = g * y
    return z - y * xp.sum(z, axis=axis, keepdims=True)


@op(takes="f", samples=_axes)
def log_softmax(xp, x, axis=-1):
    """log(softmax(x)), computed without the logarithm of a rounded number."""
    return softmax_kernel.reference_log_forward(x.swapaxes(axis, -1)).swapaxes(axis, -1)


@log_softmax.vjp
def _(xp, g, y, _x, axis=-1):
    return g - xp.exp(y) * xp.sum(g, axis=axis, keepdims=True)


def _along(forward: Any, backward: Any) -> tuple[Any, Any]:
    """Forward and rule by kernels along any axis."""
    return lambda xp, x, axis: forward(x, axis), lambda xp, needs, g, y, _x, axis: (backward(g, y, axis),)


def _rows_on_device(of_log: bool) -> tuple[Any, Any]:
    """Forward and rule of softmax along any axis by the kernels of a device."""

    def forward(xp, x, axis):
        return rows_cuda.softmax(xp, x.swapaxes(axis, -1), of_log).swapaxes(axis, -1)

    def backward(xp, needs, g, y, _x, axis):
        return (rows_cuda.softmax_backward(xp, g.swapaxes(axis, -1), y.swapaxes(axis, -1), of_log).swapaxes(axis, -1),)

    return forward, backward


override("softmax", "cuda", *_rows_on_device(False))
override("log_softmax", "cuda", *_rows_on_device(True))
override(
    "softmax",
    "cpu",
    *_along(softmax_kernel.forward, softmax_kernel.backward),
    kernel=kernel("softmax_forward"),
)
override(
    "log_softmax",
    "cpu",
    *_along(softmax_kernel.log_forward, softmax_kernel.log_backward),
    kernel=kernel("log_softmax_forward"),
)
