"""Make the dataclass of a record or message from what JSON held, or say which field does not fit. Pure."""

from __future__ import annotations

import math
import types
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from functools import cache
from typing import Any, ClassVar, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

_T = TypeVar("_T")
_MOST = 1 << 63  # of an integer: no count, number of a process or of a revision is larger
_SHOWN = 80  # characters of what was got


class Misfit(ValueError):
    """Say what was expected of which field, and what was got."""


def build(cls: type[_T], body: object) -> _T:
    """An instance of a dataclass from the object with its fields; those with a default may be left out. Or Misfit."""
    made: Any = cls
    result: _T = made(**_fields(made, body, _required(made)))
    return result


def check_some(cls: type, body: object) -> None:
    """Misfit unless `body` is an object that has some fields of a dataclass, and nothing else."""
    _fields(cls, body, frozenset())


def _fields(cls: Any, body: object, required: frozenset[str]) -> dict[str, Any]:
    hints = _hints(cls)
    if not isinstance(body, dict):
        raise Misfit(f"{cls.__name__}: expected an object, got {_show(body)}")
    if required - body.keys() or body.keys() - hints.keys():
        got = ", ".join(map(str, body)) or "none"
        raise Misfit(f"{cls.__name__}: expected the fields {', '.join(hints)}, got {_cut(got)}")
    return {name: convert(f"{cls.__name__}.{name}", hints[name], value) for name, value in body.items()}


def check(instance: Any) -> None:
    """Misfit unless each field of a dataclass holds what is declared of it."""
    kind: Any = type(instance)
    for name, hint in _hints(kind).items():
        convert(f"{kind.__name__}.{name}", hint, getattr(instance, name))


def convert(where: str, hint: Any, value: Any) -> Any:
    """`value` as what `hint` says: lists become tuples, objects dataclasses. Misfit says `where`."""
    origin = get_origin(hint)
    if hint is Any:
        return value
    if origin is tuple:
        return _tuple(where, get_args(hint), value)
    if origin in (Union, types.UnionType):
        choices = [each for each in get_args(hint) if each is not type(None)]
        return None if value is None and len(choices) < len(get_args(hint)) else convert(where, choices[0], value)
    if origin is Literal:
        if not isinstance(value, str) or value not in get_args(hint):
            raise Misfit(f"{where}: expected one of {', '.join(map(repr, get_args(hint)))}, got {_show(value)}")
        return value
    if is_dataclass(hint):
        cls: Any = hint
        return value if isinstance(value, cls) else build(cls, value)
    expected = dict if origin is not None and issubclass(origin, Mapping) else hint
    accepted = (float, int) if expected is float else expected
    if not isinstance(value, accepted) or (isinstance(value, bool) and expected is not bool) or not _is_sane(value):
        raise Misfit(f"{where}: expected {getattr(hint, '__name__', hint)}, got {_show(value)}")
    return value


def _tuple(where: str, items: tuple[Any, ...], value: Any) -> tuple[Any, ...]:
    if not isinstance(value, (list, tuple)):
        raise Misfit(f"{where}: expected a list, got {_show(value)}")
    if items[-1] is Ellipsis:
        return tuple(convert(where, items[0], each) for each in value)
    if len(value) != len(items):
        raise Misfit(f"{where}: expected {len(items)} values, got {_show(value)}")
    return tuple(convert(where, item, each) for item, each in zip(items, value, strict=True))


def _is_sane(value: Any) -> bool:
    """Whether a number can be reckoned with, and a text can be written."""
    if isinstance(value, str):
        return value.isascii() or not any("\ud800" <= char <= "\udfff" for char in value)
    if isinstance(value, float):
        return math.isfinite(value)
    return not isinstance(value, int) or -_MOST <= value < _MOST


@cache
def _hints(cls: Any) -> dict[str, Any]:
    """Field name -> type; worked out when one of this class first arrives (it costs half a millisecond)."""
    return {name: hint for name, hint in get_type_hints(cls).items() if get_origin(hint) is not ClassVar}


@cache
def _required(cls: Any) -> frozenset[str]:
    return frozenset(f.name for f in fields(cls) if f.default is f.default_factory)  # both MISSING


def _show(value: object) -> str:
    return _cut(repr(value))


def _cut(text: str) -> str:
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}..."
