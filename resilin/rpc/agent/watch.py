"""Look after a worker's threads and deadlines, in one thread that sleeps while nothing is due."""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Callable, Sequence

from resilin._base import log
from resilin._base.clock import SYSTEM
from resilin._base.threads import OwnedThread

_LOG = log.logger("rpc.watch")
_PERIOD_S = 0.003  # how long a worker thread may be stuck before another one serves the queue
_QUIET = 8  # periods without a message after which the watch sleeps


class Watch:
    """Call `look` (whether anybody is at work) often while there is work, and `due` when its time has come.

    due: does what its time has come for, and returns when it wants to be called next (None: when it is woken).
    """

    def __init__(self, look: Sequence[Callable[[], bool]], due: Callable[[], float | None]) -> None:
        self._look, self._due = look, due
        self._signal = threading.Lock()
        self._signal.acquire()
        self._asleep = False
        self._closed = False
        self._batches = 0
        self._thread = OwnedThread("rpc-watch", self._run)

    def begun(self) -> None:
        """Say that messages have come."""
        self._batches += 1
        if self._asleep:
            self.wake()

    def wake(self) -> None:
        """Have `due` called soon. Any thread, also while it collects garbage."""
        self._asleep = False
        with contextlib.suppress(RuntimeError):  # it is awake
            self._signal.release()

    def _run(self) -> None:
        quiet, seen = 0, -1
        while not self._closed:
            try:
                at = self._due()
                busy = [look() for look in self._look]
            except Exception as error:  # noqa: BLE001 - a thread's top: the worker goes on without what failed
                log.event(_LOG, logging.ERROR, "the watch of a worker failed", exc_info=error)
                at, busy = SYSTEM.monotonic() + 1.0, []
            quiet = 0 if any(busy) or seen != self._batches else quiet + 1
            seen = self._batches
            wait = -1.0 if at is None else min(max(0.0, at - SYSTEM.monotonic()), threading.TIMEOUT_MAX)
            if quiet < _QUIET:
                wait = _PERIOD_S if wait < 0 else min(wait, _PERIOD_S)
            else:
                self._asleep = True
                if seen != self._batches:
                    continue
            self._signal.acquire(timeout=wait)
            self._asleep = False

    def close(self) -> None:
        """End the thread. Idempotent."""
        self._closed = True
        self.wake()
        self._thread.join()
