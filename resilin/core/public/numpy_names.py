"""numpy's names of arguments: as PyTorch's functions do, these take `axis` for `dim` and `keepdims` for `keepdim`."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

_NAMES = {"axis": "dim", "keepdims": "keepdim"}
_VARIADIC = 8  # the flag of code that takes **names


def also_numpys(function: Callable[..., Any]) -> Callable[..., Any]:
    """`function`, where it has an argument `dim`, so that it takes numpy's names, too; others as they are.

    TypeError when both names of one argument are given.
    """
    code = getattr(function, "__code__", None) or getattr(getattr(function, "__wrapped__", None), "__code__", None)
    if code is None:
        return function
    names = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]
    if "dim" not in names or "axis" in names or code.co_flags & _VARIADIC:
        return function

    @functools.wraps(function)
    def call(*args: Any, **named: Any) -> Any:
        if named and ("axis" in named or "keepdims" in named):
            named = _renamed(function.__name__, named)
        return function(*args, **named)

    return call


def _renamed(where: str, named: dict[str, Any]) -> dict[str, Any]:
    for theirs, ours in _NAMES.items():
        if theirs in named:
            if ours in named:
                raise TypeError(f"{where}() got both {ours!r} and {theirs!r}, which are one argument")
            named[ours] = named.pop(theirs)
    return named
