"""Arithmetic and comparison with PyTorch's names and arguments."""

from __future__ import annotations

import builtins
import functools
from collections.abc import Callable
from numbers import Real
from typing import Any

import numpy as np

from resilin.core import dtype as dtypes
from resilin.core.api.mathematics import one_pass
from resilin.core.api.mathematics.half_precision import rounded_once
from resilin.core.autograd.grad_mode import is_grad_enabled
from resilin.core.batching.active import ACTIVE, batched_in
from resilin.core.device import CPU, device, different_devices
from resilin.core.kernels.loader import kernel
from resilin.core.ops import elementwise as ops
from resilin.core.ops import shape as shape_ops
from resilin.core.ops import transcendental as transcendental  # declares the ops named below
from resilin.core.ops.calling import common, weak
from resilin.core.ops.errstate import SILENT, restore, silence, widened
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
floor_divide, _trunc_divide = OPS["floor_divide"].call, OPS["trunc_divide"].call


def _with_alpha(op: Any, input: Any, other: Any, alpha: Any) -> Tensor:
    """op(input, alpha * other) in the dtype common to both operands; half types are computed in float32."""
    if isinstance(input, Tensor) and isinstance(other, Tensor) and type(alpha) is float:  # most calls
        own = input._array.dtype
        if own is other._array.dtype and own.kind in "fc" and own.itemsize > 2:
            return op(input, other * alpha)
    kind = kind_of(input, other)
    number = alpha if isinstance(alpha, Tensor) else _alpha_for(kind, alpha)
    wide = np.dtype(np.float32) if kind.kind in "fV" and kind.itemsize == 2 else kind
    x, y = (_in(wide, v if isinstance(v, Tensor) else _in(kind, v)) for v in (input, other))
    out = op(x, y * _beside(number, y))
    return out if wide is kind else _in(kind, out)


def _alpha_for(kind: Any, alpha: Any) -> Any:
    """The factor as a number for elements of dtype `kind`. RuntimeError for what PyTorch refuses."""
    alpha = alpha.item() if isinstance(alpha, np.generic) else alpha
    if kind.kind in "biu" and isinstance(alpha, float):
        raise RuntimeError("For integral input tensors, argument alpha must not be a floating point number.")
    if kind.kind != "b" and isinstance(alpha, bool):
        raise RuntimeError("Boolean alpha only supported for Boolean results.")
    if kind.kind == "b":
        return bool(alpha)
    return dtypes.number_for("alpha", alpha, kind) if kind.kind in "iu" else alpha


def _in(kind: Any, value: Any, dev: device = CPU) -> Any:
    """A tensor as one of dtype `kind`, itself where it has it; a number as such a tensor on `dev`."""
    if isinstance(value, Tensor):
        return value if value._array.dtype == kind else shape_ops.astype.call(value, kind)
    if kind.kind in "iu" and isinstance(value, int):
        value = dtypes.wrapped("add", value, kind)
    with np.errstate(over="ignore"):
        array = np.asarray(float(value) if kind.kind == "V" else value, kind)
    return wrap(dev.xp.asarray(array), dev)


def kind_of(a: Any, b: Any) -> Any:
    """The dtype that two operands have in common, of which one may be a number, which widens nothing but the kind.

    TypeError where there is no tensor, or something else than numbers beside it.
    """
    if isinstance(a, Tensor) and isinstance(b, Tensor):
        x, y = a._array.dtype, b._array.dtype
        return x if x is y else dtypes.promote_np(x, y)
    tensor, number = (a, b) if isinstance(a, Tensor) else (b, a)
    if not isinstance(tensor, Tensor) or not isinstance(number, int | float | complex | np.generic | np.ndarray):
        raise TypeError(f"expected a Tensor and a Tensor or number, got {type(a).__name__} and {type(b).__name__}")
    kind: Any = tensor._array.dtype
    if isinstance(number, np.ndarray):
        return dtypes.promote_np(kind, number.dtype)
    number = number.item() if isinstance(number, np.generic) else number
    own = dtypes.of_number(number)
    if own.kind == "c":
        return kind if kind.kind == "c" else dtypes.complex_of(kind if kind.kind in "fV" else dtypes.default_np())
    return own if dtypes.from_numpy(kind).kind < dtypes.from_numpy(own).kind else kind


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
    return _add(input, other) if type(alpha) is int and alpha == 1 else _with_alpha(_add, input, other, alpha)


def sub(input: Any, other: Any, *, alpha: float = 1) -> Tensor:
    """input - alpha * other."""
    return _subtract(input, other) if type(alpha) is int and alpha == 1 else _with_alpha(_subtract, input, other, alpha)


subtract = sub


def div(input: Any, other: Any, *, rounding_mode: str | None = None) -> Tensor:
    """input / other; `rounding_mode` "trunc" or "floor" rounds and keeps integers integer."""
    if rounding_mode is None:
        return _divide(input, other)
    if rounding_mode not in ("trunc", "floor"):
        raise RuntimeError(
            f"div expected rounding_mode to be one of None, 'trunc', or 'floor' but found {rounding_mode!r}"
        )
    return (floor_divide if rounding_mode == "floor" else _trunc_divide)(input, other)


divide = true_divide = div


def _without_grad(name: str, a: Any, b: Any) -> Tensor:
    """A numpy function of two operands, promoted as those of an op are."""
    if ACTIVE and batched_in((a, b)):
        return ACTIVE[-1].elementwise(functools.partial(_without_grad, name), a, b)
    if isinstance(a, Tensor) and isinstance(b, Tensor):
        if a._dev is not b._dev:
            raise different_devices(name, a._dev, b._dev)
        x, y = common(a._array, b._array)
    elif isinstance(a, Tensor):
        x, y, _ = weak(a._array, b, name)
    elif isinstance(b, Tensor):
        y, x, _ = weak(b._array, a, name)
    else:
        raise TypeError(f"{name}(): expected a Tensor, got {type(a).__name__} and {type(b).__name__}")
    dev = a._dev if isinstance(a, Tensor) else b._dev
    token = silence(SILENT)
    try:
        return wrap(dev.xp.asarray(getattr(dev.xp, name)(x, y)), dev)
    finally:
        restore(token)


def _bitwise(name: str) -> Any:
    loop = kernel("looped")(getattr(np, name), name, True)

    def bitwise(input: Any, other: Any) -> Tensor:
        if loop is not None and not ACTIVE and type(input) is Tensor and input._dev is CPU:  # most calls
            of_tensor = type(other) is Tensor and other._dev is CPU
            if input._array.dtype.kind in "biu" and (of_tensor or type(other) is int):
                array = loop(input._array, other._array if of_tensor else other)
                if array is not None:
                    return wrap(array, CPU)
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
    x = floats(input.detach())
    if type(x._array) is np.ndarray and not (x._array != x._array).any():
        found = shape_ops.astype.call(lt(x, 0), x._array.dtype) * np.pi
    else:
        x = x + 0  # -0.0 lies on the positive side
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


def round(input: Tensor, *, decimals: int = 0, out: Tensor | None = None) -> Tensor:
    """Rounded half to even, to `decimals` places; written to `out`, if it is given, which gets the result's shape."""
    if out is not None:
        return _written(out, "round", input, lambda: round(input, decimals=decimals))
    if input._array.dtype.kind in "biu":
        if decimals:
            raise NotImplementedError(f"round(): decimals are of floating point tensors, got {input.dtype}")
        return input
    if decimals == 0:
        return ops.rint.call(input)
    if input._array.dtype.itemsize == 2:  # whose numbers end long before the scale does
        return round(shape_ops.astype.call(input, np.dtype(np.float32)), decimals=decimals).to(input.dtype)
    scale = 10.0**decimals if decimals <= 308 else float("inf")
    return ops.rint.call(input * scale) / scale


def _written(out: Tensor, where: str, input: Tensor, compute: Callable[[], Tensor]) -> Tensor:
    """The result in the memory of `out`. RuntimeError where gradients would be asked for, or dtypes differ."""
    if is_grad_enabled() and (input.requires_grad or out.requires_grad):
        raise RuntimeError(
            f"{where}(): functions with out=... arguments don't support automatic differentiation, but one of the "
            "arguments requires grad."
        )
    result = compute()
    if result.dtype is not out.dtype:
        raise RuntimeError(f"{where}(): expected `out` of {result.dtype}, which the result has, got {out.dtype}")
    if out.shape != result.shape:
        out.resize_(result.shape)
    out.copy_(result)
    return out


@one_pass.preferring(one_pass.frac)
def frac(input: Tensor) -> Tensor:
    """The part behind the decimal point, with the sign of the input."""
    return input - trunc(input.detach())  # whose gradient is 0


_INT64, _LARGE = np.dtype(np.int64), 1 << 62


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
    kind = input._array.dtype
    if kind is _INT64 and _is_plain_limit(min) and _is_plain_limit(max):
        return OPS["clip_to"].call(input, min, max)  # most calls of integers
    if kind.kind != "f" or kind.itemsize == 2:
        min, max = (v.item() if isinstance(v, np.generic) else v for v in (min, max))
        if kind.kind in "biu" and any(isinstance(v, float) for v in (min, max)):
            input = shape_ops.astype.call(input, dtypes.default_np())
        elif kind.kind != "b":
            min, max = (dtypes.number_for("clamp", v, kind) for v in (min, max))
    return OPS["clip_to"].call(input, min, max)


def _is_plain_limit(limit: Any) -> bool:
    """Whether it is none, or an integer far inside int64."""
    return limit is None or (type(limit) is int and -_LARGE < limit < _LARGE)


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
    return _xlogy(*both_floating("xlogy", input, other))  # a number is of the tensor's dtype, as in PyTorch


@rounded_once
def _xlogy(x: Tensor, y: Tensor) -> Tensor:
    zero = eq(x, 0)
    if (
        not (ACTIVE or x.requires_grad or y.requires_grad) and type(zero._array) is np.ndarray and not zero._array.any()
    ):  # most calls
        return x * log(y) + 0
    zero = zero.logical_and(le(y, 0).logical_or(eq(y, float("inf"))))  # elsewhere log(other) is the gradient
    return (x * log(y.masked_fill(zero, 1))) + 0


def both_floating(where: str, a: Any, b: Any) -> tuple[Tensor, Tensor]:
    """Two operands, of which one may be a number, as tensors of their common floating point dtype."""
    tensor = a if isinstance(a, Tensor) else b
    if not isinstance(tensor, Tensor):
        raise TypeError(f"{where}(): expected a Tensor, got {type(a).__name__} and {type(b).__name__}")
    kind = kind_of(a, b)
    kind = dtypes.default_np() if kind.kind in "biu" else kind
    return _in(kind, a, tensor._dev), _in(kind, b, tensor._dev)


def trace(input: Tensor) -> Tensor:
    """The sum of a matrix's diagonal."""
    if input._array.ndim != 2:
        raise RuntimeError(f"trace: expected a matrix, but got tensor with dim {input._array.ndim}")
    total = one_pass.diagonal_sum(input)
    return input.diagonal().sum() if total is None else total


@one_pass.preferring(one_pass.lerp)
@rounded_once
def lerp(input: Tensor, end: Tensor, weight: Any) -> Tensor:
    """input + weight * (end - input), from whichever end is nearer: an infinite end is met, not subtracted."""
    difference = end - input
    weight = _beside(weight, difference)
    if not isinstance(weight, Tensor):
        return input + weight * difference if builtins.abs(weight) < 0.5 else end - (1 - weight) * difference
    far = ge(abs(weight), 0.5)
    return end.where(far, input) + (weight - 1).where(far, weight) * difference


@one_pass.preferring(one_pass.addcmul)
@rounded_once
def addcmul(input: Tensor, tensor1: Tensor, tensor2: Tensor, *, value: float = 1) -> Tensor:
    """input + value * tensor1 * tensor2, all in their common dtype; integers have a `value` rounded towards 0."""
    kind = dtypes.promote_np(input._array.dtype, dtypes.promote_np(tensor1._array.dtype, tensor2._array.dtype))
    if kind.kind in "iu" and isinstance(value, float):
        value = int(value)
    tensor1 = tensor1 if tensor1._array.dtype == kind else shape_ops.astype.call(tensor1, kind)
    scaled = tensor1 if value == 1 else tensor1 * _beside(value, tensor1)  # first, as in PyTorch: it may keep the range
    return input + scaled * tensor2


@one_pass.preferring(one_pass.addcdiv)
@rounded_once
def addcdiv(input: Tensor, tensor1: Tensor, tensor2: Tensor, *, value: float = 1) -> Tensor:
    """input + value * tensor1 / tensor2. RuntimeError for integers, whose division could mean two things."""
    if all(x._array.dtype.kind in "biu" for x in (tensor1, tensor2)):
        raise RuntimeError(
            "addcdiv does not divide integers; use (input + value * resilin.true_divide(tensor1, tensor2))"
        )
    scaled = tensor1 if value == 1 else tensor1 * _beside(value, tensor1)
    return input + scaled / tensor2


_equal_elements, _close_elements = kernel("equal_elements"), kernel("close_elements")


def equal(input: Tensor, other: Tensor) -> bool:
    """Whether shapes and all elements are equal."""
    x, y = input._array, other._array
    if x.shape != y.shape:
        return False
    if type(x) is type(y) is np.ndarray and x.dtype is y.dtype:
        if (same := _equal_elements(x, y)) is not None:
            return same
        if x.dtype.kind != "V":
            return bool((x == y).all())
    return bool(input._dev.xp.array_equal(x, y))


def isclose(input: Tensor, other: Tensor, rtol: float = 1e-05, atol: float = 1e-08, equal_nan: bool = False) -> Tensor:
    """|input - other| <= atol + rtol * |other|, elementwise."""
    if input._array.dtype != other._array.dtype:
        raise RuntimeError(f"isclose: expected tensors of one dtype, got {input.dtype} and {other.dtype}")
    if rtol < 0 or atol < 0:
        raise RuntimeError(f"isclose: rtol and atol must not be negative, got {rtol} and {atol}")
    xp, rtol, atol = input._dev.xp, float(rtol), float(atol)  # numpy takes no int beyond 64 bits
    plain = type(input._array) is type(other._array) is np.ndarray and type(equal_nan) is bool
    close = _close_elements(input._array, other._array, rtol, atol, equal_nan) if plain else None
    if close is not None:
        return wrap(close, input._dev)
    try:
        if input._array.dtype.kind in "iu":
            close = _close_integers(xp, input._array, other._array, rtol, atol)
        else:
            close = xp.isclose(widened(input._array), widened(other._array), rtol, atol, equal_nan)
    except ValueError:
        raise RuntimeError(
            f"isclose: the shapes {tuple(input.shape)} and {tuple(other.shape)} cannot be broadcast"
        ) from None
    return wrap(xp.asarray(close), input._dev)


def _close_integers(xp: Any, a: Any, b: Any, rtol: float, atol: float) -> Any:
    """`isclose` of integers by their distance as integers: floats do not hold those of more than 53 bits."""
    wide = np.uint64
    x, y = a.astype(wide), b.astype(wide)  # modulo 2 ** 64, where the difference with the right sign is the distance
    with np.errstate(over="ignore", invalid="ignore"):
        distance = xp.where(a > b, x - y, y - x)
        limit = xp.floor(atol + rtol * xp.abs(b.astype(np.float64)))
        within = distance <= xp.where(limit < 2.0**64, limit, 0).astype(wide)
    return xp.logical_or(a == b, xp.logical_or(limit >= 2.0**64, xp.logical_and(limit == limit, within)))


def allclose(input: Tensor, other: Tensor, rtol: float = 1e-05, atol: float = 1e-08, equal_nan: bool = False) -> bool:
    """Whether all elements are close; see `isclose`."""
    close: Tensor = isclose(input, other, rtol, atol, equal_nan)
    return bool(close._array.all() if type(close._array) is np.ndarray and not ACTIVE else close.all())


@one_pass.preferring(one_pass.nan_to_num)
def nan_to_num(input: Tensor, nan: float = 0.0, posinf: float | None = None, neginf: float | None = None) -> Tensor:
    """NaN and infinities replaced; by the dtype's limits where no number is given. Integers have none: a copy."""
    if input._array.dtype.kind in "biu":
        return input.clone()
    if input.is_complex():
        parts = (shape_ops.real.call(input), shape_ops.imag.call(input))
        re, im = (nan_to_num(part, nan, posinf, neginf) for part in parts)
        return re + im * 1j
    for name, number in (("nan", nan), ("posinf", posinf), ("neginf", neginf)):
        if number is not None and not _is_number(number):
            raise TypeError(f"nan_to_num(): argument {name!r} must be a number, got {number!r:.80}")
    limits = dtypes.finfo(input.dtype)
    numbers = (
        0.0 if nan is None else nan,
        limits.max if posinf is None else posinf,
        limits.min if neginf is None else neginf,
    )
    kind, dev = input._array.dtype, input._dev
    zero, high, low = (_in(kind, number, dev) for number in numbers)  # infinite where they are too large
    out = input.masked_fill(isnan(input), zero)
    out = out.masked_fill(eq(input, float("inf")), high)
    return out.masked_fill(eq(input, float("-inf")), low)


def _is_number(value: Any) -> bool:
    """Whether `value` is a real number, or a tensor of one without dimensions."""
    return isinstance(value, Real) or (isinstance(value, Tensor) and not value._array.ndim and not value.is_complex())


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
