"""Elementwise functions beyond arithmetic, composed of declared ops, with PyTorch's names and arguments.

`__all__` are the functions of `resilin`; all of them but `rsub` are methods of `Tensor`, too.
"""

from __future__ import annotations

import functools
import math as constants
from typing import Any

import numpy as np

from resilin.core import dtype as dtypes
from resilin.core import return_types
from resilin.core.api.conversion.through_host import through_host
from resilin.core.api.manipulation import indexing
from resilin.core.api.mathematics import arithmetic, one_pass
from resilin.core.api.mathematics.half_precision import rounded_once
from resilin.core.autograd.grad_mode import mode
from resilin.core.ops import shape as shape_ops
from resilin.core.ops.registry import OPS
from resilin.core.tensor import Tensor, wrap

__all__ = [
    "conj_physical",
    "copysign",
    "deg2rad",
    "fix",
    "float_power",
    "fmax",
    "fmin",
    "frexp",
    "gcd",
    "heaviside",
    "is_conj",
    "is_neg",
    "is_nonzero",
    "is_signed",
    "isneginf",
    "isposinf",
    "isreal",
    "lcm",
    "ldexp",
    "logaddexp2",
    "nextafter",
    "positive",
    "rad2deg",
    "resolve_conj",
    "resolve_neg",
    "rsub",
    "sgn",
]

fix = arithmetic.trunc


def _as(input: Tensor, kind: Any) -> Tensor:
    """In another dtype; itself where it has it, so that in-place forms see which tensor an op has saved."""
    return input if input._array.dtype == kind else shape_ops.astype.call(input, kind)


def _real(where: str, *operands: Any) -> None:
    """RuntimeError for complex operands of a function that needs an order or a sign."""
    for value in operands:
        if isinstance(value, Tensor) and value._array.dtype.kind == "c":
            raise RuntimeError(f"{where}(): not defined for complex numbers, got {value.dtype}")


def deg2rad(input: Tensor) -> Tensor:
    """Degrees to radians; integers give the default dtype."""
    _real("deg2rad", input)
    return arithmetic.floats(input) * (constants.pi / 180)


def rad2deg(input: Tensor) -> Tensor:
    """Radians to degrees; integers give the default dtype."""
    _real("rad2deg", input)
    return arithmetic.floats(input) * (180 / constants.pi)


def positive(input: Tensor) -> Tensor:
    """The tensor itself. RuntimeError for booleans."""
    if input._array.dtype.kind == "b":
        raise RuntimeError("positive(): not defined for bool tensors; convert them, e.g. to int64")
    return input


@one_pass.preferring(one_pass.copysign)
def copysign(input: Tensor, other: Any) -> Tensor:
    """The size of `input` with the sign of `other` (that of -0.0 counts); the gradient at 0 is 0."""
    _real("copysign", input, other)
    sign = other if isinstance(other, Tensor) else wrap(input._dev.xp.asarray(float(other)), input._dev)
    kind = input._array.dtype
    if isinstance(other, Tensor):
        kind = dtypes.promote_np(kind, other._array.dtype)
    kind = dtypes.default_np() if kind.kind in "biu" else kind
    size = arithmetic.abs(_as(input, kind))
    return indexing.where(arithmetic.signbit(sign), -size, size)


@one_pass.preferring(one_pass.fmax)
def fmax(input: Tensor, other: Tensor) -> Tensor:
    """The larger of both; NaN only where both are NaN. Of equal elements the first gets the gradient."""
    _real("fmax", input, other)
    first = arithmetic.ge(input, other).logical_or(arithmetic.isnan(other))
    return indexing.where(first, input, other)


@one_pass.preferring(one_pass.fmin)
def fmin(input: Tensor, other: Tensor) -> Tensor:
    """The smaller of both; NaN only where both are NaN. Of equal elements the first gets the gradient."""
    _real("fmin", input, other)
    first = arithmetic.le(input, other).logical_or(arithmetic.isnan(other))
    return indexing.where(first, input, other)


@rounded_once
def logaddexp2(input: Tensor, other: Tensor) -> Tensor:
    """log2(2 ** input + 2 ** other), without overflow."""
    x, y = arithmetic.both_floating("logaddexp2", input, other)
    ln2, kind = constants.log(2), x._array.dtype
    if kind.itemsize == 2:  # half types are rounded once
        x, y = _as(x, np.dtype(np.float32)), _as(y, np.dtype(np.float32))
    return _as(arithmetic.logaddexp(x * ln2, y * ln2) * (1 / ln2), kind)


@one_pass.preferring(one_pass.ldexp)
def ldexp(input: Tensor, other: Tensor) -> Tensor:
    """input * 2 ** other, in the floating point dtype common to both; integers give the default dtype."""
    kind = arithmetic.kind_of(input, other)
    kind = dtypes.default_np() if kind.kind in "biu" else kind
    wide = np.dtype(np.complex128 if kind.kind == "c" else np.float64)
    value, power = _as(input, wide), _as(other, wide)
    if power.is_complex():
        return _as(value * arithmetic.exp2(power), kind)
    # 2 ** other alone may be too large where the result is not: in four steps, each exact for integers
    part = arithmetic.clamp(arithmetic.floor(power / 4), -1000, 1000)
    step = arithmetic.exp2(part)
    last = arithmetic.exp2(arithmetic.clamp(power - 3 * part, -1023, 1023))
    found = one_pass.in_steps(value, step, last)
    return _as(value * step * step * step * last if found is None else found, kind)


@through_host
def frexp(input: Tensor) -> return_types.frexp:
    """A pair (mantissa, exponent): input = mantissa * 2 ** exponent, 0.5 <= |mantissa| < 1; exponents are int32."""
    if input._array.dtype.kind not in "fV":
        raise RuntimeError(f"frexp(): only floating point tensors are supported, got {input.dtype}")
    wide = input._array.astype(np.float32) if input._array.dtype.kind == "V" else input._array
    exponent = wrap(input._dev.xp.asarray(np.frexp(wide)[1]).astype(np.int32), input._dev)
    half = -exponent.to(dtypes.float64) / 2  # two steps: float64 holds 2 ** -exponent / 2 of every number
    mantissa = (
        input.to(dtypes.float64) * arithmetic.exp2(arithmetic.floor(half)) * arithmetic.exp2(arithmetic.ceil(half))
    )
    return return_types.frexp((mantissa.to(input.dtype), exponent))


def sgn(input: Tensor) -> Tensor:
    """The sign; for complex numbers input / |input|, 0 at 0."""
    if input._array.dtype.kind != "c":
        return OPS["sign"].call(input)
    zero = arithmetic.eq(input, 0)
    one = wrap(input._dev.xp.ones((), input._array.dtype), input._dev)
    safe = indexing.where(zero, one, input)
    return indexing.where(zero, one * 0, safe / arithmetic.abs(safe))


def float_power(input: Any, exponent: Any) -> Tensor:
    """input ** exponent, computed in float64 or complex128."""
    values = (input, exponent)
    is_complex = any(v.is_complex() if isinstance(v, Tensor) else isinstance(v, complex) for v in values)
    kind = np.dtype(np.complex128 if is_complex else np.float64)
    base, power = (_as(v, kind) if isinstance(v, Tensor) else v for v in values)
    return arithmetic.pow(base, power)


@one_pass.preferring(one_pass.heaviside)
def heaviside(input: Tensor, values: Tensor) -> Tensor:
    """0 where input < 0 or NaN, 1 where input > 0, `values` where it is 0. NotImplementedError for a gradient."""
    _real("heaviside", input, values)
    if input._array.dtype != values._array.dtype:
        raise RuntimeError(f"heaviside(): both tensors need one dtype, got {input.dtype} and {values.dtype}")
    return _of_two("heaviside", input, values, "fbiuV").masked_fill(arithmetic.isnan(input), 0)


def nextafter(input: Tensor, other: Tensor) -> Tensor:
    """The next number of the dtype after `input` towards `other`. NotImplementedError when a gradient is wanted."""
    return _of_two("nextafter", input, other, "fV")


def gcd(input: Tensor, other: Tensor) -> Tensor:
    """The greatest common divisor of integers; gcd(0, 0) is 0."""
    return _of_two("gcd", input, other, "iu")


def lcm(input: Tensor, other: Tensor) -> Tensor:
    """The least common multiple of integers; 0 where one is 0."""
    return arithmetic.abs(_of_two("lcm", input, other, "iu"))  # positive also where it has overflowed, as in PyTorch


def _of_two(name: str, a: Any, b: Any, kinds: str) -> Tensor:
    """A numpy function of two operands that has no gradient, in their common dtype."""
    tensors = [value for value in (a, b) if isinstance(value, Tensor)]
    if not tensors:
        raise TypeError(f"{name}(): expected a Tensor, got {type(a).__name__} and {type(b).__name__}")
    kind = functools.reduce(dtypes.promote_np, [value._array.dtype for value in tensors])
    if kind.kind not in kinds:
        raise NotImplementedError(f"{name}(): not implemented for {dtypes.from_numpy(kind)}")
    if mode.grad and any(value.requires_grad for value in tensors):
        raise NotImplementedError(f"{name}() has no gradient here: detach() its operands, or use no_grad()")
    result = arithmetic._without_grad(name, a, b)
    fits = len(tensors) == 1 or result._array.dtype == kind
    return result if fits else wrap(result._array.astype(kind), result._dev)


def isposinf(input: Tensor) -> Tensor:
    """Whether each element is positive infinity."""
    _real("isposinf", input)
    return arithmetic.eq(input, constants.inf)


def isneginf(input: Tensor) -> Tensor:
    """Whether each element is negative infinity."""
    _real("isneginf", input)
    return arithmetic.eq(input, -constants.inf)


def isreal(input: Tensor) -> Tensor:
    """Whether the imaginary part of each element is 0; true for real tensors."""
    if not input.is_complex():
        return wrap(input._dev.xp.ones(input._array.shape, np.bool_), input._dev)
    return arithmetic.eq(arithmetic.imag(input), 0)


def rsub(input: Any, other: Any, *, alpha: float = 1) -> Tensor:
    """other - alpha * input."""
    return arithmetic.sub(other, input, alpha=alpha)


def conj_physical(input: Tensor) -> Tensor:
    """The complex conjugate, computed; real tensors as they are."""
    return arithmetic.conj(input)


def resolve_conj(input: Tensor) -> Tensor:
    """The tensor itself: conjugates are computed at once here."""
    return input


resolve_neg = resolve_conj


def is_conj(input: Tensor) -> bool:
    """False: conjugates are computed at once here, never a mere mark."""
    return False


is_neg = is_conj


def is_nonzero(input: Tensor) -> bool:
    """Whether the only element differs from 0. RuntimeError unless there is exactly one."""
    if input._array.size != 1:
        raise RuntimeError(f"is_nonzero(): expected one element, got shape {tuple(input._array.shape)}")
    return bool(input)


def is_signed(input: Tensor) -> bool:
    """Whether the dtype has negative numbers."""
    return input._array.dtype.kind not in "bu"
