"""Lets lower floors reduce over the ranks of a process group without knowing resilin.dist: it registers itself here."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

_registered: list[tuple[Callable[[Any], int], Callable[[Any, Any], None]]] = []


def register(size: Callable[[Any], int], sum_in_place: Callable[[Any, Any], None]) -> None:
    """Take `size(group)`, the number of ranks, and `sum_in_place(tensor, group)`, which all ranks call together."""
    _registered[:] = [(size, sum_in_place)]


def size(group: Any = None) -> int:
    """Number of ranks of `group` (None: the default group); 1 when there is none."""
    return _registered[0][0](group) if _registered else 1


def sum_in_place(tensor: Any, group: Any = None) -> None:
    """Replace `tensor` by its elementwise sum over all ranks; only where `size` is larger than 1."""
    _registered[0][1](tensor, group)
