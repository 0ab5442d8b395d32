"""Activations made of pieces (lines, an exponential below 0) and their smooth relatives."""

from __future__ import annotations

from typing import Any

from resilin.core.kernels.loader import kernel
from resilin.core.ops.registry import accelerate, is_complex, op

_WITH_EDGES: Any = lambda r: [(r(3, 4, low=-4, high=4),), (r(),), (r(0, 2),)]  # noqa: E731 - shared by declarations


def _masked(xp: Any, flat: Any, g: Any) -> Any:
    """0 where `flat` holds (also where g is infinite), else `g`: NaN, of which no comparison holds, passes it on."""
    return xp.where(flat, xp.zeros_like(g), g)


@op(takes="iuf", elementwise=True, samples=lambda r: [(r(3, 4), 0.3, 20.0), (r(), 0.0, 0.0)])
def threshold(xp, x, limit=0.0, value=0.0):
    """x where it exceeds `limit` (or is NaN), else `value`."""
    return xp.where(x <= limit, value, x).astype(x.dtype, copy=False)


@threshold.vjp
def _(xp, g, _y, x, limit=0.0, value=0.0):
    return _masked(xp, x <= limit, g)


accelerate("threshold", kernel("threshold_forward"), kernel("threshold_backward"))


@op(takes="iuf", elementwise=True, samples=lambda r: [(r(3, 4),), (r(3, 4, low=-4, high=8), 0.0, 6.0)])
def hardtanh(xp, x, low=-1.0, high=1.0):
    """x limited to [low, high]; the gradient at both limits is 0."""
    if x.dtype.kind in "iu":
        least = 0 if x.dtype.kind == "u" else int(low)
        low, high = max(int(low), least), max(int(high), least)
    return xp.minimum(xp.maximum(x, low), high)


@hardtanh.vjp
def _(xp, g, _y, x, low=-1.0, high=1.0):
    return _masked(xp, xp.logical_or(x <= low, x >= high), g)


accelerate("hardtanh", kernel("clip_forward"), kernel("between_backward"))


@op(takes="f", elementwise=True, samples=_WITH_EDGES)
def hardsigmoid(xp, x):
    """(x + 3) / 6 limited to [0, 1]."""
    return xp.minimum(xp.maximum(x + 3, 0), 6) / 6


@hardsigmoid.vjp
def _(xp, g, _y, x):
    return xp.where(xp.logical_and(x > -3, x < 3), g / 6, xp.zeros_like(g))


accelerate("hardsigmoid", kernel("hardsigmoid_forward"), kernel("hardsigmoid_backward"))


@op(takes="f", elementwise=True, samples=_WITH_EDGES)
def hardswish(xp, x):
    """x * hardsigmoid(x)."""
    return x * (xp.minimum(xp.maximum(x + 3, 0), 6) / 6)


@hardswish.vjp
def _(xp, g, _y, x):
    return _masked(xp, x <= -3, g * xp.where(x < 3, x / 3 + 0.5, xp.ones_like(x)))


accelerate("hardswish", kernel("hardswish_forward"), kernel("hardswish_backward"))


@op(takes="f", elementwise=True, samples=lambda r: [(r(3, 4),), (r(3, 4), 1.0)])
def hardshrink(xp, x, lambd=0.5):
    """x where |x| > lambd (or x is NaN), else 0."""
    return xp.where(xp.absolute(x) <= lambd, xp.zeros_like(x), x)


@op(takes="f", elementwise=True, samples=lambda r: [(r(3, 4),), (r(3, 4), 1.0)])
def softshrink(xp, x, lambd=0.5):
    """x moved towards 0 by `lambd`, not past it."""
    return xp.where(x > lambd, x - lambd, xp.where(x < -lambd, x + lambd, x * 0))


@hardshrink.vjp
@softshrink.vjp
def _(xp, g, _y, x, lambd=0.5):
    return _masked(xp, xp.absolute(x) <= lambd, g)


accelerate("hardshrink", kernel("hardshrink_forward"), kernel("shrink_backward"))
accelerate("softshrink", kernel("softshrink_forward"), kernel("shrink_backward"))


@op(takes="f", elementwise=True, samples=lambda r: [(r(3, 4),), (r(3, 4), 0.2)])
def leaky_relu(xp, x, slope=0.01):
    """x where positive, else slope * x."""
    return xp.where(x > 0, x, x * slope)


@leaky_relu.vjp
def _(xp, g, _y, x, slope=0.01):
    return xp.where(x > 0, g, g * slope)


accelerate("leaky_relu", kernel("leaky_forward"), kernel("leaky_backward"))


@op(loop="prelu", takes="f", elementwise=True, samples=lambda r: [(r(3, 4), r(1)), (r(2, 3, 2), r(3, 1))])
def prelu(xp, x, weight):
    """x where positive, else weight * x."""
    return xp.where(x > 0, x, x * weight)


@prelu.vjp(0)
def _(xp, g, _y, x, weight):
    return xp.where(x > 0, g, g * weight)


@prelu.vjp(1)
def _(xp, g, _y, x, _weight):
    return _masked(xp, x > 0, g * x)


@op(takes="f", elementwise=True, samples=lambda r: [(r(3, 4),), (r(3, 4), 1.7, 1.1), (r(3, 4), 0.7, 1.0, 1 / 0.7)])
def elu(xp, x, alpha=1.0, scale=1.0, inner=1.0):
    """scale * x where positive, else scale * alpha * (exp(inner * x) - 1)."""
    return xp.where(x > 0, x * scale, xp.expm1(xp.minimum(x, 0) * inner) * (alpha * scale))


@elu.vjp
def _(xp, g, _y, x, alpha=1.0, scale=1.0, inner=1.0):
    below = xp.exp(xp.minimum(x, 0) * inner) * (alpha * scale * inner)
    return g * xp.where(x <= 0, below, xp.ones_like(x) * scale)


accelerate("elu", kernel("elu_forward"), kernel("elu_backward"))


@op(takes="f", elementwise=True, samples=lambda r: [(r(3, 4),), (r(3, low=-40, high=40),)])
def log_sigmoid(xp, x):
    """log(sigmoid(x)), without overflow."""
    return xp.minimum(x, 0) - xp.log1p(xp.exp(-xp.absolute(x)))


@log_sigmoid.vjp
def _(xp, g, _y, x):
    return g * xp.sigmoid(-x)


accelerate("log_sigmoid", kernel("log_sigmoid_forward"), kernel("log_sigmoid_backward"))


@op(takes="f", elementwise=True, samples=lambda r: [(r(3, 4),), (r(3, low=-40, high=40),)])
def mish(xp, x):
    """x * tanh(softplus(x))."""
    return x * xp.tanh(xp.maximum(x, 0) + xp.log1p(xp.exp(-xp.absolute(x))))


@mish.vjp
def _(xp, g, _y, x):
    t = xp.tanh(xp.softplus(x, 1.0, float("inf")))
    return g * (t + x * xp.sigmoid(x) * (1 - t * t))


accelerate("mish", kernel("mish_forward"), kernel("mish_backward"))


@op(elementwise=True, floats=True, complex=True, samples=_WITH_EDGES)
def softsign(xp, x):
    """x / (1 + |x|)."""
    return x / (1 + xp.absolute(x))


@softsign.vjp
def _(xp, g, _y, x):
    size = xp.absolute(x)
    if not is_complex(x):
        return g / xp.square(1 + size) + 0 * size  # NaN at infinity, as x / (1 + |x|) is
    safe = xp.where(size == 0, xp.ones_like(size), size)  # at 0 the second part is 0: x is
    return g / (1 + size) - x * (xp.real(g * xp.conj(x)) / (safe * xp.square(1 + size)))


accelerate("softsign", kernel("softsign_forward"), kernel("softsign_backward"))
