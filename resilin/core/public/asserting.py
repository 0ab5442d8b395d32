"""Checks that programs call by PyTorch's names, and the names of objects' types."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from resilin.core import dtype as dtypes
from resilin.core.public import dispatch
from resilin.core.tensor import Tensor


def typename(obj: Any, /) -> str:
    """The type of a tensor as `Tensor.type` has it, else the full name of a class or function, or of the value's."""
    if isinstance(obj, Tensor):
        return str(obj.type())
    named = obj if hasattr(obj, "__qualname__") or hasattr(obj, "__name__") else type(obj)
    module = getattr(named, "__module__", "") or ""
    name = getattr(named, "__qualname__", None) or named.__name__
    return name if module in ("", "builtins") else f"{module}.{name}"


def _assert(condition: Any, message: Any) -> None:
    """AssertionError with `message` unless `condition` is true. A class or mode may take the call over."""
    found = dispatch.overriding((condition,)) if dispatch.enabled() else []
    if found:
        dispatch.offer(_assert, found, (condition, message), {})
    elif not condition:
        raise AssertionError(message)


def _check_with(error_type: type[BaseException], cond: Any, message: Callable[[], Any] | None = None) -> None:
    """Raise `error_type` with what `message()` gives unless `cond`, a bool, is True."""
    if not isinstance(cond, bool):
        hint = "; _check_tensor_all() takes tensors" if isinstance(cond, Tensor) else ""
        raise TypeError(f"cond must be a bool, but got {type(cond)}{hint}")
    if not cond:
        raise error_type(_text(message))


def _text(message: Callable[[], Any] | None) -> str:
    if message is None:
        return "Expected cond to be True, but got False."
    if not callable(message):
        raise TypeError("message must be a callable")
    return str(message())


def _check(cond: Any, message: Callable[[], Any] | None = None) -> None:
    """RuntimeError unless `cond` is True."""
    _check_with(RuntimeError, cond, message)


def _check_index(cond: Any, message: Callable[[], Any] | None = None) -> None:
    """IndexError unless `cond` is True."""
    _check_with(IndexError, cond, message)


def _check_value(cond: Any, message: Callable[[], Any] | None = None) -> None:
    """ValueError unless `cond` is True."""
    _check_with(ValueError, cond, message)


def _check_type(cond: Any, message: Callable[[], Any] | None = None) -> None:
    """TypeError unless `cond` is True."""
    _check_with(TypeError, cond, message)


def _check_not_implemented(cond: Any, message: Callable[[], Any] | None = None) -> None:
    """NotImplementedError unless `cond` is True."""
    _check_with(NotImplementedError, cond, message)


def _check_is_size(i: int, message: Callable[[], Any] | None = None, *, max: int | None = None) -> None:
    """RuntimeError unless `i` is a length: not negative, and at most `max`."""
    _check(i >= 0, message)
    if max is not None:
        _check(i <= max, message)


def _check_tensor_all_with(error_type: type[BaseException], cond: Any, message: Any = None) -> None:
    """Raise `error_type` unless all elements of `cond`, a tensor of bools, are true."""
    if not isinstance(cond, Tensor):
        raise TypeError(f"cond must be a tensor, but got {type(cond)}")
    if cond.dtype is not dtypes.bool_:
        raise TypeError(f"cond tensor must have dtype {dtypes.bool_}, but got {cond.dtype}")
    _check_with(error_type, bool(cond.all().item()), message)


def _check_tensor_all(cond: Any, message: Callable[[], Any] | None = None) -> None:
    """RuntimeError unless all elements of `cond` are true."""
    _check_tensor_all_with(RuntimeError, cond, message)
