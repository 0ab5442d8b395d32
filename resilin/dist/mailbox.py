"""Point-to-point messages: receives that wait for a message and messages that wait for a receive. No sockets here.

Messages from one rank with one tag are matched in the order sent; a receive from any rank takes the oldest message
with its tag. A message that nobody has posted a receive for is kept in memory until somebody does.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable

from resilin.dist.message import DESCRIPTOR_BYTES, Descriptor, unpack
from resilin.errors import CollectiveMismatch, DistNetworkError, PeerLost

ANY = -1
MAX_MESSAGE_BYTES = 1 << 40


class Receive:
    """A posted receive. `finish(error, source)` is called once, in the reader's thread or the poster's."""

    def __init__(
        self,
        source: int,
        tag: int,
        wanted: Descriptor,
        buffer: memoryview,
        finish: Callable[[BaseException | None, int], None],
    ) -> None:
        self.source = source
        self.tag = tag
        self.wanted = wanted
        self.buffer = buffer
        self.finish = finish

    def matches(self, source: int, tag: int) -> bool:
        """Whether a message from `source` with `tag` is for this receive."""
        return self.tag == tag and self.source in (ANY, source)


class Incoming:
    """A message on its way in: its descriptor first, then its bytes, into a posted buffer or one of its own."""

    def __init__(self, box: Mailbox, source: int, tag: int, length: int) -> None:
        self.source = source
        self.tag = tag
        self.length = length - DESCRIPTOR_BYTES
        self.head = bytearray(DESCRIPTOR_BYTES)
        self.descriptor: Descriptor | None = None
        self.receive: Receive | None = None
        self.data: memoryview = memoryview(b"")
        self.complete = False
        self._box = box
        self._got = 0

    def rest(self) -> memoryview:
        """Where the next bytes go."""
        return memoryview(self.head)[self._got :] if self.descriptor is None else self.data[self._got :]

    def left(self) -> int:
        """How many of the message's bytes are still to come."""
        return self.length - self._got + (0 if self.descriptor is not None else DESCRIPTOR_BYTES)

    def advance(self, count: int) -> bool:
        """Account for `count` bytes read; True when the message is complete."""
        self._got += count
        if self.descriptor is None:
            if self._got < DESCRIPTOR_BYTES:
                return False
            self.descriptor = unpack(bytes(self.head))
            self._got = 0
            self._box.begin(self)
        if self._got < self.length:
            return False
        self._box.end(self)
        return True


class Mailbox:
    """Matches messages and receives of one group. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.RLock()  # a signal handler may abort while the same thread holds it
        self._posted: deque[Receive] = deque()  # guarded by _lock
        self._early: deque[Incoming] = deque()  # guarded by _lock: complete or not, in order of arrival
        self._arriving: dict[int, Incoming] = {}  # guarded by _lock: the message whose bytes are on the way, by source
        self._gone: set[int] = set()  # guarded by _lock
        self._error: BaseException | None = None  # guarded by _lock

    def post(self, receive: Receive) -> None:
        """Wait for a message; `receive.finish` is called at once if it is already here, or can no longer come."""
        with self._lock:
            early = next((m for m in self._early if receive.matches(m.source, m.tag)), None)
            if early is not None:
                self._early.remove(early)
                early.receive = receive
                if not early.complete:
                    return  # `end` hands it over
            elif self._error is None and receive.source not in self._gone:
                self._posted.append(receive)
                return
        if early is not None:
            _deliver(early)
        else:
            receive.finish(self._error or _lost(receive.source), receive.source)

    def cancel(self, receive: Receive) -> None:
        """Take back a posted receive; nothing happens if it was matched."""
        with self._lock:
            if receive in self._posted:
                self._posted.remove(receive)

    def start(self, source: int, tag: int, length: int) -> Incoming:
        """A message's header has arrived."""
        if not DESCRIPTOR_BYTES <= length <= MAX_MESSAGE_BYTES:
            raise DistNetworkError(f"rank {source} announced a message of {length} bytes")
        return Incoming(self, source, tag, length)

    def begin(self, message: Incoming) -> None:
        """Its descriptor has arrived: choose where the bytes go."""
        assert message.descriptor is not None
        with self._lock:
            self._arriving[message.source] = message
            receive = next((r for r in self._posted if r.matches(message.source, message.tag)), None)
            if receive is None:
                message.data = memoryview(bytearray(message.length))
                self._early.append(message)
                return
            self._posted.remove(receive)
            message.receive = receive
        fits = len(receive.buffer) == message.length and _same(receive.wanted, message.descriptor)
        message.data = receive.buffer if fits else memoryview(bytearray(message.length))

    def end(self, message: Incoming) -> None:
        """All its bytes have arrived."""
        with self._lock:
            message.complete = True
            self._arriving.pop(message.source, None)
            if message.receive is None:
                return
        _deliver(message)

    def gone(self, rank: int) -> None:
        """`rank` will send nothing more: fail the receives that wait for it alone."""
        with self._lock:
            self._gone.add(rank)
            self._early = deque(m for m in self._early if m.complete or m.source != rank)
            failed = [r for r in self._posted if r.source == rank]
            self._posted = deque(r for r in self._posted if r.source != rank)
            half = self._arriving.pop(rank, None)
            if half is not None and half.receive is not None:
                failed.append(half.receive)
        for receive in failed:
            receive.finish(_lost(rank), rank)

    def fail(self, error: BaseException) -> None:
        """Fail every receive, posted now or later, with `error`."""
        with self._lock:
            self._error = self._error or error
            failed, self._posted = list(self._posted), deque()
            failed += [m.receive for m in self._arriving.values() if m.receive is not None]
            self._arriving.clear()
        for receive in failed:
            receive.finish(error, receive.source)


def _same(wanted: Descriptor, got: Descriptor) -> bool:
    return wanted.dtype == got.dtype


def _deliver(message: Incoming) -> None:
    receive, got = message.receive, message.descriptor
    assert receive is not None
    assert got is not None
    if len(receive.buffer) != message.length or not _same(receive.wanted, got):
        error = CollectiveMismatch(
            f"recv with tag {message.tag}: this rank posted {receive.wanted}, rank {message.source} sent {got}"
        )
        receive.finish(error, message.source)
        return
    if message.data is not receive.buffer:
        receive.buffer[:] = message.data
    receive.finish(None, message.source)


def _lost(rank: int) -> PeerLost:
    return PeerLost(f"rank {rank} closed the connection", [rank])
