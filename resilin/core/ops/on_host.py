"""Ops that a device's library has no functions for: computed on the host, their arrays copied there and back.

An op says so where it is declared (`host="why"`); `docs/gpu.md` lists them. On the CPU nothing changes.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

Function = Callable[..., Any]


def on_host(forward: Function, name: str) -> Function:
    """`forward(xp, *args)` of op `name`, run with the host's namespace on copies of the arguments' arrays.

    A function of the same name in the device's `xp.special` is taken instead.
    """

    def run(xp: Any, *args: Any) -> Any:
        host = getattr(xp, "host", xp)
        if host is xp:
            return forward(xp, *args)
        own = xp.special.get(name)
        if own is not None:
            return own(*args).astype(args[0].dtype, copy=False)
        return xp.from_host(forward(host, *xp.to_host(args)))

    return run
