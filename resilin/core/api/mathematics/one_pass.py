"""Functions of several steps in one pass of native code, where nothing has to know the steps.

Each has the signature of the function that it is the short way of, and `out`, an array to write into. It answers None
where that function has to go step by step: where a graph or vmap follows it, and for all but floats on the CPU. A
step's rounding is the one it has by itself, so that the bits are those of the steps.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any, TypeVar

import numpy as np

from resilin.core import dtype as dtypes
from resilin.core.batching.active import ACTIVE
from resilin.core.device import CPU
from resilin.core.kernels import reduce_rows
from resilin.core.kernels.loader import kernel
from resilin.core.ops.elementwise import limited_integers, power_in_one_pass
from resilin.core.ops.errstate import quietly
from resilin.core.tensor import Tensor, wrap

_F = TypeVar("_F", bound=Callable[..., Any])
_INF = float("inf")


def preferring(short: Callable[..., Tensor | None]) -> Callable[[_F], _F]:
    """Decorate the function that `short` is the short way of."""

    def decorate(function: _F) -> _F:
        @functools.wraps(function)
        def run(*args: Any, **kwargs: Any) -> Any:
            found = short(*args, **kwargs)
            return function(*args, **kwargs) if found is None else found

        return run  # type: ignore[return-value]

    return decorate


_plain_arrays = kernel("plain_arrays")  # of tensors that no graph and no vmap follows; None of others


def _kernel(name: str) -> Callable[..., Tensor | None]:
    native = kernel("fused_" + name)

    def run(out: Any, tensors: tuple[Any, ...], *numbers: float) -> Tensor | None:
        for number in numbers:
            if type(number) is not float and type(number) is not int:
                return None
        arrays = _plain_arrays(tensors)
        array = None if arrays is None else native(out, *arrays, *numbers)
        return None if array is None else wrap(array, CPU)

    return run


_add_scaled, _addcmul, _addcdiv, _lerp = map(_kernel, ("add_scaled", "addcmul", "addcdiv", "lerp"))
_lerp_from_start, _lerp_from_end = _kernel("lerp_from_start"), _kernel("lerp_from_end")
_nan_to_num, _heaviside, _limit = map(_kernel, ("nan_to_num", "heaviside", "limit"))


def _arrays(*tensors: Any, kinds: str = "fV") -> tuple[Any, ...] | None:
    """The arrays of tensors on the CPU that nothing follows, of dtypes of these kinds; None of others."""
    arrays: tuple[Any, ...] | None = _plain_arrays(tensors)
    if arrays is None or any([array.dtype.kind not in kinds for array in arrays]):
        return None
    return arrays


def _loops(name: str, kinds: str = "fV") -> Callable[..., Tensor | None]:
    """The short way by loops over elements (`native/elementwise`), of all strides and of dtypes of these kinds."""
    known = kernel("looped")(getattr(np, name, None), name, True)

    def run(input: Tensor, *others: Any, out: Any = None) -> Tensor | None:
        arrays = None if known is None else _arrays(input, *others, kinds=kinds)
        if arrays is None:
            return None
        array = known(*arrays) if out is None else known(*arrays, out)
        return None if array is None else wrap(array, CPU)

    return run


fmax, fmin, frac, copysign = map(_loops, ("fmax", "fmin", "frac", "copysign"))
_ldexp_of_many = _loops("ldexp")
relu, without_nan = map(_loops, ("relu", "without_nan"))
neg, abs_, square = (_loops(name, "fViu") for name in ("negative", "absolute", "square"))
_heaviside_of_integers = _loops("heaviside", "iu")


def activation(name: str, numbers: Callable[..., tuple[float, ...]] = lambda: ()) -> Callable[..., Tensor | None]:
    """The short way of an activation in place by kernel `name`; `numbers` are the kernel's, of the call's arguments."""
    native = kernel(name + "_forward")

    def run(input: Tensor, *args: Any, out: Any = None, **kwargs: Any) -> Tensor | None:
        if (arrays := _plain_arrays((input,))) is None:
            return None
        try:
            given = numbers(*args, **kwargs)
        except (TypeError, ZeroDivisionError):  # the function itself says what is wrong
            return None
        array = native(*arrays, *given, out)
        return None if array is None else wrap(array, CPU)

    return run


@quietly
def known_sum(input: Tensor, axis: Any, keepdim: bool) -> Tensor | None:
    """The sum over `axis` of an op, 0 for NaN."""
    arrays = _arrays(input)
    return None if arrays is None else wrap(np.asarray(reduce_rows.known_total(arrays[0], axis, keepdim)), CPU)


_sum_diagonal = kernel("sum_diagonal")


def diagonal_sum(input: Tensor) -> Tensor | None:
    """The sum of a matrix's diagonal."""
    arrays = _plain_arrays((input,))
    array = None if arrays is None else _sum_diagonal(arrays[0])
    return None if array is None else wrap(array, CPU)


_differences, _distance, _trapezoid = kernel("differences"), kernel("distance"), kernel("trapezoid")
_extremes, _size_sum, _cosines = kernel("extremes"), kernel("size_sum_last"), kernel("cosine_similarity")


def _of_arrays(native: Callable[..., Any], tensors: tuple[Any, ...], *rest: Any) -> Any:
    """What `native` makes of the arrays of tensors that nothing follows, and of `rest`; None where it makes nothing."""
    arrays = _plain_arrays(tensors)
    array = None if arrays is None else native(*arrays, *rest)
    return wrap(array, CPU) if isinstance(array, np.ndarray) else array


def differences(input: Tensor, axis: int) -> Tensor | None:
    """What each element along `axis` but the first is more than the one before it."""
    return _of_arrays(_differences, (input,), axis)


def distance(input: Tensor, other: Tensor, p: float = 2) -> Tensor | None:
    """The p-norm of input - other, for a p of 2, of more than one element: that of one is its size."""
    return _of_arrays(_distance, (input, other)) if p == 2 and input._array.size != 1 else None


def cosine_similarity(x1: Tensor, x2: Tensor, dim: int = 1, eps: float = 1e-8) -> Tensor | None:
    """The cosine of the angle between x1 and x2 along `dim`."""
    return _of_arrays(_cosines, (x1, x2), dim, eps) if type(dim) is int and type(eps) is float else None


def trapezoid(input: Tensor, step: Any) -> Tensor | None:
    """The integral of a vector of samples `step` apart."""
    return _of_arrays(_trapezoid, (input,), step) if type(step) in (float, int) else None


def size_sum(input: Tensor, axis: Any, keepdim: bool) -> Tensor | None:
    """The sum of absolute values over `axis` of an op."""
    return _of_arrays(_size_sum, (input,), axis, keepdim)


_rms_norm = kernel("rms_norm")


def rms_norm(input: Tensor, weight: Tensor | None, length: int, eps: float) -> Tensor | None:
    """Rows of `length` elements divided by the root of their mean square and `eps`, times `weight`."""
    if type(eps) not in (float, int):
        return None
    if weight is None:
        return _of_arrays(_rms_norm, (input,), None, length, eps)
    return _of_arrays(_rms_norm, (input, weight), length, eps)


def extremes(input: Tensor, keepdim: bool) -> tuple[Tensor, Tensor] | None:
    """The smallest and the largest of all elements."""
    found = _of_arrays(_extremes, (input,), keepdim) if type(keepdim) is bool else None
    return None if found is None else (wrap(found[0], CPU), wrap(found[1], CPU))


_REDUCTIONS = {"none": 0, "mean": 1, "sum": 2}
_KINDS = {"square": 0, "absolute": 1, "smooth": 2, "logits": 3, "margin": 4}
_loss_of_difference, _nll_loss = kernel("loss_of_difference"), kernel("nll_loss")
_multi_margin_loss = kernel("multi_margin_loss")


def loss_of_difference(
    kind: str, input: Tensor, target: Tensor, reduction: str, beta: float = 1.0, scale: float = 1.0
) -> Tensor | None:
    """The square, the size, or `scale` times the smooth size of input - target, reduced.

    Also log(1 + exp(input)) - input * target of "logits", and log(1 + exp(-target * input)), the "margin".
    """
    arrays = _arrays(input, target) if reduction in _REDUCTIONS else None
    if arrays is None:
        return None
    array = _loss_of_difference(_KINDS[kind], *arrays, beta, scale, _REDUCTIONS[reduction])
    return None if array is None else wrap(array, CPU)


def nll_loss(input: Tensor, target: Tensor, weight: Tensor | None, ignore_index: int, reduction: str) -> Tensor | None:
    """The negative log-likelihoods of classes that are known to be there, reduced."""
    arrays = _scores(input, target, weight)
    if arrays is None or type(ignore_index) is not int or not -(1 << 63) <= ignore_index < 1 << 63:
        return None
    array = _nll_loss(*arrays, ignore_index, _REDUCTIONS[reduction])
    return None if array is None else wrap(array, CPU)


def multi_margin_loss(
    input: Tensor, target: Tensor, p: int, margin: float, weight: Tensor | None, reduction: str
) -> Tensor | None:
    """How far scores of other classes are not below that of the target by `margin`, reduced."""
    arrays = _scores(input, target, weight) if reduction in _REDUCTIONS else None
    array = None if arrays is None else _multi_margin_loss(*arrays, p == 2, margin, _REDUCTIONS[reduction])
    return None if array is None else wrap(array, CPU)


def _scores(input: Tensor, target: Any, weight: Tensor | None) -> tuple[Any, Any, Any] | None:
    """The arrays of scores, of target classes and of weights of classes, or None, where nothing follows them."""
    arrays = _arrays(input) if weight is None else _arrays(input, weight)
    if arrays is None or type(target) is not Tensor or target._dev is not CPU:
        return None
    return arrays[0], target._array, None if weight is None else arrays[1]


def add(input: Tensor, other: Any, *, alpha: Any = 1, out: Any = None) -> Tensor | None:
    """input + alpha * other."""
    return _add_scaled(out, (input, other), alpha) if type(alpha) in (float, int) else None


def sub(input: Tensor, other: Any, *, alpha: Any = 1, out: Any = None) -> Tensor | None:
    """input - alpha * other."""
    return _add_scaled(out, (input, other), -alpha) if type(alpha) in (float, int) else None


def addcmul(input: Tensor, tensor1: Tensor, tensor2: Tensor, *, value: float = 1, out: Any = None) -> Tensor | None:
    """input + value * tensor1 * tensor2."""
    return _addcmul(out, (input, tensor1, tensor2), value)


def addcdiv(input: Tensor, tensor1: Tensor, tensor2: Tensor, *, value: float = 1, out: Any = None) -> Tensor | None:
    """input + value * tensor1 / tensor2."""
    return _addcdiv(out, (input, tensor1, tensor2), value)


def lerp(input: Tensor, end: Tensor, weight: Any, *, out: Any = None) -> Tensor | None:
    """input + weight * (end - input), from whichever end is nearer."""
    if isinstance(weight, Tensor):
        return _lerp(out, (input, end, weight))
    if type(weight) not in (float, int):
        return None
    if abs(weight) < 0.5:
        return _lerp_from_start(out, (input, end), weight)
    return _lerp_from_end(out, (input, end), 1 - weight)


_ldexp = kernel("fused_ldexp")
_POWERS = 60  # of 2: float32 holds all that a number of float64 between is the sum of


def ldexp(input: Tensor, other: Tensor, *, out: Any = None) -> Tensor | None:
    """input * 2 ** other."""
    if type(other) is Tensor and other._array.size == 1 and other._array.dtype.itemsize <= 4:
        arrays = _arrays(input, other)
        if arrays is not None and arrays[0].ndim >= arrays[1].ndim and arrays[0].dtype == arrays[1].dtype:
            number = float(other.item())
            array = _ldexp(out, arrays[0], *_in_three(math.exp2(number))) if abs(number) <= _POWERS else None
            if array is not None:
                return wrap(array, CPU)
    return _ldexp_of_many(input, other, out=out)


def _in_three(number: float) -> list[float]:
    """Numbers of float32 whose sum is `number` exactly."""
    parts = []
    for _ in range(3):
        parts.append(float(np.float32(number)))
        number -= parts[-1]
    return parts


def in_steps(value: Tensor, step: Tensor, last: Tensor) -> Tensor | None:
    """value * step * step * step * last, of float64 and one element of the others."""
    if step._array.size != 1 or last._array.size != 1 or value._array.ndim < step._array.ndim:
        return None
    arrays = _arrays(value, step, last, kinds="f")
    if arrays is None or any([array.dtype != np.float64 for array in arrays]):
        return None
    array = _ldexp(None, arrays[0], step.item(), last.item(), 0.0)
    return None if array is None else wrap(array, CPU)


def nan_to_num(
    input: Tensor, nan: float = 0.0, posinf: float | None = None, neginf: float | None = None, *, out: Any = None
) -> Tensor | None:
    """NaN and infinities replaced."""
    if not isinstance(input, Tensor) or input._array.dtype.kind not in "fV":
        return None
    limits = dtypes.finfo(input.dtype)
    high, low = (limits.max if posinf is None else posinf), (limits.min if neginf is None else neginf)
    return _nan_to_num(out, (input,), nan, high, low)


def heaviside(input: Tensor, values: Tensor, *, out: Any = None) -> Tensor | None:
    """0 where input < 0 or NaN, 1 where input > 0, `values` where it is 0."""
    found = _heaviside(out, (input, values))
    return _heaviside_of_integers(input, values, out=out) if found is None else found


def clamp(input: Tensor, min: Any = None, max: Any = None, *, out: Any = None) -> Tensor | None:
    """Elements limited to [min, max]."""
    if out is None or (min is None and max is None) or type(input) is not Tensor or input._dev is not CPU:
        return None
    if out.dtype.kind in "iu":
        array = None if ACTIVE else limited_integers(out, min, max, out)
        return None if array is None else wrap(array, CPU)
    return _limit(out, (input,), -_INF if min is None else min, _INF if max is None else max)


def power(input: Tensor, exponent: Any, *, out: Any = None) -> Tensor | None:
    """input ** exponent for the few exponents that have a loop, in place."""
    arrays = None if out is None else _plain_arrays((input,))
    array = None if arrays is None else power_in_one_pass(arrays[0], exponent, out)
    return None if array is None else wrap(array, CPU)


_ALONE = ["exp", "exp2", "log", "log2", "log10", "sqrt", "rsqrt", "reciprocal", "floor", "ceil", "trunc"]
_ALONE += ["sin", "cos", "tan", "sinh", "cosh", "tanh", "frac"]

IN_PLACE: dict[str, Callable[..., Tensor | None]] = {
    **{name: _loops(name) for name in _ALONE},
    "clamp": clamp,
    "pow": power,
    "square": square,
    "sigmoid": activation("sigmoid"),
    "clip": clamp,
    "add": add,
    "sub": sub,
    "addcmul": addcmul,
    "addcdiv": addcdiv,
    "lerp": lerp,
    "nan_to_num": nan_to_num,
    "copysign": copysign,
    "heaviside": heaviside,
    "neg": neg,
    "abs": abs_,
    "relu": relu,
}
"""By the names of methods, those with a form in place."""
LOOPS = {**{name: name for name in [*_ALONE, "square"]}, "neg": "negative", "abs": "absolute", "relu": "relu"}
"""Those that are one loop over the elements of one tensor, with its name."""
