"""What programs tell torch.jit's compiler of their functions, and ask of it. No compiler looks at it here."""

from __future__ import annotations

import builtins
import types
import typing
from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar

_T = TypeVar("_T")


class Attribute(NamedTuple):
    """A value and the type that a compiler should take it for."""

    value: Any
    type: Any


def is_scripting() -> bool:
    """Return False: functions run as Python runs them."""
    return False


def is_tracing() -> bool:
    """Return False: nothing records what a function does."""
    return False


def ignore(drop: Any = False, **kwargs: Any) -> Any:
    """Give back the function, also as `@ignore()` and `@ignore(drop=True)`: a compiler would leave it to Python."""
    if callable(drop):
        return drop
    if not builtins.isinstance(drop, bool):
        raise RuntimeError(f"Argument to @torch.jit.ignore must be a bool or a function but got {drop}")
    return _unchanged


def _unchanged(fn: _T) -> _T:
    return fn


def unused(fn: _T) -> _T:
    """Give back the function: a compiler would replace it by an exception."""
    return fn


def export(fn: _T) -> _T:
    """Give back the method: a compiler would compile it, although `forward` may not call it."""
    return fn


def interface(obj: _T) -> _T:
    """Give back the class: for a compiler it would be the type of modules with these methods."""
    return obj


def script_method(fn: _T) -> _T:
    """Give back the method of a `ScriptModule`."""
    return fn


def script_if_tracing(fn: _T) -> _T:
    """Give back the function: it would be compiled while it is traced, and nothing is traced."""
    return fn


_script_if_tracing = script_if_tracing


def _overload(func: _T) -> _T:
    return func


def _overload_method(func: _T) -> _T:
    return func


def annotate(the_type: Any, the_value: _T) -> _T:
    """Return `the_value`, which a compiler would take for a `the_type`."""
    return the_value


def isinstance(obj: Any, target_type: Any) -> bool:
    """Return whether `obj` is of a type, or of one in a tuple of them; elements of containers are looked at, too.

    Knows `list[int]`, `dict[str, Tensor]`, `tuple[int, str]`, `Optional` and unions, in either spelling.
    """
    if builtins.isinstance(target_type, tuple):
        return any(isinstance(obj, one) for one in target_type)
    origin, wanted = typing.get_origin(target_type), typing.get_args(target_type)
    if origin is None:
        return builtins.isinstance(obj, type(None) if target_type is None else target_type)
    if origin in (typing.Union, types.UnionType):
        return any(isinstance(obj, one) for one in wanted)
    if origin not in _OF_CONTAINERS:
        raise RuntimeError(f"jit.isinstance: expected a class, list, dict, tuple, Optional or union, got {target_type}")
    return builtins.isinstance(obj, origin) and _OF_CONTAINERS[origin](obj, *wanted)


def _is_list(obj: list[Any], element: Any) -> bool:
    return all(isinstance(one, element) for one in obj)


def _is_dict(obj: dict[Any, Any], key: Any, value: Any) -> bool:
    return all(isinstance(a, key) and isinstance(b, value) for a, b in obj.items())


def _is_tuple(obj: tuple[Any, ...], *wanted: Any) -> bool:
    return len(obj) == len(wanted) and all(isinstance(a, b) for a, b in zip(obj, wanted, strict=True))


_OF_CONTAINERS: dict[Any, Callable[..., bool]] = {list: _is_list, dict: _is_dict, tuple: _is_tuple}
