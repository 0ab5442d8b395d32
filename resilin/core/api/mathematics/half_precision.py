"""Functions of several steps on 16-bit floats: computed in float32 from their arguments, rounded once at the end.

One op does so by itself (`ops/errstate.py`); what is made of several would round in between, and overflow there.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, TypeVar

from resilin.core.kernels.loader import guarded
from resilin.core.ops import shape as shape_ops
from resilin.core.ops.errstate import FLOAT32, is_half
from resilin.core.tensor import Tensor

_F = TypeVar("_F", bound=Callable[..., Any])


def rounded_once(function: _F) -> _F:
    """`function`, given float32 for every tensor of 16-bit floats; what it gives is rounded to their dtype.

    Only where all floats are of one such dtype (but numbers that are tensors): others promote as they do.
    """

    @functools.wraps(function)
    def run(*args: Any, **kwargs: Any) -> Any:
        for value in args:
            if isinstance(value, Tensor) and is_half(value._array):
                return _in_float32(function, args, kwargs)
        for value in kwargs.values():
            if isinstance(value, Tensor) and is_half(value._array):
                return _in_float32(function, args, kwargs)
        return function(*args, **kwargs)

    return guarded(function, run, "without_halves")  # type: ignore[return-value]


def _in_float32(function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    *given, narrow = opened(*args, *kwargs.values())
    names = dict(zip(kwargs, given[len(args) :], strict=True))
    return narrow(function(*given[: len(args)], **names))


def opened(*values: Any) -> tuple[Any, ...]:
    """`values` with float32 for 16-bit floats, as in `rounded_once`, and a function that rounds what is made of them.

    For functions that do more with their arguments: warn about them, write them.
    """
    for value in values:
        if isinstance(value, Tensor) and is_half(value._array):
            target = _common([value for value in values if isinstance(value, Tensor)])
            if target is not None:
                return (*map(_wide, values), functools.partial(_rounded, target))
    return (*values, _same)


def _same(value: Any) -> Any:
    return value


def _wide(value: Any) -> Any:
    return shape_ops.astype.call(value, FLOAT32) if isinstance(value, Tensor) and is_half(value._array) else value


def _common(tensors: list[Tensor]) -> Any:
    """The 16-bit dtype of all floats among `tensors`, or None. Those without dimensions count where all are such."""
    arrays = [value._array for value in tensors if value._array.dtype.kind in "fVc"]
    counting = [array for array in arrays if array.ndim] or arrays
    first = counting[0]
    return first.dtype if is_half(first) and all(array.dtype is first.dtype for array in counting) else None


def _rounded(target: Any, value: Any) -> Any:
    if isinstance(value, Tensor) and value._array.dtype is FLOAT32:
        return shape_ops.astype.call(value, target)
    return value
