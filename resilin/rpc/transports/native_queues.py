"""Receive messages through memory that peers of this host write into: a thread that waits sees them at once."""

from __future__ import annotations

from typing import Any

from resilin.errors import RpcError
from resilin.rpc.transports import loader
from resilin.rpc.transports.base import Queues, ReceiveQueue, RpcMessage


class NativeQueue(ReceiveQueue):
    """A queue whose threads wait in native code."""

    def __init__(self, number: int, native: Any) -> None:
        self.number = number
        self._native = native

    def take(self, timeout_s: float | None = None, most: int = 64) -> list[RpcMessage]:
        """See ReceiveQueue."""
        found: list[RpcMessage] = self._native.take(-1.0 if timeout_s is None else max(0.0, timeout_s), most)
        return found

    def put(self, message: RpcMessage) -> None:
        """See ReceiveQueue."""
        self._native.put(message)

    def wake(self) -> None:
        """See ReceiveQueue."""
        self._native.wake()

    def close(self) -> None:
        """See ReceiveQueue."""
        self._native.close()

    @property
    def waiting(self) -> int:
        """See ReceiveQueue: of what was put; the rings of peers are full by themselves."""
        return int(self._native.waiting)

    @property
    def closed(self) -> bool:
        """See ReceiveQueue."""
        return bool(self._native.closed)


class NativeQueues(Queues):
    """Own the queues of one worker, which peers of its host know. RpcError where there is no native code."""

    def __init__(self) -> None:
        if loader.native is None:
            raise RpcError(f"queues in shared memory need native code: {loader.why}")
        super().__init__()
        self.most = loader.native.QUEUES
        loader.native.set_message_class(RpcMessage)
        self.inbox: Any = loader.native.Inbox()
        """For the transport that shares it with peers."""

    def _make(self, number: int) -> ReceiveQueue:
        return NativeQueue(number, self.inbox.open(number))

    def close(self) -> None:
        """See Queues."""
        super().close()
        self.inbox.release()
