"""Callbacks of tensors and modules: where they are kept, and the handle that takes one away again."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


class Hooks:
    """Callbacks of a tensor: `pre` see (and may replace) a gradient, `post` run after a leaf accumulated one."""

    __slots__ = ("post", "pre")

    def __init__(self) -> None:
        self.pre: dict[int, Callable[[Any], Any]] = {}
        self.post: dict[int, Callable[[Any], Any]] = {}


class RemovableHandle:
    """Takes a registered hook away again: `handle.remove()`, or use it as a context manager."""

    _next_id = 0

    def __init__(self, hooks: dict[int, Any]) -> None:
        self._hooks = hooks
        self.id = RemovableHandle._next_id
        RemovableHandle._next_id += 1

    def remove(self) -> None:
        """Remove the hook; twice is harmless."""
        self._hooks.pop(self.id, None)

    def __enter__(self) -> RemovableHandle:
        return self

    def __exit__(self, *exc: object) -> None:
        self.remove()


RETAIN = -1  # the key of the hook of `retain_grad`, which stays the last: it keeps what all others made


def add_hook(hooks: dict[int, Any], fn: Callable[..., Any]) -> RemovableHandle:
    """Put `fn` at the end of `hooks`."""
    handle = RemovableHandle(hooks)
    hooks[handle.id] = fn
    if RETAIN in hooks:
        hooks[RETAIN] = hooks.pop(RETAIN)
    return handle
