"""Cut messages into frames of bounded size, and put them together again. Pure: no socket, no clock, no thread.

    WHOLE   lengths of the parts, and the parts                 a short message
    BEGIN   lengths of the parts, and the short ones of them    a long one; its other parts follow
    CHUNK   the next bytes of the parts that follow             of the stream that a BEGIN has opened
    CANCEL  nothing                                             the rest of a stream will not come

No frame is longer than MAX_FRAME_BYTES, so a transport can refuse longer ones unseen: what a stranger can make it hold
has an end, and between the chunks of a long message there is room for short ones. Frames of one connection are
numbered: one that is missing, repeated or of another connection is a FrameError, which ends the connection.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator, Sequence
from enum import IntEnum
from typing import NamedTuple

import numpy as np

from resilin._base.framing import FrameError
from resilin.errors import UsageError
from resilin.rpc.transports.base import Buffer

VERSION = 1
MAX_FRAME_BYTES = 1 << 20
WHOLE_BYTES = 64 << 10  # up to this length a message is copied into one frame: 5 us, as much as a frame more
CHUNK_BYTES = MAX_FRAME_BYTES - (64 << 10)  # a chunk takes 40 us of Python at both ends
INLINE_BYTES = 4 << 10  # a part of a long message up to this length lies in BEGIN
MAX_PARTS = 32 << 10  # their lengths are a quarter of a frame
MAX_STREAMS = 1024  # of one connection at a time: one for each thread that sends
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
    """Parts of a message, or the number of a stream."""


HEAD = struct.Struct("<BBHIII")
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


def head(kind: FrameKind, link: int, number: int, queue: int = 0, argument: int = 0) -> bytes:
    """A frame's head; for a frame without content all of it."""
    return _pack(kind, VERSION, queue, link, number % _NUMBERS, argument)


def is_short(message: Lengths) -> bool:
    """Return whether it goes as WHOLE."""
    return message.total + 4 * len(message.each) <= WHOLE_BYTES


def whole_content(message: Lengths) -> list[Buffer]:
    """What follows the head of WHOLE, in pieces."""
    return [struct.pack(f"<{len(message.each)}I", *message.each), *message.parts]


def begin_content(message: Lengths) -> list[Buffer]:
    """What follows the head of BEGIN, in pieces."""
    short = [message.parts[index] for index in _inline(message.each)]
    return [struct.pack(f"<{len(message.each)}Q", *message.each), *short]


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
    """A long message that is arriving."""

    __slots__ = ("offset", "parts", "queue", "rest", "total")

    def __init__(self, queue: int, parts: list[memoryview], rest: list[memoryview]) -> None:
        self.queue = queue
        self.parts = parts
        self.rest = rest  # those that are still to be filled, the next one last
        self.offset = 0  # in the next one
        self.total = sum(part.nbytes for part in parts)


Arrived = Callable[[int, list[Buffer], int], None]
"""Takes the number of the queue, the parts, and how many bytes they are."""


class Assembler:
    """Put the frames of one connection together. One thread at a time.

    link: the number that heads have to name. most_bytes: the longest message. arrived: is called for each message.
    """

    def __init__(self, link: int, most_bytes: int, arrived: Arrived) -> None:
        self._link = link
        self._most_bytes = most_bytes
        self._arrived = arrived
        self._next = 0
        self._streams: dict[int, _Stream] = {}

    def feed(self, found: Head, content: memoryview) -> None:
        """Take a frame: its head, and what follows it, of which the receiver is the owner now."""
        kind, version, queue, link, number, argument = found
        if version != VERSION or link != self._link or number != self._next:
            raise _unexpected(found, self._link, self._next)
        self._next = (number + 1) % _NUMBERS
        if kind == FrameKind.WHOLE:
            self._whole(queue, argument, content)
        elif kind == FrameKind.CHUNK:
            self._chunk(argument, content)
        elif kind == FrameKind.BEGIN:
            self._begin(queue, argument, content)
        elif content.nbytes or not FrameKind.HELLO <= kind <= FrameKind.READY:
            raise FrameError(f"a frame of kind {kind} with {content.nbytes} bytes: there is none")
        elif kind == FrameKind.CANCEL and self._streams.pop(argument, None) is None:
            raise FrameError(f"the end of stream {argument}, which was not begun")

    def drop(self) -> None:
        """Forget what has arrived in part: nothing more comes. Any thread."""
        self._streams = {}

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
        self._arrived(queue, parts, total)

    def _begin(self, queue: int, argument: int, data: memoryview) -> None:
        count, stream = argument & 0xFFFF, argument >> 16
        at = 8 * count
        if at > data.nbytes or stream in self._streams or len(self._streams) == MAX_STREAMS:
            raise FrameError(f"stream {stream} with {count} parts, in a frame of {data.nbytes} bytes: not now")
        lengths = struct.unpack_from(f"<{count}Q", data)
        inline = set(_inline(lengths))
        short = sum(lengths[index] for index in inline)
        if at + short != data.nbytes or sum(lengths) > self._most_bytes:
            raise FrameError(f"a message of {sum(lengths)} bytes, at most {self._most_bytes} are taken")
        parts, rest = [], []
        for index, length in enumerate(lengths):
            part = np.empty(length, np.uint8).data
            if index in inline:
                part[:] = data[at : at + length]
                at += length
            else:
                rest.append(part)
            parts.append(part)
        if not rest:
            raise FrameError(f"stream {stream} of which nothing is to follow")
        self._streams[stream] = _Stream(queue, parts, rest[::-1])

    def _chunk(self, number: int, data: memoryview) -> None:
        stream = self._streams.get(number)
        if stream is None or not data.nbytes:
            raise FrameError(f"{data.nbytes} bytes of stream {number}, of which nothing is to follow")
        part = stream.rest[-1]
        end = stream.offset + data.nbytes
        if end > part.nbytes:
            raise FrameError(f"{end} bytes of a part that has {part.nbytes}")
        part[stream.offset : end] = data
        stream.offset = end
        if end == part.nbytes:
            stream.rest.pop()
            stream.offset = 0
            if not stream.rest:
                del self._streams[number]
                self._arrived(stream.queue, list(stream.parts), stream.total)


def read_head(data: memoryview) -> Head:
    """Return the head that a frame begins with."""
    if data.nbytes < HEAD.size:
        raise FrameError(f"a frame of {data.nbytes} bytes, expected {HEAD.size} at least")
    return Head._make(_unpack(data))


def begin_argument(parts: int, stream: int) -> int:
    """The argument of BEGIN's head."""
    return stream << 16 | parts


def _unexpected(found: Head, link: int, number: int) -> FrameError:
    if found.version != VERSION:
        return FrameError(f"a frame of version {found.version}, this is {VERSION}: install the same resilin everywhere")
    if found.link != link:
        return FrameError(f"a frame of connection {found.link}, this is {link}")
    return FrameError(f"frame {found.number}, expected {number}: one was lost or repeated")
