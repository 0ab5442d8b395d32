"""One thread that runs callbacks in order, so that no user code runs under a store's lock."""

from __future__ import annotations

import logging
import queue
from collections.abc import Callable

from resilin._base import log
from resilin._base.threads import OwnedThread

_log = log.logger("store")


class Dispatcher:
    """Runs posted callables one after the other. The thread starts with the first one and ends with `close()`."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._queue: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._thread: OwnedThread | None = None
        self._closed = False

    def start(self) -> None:
        """Start the thread unless it runs. Called under the owner's lock."""
        if self._thread is None and not self._closed:
            self._thread = OwnedThread(self._name, self._run)

    def post(self, call: Callable[[], None]) -> None:
        """Run `call` on the thread, after everything posted before."""
        self._queue.put(call)

    def close(self) -> None:
        """Finish the callable that is running, drop the others, end the thread."""
        self._closed = True
        if self._thread is not None:
            self._queue.put(None)
            self._thread.join()

    def _run(self) -> None:
        while (call := self._queue.get()) is not None and not self._closed:
            try:
                call()
            except Exception as error:  # noqa: BLE001 - a thread's top: reported, the other callbacks go on
                log.event(_log, logging.ERROR, "a store callback failed", error=repr(error))
