"""One peer, from its introduction to its end; what is sent to it.

main    short messages, and the ends of long ones         is never behind a long message
lanes   chunks of long messages, over whichever has room  at least one; `num_lanes` of the options
"""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Callable

import zmq

from resilin._base import socket_eof
from resilin._base.clock import Deadline
from resilin.errors import PeerLost, UsageError
from resilin.rpc.transports import network, wire
from resilin.rpc.transports.wire import FrameKind
from resilin.rpc.transports.zeromq.lane import SLICE_MS, Lane

_LOOK_S = 0.05  # of a wait for a connection: how long it takes to see that the peer is gone


class _Stream:
    """A long message that is being sent."""

    def __init__(self, number: int, queue: int, message: wire.Lengths) -> None:
        self.number = number
        self.queue = queue
        self.begin = wire.begin_content(message)
        self.lanes: set[Lane] = set()  # on which it has begun
        self.trackers: list[zmq.MessageTracker] = []


class ZeroMQLink(network.PeerLink):
    """One peer. `look`: has the loop look at it soon; `broken`: ends it; lanes: how many to there, and from there."""

    def __init__(
        self,
        peer: int,
        number: int,
        dialed: bool,
        lanes: tuple[int, int],
        look: Callable[[], None],
        broken: Callable[[ZeroMQLink, str], None],
    ) -> None:
        super().__init__(peer, number, dialed, lanes[1])
        self.heard = threading.Event()  # all its connections for messages are there, or the link has ended
        self.control: socket.socket | None = None  # the loop's, once the link is up
        self.closes_by: float | None = None  # the loop's: it said that it ends, what is on its way may come until then
        self.credentials: list[bytes] = []  # that let the peer's connections in
        self.main, *self.lanes = (Lane(self, look, lambda why: broken(self, why)) for _ in range(1 + lanes[0]))
        self._silent = 1 + lanes[1]  # connections that nothing has come on; the receiver's
        self._unfinished = 1 + lanes[1]  # that have not said BYE; the receiver's
        self._lock = threading.Lock()
        self._streams = 0  # guarded by _lock: under way
        self._next_stream = 0  # guarded by _lock
        self._turn = 0  # any thread's: where the next chunk is tried first

    # ---------------------------------------------------------------------------------------------- its state

    @property
    def every_lane(self) -> list[Lane]:
        """Return the main one and the others, in the order of their numbers."""
        return [self.main, *self.lanes]

    @property
    def usable(self) -> bool:
        """See network.PeerLink."""
        return self.main.push is not None or self.up

    @property
    def pending(self) -> bool:
        """Return whether something waits for a chance to be sent."""
        return any(lane.pending for lane in self.every_lane)

    def has_left(self) -> bool:
        """See network.PeerLink."""
        return self.control is not None and socket_eof.hung_up(self.control)

    def hear_hello(self) -> None:
        """One more of its connections is there."""
        self._silent -= 1
        if self._silent == 0:
            self.heard.set()

    def hear_bye(self) -> bool:
        """One more of its connections has no more to bring. Whether none has."""
        self._unfinished -= 1
        return self._unfinished == 0

    def await_heard(self, control: socket.socket, deadline: Deadline) -> None:
        """Wait for the peer's connections for messages, as long as that of its introduction is there."""
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

    # ----------------------------------------------------------------------------------------------- sending

    def deliver(self, message: wire.Lengths, queue: int, deadline: Deadline) -> None:
        """See network.PeerLink."""
        if wire.is_short(message):
            self.main.transmit(FrameKind.WHOLE, queue, len(message.each), wire.whole_content(message), deadline)
        else:
            self._send_long(message, queue, deadline)

    def post(self, kind: FrameKind, queue: int, argument: int = 0) -> None:
        """See network.PeerLink."""
        self.main.post(kind, queue, argument)

    def flush(self) -> None:
        """Send what is pending, where there is room."""
        for lane in self.every_lane:
            lane.flush()

    def say_bye(self, deadline: Deadline) -> None:
        """Tell that nothing follows, behind all that was sent. PeerLost, TimeoutError."""
        for lane in self.every_lane:
            lane.transmit(FrameKind.BYE, 0, 0, (), deadline)

    def _send_long(self, message: wire.Lengths, queue: int, deadline: Deadline) -> None:
        with self._lock:
            if self._streams == wire.MAX_STREAMS:
                raise UsageError(f"{wire.MAX_STREAMS} threads send long messages to {self.who} at once; use fewer")
            self._streams += 1
            self._next_stream += 1
            stream = _Stream(self._next_stream, queue, message)
        try:
            for place, chunk in enumerate(wire.chunks(message)):
                while not self._send_chunk(stream, place, chunk, deadline):
                    self._await_room(deadline)
            for tracker in stream.trackers:
                self._await_sent(tracker, deadline)
            self.main.transmit(FrameKind.END, queue, stream.number, (), deadline)
        except BaseException:
            for lane in stream.lanes:
                lane.post(FrameKind.CANCEL, 0, stream.number)
            raise
        finally:
            with self._lock:
                self._streams -= 1

    def _send_chunk(self, stream: _Stream, place: int, chunk: memoryview, deadline: Deadline) -> bool:
        """Send it over the first lane that has room. False: none has."""
        count = len(self.lanes)
        for number in range(self._turn, self._turn + count):
            lane = self.lanes[number % count]
            if not lane.lock.acquire(blocking=False):
                continue
            try:
                if lane.push is None:
                    raise self.lost()
                if self._send_chunk_over(lane, stream, place, chunk, deadline):
                    self._turn = (number + 1) % count
                    return True
            finally:
                lane.release()
        return False

    @staticmethod
    def _send_chunk_over(lane: Lane, stream: _Stream, place: int, chunk: memoryview, deadline: Deadline) -> bool:
        """Under the lane's lock. Where a stream begins a chunk of it has to go, too: else it would never end there."""
        if lane in stream.lanes:
            return lane.send_chunk(stream.number, place, chunk, stream.trackers, None)
        if not lane.begin(stream.queue, stream.number, stream.begin):
            return False
        stream.lanes.add(lane)
        return lane.send_chunk(stream.number, place, chunk, stream.trackers, deadline)

    def _await_room(self, deadline: Deadline) -> None:
        """Wait a little until a lane has room. PeerLost, TimeoutError."""
        left = deadline.left()
        if left == 0:
            raise self.late(deadline)
        with contextlib.ExitStack() as held:
            sockets = []
            for lane in self.lanes:  # in this order, as everybody who holds more than one
                sockets.append((lane.acquire(deadline), zmq.POLLOUT))
                held.callback(lane.release)
            zmq.zmq_poll(sockets, SLICE_MS if left is None else max(1, min(SLICE_MS, int(left * 1000))))

    def _await_sent(self, tracker: zmq.MessageTracker, deadline: Deadline) -> None:
        """Wait until ZeroMQ does not need the memory any more; where the peer is lost, it drops it."""
        try:
            tracker.wait(-1 if (left := deadline.left()) is None else left)
        except zmq.NotDone:
            raise self.late(deadline) from None
        if self.error is not None:
            raise self.lost()
