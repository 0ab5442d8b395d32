"""Functions that a device's library has not: their tensors are copied to the CPU, and the results back.

They compute with numpy, whose floating point warnings are off meanwhile. Gradients follow, because the copies are
recorded. What is done this way is listed in docs/gpu.md.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar, cast

from resilin.core.device import CPU, device, different_devices
from resilin.core.kernels.loader import guarded
from resilin.core.ops.errstate import quietly
from resilin.core.ops.transfer import move
from resilin.core.tensor import Tensor

_P = ParamSpec("_P")
_R = TypeVar("_R")

FUNCTIONS: list[str] = []  # names of all functions that are decorated, for the documentation and its test


def through_host(function: Callable[_P, _R]) -> Callable[_P, _R]:
    """Run `function` on the CPU for tensors of a device whose library is not numpy. RuntimeError for mixed devices."""
    FUNCTIONS.append(function.__name__)
    quiet = quietly(function)

    @functools.wraps(function)
    def run(*args: _P.args, **kwargs: _P.kwargs) -> _R:
        home = _home(function.__name__, (*args, *kwargs.values()))
        if home is None:
            return quiet(*args, **kwargs)
        given = [_moved(value, CPU) for value in args]
        named = {name: _moved(value, CPU) for name, value in kwargs.items()}
        return cast(_R, _moved(quiet(*given, **named), home))

    return guarded(quiet, run, "on_host")


def _home(name: str, values: tuple[Any, ...]) -> device | None:
    """The device of the tensors, None where numpy computes on it."""
    home: device | None = None
    for value in values:
        if isinstance(value, Tensor) and getattr(value._dev.xp, "host", value._dev.xp) is not value._dev.xp:
            home = value._dev
    if home is not None:
        for value in values:
            if isinstance(value, Tensor) and value._dev is not home:
                raise different_devices(name, home, value._dev)
    return home


def _moved(value: Any, target: device) -> Any:
    if isinstance(value, Tensor):
        return move(value, target)
    if isinstance(value, tuple):
        parts = [_moved(part, target) for part in value]
        return type(value)(*parts) if hasattr(value, "_fields") else type(value)(parts)
    return [_moved(part, target) for part in value] if isinstance(value, list) else value
