"""Cut messages into frames of bounded size, and put them together again. Pure: no socket, no clock, no thread.

    lane 0    WHOLE   lengths of the parts, and the parts                 a short message
              END     nothing                                             a long one is sent: it has its place here
    any lane  BEGIN   lengths of the parts, and the short ones of them    a long message; its other parts follow
              CHUNK   some of their bytes                                 of a stream that a BEGIN has opened here
              CANCEL  nothing                                             no more of the stream comes here

A *link* between two workers has one or more *lanes*: connections, each of which delivers in order. Chunks of a long
message go over whichever lane has room; a lane begins a stream by itself, so nothing waits for what another one
carries. Messages of a queue are in the order of WHOLE and END on lane 0: one that is sent after a long message has
been sent waits here for that one's last chunk, and nothing else does.

No frame is longer than MAX_FRAME_BYTES, so a transport can refuse longer ones unseen: what a stranger can make it hold
has an end, and between the chunks of a long message there is room for short ones. Frames of one lane are numbered: one
that is missing, repeated or of another connection is a FrameError, which ends the link.
"""

from __future__ import annotations

import struct
from bisect import bisect_right
from collections import deque
from collections.abc import Iterator, Sequence
from enum import IntEnum
from typing import NamedTuple, Protocol

import numpy as np

from resilin._base.framing import FrameError
from resilin.errors import UsageError
from resilin.rpc.transports.base import Buffer

VERSION = 2
MAX_FRAME_BYTES = 1 << 20
WHOLE_BYTES = 64 << 10  # up to this length a message is copied into one frame: 5 us, as much as a frame more
CHUNK_BYTES = MAX_FRAME_BYTES - (64 << 10)  # a chunk takes 40 us of Python at both ends
INLINE_BYTES = 4 << 10  # a part of a long message up to this length lies in BEGIN
MAX_PARTS = 32 << 10  # their lengths are a quarter of a frame
MAX_STREAMS = 1024  # of one link at a time: one for each thread that sends
MAX_LANES = 16  # beside lane 0
LANES = 32
"""Numbers of connections that a link has: its own is that of lane 0, the next ones are those of the others."""
_MOST_STREAMS = 8 * MAX_STREAMS  # that have not arrived whole: also some that are sent, and lie in the lanes' buffers
_INLINE_BYTES_OF_ALL = 512 << 10


class FrameKind(IntEnum):
    """What a frame is."""

    HELLO = 1
    WHOLE = 2
    BEGIN = 3
    CHUNK = 4
    CANCEL = 5
    PAUSE = 6
    """The queue is full: send nothing more to it."""
    RESUME = 7
    BYE = 8
    """The sender has closed; nothing follows."""
    READY = 9
    """The sender, which has dialed, relies on the connection: before, it may give up, and its end is no news. Answered
    by the same: `connect` returns once both ends would be told of the other one's end."""
    END = 10
    """All of a stream is sent."""


class Head(NamedTuple):
    """What every frame begins with."""

    kind: int
    version: int
    queue: int
    link: int
    """Of the connection: a number that its receiver has chosen."""
    number: int
    """Of the frame, counted on the connection."""
    argument: int
    """How many parts a short message has, or the number of a stream, which is used once in 2**32."""
    place: int
    """Which one of its stream a chunk is."""


HEAD = struct.Struct("<BBHIIII")
_COUNT = struct.Struct("<I")
_NUMBERS = 1 << 32
_pack, _unpack = HEAD.pack, HEAD.unpack_from


class Lengths(NamedTuple):
    """A message that may be sent."""

    parts: Sequence[memoryview]
    each: Sequence[int]
    total: int


def measured(parts: Sequence[Buffer], most_bytes: int) -> Lengths:
    """Return the parts as plain bytes. UsageError: they are too long, or too many."""
    views = [part if isinstance(part, memoryview) and part.format == "B" else _plain(part) for part in parts]
    each = [view.nbytes for view in views]
    total = sum(each)
    if total > most_bytes:
        raise UsageError(
            f"a message of {total} bytes, at most {most_bytes} are sent to a worker of this group; send less at once, "
            "or raise max_message_bytes in all workers"
        )
    if len(each) > MAX_PARTS:
        raise UsageError(f"a message of {len(each)} parts, at most {MAX_PARTS} are sent; join some")
    return Lengths(views, each, total)


def _plain(part: Buffer) -> memoryview:
    view = memoryview(part)
    if not view.contiguous:
        raise UsageError("a part of a message does not lie in one piece; copy it before")
    return view.cast("B")


def head(kind: FrameKind, link: int, number: int, queue: int = 0, argument: int = 0, place: int = 0) -> bytes:
    """A frame's head; for a frame without content all of it."""
    return _pack(kind, VERSION, queue, link, number % _NUMBERS, argument % _NUMBERS, place)


def is_short(message: Lengths) -> bool:
    """Return whether it goes as WHOLE."""
    return message.total + 4 * len(message.each) <= WHOLE_BYTES


def whole_content(message: Lengths) -> list[Buffer]:
    """What follows the head of WHOLE, in pieces."""
    return [struct.pack(f"<{len(message.each)}I", *message.each), *message.parts]


def begin_content(message: Lengths) -> list[Buffer]:
    """What follows the head of BEGIN, in pieces."""
    short = [message.parts[index] for index in _inline(message.each)]
    return [struct.pack(f"<I{len(message.each)}Q", len(message.each), *message.each), *short]


def chunks(message: Lengths) -> Iterator[memoryview]:
    """What follows the heads of CHUNK, one after the other; each lies in one part."""
    inline = set(_inline(message.each))
    for index, part in enumerate(message.parts):
        if index not in inline:
            for start in range(0, part.nbytes, CHUNK_BYTES):
                yield part[start : start + CHUNK_BYTES]


def _inline(lengths: Sequence[int]) -> list[int]:
    """The parts that lie in BEGIN: both ends find them from the lengths."""
    found, total = [], 0
    for index, length in enumerate(lengths):
        if length <= INLINE_BYTES and total + length <= _INLINE_BYTES_OF_ALL:
            found.append(index)
            total += length
    return found


class _Stream:
    """A message that has not been delivered."""

    __slots__ = ("chunks", "ended", "firsts", "lanes", "left", "lengths", "long", "parts", "queue", "seen", "total")

    def __init__(self, queue: int) -> None:
        """One of which nothing has arrived but its END."""
        self.queue = queue
        self.ended = False
        self.parts: list[Buffer] = []
        self.total = 0
        self.lengths: tuple[int, ...] | None = None  # once it has begun
        self.long: list[memoryview] = []  # the parts that are filled by chunks
        self.firsts: list[int] = []  # the number of the first chunk of each
        self.chunks = 0
        self.left = -1  # chunks that have not arrived
        self.seen = bytearray()  # of each chunk, whether it has
        self.lanes: set[int] = set()  # that bring it

    @property
    def whole(self) -> bool:
        """Return whether all of it has arrived."""
        return self.left == 0

    def begin(self, lengths: tuple[int, ...], short: memoryview) -> None:
        """Make room for all parts, and fill the short ones."""
        inline, at = set(_inline(lengths)), 0
        self.lengths, self.total = lengths, sum(lengths)
        for index, length in enumerate(lengths):
            part = np.empty(length, np.uint8).data
            if index in inline:
                part[:] = short[at : at + length]
                at += length
            else:
                self.firsts.append(self.chunks)
                self.chunks += -(-length // CHUNK_BYTES)
                self.long.append(part)
            self.parts.append(part)
        self.left, self.seen = self.chunks, bytearray(self.chunks)

    def fill(self, place: int, data: memoryview) -> None:
        """Take a chunk. FrameError: it is none of this message, or was there before."""
        if place >= self.chunks or self.seen[place]:
            raise FrameError(f"chunk {place} of a message that has {self.chunks}, or for the second time")
        index = bisect_right(self.firsts, place) - 1
        part, start = self.long[index], (place - self.firsts[index]) * CHUNK_BYTES
        room = min(CHUNK_BYTES, part.nbytes - start)
        if data.nbytes != room:
            raise FrameError(f"a chunk of {data.nbytes} bytes, expected {room}")
        part[start : start + room] = data
        self.seen[place] = 1
        self.left -= 1


class Receiver(Protocol):
    """What becomes of messages that have arrived."""

    def arrived(self, queue: int, parts: list[Buffer], size: int) -> None:
        """Take a message of `size` bytes, whose turn it is."""

    def held(self, queue: int, count: int, size: int) -> None:
        """Know that so many messages more wait here for one that was sent before them; negative: fewer."""


class Assembler:
    """Put the frames of one link together. One thread at a time.

    link: the number that heads of lane 0 have to name. most_bytes: the longest message. lanes: how many there are.
    """

    def __init__(self, link: int, most_bytes: int, receiver: Receiver, lanes: int = 1) -> None:
        self._link = link
        self._most_bytes = most_bytes
        self._receiver = receiver
        self._next = [0] * lanes  # by lane
        self._streams: dict[int, _Stream] = {}  # by number
        self._held: dict[int, deque[_Stream]] = {}  # by queue, in order; the first one has not arrived whole

    def feed(self, found: Head, content: memoryview) -> None:
        """Take a frame: its head, and what follows it, of which the receiver is the owner now."""
        kind, version, queue, link, number, argument, place = found
        lane = link - self._link
        if version != VERSION or not 0 <= lane < len(self._next) or number != self._next[lane]:
            raise self._unexpected(found)
        self._next[lane] = (number + 1) % _NUMBERS
        if kind == FrameKind.WHOLE:
            self._whole(queue, argument, content)
        elif kind == FrameKind.CHUNK:
            self._chunk(lane, argument, place, content)
        elif kind == FrameKind.BEGIN:
            self._begin(lane, queue, argument, content)
        elif content.nbytes or not FrameKind.HELLO <= kind <= FrameKind.END:
            raise FrameError(f"a frame of kind {kind} with {content.nbytes} bytes: there is none")
        elif kind == FrameKind.END:
            self._end(queue, argument)
        elif kind == FrameKind.CANCEL:
            self._cancel(lane, argument)

    def drop(self) -> None:
        """Forget what has arrived in part: nothing more comes. Any thread."""
        self._streams, self._held = {}, {}

    @property
    def streams(self) -> int:
        """Messages of which a part has arrived."""
        return len(self._streams)

    def _whole(self, queue: int, count: int, data: memoryview) -> None:
        at = 4 * count
        if at > data.nbytes:
            raise FrameError(f"a message of {count} parts in a frame of {data.nbytes} bytes")
        parts: list[Buffer] = []
        for length in struct.unpack_from(f"<{count}I", data):
            parts.append(data[at : at + length])
            at += length
        total = at - 4 * count
        if at != data.nbytes or total > self._most_bytes:
            raise FrameError(f"a message of {total} bytes in a frame of {data.nbytes}, at most {self._most_bytes}")
        if queue not in self._held:
            self._receiver.arrived(queue, parts, total)
            return
        waiting = _Stream(queue)
        waiting.parts, waiting.total, waiting.left = parts, total, 0
        self._hold(waiting)

    def _begin(self, lane: int, queue: int, number: int, data: memoryview) -> None:
        count = _COUNT.unpack_from(data)[0] if data.nbytes >= _COUNT.size else MAX_PARTS + 1
        at = _COUNT.size + 8 * count
        if at > data.nbytes or count > MAX_PARTS:
            raise FrameError(f"stream {number} with {count} parts, in a frame of {data.nbytes} bytes")
        lengths = struct.unpack_from(f"<{count}Q", data, _COUNT.size)
        inline = _inline(lengths)
        if at + sum(lengths[index] for index in inline) != data.nbytes or sum(lengths) > self._most_bytes:
            raise FrameError(f"a message of {sum(lengths)} bytes, at most {self._most_bytes} are taken")
        if len(inline) == count:
            raise FrameError(f"stream {number} of which nothing is to follow")
        stream = self._stream(number, queue)
        if lane in stream.lanes or stream.lengths not in (None, lengths):
            raise FrameError(f"stream {number} was begun before, or is another one")
        stream.lanes.add(lane)
        if stream.lengths is None:
            stream.begin(lengths, data[at:])
            if stream.ended:
                self._receiver.held(queue, 0, stream.total)

    def _stream(self, number: int, queue: int) -> _Stream:
        """The stream of that number, which is a new one where there is none."""
        stream = self._streams.get(number)
        if stream is None:
            if len(self._streams) >= _MOST_STREAMS:
                raise FrameError(f"{_MOST_STREAMS} messages at once")
            stream = self._streams[number] = _Stream(queue)
        if stream.queue != queue:
            raise FrameError(f"stream {number} for queue {queue}, before it was for {stream.queue}")
        return stream

    def _chunk(self, lane: int, number: int, place: int, data: memoryview) -> None:
        stream = self._streams.get(number)
        if stream is None or lane not in stream.lanes or stream.whole:
            raise FrameError(f"{data.nbytes} bytes of stream {number}, of which nothing is to follow")
        stream.fill(place, data)
        if stream.whole and stream.ended:
            self._streams.pop(number, None)
            self._deliver(stream.queue)

    def _end(self, queue: int, number: int) -> None:
        stream = self._stream(number, queue)
        if stream.ended:
            raise FrameError(f"a second end of stream {number}")
        stream.ended = True
        if stream.whole:
            self._streams.pop(number, None)
            if queue not in self._held:
                self._receiver.arrived(queue, stream.parts, stream.total)
                return
        self._hold(stream)

    def _cancel(self, lane: int, number: int) -> None:
        stream = self._streams.get(number)
        if stream is None or lane not in stream.lanes or stream.ended:
            raise FrameError(f"the end of stream {number}, which was not begun")
        stream.lanes.discard(lane)
        if not stream.lanes:
            self._streams.pop(number, None)

    def _hold(self, stream: _Stream) -> None:
        """Have it wait for its turn."""
        self._held.setdefault(stream.queue, deque()).append(stream)
        self._receiver.held(stream.queue, 1, stream.total)

    def _deliver(self, queue: int) -> None:
        """Deliver what waits whole before the first that has not arrived."""
        waiting = self._held.get(queue)
        while waiting and waiting[0].whole:
            stream = waiting.popleft()
            self._receiver.held(queue, -1, -stream.total)
            self._receiver.arrived(queue, stream.parts, stream.total)
        if not waiting:
            self._held.pop(queue, None)

    def _unexpected(self, found: Head) -> FrameError:
        if found.version != VERSION:
            return FrameError(
                f"a frame of version {found.version}, this is {VERSION}: install the same resilin everywhere"
            )
        lane = found.link - self._link
        if not 0 <= lane < len(self._next):
            return FrameError(f"a frame of connection {found.link}, this is {self._link}")
        return FrameError(f"frame {found.number}, expected {self._next[lane]}: one was lost or repeated")


def read_head(data: memoryview) -> Head:
    """Return the head that a frame begins with."""
    if data.nbytes < HEAD.size:
        raise FrameError(f"a frame of {data.nbytes} bytes, expected {HEAD.size} at least")
    return Head._make(_unpack(data))
