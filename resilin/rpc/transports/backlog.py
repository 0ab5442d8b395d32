"""Know which receive queues hold so much that their senders have to wait. No socket, no thread.

A transport that fills queues through `put`, which never blocks, tells peers to PAUSE a queue and later to RESUME it:
of one queue alone, for replies must get through while requests wait, or two workers that call each other would wait
for ever.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Hashable
from typing import Generic, TypeVar

from resilin.rpc.transports.base import Buffer, Queues, ReceiveQueue, RpcMessage

MOST_MESSAGES, FEW_MESSAGES = 4096, 1024  # more than a caller has outstanding that is not held back
MOST_BYTES, FEW_BYTES = 64 << 20, 32 << 20
LOOK_S = 0.001  # how often a full queue is looked at; only while one is

Sender = TypeVar("Sender", bound=Hashable)


class _Filled:
    """A queue that was put into."""

    __slots__ = ("bytes", "paused", "queue", "sizes")

    def __init__(self, queue: ReceiveQueue) -> None:
        self.queue = queue
        self.sizes: deque[int] = deque()  # of the latest messages that were put
        self.bytes = 0
        self.paused: set[Hashable] = set()  # senders

    def trim(self) -> int:
        """Forget the sizes of messages that have been taken: how many have not."""
        waiting = self.queue.waiting
        while len(self.sizes) > waiting:
            self.bytes -= self.sizes.popleft()
        return waiting


class Backlog(Generic[Sender]):
    """Put messages into the queues of a worker. Any thread."""

    def __init__(self, queues: Queues) -> None:
        self._queues = queues
        self._lock = threading.Lock()
        self._filled: dict[int, _Filled] = {}  # guarded by _lock: by number
        self._full: set[int] = set()  # guarded by _lock

    @property
    def full(self) -> bool:
        """Return whether a sender waits for a queue."""
        return bool(self._full)

    def put(self, sender: Sender, source: int, queue: int, parts: list[Buffer], size: int) -> bool:
        """Put a message into its queue, if that is open. Whether `sender` has to pause it now."""
        found = self._queues.find(queue)
        if found is None:
            return False
        found.put(RpcMessage(source, parts))
        with self._lock:
            filled = self._filled.get(queue)
            if filled is None or filled.queue is not found:
                filled = self._filled[queue] = _Filled(found)
            filled.sizes.append(size)
            filled.bytes += size
            waiting = filled.trim()
            if (waiting <= MOST_MESSAGES and filled.bytes <= MOST_BYTES) or sender in filled.paused:
                return False
            filled.paused.add(sender)
            self._full.add(queue)
            return True

    def resumed(self) -> list[tuple[int, set[Hashable]]]:
        """Queues that have room again, with the senders that paused them."""
        with self._lock:
            found = []
            for number in list(self._full):
                filled = self._filled[number]
                waiting = filled.trim()
                if filled.queue.closed or (waiting <= FEW_MESSAGES and filled.bytes <= FEW_BYTES):
                    self._full.discard(number)
                    found.append((number, filled.paused))
                    filled.paused = set()
            return found

    def forget(self, sender: Sender) -> None:
        """The sender is gone."""
        with self._lock:
            for filled in self._filled.values():
                filled.paused.discard(sender)
