"""Receive messages through a condition variable: what works everywhere, also where there is no native code."""

from __future__ import annotations

import threading
from collections import deque

from resilin.rpc.transports.base import Queues, ReceiveQueue, RpcMessage


class ThreadQueue(ReceiveQueue):
    """A queue of one process's threads."""

    def __init__(self, number: int) -> None:
        self.number = number
        self._changed = threading.Condition(threading.RLock())  # a signal handler may put while its thread holds it
        self._messages: deque[RpcMessage] = deque()  # guarded by _changed
        self._wakes = 0  # guarded by _changed
        self._waiting = 0  # guarded by _changed: threads in `take`
        self._skip = False  # guarded by _changed: nobody was there to be woken, so the next one returns at once
        self._closed = False  # guarded by _changed

    def take(self, timeout_s: float | None = None, most: int = 64) -> list[RpcMessage]:
        """See ReceiveQueue."""
        with self._changed:
            wakes = self._wakes
            if not self._skip:
                self._waiting += 1
                try:
                    self._changed.wait_for(lambda: self._messages or self._closed or self._wakes != wakes, timeout_s)
                finally:
                    self._waiting -= 1
            self._skip = False
            return [self._messages.popleft() for _ in range(min(most, len(self._messages)))]

    def put(self, message: RpcMessage) -> None:
        """See ReceiveQueue."""
        with self._changed:
            if not self._closed:
                self._messages.append(message)
                self._changed.notify()

    def wake(self) -> None:
        """See ReceiveQueue."""
        with self._changed:
            self._wakes += 1
            self._skip = not self._waiting
            self._changed.notify_all()

    def close(self) -> None:
        """See ReceiveQueue."""
        with self._changed:
            self._closed = True
            self._messages.clear()
            self._changed.notify_all()

    @property
    def waiting(self) -> int:
        """See ReceiveQueue."""
        return len(self._messages)

    @property
    def closed(self) -> bool:
        """See ReceiveQueue."""
        return self._closed


class ThreadQueues(Queues):
    """Own the queues of one worker, in its own memory."""

    def _make(self, number: int) -> ReceiveQueue:
        return ThreadQueue(number)
