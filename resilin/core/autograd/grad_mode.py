"""Whether operations are recorded: `no_grad`, `enable_grad`, `set_grad_enabled`, `inference_mode`; per thread."""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable
from typing import Any, TypeVar

_F = TypeVar("_F", bound=Callable[..., Any])


class _Mode(threading.local):
    grad: bool = True  # operations are recorded
    inference: bool = False
    frame: Any = None  # the checkpoint that is running: told of each node, it decides whether the node keeps anything
    anomaly: bool = False  # nodes remember where they were made
    check_nan: bool = True  # and gradients are checked for NaN


mode = _Mode()


class _Switch:
    """A context manager and decorator that sets the mode for a while; one object may be entered many times."""

    def __init__(self, grad: bool, inference: bool | None = None) -> None:
        self._grad, self._inference = grad, inference
        self._before: list[tuple[bool, bool]] = []

    def __enter__(self) -> None:
        self._before.append((mode.grad, mode.inference))
        mode.grad = self._grad
        if self._inference is not None:
            mode.inference = self._inference

    def __exit__(self, *exc: object) -> None:
        mode.grad, mode.inference = self._before.pop()

    def __call__(self, fn: _F) -> _F:
        @functools.wraps(fn)
        def wrapped(*args: Any, **kwargs: Any) -> Any:
            with _Switch(self._grad, self._inference):
                return fn(*args, **kwargs)

        return wrapped  # type: ignore[return-value]


class no_grad(_Switch):
    """Inside, nothing is recorded. `with no_grad():`, `@no_grad()` or `@no_grad`."""

    def __new__(cls, fn: Any = None) -> Any:
        return object.__new__(cls) if fn is None else _Switch(False)(fn)

    def __init__(self, fn: Any = None) -> None:
        super().__init__(False)


class enable_grad(_Switch):
    """Inside, operations are recorded, also within `no_grad`."""

    def __new__(cls, fn: Any = None) -> Any:
        return object.__new__(cls) if fn is None else _Switch(True)(fn)

    def __init__(self, fn: Any = None) -> None:
        super().__init__(True)


class inference_mode(_Switch):
    """`no_grad` whose views are not tracked either, and whose tensors stay outside of graphs for good: backward cannot
    save them, and outside of this mode they cannot be changed in place. `with inference_mode():` or
    `@inference_mode()`."""

    def __new__(cls, mode: Any = True) -> Any:
        return _Switch(False, True)(mode) if callable(mode) else object.__new__(cls)

    def __init__(self, mode: bool = True) -> None:
        super().__init__(not mode, mode)


class set_grad_enabled(_Switch):
    """Switch recording on or off at once; as a context manager, until its end."""

    def __init__(self, mode: bool) -> None:
        super().__init__(bool(mode))
        self._entered_before = _mode_now()
        _set(bool(mode))

    def __enter__(self) -> None:
        self._before.append(self._entered_before)
        _set(self._grad)

    def __call__(self, fn: _F) -> _F:
        _set(self._entered_before[0])  # used as a decorator: nothing changes now
        return super().__call__(fn)


class set_multithreading_enabled:
    """Accepted as in PyTorch. A backward runs in the thread that calls it, whatever `mode` says, and its kernels use
    the library's threads."""

    def __init__(self, mode: bool) -> None:
        self.mode = bool(mode)

    def __enter__(self) -> None:
        pass

    def __exit__(self, *exc: object) -> None:
        pass


def _mode_now() -> tuple[bool, bool]:
    return mode.grad, mode.inference


def _set(grad: bool) -> None:
    mode.grad = grad


def is_grad_enabled() -> bool:
    """Whether operations of this thread are recorded."""
    return mode.grad


def is_inference_mode_enabled() -> bool:
    """Whether this thread is inside `inference_mode`."""
    return mode.inference
