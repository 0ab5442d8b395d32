"""The classes and functions that a program allows `load` to call, under torch.serialization's names.

`load(weights_only=True)` asks for them where a file holds an object of a class: `resilin/checkpoint/trusting.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

_Allowed = type | Callable[..., Any] | tuple[Any, str]
_NEVER = frozenset({"sys", "os", "posix", "nt"})  # modules of which nothing is allowed, as in PyTorch
_ROOTS = ("resilin", "torch")
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


def by_name() -> dict[str, Any]:
    """Return what is allowed by the full names that files have for it.

    A class of resilin's is also found under its place in PyTorch, by which it is shown where `as_torch` runs.
    ValueError or TypeError for a pair that is none.
    """
    found: dict[str, Any] = {}
    for one in _allowed:
        if isinstance(one, tuple):
            if len(one) != 2:
                raise ValueError(
                    f"Expected tuple of length 2 (global, str of callable full path), but got tuple of length: "
                    f"{len(one)}"
                )
            if type(one[1]) is not str:
                raise TypeError(f"Expected second item in tuple to be str of callable full path, but got: {one[1]!r}")
            found[one[1]] = one[0]
        else:
            name = f"{one.__module__}.{one.__qualname__}"
            found[name] = one
            root, _, rest = name.partition(".")
            if root in _ROOTS:
                found |= {f"{other}.{rest}": one for other in _ROOTS}
    return {name: one for name, one in found.items() if name.rpartition(".")[0] not in _NEVER}
