"""Functions of several steps in one pass of native code, where nothing has to know the steps.

Each has the signature of the function that it is the short way of, and `out`, an array to write into. It answers None
where that function has to go step by step: where a graph or vmap follows it, and for all but contiguous floats of one
shape on the CPU. A step's rounding is the one it has by itself, so that the bits are those of the steps.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, TypeVar

import numpy as np

from resilin.core import dtype as dtypes
from resilin.core.batching.active import ACTIVE
from resilin.core.device import CPU
from resilin.core.kernels.loader import kernel
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
        arrays = _plain_arrays(tensors)
        array = None if arrays is None else native(out, *arrays, *numbers)
        return None if array is None else wrap(array, CPU)

    return run


_add_scaled, _addcmul, _addcdiv, _lerp = map(_kernel, ("add_scaled", "addcmul", "addcdiv", "lerp"))
_lerp_from_start, _lerp_from_end = _kernel("lerp_from_start"), _kernel("lerp_from_end")
_nan_to_num, _heaviside, _limit = map(_kernel, ("nan_to_num", "heaviside", "limit"))


def _loops(name: str) -> Callable[..., Tensor | None]:
    """The short way by loops over elements (`native/elementwise`), of all floating point dtypes and strides."""
    known = kernel("looped")(getattr(np, name, None), name, True)

    def run(input: Tensor, *others: Any, out: Any = None) -> Tensor | None:
        arrays = _plain_arrays((input, *others))
        if known is None or arrays is None or any([array.dtype.kind not in "fV" for array in arrays]):
            return None
        array = known(*arrays) if out is None else known(*arrays, out)
        return None if array is None else wrap(array, CPU)

    return run


def of_integers(name: str) -> Callable[[Any, Any], Tensor | None]:
    """The short way of a function of two tensors of integers or booleans, or of one and a number."""
    known = kernel("looped")(getattr(np, name), name, True)

    def run(input: Any, other: Any) -> Tensor | None:
        if known is None or ACTIVE or type(input) is not Tensor or input._dev is not CPU:
            return None
        x, y = input._array, other
        if type(other) is Tensor:
            y = other._array if other._dev is CPU else None
        elif type(other) is not int:
            return None
        if y is None or x.dtype.kind not in ("iu" if y is other else "biu"):
            return None
        array = known(x, y)
        return None if array is None else wrap(array, CPU)

    return run


fmax, fmin, frac, ldexp, copysign = map(_loops, ("fmax", "fmin", "frac", "ldexp", "copysign"))
neg, abs_, relu, without_nan = map(_loops, ("negative", "absolute", "relu", "without_nan"))


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
    return _heaviside(out, (input, values))


def clamp(input: Tensor, min: Any = None, max: Any = None, *, out: Any = None) -> Tensor | None:
    """Elements limited to [min, max]."""
    if out is None or (min is None and max is None):
        return None
    return _limit(out, (input,), -_INF if min is None else min, _INF if max is None else max)


_ALONE = ["exp", "exp2", "log", "log2", "log10", "sqrt", "rsqrt", "reciprocal", "square", "floor", "ceil", "trunc"]
_ALONE += ["sin", "cos", "tan", "sinh", "cosh", "tanh", "frac"]

IN_PLACE: dict[str, Callable[..., Tensor | None]] = {
    **{name: _loops(name) for name in _ALONE},
    "clamp": clamp,
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
LOOPS = {**{name: name for name in _ALONE}, "neg": "negative", "abs": "absolute", "relu": "relu"}
"""Those that are one loop over the elements of one tensor, with its name."""
