"""Whether operations are recorded: `no_grad`, `enable_grad`, `set_grad_enabled`, `inference_mode`; per thread."""

from __future__ import annotations

import functools
import inspect
import threading
from collections.abc import Callable, Generator
from typing import Any, TypeVar

import numpy as np

_F = TypeVar("_F", bound=Callable[..., Any])


class _Mode(threading.local):
    grad: bool = True  # operations are recorded
    inference: bool = False
    frame: Any = None  # the checkpoint that is running: told of each node, it decides whether the node keeps anything
    anomaly: bool = False  # nodes remember where they were made
    check_nan: bool = True  # and gradients are checked for NaN
    multithreading: bool = True  # what set_multithreading_enabled said


mode = _Mode()


class _Switch:
    """A context manager and decorator that sets the mode for a while; one object may be entered many times.

    Nothing is recorded in inference mode, whatever is asked for inside of it. A decorated generator has the mode
    whenever it runs, and its caller does not between.
    """

    def __init__(self, grad: bool, inference: bool | None = None) -> None:
        self._grad, self._inference = grad, inference
        self._before: list[tuple[bool, bool]] = []

    def __enter__(self) -> None:
        self._before.append((mode.grad, mode.inference))
        if self._inference is not None:
            mode.inference = self._inference
        mode.grad = self._grad and not mode.inference

    def __exit__(self, *exc: object) -> None:
        mode.grad, mode.inference = self._before.pop()

    def __call__(self, fn: _F) -> _F:
        @functools.wraps(fn)
        def wrapped(*args: Any, **kwargs: Any) -> Any:
            with _Switch(self._grad, self._inference):
                return fn(*args, **kwargs)

        @functools.wraps(fn)
        def generating(*args: Any, **kwargs: Any) -> Any:
            return (yield from _Resumed(fn(*args, **kwargs), _Switch(self._grad, self._inference)))

        return generating if inspect.isgeneratorfunction(fn) else wrapped  # type: ignore[return-value]


class _Resumed(Generator[Any, Any, Any]):
    """A generator whose every resumption is inside `switch`."""

    def __init__(self, inner: Generator[Any, Any, Any], switch: _Switch) -> None:
        self._inner, self._switch = inner, switch

    def send(self, value: Any) -> Any:
        with self._switch:
            return self._inner.send(value)

    def throw(self, *error: Any) -> Any:
        with self._switch:
            return self._inner.throw(*error)

    def close(self) -> None:
        with self._switch:
            self._inner.close()


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
        super().__init__(checked_flag("set_grad_enabled", "mode", mode))
        self._entered_before = _mode_now()
        _set(self._grad)

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
        self.mode = checked_flag("set_multithreading_enabled", "mode", mode)
        self._before = _multithreading(self.mode)

    def __enter__(self) -> None:
        pass

    def __exit__(self, *exc: object) -> None:
        _multithreading(self._before)


def _multithreading(enabled: bool) -> bool:
    before, mode.multithreading = mode.multithreading, enabled
    return before


def _mode_now() -> tuple[bool, bool]:
    return mode.grad, mode.inference


def _set(grad: bool) -> None:
    mode.grad = grad and not mode.inference


def checked_flag(where: str, name: str, value: Any) -> bool:
    """`value` as a bool. TypeError when it is none, as of Python or of numpy."""
    if isinstance(value, bool | np.bool_):
        return bool(value)
    raise TypeError(f"{where}(): argument '{name}' must be bool, not {type(value).__name__}")


def is_multithreading_enabled() -> bool:
    """What `set_multithreading_enabled` was told last in this thread."""
    return mode.multithreading


def is_grad_enabled() -> bool:
    """Whether operations of this thread are recorded."""
    return mode.grad


def is_inference_mode_enabled() -> bool:
    """Whether this thread is inside `inference_mode`."""
    return mode.inference
