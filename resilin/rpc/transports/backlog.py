"""Know which receive queues hold so much that their senders have to wait. No socket, no thread.

A transport that fills queues through `put`, which never blocks, tells peers to PAUSE a queue and later to RESUME it:
of one queue alone, for replies must get through while requests wait, or two workers that call each other would wait
for ever.
"""

from __future__ import annotations

import threading
import weakref
from collections import deque
from collections.abc import Hashable
from typing import Any, Generic, TypeVar

from resilin.rpc.transports.base import Buffer, Queues, ReceiveQueue, RpcMessage

MOST_MESSAGES, FEW_MESSAGES = 4096, 1024  # more than a caller has outstanding that is not held back
MOST_BYTES, FEW_BYTES = 64 << 20, 32 << 20
LOOK_S = 0.001  # how often a full queue is looked at; only while one is

Sender = TypeVar("Sender", bound=Hashable)


class _Filled:
    """A queue that was put into."""

    __slots__ = ("bytes", "held", "paused", "queue", "sizes")

    def __init__(self, queue: ReceiveQueue) -> None:
        self.queue = queue
        self.sizes: deque[int] = deque()  # of the latest messages that were put
        self.bytes = 0
        self.paused: set[Hashable] = set()  # senders
        self.held: dict[Hashable, tuple[int, int]] = {}  # of senders: messages and bytes that wait for their turn

    def holds(self, most_messages: int, most_bytes: int) -> bool:
        """Whether it holds more than that, with what waits for its turn."""
        waiting = self.trim() + sum(count for count, _ in self.held.values())
        return waiting > most_messages or self.bytes + sum(size for _, size in self.held.values()) > most_bytes

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
        self._gone: weakref.WeakSet[Any] = weakref.WeakSet()  # guarded by _lock: senders

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
            filled = self._find(queue, found)
            filled.sizes.append(size)
            filled.bytes += size
            return self._pause(sender, queue, filled)

    def hold(self, sender: Sender, queue: int, count: int, size: int) -> bool:
        """So many messages more of `sender` wait for their turn to be put; negative: fewer. Whether it has to pause."""
        found = self._queues.find(queue)
        if found is None:
            return False
        with self._lock:
            filled = self._find(queue, found)
            before = filled.held.pop(sender, (0, 0))
            now = before[0] + count, before[1] + size
            if sender in self._gone or max(now) <= 0:
                return False
            filled.held[sender] = now
            return self._pause(sender, queue, filled)

    def _find(self, queue: int, found: ReceiveQueue) -> _Filled:
        """Under the lock."""
        filled = self._filled.get(queue)
        if filled is None or filled.queue is not found:
            filled = self._filled[queue] = _Filled(found)
        return filled

    def _pause(self, sender: Sender, queue: int, filled: _Filled) -> bool:
        """Under the lock."""
        if sender in filled.paused or not filled.holds(MOST_MESSAGES, MOST_BYTES):
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
                if filled.queue.closed or not filled.holds(FEW_MESSAGES, FEW_BYTES):
                    self._full.discard(number)
                    found.append((number, filled.paused))
                    filled.paused = set()
            return found

    def forget(self, sender: Sender) -> None:
        """The sender is gone."""
        with self._lock:
            self._gone.add(sender)
            for filled in self._filled.values():
                filled.paused.discard(sender)
                filled.held.pop(sender, None)
