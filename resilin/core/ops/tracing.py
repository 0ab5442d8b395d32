"""Operations as spans of a trace: who records is told to native code, and what has no call there is wrapped here."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, TypeVar, cast

from resilin._base import trace
from resilin.core.kernels.loader import native

Called = TypeVar("Called", bound=Callable[..., Any])


def traced(call: Callable[..., Any], name: str, plain: Callable[..., Any] | None = None) -> Callable[..., Any]:
    """Return a function that does what `call` does, and is a span `name` while somebody records.

    plain: does the same where no keywords are given, quicker.
    """
    if native is not None:
        return functools.update_wrapper(native.traced_call(call, name, plain), call)

    @functools.wraps(call)
    def run(*args: Any, **kwargs: Any) -> Any:
        recorder = trace.recorder
        if recorder is None:
            return call(*args, **kwargs)
        token = recorder.begin(name, trace.SpanKind.OP)
        try:
            return call(*args, **kwargs)
        finally:
            recorder.end(token)

    return run


def named(name: str) -> Callable[[Called], Called]:
    """Return a decorator: what it decorates is a span `name` while somebody records."""

    def decorate(call: Called) -> Called:
        return cast(Called, traced(call, name))

    return decorate


if native is not None:
    trace.on_change(native.record_operations)
