"""Name functions by where they are: what a call sends instead of code."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable
from typing import Any

from resilin.errors import RpcError
from resilin.rpc import functions

_MOST = 1 << 16  # cached names: what a program has beyond that is named anew at each call

_NAMES: dict[int, tuple[Any, bytes]] = {}  # id -> the function, which keeps the id its own, and its name
_FOUND: dict[bytes, tuple[Callable[..., Any], bool]] = {}


def name_of(function: Any) -> bytes | None:
    """Return `module:qualified.name`, by which another worker finds `function`; None where it is found by none."""
    known = _NAMES.get(id(function))
    if known is not None:
        return known[1]
    name = _new_name(function)
    if name is not None and len(_NAMES) < _MOST:
        _NAMES[id(function)] = function, name
    return name


def _new_name(function: Any) -> bytes | None:
    module, path = getattr(function, "__module__", None), getattr(function, "__qualname__", None)
    if type(module) is not str or type(path) is not str or "<" in path or module not in sys.modules:
        return None
    place: Any = sys.modules[module]
    for step in path.split("."):
        place = getattr(place, step, None)
    return f"{module}:{path}".encode() if place is function else None


def shown(function: Any) -> bytes:
    """Return a name for people and statistics of a function that has none."""
    inner = getattr(function, "func", function)
    return str(getattr(inner, "__qualname__", None) or type(inner).__qualname__).encode()


def find(name: bytes) -> tuple[Callable[..., Any], bool]:
    """Return the function called `name`, and whether `async_execution` marked it. RpcError where there is none."""
    found = _FOUND.get(name)
    if found is None:
        module, _, path = name.decode().partition(":")
        try:
            place: Any = importlib.import_module(module)  # which waits where another thread is at it
            for step in path.split("."):
                place = getattr(place, step)
        except (ImportError, AttributeError) as error:
            raise RpcError(
                f"{error}. Default RPC pickler does not serialize function code. Ensure that UDFs are defined on both "
                f"caller and callee modules: {path} of module {module} is not there at the callee."
            ) from error
        if not callable(place):
            raise RpcError(f"{name.decode()} is no function at the callee but {place!r:.80}")
        found = place, functions.is_async(place)
        if len(_FOUND) < _MOST:
            _FOUND[name] = found
    return found
