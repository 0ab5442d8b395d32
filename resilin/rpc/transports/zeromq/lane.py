"""One socket to a peer, and what is sent through it."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Sequence

import zmq

from resilin._base.clock import Deadline
from resilin.errors import PeerLost
from resilin.rpc.transports import network, wire
from resilin.rpc.transports.base import Buffer
from resilin.rpc.transports.wire import FrameKind

SLICE_MS = 5  # of a wait for room: how long a waiting sender takes to see that the peer is lost
_COPY_BYTES = 32 << 10  # a shorter chunk is copied: to be told when it may be used again costs more


class Lane:
    """One socket. Whoever holds `lock` may use it. `look`: has the loop look at it soon; `broken`: ends the link."""

    def __init__(self, link: network.PeerLink, look: Callable[[], None], broken: Callable[[str], None]) -> None:
        self.lock = threading.Lock()
        self.push: zmq.Socket[bytes] | None = None  # guarded by lock
        self.monitor: zmq.Socket[bytes] | None = None  # the loop's
        self._link = link
        self._look = look
        self._broken = broken
        self._theirs = 0  # frames to there name it
        self._sent = 0  # frames; guarded by lock
        self._pending: deque[tuple[FrameKind, int, int]] = deque()  # frames without content, for whoever is next

    @property
    def pending(self) -> bool:
        """Return whether something waits for a chance to be sent."""
        return bool(self._pending)

    def open(self, push: zmq.Socket[bytes], monitor: zmq.Socket[bytes], theirs: int) -> None:
        """Send through `push`, in frames that name `theirs`, from now on. PeerLost: the connection has ended."""
        with self.lock:
            self.push, self.monitor, self._theirs = push, monitor, theirs
            try:
                push.send(wire.head(FrameKind.HELLO, theirs, 0), zmq.NOBLOCK)  # without a connection it would wait
            except zmq.Again:
                raise PeerLost(f"{self._link.who} refused a connection for messages", (self._link.peer,)) from None
            self._sent = 1

    def shut(self) -> zmq.Socket[bytes] | None:
        """Send nothing any more. The monitor, which is the loop's to close."""
        with self.lock:
            push, self.push = self.push, None
        monitor, self.monitor = self.monitor, None
        if push is not None:
            push.disable_monitor()
            push.close(0)
        return monitor

    def acquire(self, deadline: Deadline) -> zmq.Socket[bytes]:
        """Hold the lock. PeerLost, TimeoutError: it is not held."""
        if not self.lock.acquire(timeout=-1 if (left := deadline.left()) is None else left):
            raise self._link.late(deadline)
        if self.push is None or self._link.error is not None:
            self.lock.release()
            raise self._link.lost()
        return self.push

    def post(self, kind: FrameKind, queue: int, argument: int = 0) -> None:
        """Send a frame without content, now or as soon as there is a chance. Never blocks."""
        self._pending.append((kind, queue, argument))
        self.flush()

    def flush(self) -> None:
        """Send what is pending, unless somebody is about it or there is no room: then the next one does."""
        while self._pending and self.lock.acquire(blocking=False):
            try:
                if self.push is None:
                    return
                self._send_pending(self.push)
            except zmq.Again:
                self._look()
                return
            finally:
                self.lock.release()

    def transmit(
        self, kind: FrameKind, queue: int, argument: int, content: Sequence[Buffer], deadline: Deadline
    ) -> None:
        """Send a frame of one piece."""
        push = self.acquire(deadline)
        try:
            while not self._try(push, kind, queue, argument, content):
                self._await_room(push, deadline)
        finally:
            self.release()

    def begin(self, queue: int, stream: int, content: Sequence[Buffer]) -> bool:
        """Under the lock: open a stream, where there is room. Its next chunk has to go here, too."""
        assert self.push is not None
        return self._try(self.push, FrameKind.BEGIN, queue, stream, content)

    def send_chunk(
        self, stream: int, place: int, chunk: memoryview, trackers: list[zmq.MessageTracker], deadline: Deadline | None
    ) -> bool:
        """Under the lock: send a chunk where there is room, with a deadline once there is some. Whether it was sent."""
        push = self.push
        assert push is not None
        while not self._try(push, FrameKind.CHUNK, 0, stream, (), place, zmq.SNDMORE):
            if deadline is None:
                return False
            self._await_room(push, deadline)
        try:
            if chunk.nbytes < _COPY_BYTES:
                push.send(chunk)
            else:
                tracker = push.send(chunk, copy=False, track=True)
                assert tracker is not None
                trackers.append(tracker)
        except BaseException as error:  # half of ZeroMQ's message is sent: nothing else can follow
            self._broken(f"cannot be sent to any more: {error!r}")
            raise
        return True

    def release(self) -> None:
        """Let go of the lock; what others wanted to send meanwhile is sent."""
        self.lock.release()
        if self._pending:
            self.flush()

    def _try(
        self,
        push: zmq.Socket[bytes],
        kind: FrameKind,
        queue: int,
        argument: int,
        content: Sequence[Buffer],
        place: int = 0,
        flags: int = 0,
    ) -> bool:
        """Send what is pending, and the frame. False: there is no room for all."""
        if self._link.error is not None:
            raise self._link.lost()
        try:
            self._send_pending(push)
            frame = b"".join((wire.head(kind, self._theirs, self._sent, queue, argument, place), *content))
            push.send(frame, zmq.NOBLOCK | flags)
        except zmq.Again:
            return False
        self._sent += 1
        return True

    def _await_room(self, push: zmq.Socket[bytes], deadline: Deadline) -> None:
        """Wait for room a little. TimeoutError."""
        left = deadline.left()
        if left == 0:
            raise self._link.late(deadline)
        push.poll(SLICE_MS if left is None else max(1, min(SLICE_MS, int(left * 1000))), zmq.POLLOUT)

    def _send_pending(self, push: zmq.Socket[bytes]) -> None:
        """zmq.Again: there is no room for all."""
        while self._pending:
            kind, queue, argument = self._pending[0]
            push.send(wire.head(kind, self._theirs, self._sent, queue, argument), zmq.NOBLOCK)
            self._sent += 1
            self._pending.popleft()
