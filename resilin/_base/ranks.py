"""Let lower floors reduce over ranks without knowing resilin.distributed, which registers itself here."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

_registered: list[tuple[Callable[[Any], tuple[int, int]], Callable[[Any, Any], None]]] = []


def register(place: Callable[[Any], tuple[int, int]], sum_in_place: Callable[[Any, Any], None]) -> None:
    """Take `place(group)`, this rank and the number of ranks, and `sum_in_place(tensor, group)`, which all ranks call
    together."""
    _registered[:] = [(place, sum_in_place)]


def place(group: Any = None) -> tuple[int, int]:
    """This rank in `group` (None: the default group) and the number of its ranks; (0, 1) when there is none."""
    return _registered[0][0](group) if _registered else (0, 1)


def size(group: Any = None) -> int:
    """Number of ranks of `group` (None: the default group); 1 when there is none."""
    return place(group)[1]


def sum_in_place(tensor: Any, group: Any = None) -> None:
    """Replace `tensor` by its elementwise sum over all ranks; only where `size` is larger than 1."""
    _registered[0][1](tensor, group)
