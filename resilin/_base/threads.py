"""Threads with an owner: named, joined on close, and their error is raised to whoever closes them."""

from __future__ import annotations

import threading
from collections.abc import Callable


class OwnedThread:
    """Runs `target` in a named thread. `join()` waits for its end and raises the error it ended with, if any.

    `target` must return soon after its owner asks it to; how it is asked is the owner's business (an event, a closed
    socket). `on_error`, when given, is called in the thread with the error as soon as it happens.
    """

    def __init__(
        self, name: str, target: Callable[[], None], on_error: Callable[[BaseException], None] | None = None
    ) -> None:
        self.name = name
        self._target = target
        self._on_error = on_error
        self._error: BaseException | None = None
        # daemon: an interpreter that exits through an unhandled error must not wait for a blocked owner
        self._thread = threading.Thread(target=self._run, name=f"resilin-{name}", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            self._target()
        except BaseException as error:  # noqa: BLE001 - a thread's top: stored here, raised by join()
            self._error = error
            if self._on_error is not None:
                self._on_error(error)

    def is_alive(self) -> bool:
        """Whether the thread is still running."""
        return self._thread.is_alive()

    def join(self, timeout_s: float | None = 5.0) -> None:
        """Wait for the thread's end and re-raise its error. TimeoutError names the thread when it does not end."""
        if self._thread is not threading.current_thread():
            self._thread.join(timeout_s)
            if self._thread.is_alive():
                raise TimeoutError(f"thread {self.name!r} did not end within {timeout_s} s")
        error, self._error = self._error, None
        if error is not None:
            raise error
