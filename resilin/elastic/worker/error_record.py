"""Provide `record`, torch's decorator for a worker's main function. It is here for compatibility: `import resilin` does
the same for every exception that nobody catches (`_base/excepthook.py`)."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar, overload

from resilin._base import env, excepthook

_R = TypeVar("_R")


@overload
def record(fn: Callable[..., _R], error_handler: None = None) -> Callable[..., _R]: ...


@overload
def record(fn: None = None, error_handler: None = None) -> Callable[[Callable[..., _R]], Callable[..., _R]]: ...


def record(fn: Callable[..., Any] | None = None, error_handler: None = None) -> Any:
    """Have what `fn` raises in the launcher's report; it is raised all the same.

    Also used as `@record()`. error_handler: only None, the handlers of torch write the file that this one writes.
    """
    if error_handler is not None:
        raise TypeError(f"record: error_handler: only None is taken, got {error_handler!r}")
    if fn is None:
        return record

    @functools.wraps(fn)
    def recorded(*args: Any, **kwargs: Any) -> Any:
        try:
            return fn(*args, **kwargs)
        except Exception as error:
            if path := env.get("TORCHELASTIC_ERROR_FILE"):
                with contextlib.suppress(OSError):  # the exception itself matters more, and is raised below
                    excepthook.write(Path(path), error)
            raise

    return recorded
