"""Exponentials, logarithms, roots, circular and hyperbolic functions.

Gradients of complex functions follow PyTorch's convention: the rule gives g * conj(df/dz) for a holomorphic f.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from resilin.core.kernels.loader import kernel
from resilin.core.ops.registry import accelerate, is_complex, op, override, step_of_halves

_ONE: dict[str, Any] = {"elementwise": True, "complex": True}


def _any(r: Any) -> list[tuple[Any, ...]]:
    return [(r(3, 4),), (r(),), (r(0, 2),)]


def _positive(r: Any) -> list[tuple[Any, ...]]:
    return [(r(3, 4, low=0.5, high=2.0),), (r(low=0.5, high=2.0),)]


def _inside(r: Any) -> list[tuple[Any, ...]]:
    return [(r(3, 4, low=-0.8, high=0.8),)]


def _between(r: Any) -> list[tuple[Any, ...]]:
    return [(r(3, 4, low=0.1, high=0.9),), (r(3, 4, low=0.1, high=0.9), 0.05)]


def _above_one(r: Any) -> list[tuple[Any, ...]]:
    return [(r(3, 4, low=1.5, high=3.0),)]


@op(loop="exp", single=True, **_ONE, floats=True, samples=_any)
def exp(xp, x):
    """e ** x."""
    return xp.exp(x)


@exp.vjp
def _(xp, g, y, _x):
    return g * xp.conj(y)


step_of_halves("exp", lambda xp, g, y, _x: xp.multiply(g, y))


@op(single=True, **_ONE, floats=True, samples=_any)
def expm1(xp, x):
    """e ** x - 1, exact near 0."""
    if not is_complex(x):
        return xp.expm1(x)
    return xp.where(xp.isfinite(xp.real(x)), xp.expm1(x), xp.exp(x) - 1)  # expm1 gives NaN for parts that are not


@expm1.vjp
def _(xp, g, y, _x):
    return g * xp.conj(y + 1)


@op(loop="exp2", single=True, **_ONE, floats=True, samples=_any)
def exp2(xp, x):
    """2 ** x."""
    return xp.exp2(x)


@exp2.vjp
def _(xp, g, y, _x):
    return g * xp.conj(y * 0.6931471805599453)


@op(loop="log", single=True, **_ONE, floats=True, samples=_positive)
def log(xp, x):
    """The natural logarithm."""
    return xp.log(x)


@log.vjp
def _(xp, g, _y, x):
    return g / xp.conj(x)


step_of_halves("log", lambda xp, g, _y, x: xp.divide(g, x))


@op(single=True, **_ONE, floats=True, samples=_positive)
def log1p(xp, x):
    """log(1 + x), exact near 0."""
    if is_complex(x):  # of which numpy's takes 1 + x
        real, imaginary = x.real, x.imag
        near = xp.log1p(real * (2 + real) + imaginary * imaginary) / 2
        far = xp.log(1 + x)
        close = xp.absolute(x) < 0.5
        return xp.where(close, near, far.real) + 1j * xp.arctan2(imaginary, 1 + real)
    return xp.log1p(x)


@log1p.vjp
def _(xp, g, _y, x):
    return g / xp.conj(1 + x)


_native_logit = kernel("logit_forward")


@op(elementwise=True, floats=True, samples=_between)
def logit(xp, x, eps=None):
    """log(x / (1 - x)), of x limited to [eps, 1 - eps] if eps is given."""
    if eps is not None:  # one limit after the other, as in PyTorch: they cross where eps is above 1/2
        low = x.dtype.type(eps)
        high = 1 - low
        if low <= high and isinstance(x, np.ndarray):
            x = xp.minimum(xp.maximum(x, low), high)
            found = _native_logit(x, None) if x.dtype.char in "fd" else None
            return xp.log(x / (1 - x)) if found is None else found
        x = xp.where(x < low, low, xp.where(x > high, high, x))
    return xp.log(x / (1 - x))


@logit.vjp
def _(xp, g, _y, x, eps=None):
    # infinite at 0 and 1, NaN outside of them; 0 where eps limits the argument
    low, high = (0.0, 1.0) if eps is None else (eps, 1 - eps)
    outside = xp.logical_or(x < low, x > high)
    slope = g / ((x + 0) * (1 - x))  # -0 counts as 0
    return xp.where(outside, xp.full_like(slope, float("nan") if eps is None else 0.0), slope)


accelerate("logit", _native_logit, kernel("logit_backward"))


@op(loop="log2", single=True, **_ONE, floats=True, samples=_positive)
def log2(xp, x):
    """The logarithm to base 2."""
    return xp.log2(x)


@log2.vjp
def _(xp, g, _y, x):
    return g / (xp.conj(x) * 0.6931471805599453)


@op(loop="log10", single=True, **_ONE, floats=True, samples=_positive)
def log10(xp, x):
    """The logarithm to base 10."""
    return xp.log10(x)


@log10.vjp
def _(xp, g, _y, x):
    return g / (xp.conj(x) * 2.302585092994046)


@op(loop="sqrt", single=True, **_ONE, floats=True, samples=_positive)
def sqrt(xp, x):
    """The square root; NaN below 0."""
    return xp.sqrt(x)


@sqrt.vjp
def _(xp, g, y, _x):
    return g / (2 * xp.conj(y))


step_of_halves("sqrt", lambda xp, g, y, _x: xp.divide(g, xp.add(y, y)))  # the sum is exact


@op(loop="rsqrt", **_ONE, floats=True, samples=_positive)
def rsqrt(xp, x):
    """1 / sqrt(x)."""
    return 1 / xp.sqrt(x)


@rsqrt.vjp
def _(xp, g, y, _x):
    return g * (-0.5 * xp.conj(y * y * y))


@op(loop="reciprocal", single=True, **_ONE, floats=True, samples=_positive)
def reciprocal(xp, x):
    """1 / x."""
    return 1 / x


@reciprocal.vjp
def _(xp, g, y, _x):
    return g * -xp.conj(y * y)


@op(loop="sin", single=True, **_ONE, floats=True, samples=_any)
def sin(xp, x):
    """The sine."""
    return xp.sin(x)


@sin.vjp
def _(xp, g, _y, x):
    return g * xp.conj(xp.cos(x))


@op(loop="cos", single=True, **_ONE, floats=True, samples=_any)
def cos(xp, x):
    """The cosine."""
    return xp.cos(x)


@cos.vjp
def _(xp, g, _y, x):
    return g * -xp.conj(xp.sin(x))


@op(loop="tan", single=True, **_ONE, floats=True, samples=_inside)
def tan(xp, x):
    """The tangent."""
    return xp.tan(x)


@tan.vjp
def _(xp, g, y, _x):
    return g * xp.conj(1 + y * y)


@op(loop="arcsin", single=True, **_ONE, floats=True, samples=_inside)
def arcsin(xp, x):
    """The inverse sine."""
    return xp.arcsin(x)


@arcsin.vjp
def _(xp, g, _y, x):
    return g / xp.conj(xp.sqrt(1 - x * x))


@op(loop="arccos", single=True, **_ONE, floats=True, samples=_inside)
def arccos(xp, x):
    """The inverse cosine."""
    return xp.arccos(x)


@arccos.vjp
def _(xp, g, _y, x):
    return g / -xp.conj(xp.sqrt(1 - x * x))


@op(loop="arctan", single=True, **_ONE, floats=True, samples=_any)
def arctan(xp, x):
    """The inverse tangent."""
    return xp.arctan(x)


@arctan.vjp
def _(xp, g, _y, x):
    return g / xp.conj(1 + x * x)


@op(loop="sinh", single=True, **_ONE, floats=True, samples=_any)
def sinh(xp, x):
    """The hyperbolic sine."""
    return xp.sinh(x)


@sinh.vjp
def _(xp, g, _y, x):
    return g * xp.conj(xp.cosh(x))


@op(loop="cosh", single=True, **_ONE, floats=True, samples=_any)
def cosh(xp, x):
    """The hyperbolic cosine."""
    return xp.cosh(x)


@cosh.vjp
def _(xp, g, _y, x):
    return g * xp.conj(xp.sinh(x))


@op(loop="tanh", single=True, **_ONE, floats=True, samples=_any)
def tanh(xp, x):
    """The hyperbolic tangent."""
    return xp.tanh(x)


@tanh.vjp
def _(xp, g, y, _x):
    return g * xp.conj(1 - y * y)


@op(loop="arcsinh", single=True, **_ONE, floats=True, samples=_any)
def arcsinh(xp, x):
    """The inverse hyperbolic sine."""
    return xp.arcsinh(x)


@arcsinh.vjp
def _(xp, g, _y, x):
    return g / xp.conj(xp.sqrt(x * x + 1))


@op(loop="arccosh", single=True, **_ONE, floats=True, samples=_above_one)
def arccosh(xp, x):
    """The inverse hyperbolic cosine; NaN below 1."""
    return xp.arccosh(x)


@arccosh.vjp
def _(xp, g, _y, x):
    if is_complex(x):  # one root of the product would have its branch cut along the imaginary axis, too
        return g / xp.conj(xp.sqrt(x - 1) * xp.sqrt(x + 1))
    return g / xp.sqrt(x * x - 1)


@op(loop="arctanh", single=True, **_ONE, floats=True, samples=_inside)
def arctanh(xp, x):
    """The inverse hyperbolic tangent; NaN beyond 1."""
    return xp.arctanh(x)


@arctanh.vjp
def _(xp, g, _y, x):
    return g / xp.conj(1 - x * x)


@op(single=True, **_ONE, floats=True, samples=lambda r: [(r(3, 4), r(3, 4)), (r(3, 1), r(4))])
def logaddexp(xp, a, b):
    """log(exp(a) + exp(b)), without overflow."""
    if is_complex(a) or is_complex(b):  # shifted by the argument with the larger real part
        swap = xp.real(a) < xp.real(b)
        low, high = xp.where(swap, a, b), xp.where(swap, b, a)
        same = xp.logical_and(low == high, xp.logical_not(xp.isfinite(high)))  # whose difference is NaN
        return xp.where(same, high, high + xp.log1p(xp.exp(low - high)))
    return xp.logaddexp(a, b)


@logaddexp.vjp(0)
def _(xp, g, y, a, b):
    return g * (xp.conj(xp.exp(a - y)) if is_complex(y) else xp.sigmoid(a - b))  # y may be rounded to a


@logaddexp.vjp(1)
def _(xp, g, y, a, b):
    return g * (xp.conj(xp.exp(b - y)) if is_complex(y) else xp.sigmoid(b - a))


_native_logaddexp = kernel("fused_logaddexp")


def _logaddexp(xp, a, b):
    arrays = isinstance(a, np.ndarray) and isinstance(b, np.ndarray)
    y = _native_logaddexp(None, a, b) if arrays else None
    return logaddexp.generic.forward(xp, a, b) if y is None else y


override("logaddexp", "cpu", _logaddexp, logaddexp.generic.vjp)


@op(
    loop="hypot",
    single=True,
    takes="biuf",
    elementwise=True,
    floats=True,
    samples=lambda r: [(r(3, 4), r(3, 4)), (r(3, 1), r(4))],
)
def hypot(xp, a, b):
    """sqrt(a * a + b * b), without overflow."""
    return xp.hypot(a, b)


@hypot.vjp(0)
def _(xp, g, y, a, _b):
    return g * a / y


@hypot.vjp(1)
def _(xp, g, y, _a, b):
    return g * b / y
