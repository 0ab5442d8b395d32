"""The options of an optimizer's groups, and names for its parameters, as ranks compare them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import zip_longest
from typing import Any

import numpy as np

from resilin.core.tensor import Tensor

NOT_OPTIONS = ("params", "param_names")
_PLAIN = frozenset({bool, int, float, str, type(None)})
_UNKNOWN = object()


def options_of(group: Mapping[str, Any]) -> dict[str, Any]:
    """A group without its parameters and their names."""
    return {name: value for name, value in group.items() if name not in NOT_OPTIONS}


def plain_options(group: Mapping[str, Any]) -> dict[str, Any]:
    """The options of a group that are plain values or lists of these, as facts are; numbers in the place of tensors."""
    found = {}
    for name, value in group.items():
        if type(value) in _PLAIN:
            found[name] = value
        elif name not in NOT_OPTIONS and (plain := _plain(value)) is not _UNKNOWN:
            found[name] = plain
    return found


def _plain(value: Any) -> Any:
    if isinstance(value, Tensor | np.generic):
        value = value.tolist()
    if isinstance(value, list | tuple):
        found = [_plain(each) for each in value]
        return _UNKNOWN if any(each is _UNKNOWN for each in found) else found
    return value if type(value) in _PLAIN else _UNKNOWN


def parameter_names(groups: Sequence[Mapping[str, Any]], first: int = 0) -> list[str]:
    """What messages call the parameters of the groups from `first` on: "parameter 3 (group 1, fc.weight)"."""
    found, number = [], sum(len(group["params"]) for group in groups[:first])
    for index, group in enumerate(groups[first:], first):
        for name, _ in zip_longest(group.get("param_names", ()), group["params"]):
            found.append(f"parameter {number} (group {index}{'' if name is None else f', {name}'})")
            number += 1
    return found
