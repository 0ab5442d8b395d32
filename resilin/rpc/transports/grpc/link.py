"""One peer, at one stream: what is to be sent to it.

Two lanes share the stream: short messages and the ends of long ones go before the chunks that wait in this process.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence

from resilin._base.clock import Deadline
from resilin.errors import UsageError
from resilin.rpc.transports import network, wire
from resilin.rpc.transports.base import Buffer
from resilin.rpc.transports.grpc.silence import Connection
from resilin.rpc.transports.wire import FrameKind

_QUEUED_BYTES = 4 << 20  # of one lane, before its senders wait
_SHORT, _LONG = 0, 1  # lanes
_OF_LONG = (FrameKind.BEGIN, FrameKind.CHUNK, FrameKind.CANCEL, FrameKind.BYE)  # BYE: behind all that was sent


class _Lane:
    """What waits to be sent; guarded by the link's `_news`."""

    def __init__(self) -> None:
        self.frames: deque[bytes] = deque()
        self.bytes = 0
        self.count = 0  # of frames that were made


class GrpcLink(network.PeerLink):
    """One peer, at one stream."""

    def __init__(self, peer: int, number: int, dialed: bool) -> None:
        super().__init__(peer, number, dialed, lanes_in=1)
        self.is_active: Callable[[], bool] = lambda: True
        self.hang_up: Callable[[], None] = lambda: None
        self.connection: Connection | None = None
        """Where the kernel is asked whether the peer's host still answers; None: it is this one, or is not known."""
        self._theirs = 0  # frames to there name it; the rest guarded by _news
        self._open = False
        self._next_stream = 0
        self._streams = 0  # under way
        self._lanes = _Lane(), _Lane()

    @property
    def usable(self) -> bool:
        """See network.PeerLink."""
        return self._open or self.up

    def has_left(self) -> bool:
        """See network.PeerLink."""
        return not self.is_active()

    def open(self, theirs: int) -> None:
        """Send frames, which name `theirs`, from now on."""
        self._theirs, self._open = theirs, True

    def say(self, text: bytes) -> None:
        """Send a text of the introduction."""
        with self._news:
            self._put(self._lanes[_SHORT], text)

    def outgoing(self) -> Iterator[bytes]:
        """What is to be sent, until the link has ended."""
        while True:
            with self._news:
                self._news.wait_for(lambda: any(lane.frames for lane in self._lanes) or self.error is not None)
                if self.error is not None:
                    return
                lane = next(lane for lane in self._lanes if lane.frames)
                frame = lane.frames.popleft()
                lane.bytes -= len(frame)
                self._news.notify_all()
            yield frame

    def post(self, kind: FrameKind, queue: int, argument: int = 0) -> None:
        """See network.PeerLink."""
        with self._news:
            self._put_frame(kind, queue, argument, ())

    def deliver(self, message: wire.Lengths, queue: int, deadline: Deadline) -> None:
        """See network.PeerLink."""
        if wire.is_short(message):
            self._transmit(FrameKind.WHOLE, queue, len(message.each), wire.whole_content(message), deadline)
            return
        with self._news:
            if self._streams == wire.MAX_STREAMS:
                raise UsageError(f"{wire.MAX_STREAMS} threads send long messages to {self.who} at once; use fewer")
            self._streams += 1
            self._next_stream += 1
            stream = self._next_stream
        try:
            self._transmit(FrameKind.BEGIN, queue, stream, wire.begin_content(message), deadline)
            try:
                for place, chunk in enumerate(wire.chunks(message)):
                    self._transmit(FrameKind.CHUNK, 0, stream, (chunk,), deadline, place)
                self._transmit(FrameKind.END, queue, stream, (), deadline)
            except BaseException:
                self.post(FrameKind.CANCEL, 0, stream)
                raise
        finally:
            with self._news:
                self._streams -= 1

    def _transmit(
        self,
        kind: FrameKind,
        queue: int,
        argument: int,
        content: Sequence[Buffer],
        deadline: Deadline,
        place: int = 0,
    ) -> None:
        lane = self._lanes[_LONG if kind in _OF_LONG else _SHORT]
        with self._news:
            room = self._news.wait_for(lambda: self.error is not None or lane.bytes < _QUEUED_BYTES, deadline.left())
            if self.error is not None:
                raise self.lost()
            if not room:
                raise self.late(deadline)
            self._put_frame(kind, queue, argument, content, place)

    def _put_frame(self, kind: FrameKind, queue: int, argument: int, content: Sequence[Buffer], place: int = 0) -> None:
        """Under the lock."""
        which = _LONG if kind in _OF_LONG else _SHORT
        lane = self._lanes[which]
        head = wire.head(kind, self._theirs + which, lane.count, queue, argument, place)
        lane.count += 1
        self._put(lane, b"".join((head, *content)))

    def _put(self, lane: _Lane, text: bytes) -> None:
        """Under the lock."""
        lane.frames.append(text)
        lane.bytes += len(text)
        self._news.notify_all()
