"""PyTorch's functions of lists of tensors: `_foreach_add(tensors, 1)`, `_foreach_mul_(tensors, others)`.

Each is the method of Tensor, called for one tensor after another, so that gradients, dtypes and errors are the
method's. What a tensor is combined with is one number for all, a list of numbers, a list of tensors, or where PyTorch
takes it a tensor of one number. Functions return a tuple, in-place forms the list that they were given.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from itertools import repeat
from typing import Any

from resilin.core.tensor import Tensor
from resilin.errors import UsageError, UsageTypeError

_UNARY = [
    "abs",
    "acos",
    "asin",
    "atan",
    "ceil",
    "cos",
    "cosh",
    "erf",
    "erfc",
    "exp",
    "expm1",
    "floor",
    "frac",
    "lgamma",
    "log",
    "log10",
    "log1p",
    "log2",
    "neg",
    "reciprocal",
    "round",
    "rsqrt",
    "sigmoid",
    "sign",
    "sin",
    "sinh",
    "sqrt",
    "tan",
    "tanh",
    "trunc",
]
_BINARY = {  # function -> (name of a number, of numbers, of tensors; whether one tensor will do)
    "add": ("scalar", "scalars", "other", True),
    "sub": ("scalar", "scalars", "other", False),
    "mul": ("scalar", "scalars", "other", True),
    "div": ("scalar", "scalars", "other", True),
    "pow": ("exponent", "exponent", "exponent", False),
    "clamp_max": ("scalar", "scalars", "other", False),
    "clamp_min": ("scalar", "scalars", "other", False),
    "maximum": ("scalar", "scalars", "other", False),
    "minimum": ("scalar", "scalars", "other", False),
}
_METHODS = {"maximum": "clamp_min", "minimum": "clamp_max"}  # these also take numbers, and are equal beside a tensor


def _listed(where: str, given: Any) -> Sequence[Tensor]:
    if not isinstance(given, list | tuple) or not all([issubclass(kind, Tensor) for kind in set(map(type, given))]):
        raise UsageTypeError(f"{where}(): expected a list or tuple of Tensors, got {type(given).__name__}")
    if not given:
        raise UsageError("Tensor list must have at least one tensor.")
    return given


def _beside(where: str, tensors: Sequence[Tensor], value: Any, one_tensor: bool = False) -> Sequence[Any]:
    """What stands beside each of `tensors`: `value` itself, or its elements."""
    if isinstance(value, list | tuple):
        if len(value) == len(tensors):
            return value
        if value and isinstance(value[0], Tensor):
            raise UsageError(
                f"Tensor lists must have the same number of tensors, got {len(tensors)} and {len(value)}: {where}()"
            )
        raise UsageError(
            f"Tensor list must have same number of elements as scalar list. {where}(): got {len(tensors)} tensors and "
            f"{len(value)} numbers"
        )
    if isinstance(value, Tensor):
        if value.dim():
            raise UsageError(
                f"scalar tensor expected to be 0 dim but it has {value.dim()} dimensions and {value.numel()} elements."
            )
        value = value if one_tensor else value.item()
    elif not isinstance(value, int | float | complex):
        raise UsageTypeError(f"{where}(): expected a number or a list, got {type(value).__name__}")
    return [value] * len(tensors)


def _one_of(where: str, value: Any, named: dict[str, Any], allowed: Sequence[str]) -> Any:
    """The argument that was given by place, or by one of the names that it may have."""
    wrong = [name for name in named if name not in allowed]
    if wrong or (value is not None) + len(named) != 1:
        expected = ", ".join(dict.fromkeys(allowed))
        got = ", ".join(wrong or named) or "none"
        raise UsageTypeError(f"{where}(): expected exactly one argument of {expected} beside the tensors, got {got}")
    return next(iter(named.values())) if named else value


def _method_of(tensors: Sequence[Tensor], name: str) -> Callable[..., Any]:
    """The method `name` of all these tensors as one function: mapping it over them takes no step of Python for each."""
    found = {getattr(kind, name) for kind in set(map(type, tensors))}
    return found.pop() if len(found) == 1 else lambda tensor, *args: getattr(tensor, name)(*args)


def _mapped(self: Any, in_place: bool, function: Callable[..., Any], *lists: Any) -> Any:
    """What the function makes of the elements of lists, the first of which was given as `self`."""
    if not in_place:
        return tuple(map(function, *lists))
    deque(map(function, *lists), maxlen=0)
    return self


def _unary(name: str) -> Callable[..., Any]:
    where, in_place = f"_foreach_{name}", name.endswith("_")

    def each(self: Any) -> Any:
        tensors = _listed(where, self)
        return _mapped(self, in_place, _method_of(tensors, name), tensors)

    return _documented(each, name)


def _binary(name: str, in_place: bool) -> Callable[..., Any]:
    *allowed, one_tensor = _BINARY[name]
    method = f"{name}_" if in_place else name
    where = f"_foreach_{method}"

    def each(self: Any, other: Any = None, *, alpha: Any = 1, **named: Any) -> Any:
        other = _one_of(where, other, named, allowed)
        if name == "pow" and not in_place and isinstance(self, int | float | complex):
            return tuple([self**exponent for exponent in _listed(where, other)])
        tensors = _listed(where, self)
        beside = _beside(where, tensors, other, one_tensor)
        options = {} if alpha == 1 else {"alpha": alpha}
        if options and name not in ("add", "sub"):
            raise UsageTypeError(f"{where}(): got an unexpected argument 'alpha'")
        if not options and name not in _METHODS:
            return _mapped(self, in_place, _method_of(tensors, method), tensors, beside)
        made = tuple([_method(x, method, value)(value, **options) for x, value in zip(tensors, beside, strict=True)])
        return self if in_place else made

    return _documented(each, method)


def _method(x: Tensor, method: str, value: Any) -> Any:
    bare = method.rstrip("_")
    if bare in _METHODS and not isinstance(value, Tensor):
        return getattr(x, _METHODS[bare] + method[len(bare) :])
    if bare in _METHODS and method != bare:  # Tensor has no maximum_
        return lambda other: x.copy_(getattr(x, bare)(other))
    return getattr(x, method)


def _scaled(name: str, in_place: bool) -> Callable[..., Any]:
    method = f"{name}_" if in_place else name
    where = f"_foreach_{method}"

    def each(self: Any, tensor1: Any, tensor2: Any, scalars: Any = None, *, value: Any = 1) -> Any:
        tensors = _listed(where, self)
        firsts, seconds = (_beside(where, tensors, list(_listed(where, one))) for one in (tensor1, tensor2))
        scales = value if scalars is None else scalars
        if isinstance(scales, Tensor):
            scales = scales.reshape(-1).tolist()
            if len(scales) != len(tensors):
                raise UsageError(
                    f"Expected length of scalars to match input of length {len(tensors)} but got {len(scales)} instead."
                )
        scales = _beside(where, tensors, scales)
        rows = zip(tensors, firsts, seconds, scales, strict=True)
        made = tuple([getattr(x, method)(a, b, value=scale) for x, a, b, scale in rows])
        return self if in_place else made

    return _documented(each, method)


def _lerp(in_place: bool) -> Callable[..., Any]:
    method = "lerp_" if in_place else "lerp"
    where = f"_foreach_{method}"

    def each(self: Any, tensors1: Any, weight: Any = None, **named: Any) -> Any:
        tensors = _listed(where, self)
        weights = _beside(where, tensors, _one_of(where, weight, named, ("weight", "weights")))
        ends = _beside(where, tensors, list(_listed(where, tensors1)))
        return _mapped(self, in_place, _method_of(tensors, method), tensors, ends, weights)

    return _documented(each, method)


def _documented(each: Callable[..., Any], method: str) -> Callable[..., Any]:
    each.__name__ = each.__qualname__ = f"_foreach_{method}"
    each.__doc__ = f"`Tensor.{method}` of each tensor of a list."
    return each


def _norm(self: Any, ord: Any = 2, dtype: Any = None) -> tuple[Tensor, ...]:
    tensors = _listed("_foreach_norm", self)
    for x in tensors:
        if not (x.is_floating_point() or x.is_complex()):
            raise UsageError(f"_foreach_norm(): expected floating point or complex tensors, got {x.dtype}")
        if not x.numel() and ord == float("inf"):
            raise UsageError("_foreach_norm(): an empty tensor has no infinity norm")
    if dtype is None:
        return tuple(map(_method_of(tensors, "norm"), tensors, repeat(ord)))
    return tuple([x.norm(ord, dtype=dtype) for x in tensors])


def _max(self: Any) -> tuple[Tensor, ...]:
    tensors = _listed("_foreach_max", self)
    return tuple(map(_method_of(tensors, "max"), tensors))


def _copy(self: Any, src: Any, non_blocking: bool = False) -> Any:
    tensors = _listed("_foreach_copy_", self)
    values = _beside("_foreach_copy_", tensors, list(_listed("_foreach_copy_", src)))
    return _mapped(self, True, _method_of(tensors, "copy_"), tensors, values, repeat(non_blocking))


FUNCTIONS: dict[str, Callable[..., Any]] = {}  # by name, e.g. "_foreach_add_"
for _made in (
    *[_unary(name + ending) for name in _UNARY for ending in ("", "_")],
    *[_binary(name, in_place) for name in _BINARY for in_place in (False, True)],
    *[_scaled(name, in_place) for name in ("addcmul", "addcdiv") for in_place in (False, True)],
    *[_lerp(False), _lerp(True), _unary("clone"), _unary("zero_")],
    *[_documented(_norm, "norm"), _documented(_max, "max"), _documented(_copy, "copy_")],
):
    FUNCTIONS[_made.__name__] = _made
globals().update(FUNCTIONS)
