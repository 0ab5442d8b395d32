"""One peer, from its introduction to its end; what is sent to it."""

from __future__ import annotations

import socket
import threading
from collections import deque
from collections.abc import Callable, Sequence

import zmq

from resilin._base import socket_eof
from resilin._base.clock import Deadline
from resilin.errors import PeerLost, UsageError
from resilin.rpc.transports import network, wire
from resilin.rpc.transports.base import Buffer
from resilin.rpc.transports.wire import FrameKind

_LOOK_S = 0.05  # of a wait for a connection: how long it takes to see that the peer is gone
_SLICE_MS = 5  # of a wait for room: how long a waiting sender takes to see that the peer is lost
_COPY_BYTES = 32 << 10  # a shorter chunk is copied: to be told when it may be used again costs more


class ZeroMQLink(network.PeerLink):
    """One peer. `look`: has the transport's loop look at it soon; `broken`: ends it."""

    def __init__(
        self, peer: int, number: int, dialed: bool, look: Callable[[], None], broken: Callable[[ZeroMQLink, str], None]
    ) -> None:
        super().__init__(peer, number, dialed)
        self.heard = threading.Event()  # its connection for messages is there, or the link has ended
        self.control: socket.socket | None = None  # the loop's, once the link is up
        self.monitor: zmq.Socket[bytes] | None = None  # the loop's
        self.closes_by: float | None = None  # the loop's: it said that it ends, what is on its way may come until then
        self._look = look
        self._broken = broken
        self._lock = threading.Lock()  # whoever holds it may use what follows
        self._push: zmq.Socket[bytes] | None = None
        self._theirs = 0  # frames to there name it
        self._sent = 0  # frames
        self._streams: set[int] = set()
        self._pending: deque[tuple[FrameKind, int, int]] = deque()  # frames without content, for whoever is next

    # ---------------------------------------------------------------------------------------------- its state

    def open(self, push: zmq.Socket[bytes], monitor: zmq.Socket[bytes], theirs: int) -> None:
        """Send through `push`, in frames that name `theirs`, from now on."""
        with self._lock:
            self._push, self.monitor, self._theirs = push, monitor, theirs
            push.send(wire.head(FrameKind.HELLO, theirs, 0))
            self._sent = 1

    @property
    def usable(self) -> bool:
        """See network.PeerLink."""
        return self._push is not None or self.up

    @property
    def pending(self) -> bool:
        """Return whether something waits for a chance to be sent."""
        return bool(self._pending)

    def has_left(self) -> bool:
        """See network.PeerLink."""
        return self.control is not None and socket_eof.hung_up(self.control)

    def await_heard(self, control: socket.socket, deadline: Deadline) -> None:
        """Wait for the peer's connection for messages, as long as that of its introduction is there."""
        while not self.heard.wait(_LOOK_S if (left := deadline.left()) is None else min(left, _LOOK_S)):
            if deadline.passed():
                raise self.unconnected(deadline)
            if socket_eof.hung_up(control):
                raise PeerLost(f"{self.who} hung up during the introduction", (self.peer,))
        if self.error is not None:
            raise self.lost()

    def wake(self) -> None:
        """See network.PeerLink."""
        self.heard.set()
        super().wake()

    def shut(self) -> zmq.Socket[bytes] | None:
        """Send nothing any more. The monitor, which is the loop's to close."""
        with self._lock:
            push, self._push = self._push, None
        monitor, self.monitor = self.monitor, None
        if push is not None:
            push.disable_monitor()
            push.close(0)
        return monitor

    # ----------------------------------------------------------------------------------------------- sending

    def deliver(self, message: wire.Lengths, queue: int, deadline: Deadline) -> None:
        """See network.PeerLink."""
        if wire.is_short(message):
            self.transmit(FrameKind.WHOLE, queue, len(message.each), wire.whole_content(message), deadline)
        else:
            self._send_long(message, queue, deadline)

    def post(self, kind: FrameKind, queue: int, argument: int = 0) -> None:
        """See network.PeerLink."""
        self._pending.append((kind, queue, argument))
        self.flush()

    def flush(self) -> None:
        """Send what is pending, unless somebody is about it or there is no room: then the next one does."""
        while self._pending and self._lock.acquire(blocking=False):
            try:
                if self._push is None:
                    return
                self._send_pending(self._push)
            except zmq.Again:
                self._look()
                return
            finally:
                self._lock.release()

    def transmit(
        self, kind: FrameKind, queue: int, argument: int, content: Sequence[Buffer], deadline: Deadline
    ) -> None:
        """Send a frame of one piece."""
        push = self._acquire(deadline)
        try:
            while not self._try(
                push, b"".join((wire.head(kind, self._theirs, self._sent, queue, argument), *content)), 0, deadline
            ):
                pass
        finally:
            self._lock.release()
            if self._pending:
                self.flush()

    def _acquire(self, deadline: Deadline) -> zmq.Socket[bytes]:
        """Hold the lock. PeerLost, TimeoutError: it is not held."""
        if not self._lock.acquire(timeout=-1 if (left := deadline.left()) is None else left):
            raise self.late(deadline)
        if self._push is None or self.error is not None:
            self._lock.release()
            raise self.lost()
        return self._push

    def _try(self, push: zmq.Socket[bytes], frame: bytes, flags: int, deadline: Deadline) -> bool:
        """Under the lock: send what is pending, or the frame, or wait for room a little. Whether the frame was sent."""
        if self.error is not None:
            raise self.lost()
        try:
            if self._pending:
                self._send_pending(push)
                return False  # the frame's number is another one now
            push.send(frame, zmq.NOBLOCK | flags)
        except zmq.Again:
            left = deadline.left()
            if left == 0:
                raise self.late(deadline) from None
            push.poll(_SLICE_MS if left is None else max(1, min(_SLICE_MS, int(left * 1000))), zmq.POLLOUT)
            return False
        self._sent += 1
        return True

    def _send_pending(self, push: zmq.Socket[bytes]) -> None:
        """Under the lock. zmq.Again: there is no room for all."""
        while self._pending:
            kind, queue, argument = self._pending[0]
            push.send(wire.head(kind, self._theirs, self._sent, queue, argument), zmq.NOBLOCK)
            self._sent += 1
            self._pending.popleft()

    def _send_long(self, message: wire.Lengths, queue: int, deadline: Deadline) -> None:
        with self._lock:
            stream = next((number for number in range(wire.MAX_STREAMS) if number not in self._streams), None)
            if stream is None:
                raise UsageError(f"{wire.MAX_STREAMS} threads send long messages to {self.who} at once; use fewer")
            self._streams.add(stream)
        trackers: list[zmq.MessageTracker] = []
        try:
            argument = wire.begin_argument(len(message.each), stream)
            self.transmit(FrameKind.BEGIN, queue, argument, wire.begin_content(message), deadline)
            try:
                for chunk in wire.chunks(message):
                    self._transmit_chunk(stream, chunk, trackers, deadline)
            except BaseException:
                self.post(FrameKind.CANCEL, 0, stream)
                raise
            for tracker in trackers:
                self._await_sent(tracker, deadline)
        finally:
            self._streams.discard(stream)

    def _transmit_chunk(
        self, stream: int, chunk: memoryview, trackers: list[zmq.MessageTracker], deadline: Deadline
    ) -> None:
        push = self._acquire(deadline)
        try:
            while not self._try(
                push, wire.head(FrameKind.CHUNK, self._theirs, self._sent, 0, stream), zmq.SNDMORE, deadline
            ):
                pass
            try:
                if chunk.nbytes < _COPY_BYTES:
                    push.send(chunk)
                else:
                    tracker = push.send(chunk, copy=False, track=True)
                    assert tracker is not None
                    trackers.append(tracker)
            except BaseException as error:  # half of ZeroMQ's message is sent: nothing else can follow
                self._broken(self, f"cannot be sent to any more: {error!r}")
                raise
        finally:
            self._lock.release()

    def _await_sent(self, tracker: zmq.MessageTracker, deadline: Deadline) -> None:
        """Wait until ZeroMQ does not need the memory any more; where the peer is lost, it drops it."""
        try:
            tracker.wait(-1 if (left := deadline.left()) is None else left)
        except zmq.NotDone:
            raise self.late(deadline) from None
        if self.error is not None:
            raise self.lost()
