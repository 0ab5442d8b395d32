"""Elementwise operations: arithmetic, comparisons, exponentials, rounding, choice.

Gradients of complex functions follow PyTorch's convention: the rule gives g * conj(df/dz) for a holomorphic f.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from resilin.core.kernels import pack
from resilin.core.kernels.loader import kernel
from resilin.core.ops.errstate import ANY, ON_DEVICES, refused, widened
from resilin.core.ops.registry import accelerate, is_complex, op, override, step_of_halves

_FLOAT32 = np.dtype(np.float32)
_ONE: dict[str, Any] = {"elementwise": True, "complex": True}


def _pairs(r: Any) -> list[tuple[Any, ...]]:
    return [(r(3, 4), r(3, 4)), (r(3, 1), r(4)), (r(), r(2, 2)), (r(0, 3), r(3))]


def _positive_pairs(r: Any) -> list[tuple[Any, ...]]:
    return [(r(3, 4), r(3, 4, low=0.5, high=2.0)), (r(3, 1), r(4, low=0.5, high=2.0))]


def _any(r: Any) -> list[tuple[Any, ...]]:
    return [(r(3, 4),), (r(),), (r(0, 2),)]


@op(loop="add", narrow=True, **_ONE, wide_numbers=True, samples=_pairs)
def add(xp, a, b):
    """a + b."""
    return a + b


@add.vjp(0)
def _(xp, g, _y, _a, _b):
    return g


@add.vjp(1)
def _(xp, g, _y, _a, _b):
    return g


@op(loop="subtract", takes="iufc", refuses=True, narrow=True, **_ONE, wide_numbers=True, samples=_pairs)
def subtract(xp, a, b):
    """a - b."""
    return a - b


@subtract.vjp(0)
def _(xp, g, _y, _a, _b):
    return g


@subtract.vjp(1)
def _(xp, g, _y, _a, _b):
    return xp.negative(g)


@op(loop="multiply", single=True, **_ONE, wide_numbers=True, samples=_pairs)
def multiply(xp, a, b):
    """a * b."""
    return a * b


def _beside_number(xp, g):
    """The gradient that a number meets, which is not to be rounded to half types first: in float32."""
    return xp.astype(g, _FLOAT32) if g.dtype.itemsize == 2 else g


@multiply.vjp(0)
def _(xp, g, _y, _a, b):
    if type(b) is float or type(b) is int:
        return _beside_number(xp, g) * b
    return g * xp.conj(b)


@multiply.vjp(1)
def _(xp, g, _y, a, _b):
    if type(a) is float or type(a) is int:
        return _beside_number(xp, g) * a
    return g * xp.conj(a)


step_of_halves("multiply", lambda xp, g, _y, _a, b: xp.multiply(g, b), lambda xp, g, _y, a, _b: xp.multiply(g, a))


@op(loop="divide", **_ONE, floats=True, single=ON_DEVICES, wide_numbers=True, samples=_positive_pairs)
def divide(xp, a, b):
    """a / b; integers give the default dtype."""
    return a / b


@divide.vjp(0)
def _(xp, g, _y, _a, b):
    if type(b) is float or type(b) is int:
        return _beside_number(xp, g) / b
    return g / xp.conj(b)


@divide.vjp(1)
def _(xp, g, y, _a, b):
    return g * -xp.conj(y / b)


step_of_halves("divide", lambda xp, g, _y, _a, b: xp.divide(g, b), None)


def _power_samples(r):
    base = r(3, 4, low=0.5, high=2.0)
    other = 1.5 + 0.5j if base.is_complex() else 1.5
    return [(base, r(3, 4)), (r(3, low=0.5, high=2.0), r(2, 3)), (base, other), (base, 3), (base, -2.0)]


# exponents for which numpy takes a hundred times as long as the products that PyTorch takes, too
_AS_PRODUCTS: dict[float, Any] = {
    3: lambda xp, x: xp.multiply(xp.multiply(x, x), x),
    2: lambda xp, x: xp.square(x),
    0.5: lambda xp, x: xp.sqrt(x),
    -0.5: lambda xp, x: xp.divide(1, xp.sqrt(x)),
    -1: lambda xp, x: xp.divide(1, x),
    -2: lambda xp, x: xp.divide(1, xp.multiply(x, x)),
}
_looped = kernel("looped")
_IN_ONE_PASS: dict[float, Any] = {  # native loops of them, which round 16-bit floats once
    3: _looped(None, "cube"),
    2: _looped(np.square, "square", True),
    0.5: _looped(np.sqrt, "sqrt", True),
    -0.5: _looped(None, "rsqrt"),
    -1: _looped(None, "reciprocal"),
    -2: _looped(None, "inverse_square"),
}


def power_in_one_pass(a: Any, b: Any, out: Any = None) -> Any:
    """a ** b for a few numbers b and numpy's arrays of floats, in `out` where it is given; None for all else."""
    if type(b) not in (int, float) or b not in _AS_PRODUCTS:
        return None
    loop = _IN_ONE_PASS[b] if isinstance(a, np.ndarray) and a.dtype.kind in "fV" else None
    if loop is None:
        return None
    return loop(a) if out is None else loop(a, out)


@op(takes="iufc", refuses=True, **_ONE, exponent=True, samples=_power_samples)
def power(xp, a, b):
    """a ** b. As in PyTorch, integers raise RuntimeError for a negative number b, and are rounded to 0 for a tensor."""
    if pack.is_half(b) and not b.ndim:
        b = float(b)  # bfloat16 numbers come as arrays
    elif isinstance(b, np.ndarray) and not b.ndim and b.dtype == _FLOAT32:
        b = float(b)  # such a number, widened
    if (y := power_in_one_pass(a, b)) is not None:
        return y
    if type(b) in (int, float) and b in _AS_PRODUCTS and a.dtype.kind in "fcV":
        found = _AS_PRODUCTS[b](xp, pack.widened(a))
        return pack.astype(found, a.dtype) if pack.is_half(a) else found
    if getattr(b, "dtype", None) is None or b.dtype.kind != "i" or getattr(a, "dtype", b.dtype).kind not in "iu":
        y = xp.power(a, b)
        if y.dtype.char == "b" and all(isinstance(x, bool) or getattr(x, "dtype", None) == np.bool_ for x in (a, b)):
            raise refused("power", y.astype(bool), "iufc")  # numpy makes int8 of two booleans
        return y
    inverse = xp.where(a == 1, 1, xp.where(a == -1, 1 - 2 * (b % 2), 0))
    return xp.where(b < 0, inverse, a ** xp.maximum(b, 0)).astype(b.dtype)


@power.vjp(0)
def _(xp, g, _y, a, b):
    if isinstance(b, int | float | complex):
        if b == 0:  # constant, also at 0, where the formula gives 0 * inf
            return xp.zeros_like(g)
        if isinstance(b, complex):
            b = b.conjugate()
        else:
            g, a = _beside_number(xp, g), _beside_number(xp, a)
        if b == 2:
            return g * (2 * xp.conj(a))
        slope = power_in_one_pass(a, b - 1)
        return g * (b * (xp.conj(a) ** (b - 1) if slope is None else slope))
    return g * xp.conj(b * xp.where(b == 0, xp.ones_like(a), a) ** xp.where(b == 0, xp.ones_like(b), b - 1))


@power.vjp(1)
def _(xp, g, y, a, _b):
    base = xp.full_like(y, a) if isinstance(a, int | float | complex) else a
    # 0 ** b is flat where it is finite; the formula would give 0 * inf there
    flat = xp.logical_or(y == 0, xp.logical_and(base == 0, xp.isfinite(y)))
    return g * xp.conj(y * xp.log(xp.where(flat, xp.ones_like(y), base)))


def _power(xp: Any, a: Any, b: Any) -> Any:
    """`power`, at 16 bits in one pass where it can be."""
    y = power_in_one_pass(a, float(b) if pack.is_half(b) and not b.ndim else b)
    return power.generic.forward(xp, a, b) if y is None else y


def _power_back(xp: Any, needs: Any, g: Any, y: Any, a: Any, b: Any) -> Any:
    return power.generic.vjp(xp, needs, widened(g), widened(y), widened(a), widened(b))


override("power", "cpu", _power, _power_back, quiet=False, halves=True)


@op(
    loop="maximum",
    takes="biuf",
    refuses=True,
    narrow=True,
    elementwise=True,
    samples=lambda r: [(r(3, 4), r(3, 4)), (r(3, 1), r(4))],
)
def maximum(xp, a, b):
    """The larger of both; NaN wins. Equal values share the gradient."""
    _ordered("maximum", a, b)
    return xp.maximum(a, b)


@op(
    loop="minimum",
    takes="biuf",
    refuses=True,
    narrow=True,
    elementwise=True,
    samples=lambda r: [(r(3, 4), r(3, 4)), (r(3, 1), r(4))],
)
def minimum(xp, a, b):
    """The smaller of both; NaN wins. Equal values share the gradient."""
    _ordered("minimum", a, b)
    return xp.minimum(a, b)


def _ordered(name, a, b):
    """RuntimeError for complex numbers, which have no order."""
    for x in (a, b):
        dtype = getattr(x, "dtype", None)
        if isinstance(x, complex) or (dtype is not None and dtype.kind == "c"):
            raise RuntimeError(f"{name}: complex numbers have no order; compare abs(), .real or .imag")


def _share(xp, g, y, a, b):
    mine = xp.logical_or(xp.equal(a, y), xp.not_equal(y, y))  # NaN is what either one is, as in PyTorch
    return xp.where(mine, xp.where(xp.equal(a, b), xp.multiply(g, 0.5), g), xp.zeros_like(g))


@maximum.vjp(0)
@minimum.vjp(0)
def _(xp, g, y, a, b):
    return _share(xp, g, y, a, b)


@maximum.vjp(1)
@minimum.vjp(1)
def _(xp, g, y, a, b):
    return _share(xp, g, y, b, a)


def check_divisor(name, a, b):
    """RuntimeError, as in PyTorch, when an element of the divisor `b` of an integer division is 0."""
    whole = all(isinstance(x, int) or (getattr(x, "dtype", None) is not None and x.dtype.kind in "biu") for x in (a, b))
    if whole and not (b.all() if hasattr(b, "all") else b) and getattr(a, "size", 1):
        raise RuntimeError(f"ZeroDivisionError: {name}: division of integers by 0")


_DIVISION: dict[str, Any] = {"takes": "iuf", "elementwise": True, "order": 1}
_DIVISION |= {"samples": lambda r: [(r(3, 4), r(3, 4, low=0.5, high=2.0))]}


@op(loop="remainder", single=True, **_DIVISION)
def remainder(xp, a, b):
    """Python's a % b: the sign of the result is that of b. RuntimeError for integers when a divisor is 0."""
    check_divisor("remainder", a, b)
    return xp.remainder(a, b)


@remainder.vjp(0)
def _(xp, g, _y, _a, _b):
    return g


@remainder.vjp(1)
def _(xp, g, _y, a, b):
    return g * -xp.floor(a / b)


@op(loop="fmod", single=True, **_DIVISION)
def fmod(xp, a, b):
    """C's fmod: the sign of the result is that of a. RuntimeError for integers when a divisor is 0."""
    check_divisor("fmod", a, b)
    return xp.fmod(a, b)


@fmod.vjp(0)
def _(xp, g, _y, _a, _b):
    return g


@fmod.vjp(1)
def _(xp, g, _y, a, b):
    return g * -xp.trunc(a / b)


@op(loop="floor_divide", single=True, **_DIVISION, wide_numbers=True)
def floor_divide(xp, a, b):
    """floor(a / b) in the operands' dtype. Its gradient is 0. RuntimeError for integers when a divisor is 0."""
    check_divisor("floor_divide", a, b)
    return xp.floor_divide(a, b)


@op(loop="trunc_divide", **_DIVISION, wide_numbers=True)
def trunc_divide(xp, a, b):
    """a / b rounded towards 0, in the operands' dtype. Its gradient is 0. RuntimeError for integers divided by 0."""
    check_divisor("div", a, b)
    if all(isinstance(x, int) or (getattr(x, "dtype", None) is not None and x.dtype.kind in "iu") for x in (a, b)):
        return xp.floor_divide(a - xp.fmod(a, b), b)  # exact, which floats are not
    return xp.trunc(a / b)


@floor_divide.vjp(0)
@floor_divide.vjp(1)
@trunc_divide.vjp(0)
@trunc_divide.vjp(1)
def _(xp, g, _y, _a, _b):
    return xp.zeros_like(g)


@op(loop="arctan2", takes="biuf", elementwise=True, floats=True, single=True, samples=_positive_pairs)
def arctan2(xp, a, b):
    """The angle of the point (b, a)."""
    return xp.arctan2(a, b)


def _radius(xp, a, b):
    """The distance from the origin, whose square may leave the range; 1 there, where the gradient is 0."""
    radius = xp.hypot(a, b)
    return xp.where(xp.logical_and(a == 0, b == 0), xp.ones_like(radius), radius)


@arctan2.vjp(0)
def _(xp, g, _y, a, b):
    radius = _radius(xp, a, b)
    return g * (b / radius) / radius


@arctan2.vjp(1)
def _(xp, g, _y, a, b):
    radius = _radius(xp, a, b)
    return g * -(a / radius) / radius


@op(loop="negative", takes="iufc", refuses=True, narrow=True, **_ONE, samples=_any)
def negative(xp, x):
    """-x."""
    return -x


@negative.vjp
def _(xp, g, _y, _x):
    return xp.negative(g)


@op(loop="square", **_ONE, samples=_any)
def square(xp, x):
    """x * x."""
    return x * x if x.dtype.kind != "b" else x.astype("int64")


@square.vjp
def _(xp, g, _y, x):
    return g * (2 * xp.conj(x))  # g may be one number, stretched, which numpy computes with element by element


@op(loop="absolute", narrow=True, **_ONE, samples=lambda r: [(r(3, 4),)])
def absolute(xp, x):
    """|x|; the gradient at 0 is 0."""
    return xp.absolute(x)


@absolute.vjp
def _(xp, g, _y, x):
    if not is_complex(x):
        return xp.multiply(g, xp.sign(x))
    zero = x == 0
    safe = xp.where(zero, xp.ones_like(x), x)
    return xp.where(zero, xp.zeros_like(x), g * safe / xp.absolute(safe))


def _flat(name: str) -> Any:
    """An op whose gradient is zero almost everywhere."""

    def forward(xp, x):
        return getattr(xp, name)(x)

    forward.__name__ = name
    forward.__doc__ = f"numpy's {name}; its gradient is 0."
    facts: dict[str, Any] = {"loop": name, "elementwise": True, "takes": "iuf", "narrow": True, "order": 1}
    declared = op(samples=lambda r: [(r(3, 4),)], **facts)(forward)

    def rule(xp, g, _y, _x):
        return xp.zeros_like(g)

    declared.vjp(rule)
    return declared


floor, ceil, trunc, rint = map(_flat, ("floor", "ceil", "trunc", "rint"))


@op(loop="sign", elementwise=True, narrow=True, samples=lambda r: [(r(3, 4),)], order=1)
def sign(xp, x):
    """-1, 0 or 1, and 0 of NaN; of complex numbers x / |x|, of bools themselves. Its gradient is 0."""
    if x.dtype.kind == "b":
        return xp.array(x)
    if x.dtype.kind != "f":
        return xp.sign(x)
    return (x > 0).astype(x.dtype) - (x < 0)


@sign.vjp
def _(xp, g, _y, _x):
    return xp.zeros_like(g)


def _predicate(name: str, n: int) -> Any:
    """A comparison or test: bool result, no gradient."""

    ordering = name.startswith(("less", "greater"))

    def two(xp, a, b):
        if ordering:
            _ordered(name, a, b)
        return getattr(xp, name)(a, b)

    def one(xp, a):
        return getattr(xp, name)(a)

    forward: Any = two if n == 2 else one
    forward.__name__ = name
    forward.__doc__ = f"numpy's {name}, elementwise."
    samples = _pairs if n == 2 else _any
    takes = "biuf" if ordering or name == "signbit" else ANY
    facts: Any = {"loop": name, "elementwise": True, "differentiable": False, "narrow": True, "refuses": True}
    return op(takes=takes, samples=samples, **facts)(forward)


equal, not_equal, less, less_equal, greater, greater_equal = (
    _predicate(name, 2) for name in ("equal", "not_equal", "less", "less_equal", "greater", "greater_equal")
)
logical_and, logical_or, logical_xor = (_predicate(n, 2) for n in ("logical_and", "logical_or", "logical_xor"))
isnan, isinf, isfinite, logical_not, signbit = (
    _predicate(name, 1) for name in ("isnan", "isinf", "isfinite", "logical_not", "signbit")
)


@op(takes="biuf", narrow=True, samples=lambda r: [(r(3, 4), -0.3, 0.4), (r(3, 4), None, 0.1), (r(3, 4), 0.0)])
def clip_to(xp, x, low=None, high=None):
    """Elements limited to [low, high]."""
    if low is not None:
        x = xp.maximum(x, low)
    return x if high is None else xp.minimum(x, high)


@clip_to.vjp
def _(xp, g, _y, x, low=None, high=None):
    inside = x >= low if low is not None else x <= high
    if low is not None and high is not None:
        inside = xp.logical_and(inside, x <= high)
    return xp.where(inside, g, xp.zeros_like(g))


_forward, _backward = kernel("clip_forward"), kernel("clip_backward")
_INF = float("inf")
limited_integers = kernel("limit_integers")
"""Integers limited to [low, high], None for no limit, in an array where it is given; None where native code cannot."""


def _limited(x: Any, low: Any, high: Any) -> Any:
    """What native code limits; None for the rest."""
    if isinstance(x, np.ndarray) and x.dtype.kind in "iu":
        return limited_integers(x, low, high)
    return _forward(x, -_INF if low is None else low, _INF if high is None else high)


accelerate(
    "clip_to",
    lambda x, low, high: (
        None
        if low != low or high != high  # a limit of NaN, which all elements become, is the generic form's
        else _limited(x, low, high)
    ),
    lambda g, x, low, high: _backward(g, x, -_INF if low is None else low, _INF if high is None else high),
)
