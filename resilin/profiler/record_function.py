"""Names of the user's own in the trace."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, TypeVar

from resilin._base import trace

Called = TypeVar("Called", bound=Callable[..., Any])


class record_function:
    """Mark the enclosed block, or each call of the decorated function, as `name` in the trace.

    args: a text that is shown with it. Costs a comparison while nothing is recorded. One object may be entered again
    within itself, and by several threads through a decorated function. Raises TypeError for what is no text.
    """

    def __init__(self, name: str, args: str | None = None) -> None:
        if not isinstance(name, str) or not (args is None or isinstance(args, str)):  # also while nothing is recorded
            raise TypeError(f"record_function: expected a str as name, and one or None as args, got {name!r}, {args!r}")
        self.name = name
        self.args = args
        self.run_callbacks_on_exit = True
        """Whether leaving the block ends the span; not after `_call_end_callbacks_on_future`."""
        self._open: list[tuple[trace.SpanRecorder, int] | None] = []

    def __enter__(self) -> record_function:
        recorder = trace.recorder
        if recorder is None:
            self._open.append(None)
        else:
            args = None if self.args is None else {"args": self.args}
            kind = trace.SpanKind.STEP if self.name.startswith("ProfilerStep#") else trace.SpanKind.USER
            self._open.append((recorder, recorder.begin(self.name, kind, -1, args)))
        return self

    def __exit__(self, *exc: object) -> None:
        if self.run_callbacks_on_exit:
            _end(self._open.pop())

    def __call__(self, function: Called) -> Called:
        """Return `function`, each of whose calls is marked."""

        @functools.wraps(function)
        def marked(*args: Any, **kwargs: Any) -> Any:
            with record_function(self.name, self.args):  # its own for each call: calls nest, and run in threads
                return function(*args, **kwargs)

        return marked  # type: ignore[return-value]

    def _call_end_callbacks_on_future(self, fut: Any) -> Any:
        """Let the span end when `fut` is done, not with the block; return a future of the same value.

        RuntimeError the second time.
        """
        if not self.run_callbacks_on_exit:
            raise RuntimeError("_call_end_callbacks_on_future can only be called once.")
        self.run_callbacks_on_exit = False
        opened = self._open.pop()

        def finish(done: Any) -> Any:
            _end(opened)
            return done.value()

        return fut.then(finish)


def _end(opened: tuple[trace.SpanRecorder, int] | None) -> None:
    if opened is not None:
        recorder, token = opened
        recorder.end(token)
