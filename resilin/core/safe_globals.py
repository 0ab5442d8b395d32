"""The classes that a program allows `load` to make objects of, under torch.serialization's names.

resilin's own format holds no objects of classes, so that the list changes nothing for its files.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

_Allowed = type | Callable[..., Any] | tuple[Any, str]
_allowed: list[_Allowed] = []


def add_safe_globals(safe_globals: Sequence[_Allowed]) -> None:
    """Allow classes and functions, or pairs of one and the full name by which files know it."""
    _allowed.extend(one for one in safe_globals if one not in _allowed)


def get_safe_globals() -> list[_Allowed]:
    """Return what is allowed."""
    return list(_allowed)


def clear_safe_globals() -> None:
    """Allow nothing any more."""
    _allowed.clear()


class safe_globals:
    """Allow classes and functions in a block."""

    def __init__(self, safe_globals: Sequence[_Allowed]) -> None:
        self.safe_globals = safe_globals
        self._before: list[_Allowed] = []

    def __enter__(self) -> None:
        self._before = get_safe_globals()
        add_safe_globals(self.safe_globals)

    def __exit__(self, *exc: object) -> None:
        _allowed[:] = self._before
