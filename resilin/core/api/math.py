"""Arithmetic and comparison with PyTorch's names and arguments."""

from __future__ import annotations

import builtins
import functools
from typing import Any

import numpy as np

from resilin.core import dtype as dtypes
from resilin.core.batching.active import ACTIVE, batched_in
from resilin.core.device import different_devices
from resilin.core.ops import elementwise as ops
from resilin.core.ops import shape as shape_ops
from resilin.core.ops import transcendental as transcendental  # declares the ops named below
from resilin.core.ops.registry import OPS
from resilin.core.tensor import Tensor, wrap

exp, expm1, exp2, log, log1p, log2, log10 = (
    OPS[n].call for n in ["exp", "expm1", "exp2", "log", "log1p", "log2", "log10"]
)
sqrt, rsqrt, reciprocal, square, neg = (OPS[n].call for n in ["sqrt", "rsqrt", "reciprocal", "square", "negative"])
sin, cos, tan, sinh, cosh, tanh = (OPS[n].call for n in ["sin", "cos", "tan", "sinh", "cosh", "tanh"])
asin, acos, atan, atan2 = (OPS[n].call for n in ["arcsin", "arccos", "arctan", "arctan2"])
floor, ceil, trunc, sign = (OPS[n].call for n in ["floor", "ceil", "trunc", "sign"])
isnan, isinf, isfinite, signbit = (OPS[n].call for n in ["isnan", "isinf", "isfinite", "signbit"])
eq, ne, lt, le, gt, ge = (OPS[n].call for n in ["equal", "not_equal", "less", "less_equal", "greater", "greater_equal"])
logical_and, logical_or, logical_xor, logical_not = (OPS[f"logical_{n}"].call for n in ["and", "or", "xor", "not"])
asinh, acosh, atanh, logaddexp, hypot = (OPS[n].call for n in ["arcsinh", "arccosh", "arctanh", "logaddexp", "hypot"])
arcsin, arccos, arctan, arctan2, arcsinh, arccosh, arctanh = asin, acos, atan, atan2, asinh, acosh, atanh
not_equal, less, less_equal, greater, greater_equal = ne, lt, le, gt, ge
maximum, minimum, remainder, fmod, mul = (OPS[n].call for n in ["maximum", "minimum", "remainder", "fmod", "multiply"])
multiply, negative = mul, neg
_add, _subtract, _divide, _power = (OPS[n].call for n in ["add", "subtract", "divide", "power"])


def _scaled(input: Any, other: Any, alpha: Any) -> Any:
    """other * alpha. RuntimeError when a fraction would meet integers only."""
    if isinstance(alpha, float) and all(x._array.dtype.kind in "biu" for x in (input, other) if isinstance(x, Tensor)):
        raise RuntimeError("For integral input tensors, argument alpha must not be a floating point number.")
    return other * _beside(alpha, other)


def _beside(number: Any, tensor: Any) -> Any:
    """A number given as a 0-d tensor, in the dtype of `tensor`, which it is not to widen, unless its kind is higher."""
    if not (isinstance(number, Tensor) and isinstance(tensor, Tensor)) or number._array.ndim or not tensor._array.ndim:
        return number
    kind = tensor._array.dtype
    if number._array.dtype == kind or not dtypes.can_cast(number.dtype, tensor.dtype):
        return number
    return shape_ops.astype.call(number, kind)


def add(input: Any, other: Any, *, alpha: float = 1) -> Tensor:
    """input + alpha * other."""
    return _add(input, other if alpha == 1 else _scaled(input, other, alpha))


def sub(input: Any, other: Any, *, alpha: float = 1) -> Tensor:
    """input - alpha * other."""
    return _subtract(input, other if alpha == 1 else _scaled(input, other, alpha))


subtract = sub


def div(input: Any, other: Any, *, rounding_mode: str | None = None) -> Tensor:
    """input / other; `rounding_mode` "trunc" or "floor" rounds and keeps integers integer."""
    if rounding_mode is None:
        return _divide(input, other)
    if rounding_mode not in ("trunc", "floor"):
        raise RuntimeError(
            f"div expected rounding_mode to be one of None, 'trunc', or 'floor' but found {rounding_mode!r}"
        )
    return floor_divide(input, other) if rounding_mode == "floor" else _trunc_divide(input, other)


divide = true_divide = div


def floor_divide(input: Any, other: Any) -> Tensor:
    """floor(input / other), in the operands' common dtype."""
    if (isinstance(input, Tensor) and input._rg) or (isinstance(other, Tensor) and other._rg):
        return floor(_divide(input, other))
    _check_divisor("floor_divide", input, other)
    return _without_grad("floor_divide", input, other)


def _check_divisor(name: str, input: Any, other: Any) -> None:
    if any((v.is_complex() if isinstance(v, Tensor) else isinstance(v, complex)) for v in (input, other)):
        raise NotImplementedError(f"{name}: not defined for complex numbers")
    check: Any = ops.check_divisor
    check(name, *(v._array if isinstance(v, Tensor) else v for v in (input, other)))


def _trunc_divide(input: Any, other: Any) -> Tensor:
    _check_divisor("div", input, other)
    exact = _divide(input, other)
    result = trunc(exact)
    tensor = input if isinstance(input, Tensor) else other
    return result if tensor.is_floating_point() else result.to(tensor.dtype)


def _without_grad(name: str, a: Any, b: Any) -> Tensor:
    """A numpy function of two operands through the promotion of subtraction."""
    if ACTIVE and batched_in((a, b)):
        return ACTIVE[-1].elementwise(functools.partial(_without_grad, name), a, b)
    tensor = a if isinstance(a, Tensor) else b
    if not isinstance(tensor, Tensor):
        raise TypeError(f"{name}(): expected a Tensor, got {type(a).__name__} and {type(b).__name__}")
    x, y = (v.detach() if isinstance(v, Tensor) else v for v in (a, b))
    if isinstance(x, Tensor) and isinstance(y, Tensor):
        target = dtypes.promote_np(x._array.dtype, y._array.dtype)
    else:
        target = _add(tensor.detach(), y if isinstance(x, Tensor) else x)._array.dtype
    xp = tensor._dev.xp
    if isinstance(x, Tensor) and isinstance(y, Tensor) and x._dev is not y._dev:
        raise different_devices(name, x._dev, y._dev)
    arrays = [v._array.astype(target) if isinstance(v, Tensor) else xp.asarray(v, target) for v in (x, y)]
    with np.errstate(all="ignore"):
        return wrap(xp.asarray(getattr(xp, name)(*arrays)), tensor._dev)


def _bitwise(name: str) -> Any:
    def bitwise(input: Any, other: Any) -> Tensor:
        for value in (input, other):
            if isinstance(value, float | complex) or (
                isinstance(value, Tensor) and value._array.dtype.kind not in "biu"
            ):
                given = value.dtype if isinstance(value, Tensor) else type(value).__name__
                raise NotImplementedError(f"{name}: expected boolean or integer tensors, got {given}")
        return _without_grad(name, input, other)

    bitwise.__name__ = name
    bitwise.__doc__ = f"numpy's {name} of booleans or integers."
    return bitwise


bitwise_and, bitwise_or, bitwise_xor = map(_bitwise, ("bitwise_and", "bitwise_or", "bitwise_xor"))
bitwise_left_shift, bitwise_right_shift = map(_bitwise, ("left_shift", "right_shift"))


def bitwise_not(input: Tensor) -> Tensor:
    """~input for booleans and integers."""
    if input._array.dtype.kind not in "biu":
        raise TypeError(f"~ needs a boolean or integer tensor, got {input.dtype}")
    if ACTIVE and batched_in((input,)):
        return ACTIVE[-1].elementwise(bitwise_not, input)
    return wrap(input._dev.xp.asarray(~input._array), input._dev)


def pow(input: Any, exponent: Any) -> Tensor:
    """input ** exponent."""
    return _power(input, exponent)


def abs(input: Tensor) -> Tensor:
    """|input|; real for complex tensors."""
    return ops.absolute.call(input)


absolute = abs


def angle(input: Tensor) -> Tensor:
    """The argument of each element."""
    if input.is_complex():
        return atan2(shape_ops.imag.call(input), shape_ops.real.call(input))
    x = floats(input.detach()) + 0  # -0.0 lies on the positive side
    found = atan2(wrap(x._dev.xp.zeros((), x._array.dtype), x._dev), x)
    return found + 0 * sign(input) if input.requires_grad else found  # its gradient is 0


def real(input: Tensor) -> Tensor:
    """The real part; real tensors as they are."""
    return shape_ops.real.call(input) if input.is_complex() else input


def imag(input: Tensor) -> Tensor:
    """A view of the imaginary part. RuntimeError for real tensors."""
    if not input.is_complex():
        raise RuntimeError("imag is not implemented for tensors with non-complex dtypes.")
    return shape_ops.imag.call(input)


def conj(input: Tensor) -> Tensor:
    """The complex conjugate; real tensors as they are."""
    return shape_ops.conj.call(input) if input.is_complex() else input


def round(input: Tensor, *, decimals: int = 0) -> Tensor:
    """Rounded half to even, to `decimals` places."""
    if input._array.dtype.kind in "biu":
        return input
    if decimals == 0:
        return ops.rint.call(input)
    if input._array.dtype.itemsize == 2:  # whose numbers end long before the scale does
        return round(shape_ops.astype.call(input, np.dtype(np.float32)), decimals=decimals).to(input.dtype)
    scale = 10.0**decimals if decimals <= 308 else float("inf")
    return ops.rint.call(input * scale) / scale


def frac(input: Tensor) -> Tensor:
    """The part behind the decimal point, with the sign of the input."""
    return input - trunc(input)


def clamp(input: Tensor, min: Any = None, max: Any = None) -> Tensor:
    """Elements limited to [min, max]; the gradient is 0 outside and 1 at the limits."""
    if min is None and max is None:
        raise RuntimeError("clamp: at least one of 'min' or 'max' must not be None")
    for limit in (min, max):
        if isinstance(limit, str):
            raise TypeError(f"clamp(): limits must be numbers or Tensors, got {limit!r}")
    if isinstance(min, Tensor) or isinstance(max, Tensor):
        out = input if min is None else _limited(input, _beside(min, input), maximum, lt)
        return out if max is None else _limited(out, _beside(max, input), minimum, gt)
    if input._array.dtype.kind in "biu" and any(isinstance(v, float) for v in (min, max)):
        input = shape_ops.astype.call(input, dtypes.default_np())
    return OPS["clip_to"].call(input, min, max)


def _limited(x: Any, limit: Any, extreme: Any, beyond: Any) -> Tensor:
    """maximum or minimum of both, with the gradient for `x` where they are equal."""
    y: Tensor = extreme(x, limit)
    if not (y.requires_grad and isinstance(limit, Tensor)):
        return y
    kind = dtypes.from_numpy(y._array.dtype)
    outside = logical_or(beyond(x, limit), isnan(limit))
    y = OPS["where_else"].call(limit.to(kind), x.to(kind), outside._array)
    return OPS["where_else"].call(y.detach(), y, isnan(y)._array)  # NaN passes no gradient on, as in PyTorch


clip = clamp


def clamp_min(input: Tensor, min: Any) -> Tensor:
    """`clamp(min=min)`."""
    return clamp(input, min=min)


def clamp_max(input: Tensor, max: Any) -> Tensor:
    """`clamp(max=max)`."""
    return clamp(input, max=max)


def floats(input: Tensor) -> Tensor:
    """Integers and booleans as the default dtype; others as they are."""
    return shape_ops.astype.call(input, dtypes.default_np()) if input._array.dtype.kind in "biu" else input


def logit(input: Tensor, eps: float | None = None) -> Tensor:
    """log(input / (1 - input)); the input is first limited to [eps, 1 - eps] when eps is given."""
    return transcendental.logit.call(floats(input), eps)


def xlogy(input: Any, other: Any) -> Tensor:
    """input * log(other), in the floating point dtype common to both; 0 where input is 0 and other is not NaN."""
    x, y = both_floating("xlogy", input, other)
    zero = eq(x, 0).logical_and(le(y, 0).logical_or(eq(y, float("inf"))))  # elsewhere log(other) is the gradient
    return (x * log(y.masked_fill(zero, 1))) + 0


def both_floating(where: str, a: Any, b: Any) -> tuple[Tensor, Tensor]:
    """Two operands, of which one may be a number, as tensors of their common floating point dtype."""
    tensor = a if isinstance(a, Tensor) else b
    if not isinstance(tensor, Tensor):
        raise TypeError(f"{where}(): expected a Tensor, got {type(a).__name__} and {type(b).__name__}")
    if isinstance(a, Tensor) and isinstance(b, Tensor):
        kind = dtypes.promote_np(a._array.dtype, b._array.dtype)
    else:  # a number widens nothing but the kind: one element says what comes of it
        kind = _add(wrap(np.zeros(1, tensor._array.dtype)), b if tensor is a else a)._array.dtype
    if kind.kind in "biu":
        kind = dtypes.default_np()
    x, y = (
        shape_ops.astype.call(v, kind) if isinstance(v, Tensor) else wrap(tensor._dev.xp.asarray(v, kind), tensor._dev)
        for v in (a, b)
    )
    return x, y


def trace(input: Tensor) -> Tensor:
    """The sum of a matrix's diagonal."""
    if input._array.ndim != 2:
        raise RuntimeError(f"trace: expected a matrix, but got tensor with dim {input._array.ndim}")
    return input.diagonal().sum()


def lerp(input: Tensor, end: Tensor, weight: Any) -> Tensor:
    """input + weight * (end - input), from whichever end is nearer: an infinite end is met, not subtracted."""
    difference = end - input
    weight = _beside(weight, difference)
    if not isinstance(weight, Tensor):
        return input + weight * difference if builtins.abs(weight) < 0.5 else end - (1 - weight) * difference
    far = ge(abs(weight), 0.5)
    return end.where(far, input) + (weight - 1).where(far, weight) * difference


def addcmul(input: Tensor, tensor1: Tensor, tensor2: Tensor, *, value: float = 1) -> Tensor:
    """input + value * tensor1 * tensor2, all in their common dtype; integers have a `value` rounded towards 0."""
    kind = dtypes.promote_np(input._array.dtype, dtypes.promote_np(tensor1._array.dtype, tensor2._array.dtype))
    if kind.kind in "iu" and isinstance(value, float):
        value = int(value)
    tensor1 = tensor1 if tensor1._array.dtype == kind else shape_ops.astype.call(tensor1, kind)
    return input + (tensor1 * tensor2) * _beside(value, tensor1)


def addcdiv(input: Tensor, tensor1: Tensor, tensor2: Tensor, *, value: float = 1) -> Tensor:
    """input + value * tensor1 / tensor2. RuntimeError for integers, whose division could mean two things."""
    if all(x._array.dtype.kind in "biu" for x in (tensor1, tensor2)):
        raise RuntimeError(
            "addcdiv does not divide integers; use (input + value * resilin.true_divide(tensor1, tensor2))"
        )
    return input + (tensor1 / tensor2) * _beside(value, tensor1)


def equal(input: Tensor, other: Tensor) -> bool:
    """Whether shapes and all elements are equal."""
    return input._array.shape == other._array.shape and bool(input._dev.xp.array_equal(input._array, other._array))


def isclose(input: Tensor, other: Tensor, rtol: float = 1e-05, atol: float = 1e-08, equal_nan: bool = False) -> Tensor:
    """|input - other| <= atol + rtol * |other|, elementwise."""
    if input._array.dtype != other._array.dtype:
        raise RuntimeError(f"isclose: expected tensors of one dtype, got {input.dtype} and {other.dtype}")
    if rtol < 0 or atol < 0:
        raise RuntimeError(f"isclose: rtol and atol must not be negative, got {rtol} and {atol}")
    xp = input._dev.xp
    try:
        close = xp.isclose(input._array, other._array, rtol, atol, equal_nan)
    except ValueError:
        raise RuntimeError(
            f"isclose: the shapes {tuple(input.shape)} and {tuple(other.shape)} cannot be broadcast"
        ) from None
    return wrap(xp.asarray(close), input._dev)


def allclose(input: Tensor, other: Tensor, rtol: float = 1e-05, atol: float = 1e-08, equal_nan: bool = False) -> bool:
    """Whether all elements are close; see `isclose`."""
    close: Tensor = isclose(input, other, rtol, atol, equal_nan)
    return bool(close.all())


def nan_to_num(input: Tensor, nan: float = 0.0, posinf: float | None = None, neginf: float | None = None) -> Tensor:
    """NaN and infinities replaced; by the dtype's limits where no number is given. Integers have none: a copy."""
    if input._array.dtype.kind in "biu":
        return input.clone()
    if input.is_complex():
        parts = (shape_ops.real.call(input), shape_ops.imag.call(input))
        re, im = (nan_to_num(part, nan, posinf, neginf) for part in parts)
        return re + im * 1j
    limits = dtypes.finfo(input.dtype)
    high = limits.max if posinf is None else posinf
    low = limits.min if neginf is None else neginf
    out = input.masked_fill(isnan(input), nan)
    out = out.masked_fill(eq(input, float("inf")), high)
    return out.masked_fill(eq(input, float("-inf")), low)


def is_tensor(obj: Any) -> bool:
    """Whether `obj` is a Tensor."""
    return isinstance(obj, Tensor)


def is_floating_point(input: Tensor) -> bool:
    """Whether the dtype is a floating point one."""
    return input.is_floating_point()


def is_complex(input: Tensor) -> bool:
    """Whether the dtype is a complex one."""
    return input.is_complex()


def numel(input: Tensor) -> int:
    """Number of elements."""
    return input.numel()


def result_type(a: Any, b: Any) -> dtypes.dtype:
    """The dtype that arithmetic between the two gives."""
    if not isinstance(a, Tensor) and not isinstance(b, Tensor):
        return dtypes.from_numpy(dtypes.promote_np(dtypes.of_number(a), dtypes.of_number(b)))
    ones = [wrap(np.zeros((), v._array.dtype)) if isinstance(v, Tensor) else v for v in (a, b)]
    return _add(*ones).dtype
