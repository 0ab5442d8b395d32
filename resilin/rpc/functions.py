"""Mark functions whose result comes later."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from resilin.errors import UsageTypeError

MARK = "_wrapped_async_rpc_function"


def async_execution(fn: Callable[..., Any]) -> Callable[..., Any]:
    """Let a remote call of `fn` end when the Future that it returns is done: no thread of the callee waits for it.

    `fn` returns a `resilin.futures.Future`; anything else is an error at the caller. Static and class methods may be
    decorated in any order, and called through proxies of an RRef. Called here, `fn` returns its Future.
    """
    if isinstance(fn, staticmethod | classmethod):
        return type(fn)(async_execution(fn.__func__))
    if not callable(fn):
        raise UsageTypeError(f"async_execution: expected a function, got {fn!r:.80}")

    @functools.wraps(fn)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        return fn(*args, **kwargs)

    setattr(wrapper, MARK, fn)
    return wrapper


def is_async(fn: Any) -> bool:
    """Return whether `async_execution` has marked `fn`."""
    return hasattr(fn, MARK)
