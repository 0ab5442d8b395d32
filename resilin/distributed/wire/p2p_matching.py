"""Match point-to-point messages: receives that wait for a message, messages that wait for a receive. No sockets here.

Messages from one rank with one tag are matched in the order sent; a receive from any rank takes the oldest message
with its tag. A message that nobody has posted a receive for is kept until somebody does: in memory when it came over a
socket, where the sender has it when it came through shared memory (`backends/shm/mailbox.py`).
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from typing import Protocol

from resilin.distributed.wire.frames import DESCRIPTOR_BYTES, NO_DTYPE, Descriptor, unpack
from resilin.distributed.wire.receive_buffer import receive_buffer
from resilin.distributed.wire.tags import spoken
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
        """Return whether a message from `source` with `tag` is for this receive."""
        return self.tag == tag and self.source in (ANY, source)


class Incoming:
    """A message on its way in: its descriptor first, then its bytes, into a posted buffer or one of its own."""

    def __init__(self, box: Mailbox, source: int, tag: int, length: int) -> None:
        self.source = source
        self.tag = tag
        self.length = length - DESCRIPTOR_BYTES
        self.head = bytearray(DESCRIPTOR_BYTES)
        self.descriptor: Descriptor | None = None
        self.dtype = NO_DTYPE
        self.receive: Receive | None = None
        self.data: memoryview = memoryview(b"")
        self.complete = False
        self._box = box
        self._got = 0
        self._reading = threading.Lock()  # held while `data` is written

    def take(self, receive: Callable[[memoryview], int]) -> int:
        """See link.Sink."""
        with self._reading:
            return receive((memoryview(self.head) if self.descriptor is None else self.data)[self._got :])

    def detach(self) -> None:
        """Its receive has ended: from now on nothing is written there; what came and comes is kept elsewhere."""
        kept = receive_buffer(self.length, self.source)
        with self._reading:
            kept[: self._got] = self.data[: self._got]
            self.data, self.receive = kept, None

    def left(self) -> int:
        """Return how many of the message's bytes are still to come."""
        return self.length - self._got + (0 if self.descriptor is not None else DESCRIPTOR_BYTES)

    def refuse(self) -> None:
        """The receive does not fit: the bytes are not wanted."""

    def hand_over(self) -> None:
        """Complete the receive."""
        assert self.receive is not None
        if self.data is not self.receive.buffer:
            self.receive.buffer[:] = self.data
        self.receive.finish(None, self.source)

    def advance(self, count: int) -> bool:
        """Account for `count` bytes read; True when the message is complete."""
        self._got += count
        if self.descriptor is None:
            if self._got < DESCRIPTOR_BYTES:
                return False
            self.descriptor = unpack(bytes(self.head))
            self.dtype = self.descriptor.dtype
            self._got = 0
            self._box.begin(self)
        if self._got < self.length:
            return False
        self._box.end(self)
        return True


class Message(Protocol):
    """A message that has been announced: its bytes are here, or can be had."""

    source: int
    tag: int
    length: int
    dtype: int
    receive: Receive | None
    complete: bool

    @property
    def descriptor(self) -> Descriptor | None:
        """Return what its sender called."""

    def refuse(self) -> None:
        """The receive does not fit: the bytes are not wanted."""

    def hand_over(self) -> None:
        """Complete the receive."""


class Post(Protocol):
    """Another way by which messages come and go: shared memory."""

    def collect(self) -> None:
        """Take in what has come."""

    def heard(self) -> None:
        """Somebody calls for `collect`."""

    def gone(self, rank: int) -> None:
        """`rank` takes nothing more: fail the sends to it."""

    def take_back(self, receive: Receive) -> Message | None:
        """The message of `receive`, which has ended, if nothing of it has been written yet."""

    def fail(self, error: BaseException) -> None:
        """Fail every send."""


class Mailbox:
    """Matches messages and receives of one group. Thread-safe."""

    def __init__(self) -> None:
        self.lock = threading.RLock()  # a signal handler may abort while the same thread holds it
        """Also the post office's: whoever aborts takes both, in whatever it was interrupted."""
        self._posted: deque[Receive] = deque()  # guarded by lock
        self._early: deque[Message] = deque()  # guarded by lock: complete or not, in order of arrival
        self._arriving: dict[int, Incoming] = {}  # guarded by lock: the message whose bytes are on the way, by source
        self._gone: set[int] = set()  # guarded by lock
        self._error: BaseException | None = None  # guarded by lock
        self.post_office: Post | None = None  # set once, by `join`, before messages come that way

    def join(self, post: Post) -> None:
        """Messages may come and go by `post`, too. Peers that were quicker may have called, left or failed before."""
        with self.lock:
            self.post_office = post
            gone, error = set(self._gone), self._error
        post.heard()
        for rank in gone:
            post.gone(rank)
        if error is not None:
            post.fail(error)

    def post(self, receive: Receive) -> None:
        """Wait for a message; `receive.finish` is called at once if it is already here, or can no longer come."""
        with self.lock:
            early = next((m for m in self._early if receive.matches(m.source, m.tag)), None)
            if early is not None and not early.complete and self._error is not None:
                early = None  # nobody reads the rest of it
            if early is not None:
                self._early.remove(early)
                early.receive = receive
                if not early.complete:
                    return  # `end` hands it over
            elif self._error is None and receive.source not in self._gone:
                self._posted.append(receive)
                return
        if early is not None:
            deliver(early)
        else:
            receive.finish(self._error or lost(receive.source), receive.source)

    def cancel(self, receive: Receive) -> bool:
        """Take back a receive; False when its message is here: nothing happens then.

        A message of which a part has come, or whose bytes cannot be had yet, is kept for the next receive.
        """
        untouched = None if self.post_office is None else self.post_office.take_back(receive)
        with self.lock:
            if untouched is not None:
                self._early.appendleft(untouched)
                return True
            half = next((message for message in self._arriving.values() if message.receive is receive), None)
            if half is not None:
                half.detach()
                self._early.append(half)
            elif receive in self._posted:
                self._posted.remove(receive)
            else:
                return False
            return True

    def start(self, source: int, tag: int, length: int) -> Incoming:
        """A message's header has arrived."""
        if not DESCRIPTOR_BYTES <= length <= MAX_MESSAGE_BYTES:
            raise DistNetworkError(f"rank {source} announced a message of {length} bytes")
        return Incoming(self, source, tag, length)

    def begin(self, message: Incoming) -> None:
        """Its descriptor has arrived: choose where the bytes go."""
        assert message.descriptor is not None
        with self.lock:
            self._arriving[message.source] = message
            receive = next((r for r in self._posted if r.matches(message.source, message.tag)), None)
            if receive is None or not _taken(self._posted, receive):
                message.data = receive_buffer(message.length, message.source)
                self._early.append(message)
                return
            message.receive = receive
        fits = len(receive.buffer) == message.length and receive.wanted.dtype == message.dtype
        message.data = receive.buffer if fits else receive_buffer(message.length, message.source)

    def arrive(self, message: Message) -> bool:
        """A message is here as a whole: match it; True when its receive was waiting, and `deliver` is to be called."""
        with self.lock:
            receive = next((r for r in self._posted if r.matches(message.source, message.tag)), None)
            message.receive = receive  # before it is taken: an interrupt leaves it with the message
            if receive is None or not _taken(self._posted, receive):
                message.receive = None
                self._early.append(message)
                return False
            return True

    def heard(self) -> None:
        """A peer says that something came the other way."""
        if self.post_office is not None:
            self.post_office.heard()

    def waiting(self) -> list[Message]:
        """Messages that nobody has posted a receive for, oldest first."""
        with self.lock:
            return list(self._early)

    def concerned(self, source: int, tag: int) -> bool:
        """Return whether the next message from `source` with `tag` is here, or a receive that is posted takes it."""
        if not self._early and not self._posted:
            return False
        with self.lock:
            early = any(message.source == source and message.tag == tag for message in self._early)
            return early or any(receive.matches(source, tag) for receive in self._posted)

    def awaits(self, source: int) -> bool:
        """Return whether a posted receive that has no message yet could take one from `source`."""
        with self.lock:
            return any(receive.source in (ANY, source) for receive in self._posted)

    def end(self, message: Incoming) -> None:
        """All its bytes have arrived."""
        with self.lock:
            message.complete = True
            self._arriving.pop(message.source, None)
            if message.receive is None:
                return
        deliver(message)

    def gone(self, rank: int) -> None:
        """`rank` will send nothing more: fail the receives that wait for it alone, and sends to it."""
        if self.post_office is not None:
            self.post_office.collect()  # what it has sent before
        with self.lock:
            self._gone.add(rank)
            post = self.post_office  # or one that joins from now on, and sees who has gone
            self._early = deque(m for m in self._early if m.complete or m.source != rank)
            failed = [r for r in self._posted if r.source == rank]
            self._posted = deque(r for r in self._posted if r.source != rank)
            half = self._arriving.pop(rank, None)
            if half is not None and half.receive is not None:
                failed.append(half.receive)
        if post is not None:
            post.gone(rank)
        for receive in failed:
            receive.finish(lost(rank), rank)

    def fail(self, error: BaseException) -> None:
        """Fail every receive, posted now or later, and every send with `error`."""
        with self.lock:
            self._error = self._error or error
            post = self.post_office
            failed, self._posted = list(self._posted), deque()
            for message in self._arriving.values():
                if message.receive is not None:
                    failed.append(message.receive)
                    message.detach()
            self._arriving.clear()
        if post is not None:
            post.fail(error)
        for receive in failed:
            receive.finish(error, receive.source)


def _taken(queue: deque[Receive], receive: Receive) -> bool:
    """Take `receive` out of `queue`. False: a signal handler, on the thread that holds the lock, has just failed it."""
    try:
        queue.remove(receive)
    except ValueError:
        return False
    return True


def deliver(message: Message) -> None:
    """Complete the receive that a message was matched with."""
    receive = message.receive
    assert receive is not None
    if len(receive.buffer) != message.length or receive.wanted.dtype != message.dtype:
        error = CollectiveMismatch(
            f"recv {spoken(message.tag)}: this rank posted {receive.wanted}, rank {message.source} sent "
            f"{message.descriptor}, which is gone; expected a tensor of the dtype and size that were sent"
        )
        message.refuse()
        receive.finish(error, message.source)
        return
    message.hand_over()


def lost(rank: int) -> PeerLost:
    """The error of a message to or from a rank that has gone."""
    return PeerLost(f"rank {rank} closed the connection", [rank])
