"""Take records (dataclasses) apart into plain values for `object_codec`, and make them again of what arrived.

The schema is the dataclass: what each field is annotated with must be there, exactly; of unions it knows
X | None. A record may look at itself: `validate()` raises ValueError for numbers that no record of the kind has.
"""

from __future__ import annotations

import types
import typing
from collections.abc import Callable, Mapping
from dataclasses import fields, is_dataclass
from functools import cache
from typing import Any

from resilin._base.text import shown

_Convert = Callable[[Any], Any]


def plain(kind: Any, record: Any) -> Any:
    """`record`, of the type `kind`, as plain values: a tuple of its fields for a dataclass, wherever one is."""
    return _apart(kind)(record)


def record(kind: Any, value: Any) -> Any:
    """The record that `plain(kind, ...)` made `value` of. ValueError says which field is something else."""
    return _together(kind)(value)


@cache
def _apart(kind: Any) -> _Convert:
    inner = typing.get_args(kind)
    origin = typing.get_origin(kind)
    if is_dataclass(kind):
        hints = typing.get_type_hints(kind)
        parts = [(field.name, _apart(hints[field.name])) for field in fields(kind)]
        return lambda value: tuple([convert(getattr(value, name)) for name, convert in parts])
    if origin is tuple and inner[1:] == (...,):
        convert = _apart(inner[0])
        return tuple if convert is _same else lambda value: tuple(map(convert, value))
    if origin in _UNIONS:
        return _or_none(_apart, inner)
    if origin in _MAPPINGS:
        convert = _apart(inner[1])
        return dict if convert is _same else lambda value: {key: convert(one) for key, one in value.items()}
    return _same


@cache
def _together(kind: Any) -> _Convert:
    inner = typing.get_args(kind)
    origin = typing.get_origin(kind)
    if kind is Any:
        return _same
    if is_dataclass(kind):
        return _dataclass(kind)
    if origin is tuple:
        return _row(inner[0]) if inner[1:] == (...,) else _tuple(inner)
    if origin is frozenset:
        return _members(frozenset, inner[0])
    if origin in _MAPPINGS:
        return _mapping(*inner)
    if origin in _UNIONS:
        return _or_none(_together, inner)
    return _exactly(kind)


_MAPPINGS, _UNIONS = (dict, Mapping), (types.UnionType, typing.Union)


def _same(value: Any) -> Any:
    return value


def _or_none(make: Callable[[Any], _Convert], kinds: tuple[Any, ...]) -> _Convert:
    (convert,) = [make(kind) for kind in kinds if kind is not types.NoneType]
    return convert if convert is _same else lambda value: None if value is None else convert(value)


def _dataclass(kind: Any) -> _Convert:
    hints = typing.get_type_hints(kind)
    parts = [(field.name, _together(hints[field.name])) for field in fields(kind)]
    validate = getattr(kind, "validate", None)

    def convert(value: Any) -> Any:
        if type(value) is not tuple or len(value) != len(parts):
            raise ValueError(f"expected the {len(parts)} fields of a {kind.__name__}, got {shown(value)}")
        found = {}
        for (name, part), one in zip(parts, value, strict=True):
            try:
                found[name] = part(one)
            except ValueError as error:
                raise ValueError(f"{kind.__name__}.{name}: {error}") from None
        made = kind(**found)
        if validate is not None:
            validate(made)
        return made

    return convert


def _row(kind: Any) -> _Convert:
    convert = _together(kind)
    return lambda value: tuple(map(convert, _of(tuple, value)))


def _tuple(kinds: tuple[Any, ...]) -> _Convert:
    parts = [_together(kind) for kind in kinds]

    def convert(value: Any) -> Any:
        if len(_of(tuple, value)) != len(parts):
            raise ValueError(f"expected {len(parts)} values, got {shown(value)}")
        return tuple([part(one) for part, one in zip(parts, value, strict=True)])

    return convert


def _members(of: type, kind: Any) -> _Convert:
    convert = _together(kind)
    return lambda value: of(map(convert, _of(of, value)))


def _mapping(key: Any, kind: Any) -> _Convert:
    key_of, convert = _together(key), _together(kind)
    return lambda value: {key_of(name): convert(one) for name, one in _of(dict, value).items()}


def _exactly(kind: Any) -> _Convert:
    return lambda value: _of(kind, value)


def _of(kind: type, value: Any) -> Any:
    if type(value) is not kind:
        raise ValueError(f"expected {kind.__name__}, got {shown(value)}")
    return value
