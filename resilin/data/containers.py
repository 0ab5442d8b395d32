"""Containers of samples rebuilt with other contents, in their own type where that type allows it."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, MutableMapping, MutableSequence, Sequence
from typing import Any


def map_structure(function: Callable[[Any], Any], data: Any) -> Any:
    """`data` with `function` applied to each part, where it is a mapping, a tuple or another sequence; else `data`.

    Strings and bytes are no containers here.
    """
    if isinstance(data, str | bytes):
        return data
    if isinstance(data, Mapping):
        return like_mapping(data, {key: function(value) for key, value in data.items()})
    if isinstance(data, Sequence):
        return like_sequence(data, [function(value) for value in data])
    return data


def like_mapping(mapping: Mapping[Any, Any], items: dict[Any, Any]) -> Any:
    """`items` as a mapping of the same type, extra attributes included; a dict where that type cannot be built so."""
    if type(mapping) is dict:
        return items
    try:
        if isinstance(mapping, MutableMapping):
            made = copy.copy(mapping)
            made.update(items)
            return made
        return type(mapping)(items)  # type: ignore[call-arg]
    except TypeError:
        return items


def like_sequence(sequence: Sequence[Any], items: list[Any]) -> Any:
    """`items` as a sequence of the same type, fields and extra attributes included; a list where that cannot be."""
    if type(sequence) is list:
        return items
    try:
        if isinstance(sequence, tuple) and hasattr(sequence, "_fields"):
            return type(sequence)(*items)
        if isinstance(sequence, MutableSequence):
            made = copy.copy(sequence)
            for place, item in enumerate(items):
                made[place] = item
            return made
        return type(sequence)(items)  # type: ignore[call-arg]
    except TypeError:
        return items
