"""The bounded memory that spans are recorded in: its format, a writer in Python, and the reader.

    head      magic, sizes, how much was written, clocks                              HEAD_BYTES
    records   a ring of fixed size: the newest stay, and how many went is known       RECORD_BYTES each
    arguments a ring of bytes: JSON, or for operations `_operands`
    names     every name once, until the room is used up; the names of threads, too

A record is there from the moment its span begins, without an end, so that the last spans of a process that was killed
can be read from its memory file. core/native/tracing/recorder.cpp writes the same bytes. All numbers are little endian;
times are nanoseconds of the monotonic clock, and the head says what the wall clock showed beside it.
"""

from __future__ import annotations

import json
import os
import struct
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from resilin._base.trace import SpanKind
from resilin.errors import UsageError

MAGIC = b"RSLSPAN1"
HEAD_BYTES = 4096
# magic; records, bytes of arguments and of names; written: records, argument bytes, name bytes; names that found no
# room; monotonic and wall clock when it was made; process
_HEAD = struct.Struct("<8s3Q4Q2qQ")
_WRITTEN = struct.Struct("<4Q")  # records, argument bytes, name bytes, lost names
_WRITTEN_AT = struct.calcsize("<8s3Q")
# number + 1 (0: none, or being written), start, end (0: open), link, value, where its arguments are, name, thread,
# bytes of arguments, kind, flags
RECORD = struct.Struct("<QqqqqQIIIBBxx")
RECORD_BYTES = RECORD.size
OPERANDS = 1  # flag: the arguments are in the short form of operations, not JSON
INSTANT = 2  # flag: a moment, not a span
_END_AT = struct.calcsize("<Qq")
_TIME = struct.Struct("<q")
_NAME = struct.Struct("<I")
THREAD = "\0"  # begins a name that is a thread's: its number, a blank, its name
UNNAMED = "(unnamed)"
DEFAULT_BYTES = 64 << 20


def sizes(total_bytes: int) -> tuple[int, int, int]:
    """How many records, bytes of arguments and bytes of names fit into `total_bytes`. UsageError below 64 KiB."""
    if total_bytes < 64 << 10:
        raise UsageError(f"trace buffer: expected at least 65536 bytes, got {total_bytes}")
    room = total_bytes - HEAD_BYTES
    names = room // 16
    arguments = room * 6 // 16 // 8 * 8
    return (room - names - arguments) // RECORD_BYTES, arguments, names // 8 * 8


class Ring:
    """Writes spans into `buffer`, from any thread: a `trace.SpanRecorder` in Python.

    Raises UsageError when the buffer is too small. The buffer stays the caller's.
    """

    record_shapes = False
    """Operations are told without what they were given."""

    def __init__(self, buffer: Any) -> None:
        self.buffer = buffer
        self._memory = memoryview(buffer).cast("B")
        self._records, self._room, self._name_room = sizes(len(self._memory))
        self._arguments_at = HEAD_BYTES + self._records * RECORD_BYTES
        self._names_at = self._arguments_at + self._room
        self._lock = threading.Lock()
        self._written = 0  # guarded by _lock, as all below
        self._arguments = 0
        self._name_bytes = 0
        self._lost_names = 0
        self._names: dict[str, int] = {}
        self._threads: set[int] = set()
        self._open: dict[int, tuple[str, int, int, int, int, Mapping[str, Any] | None]] = {}
        clocks = time.monotonic_ns(), time.time_ns()
        head = (self._records, self._room, self._name_room, 0, 0, 0, 0, *clocks, os.getpid())
        _HEAD.pack_into(self._memory, 0, MAGIC, *head)

    def begin(self, name: str, kind: int, link: int = -1, args: Mapping[str, Any] | None = None) -> int:
        """Open a span of this thread and return its token."""
        start = time.monotonic_ns()
        with self._lock:
            thread = self._thread()
            token = self._write(thread, name, kind, start, 0, link, 0, args, 0)
            self._open[token] = (name, kind, start, link, thread, args)
        return token

    def end(self, token: int, args: Mapping[str, Any] | None = None) -> None:
        """Close the span `token`; with `args`, in place of those that it was opened with."""
        end = time.monotonic_ns()
        with self._lock:
            opened = self._open.pop(token, None)
            if opened is None:
                return
            name, kind, start, link, thread, before = opened  # the thread that opened it: another one may close it
            if self._written - token > self._records:  # others took its place while it was open
                self._write(thread, name, kind, start, end, link, 0, before if args is None else args, 0)
            elif args is None:
                _TIME.pack_into(self._memory, HEAD_BYTES + token % self._records * RECORD_BYTES + _END_AT, end)
            else:
                self._put(token, thread, name, kind, start, end, link, 0, args, 0)

    def complete(
        self, name: str, kind: int, start_ns: int, end_ns: int, link: int = -1, args: Mapping[str, Any] | None = None
    ) -> None:
        """Record a span that is over."""
        with self._lock:
            self._write(self._thread(), name, kind, start_ns, end_ns, link, 0, args, 0)

    def instant(
        self, name: str, kind: int, link: int = -1, value: int = 0, args: Mapping[str, Any] | None = None
    ) -> None:
        """Record a moment."""
        now = time.monotonic_ns()
        with self._lock:
            self._write(self._thread(), name, kind, now, now, link, value, args, INSTANT)

    def _thread(self) -> int:
        """This thread's number; its name is kept with it."""
        thread = threading.get_native_id()
        if thread not in self._threads:
            self._threads.add(thread)
            self._name(f"{THREAD}{thread} {threading.current_thread().name}")
        return thread

    def _write(
        self, thread: int, name: str, kind: int, start: int, end: int, link: int, value: int, args: Any, flags: int
    ) -> int:
        number = self._written
        self._written += 1
        self._put(number, thread, name, kind, start, end, link, value, args, flags)
        return number

    def _put(
        self, number: int, thread: int, name: str, kind: int, start: int, end: int, link: int, value: int, args: Any,
        flags: int,
    ) -> None:  # fmt: skip
        at, length = self._append(_text(args)) if args else (0, 0)
        place = HEAD_BYTES + number % self._records * RECORD_BYTES
        self._memory[place : place + 8] = bytes(8)  # readers leave it out until it is whole
        fields = (start, end, link, value, at, self._name(name), thread, length, kind, flags)
        RECORD.pack_into(self._memory, place, 0, *fields)
        struct.pack_into("<Q", self._memory, place, number + 1)
        _WRITTEN.pack_into(
            self._memory, _WRITTEN_AT, self._written, self._arguments, self._name_bytes, self._lost_names
        )

    def _append(self, text: bytes) -> tuple[int, int]:
        """Where `text` lies in the ring of arguments, and its length: in one piece, nothing when it is too long."""
        if len(text) > self._room // 2:
            return 0, 0
        left = self._room - self._arguments % self._room
        at = self._arguments if len(text) <= left else self._arguments + left
        place = self._arguments_at + at % self._room
        self._memory[place : place + len(text)] = text
        self._arguments = at + len(text)
        return at, len(text)

    def _name(self, name: str) -> int:
        """Where the name is, plus 1; 0 when there was no room for it."""
        found = self._names.get(name)
        if found is not None:
            return found
        text = name.encode("utf-8", "replace")
        if self._name_bytes + _NAME.size + len(text) > self._name_room:
            self._lost_names += 1
            return 0
        place = self._names_at + self._name_bytes
        _NAME.pack_into(self._memory, place, len(text))
        self._memory[place + _NAME.size : place + _NAME.size + len(text)] = text
        found = self._names[name] = self._name_bytes + 1
        self._name_bytes += _NAME.size + len(text)
        return found


def _text(args: Mapping[str, Any]) -> bytes:
    """Arguments as JSON; nothing where JSON cannot say them."""
    try:
        return json.dumps(args, default=str).encode()
    except (ValueError, TypeError, RecursionError):
        return b""


@dataclass(slots=True)
class Span:
    """One record. Times are nanoseconds of the monotonic clock; `end_ns` is None while the span is open."""

    number: int
    name: str
    kind: SpanKind
    start_ns: int
    end_ns: int | None
    thread: int
    """The operating system's number of the thread."""
    link: int
    """Of an operation and a backward node: the sequence number that they share. -1: none."""
    value: int
    args: dict[str, Any] | None
    """As given to the recorder; of an operation `{"inputs": [...]}`, see `operands_of`."""
    instant: bool


@dataclass(slots=True)
class Recording:
    """What was in a buffer, in the order in which spans began."""

    spans: list[Span]
    threads: dict[int, str]
    dropped: int
    """Records that newer ones took the place of."""
    lost_arguments: int
    lost_names: int
    monotonic_ns: int
    """When the buffer was made; `wall_ns` is the wall clock's time (nanoseconds since 1970) at that moment."""
    wall_ns: int
    process: int


def written(buffer: Any) -> int:
    """Return how many spans were ever written into a buffer."""
    count: int = _WRITTEN.unpack_from(buffer, _WRITTEN_AT)[0]
    return count


def oldest(buffer: Any) -> int:
    """Return the number of the oldest span that is still in a buffer, or would be if there were enough."""
    return max(0, written(buffer) - int(_HEAD.unpack_from(buffer)[1]))


def read(buffer: Any, decode: Callable[[memoryview, int], tuple[list[Span], int]] | None = None) -> Recording:
    """Read all spans from a buffer or the bytes of a memory file; others may be writing to it meanwhile.

    decode: does what `spans_in` does, quicker. Raises UsageError when `buffer` is none.
    """
    memory = memoryview(buffer).cast("B")
    if len(memory) < HEAD_BYTES or bytes(memory[:8]) != MAGIC:
        raise UsageError("trace buffer: expected one that begins with RSLSPAN1, this is none")
    _, records, room, name_room, written, _, _, lost_names, mono, wall, process = _HEAD.unpack_from(memory)
    names_at = HEAD_BYTES + records * RECORD_BYTES + room
    if names_at + name_room > len(memory) or not records or not room:
        raise UsageError(f"trace buffer: its head speaks of more than the {len(memory)} bytes that are there")
    dropped = max(0, written - records)
    spans, lost = (decode or spans_in)(memory, dropped)
    threads = _threads(memory, names_at, min(_WRITTEN.unpack_from(memory, _WRITTEN_AT)[2], name_room))
    return Recording(spans, threads, dropped, lost, lost_names, mono, wall, process)


def spans_in(memory: memoryview, first: int, thread_only: int = 0) -> tuple[list[Span], int]:
    """Return the spans from number `first` on, by start, the longer one first; and how many arguments were lost.

    thread_only: those of this thread, 0 is all.
    """
    _, records, room, name_room, written, *_ = _HEAD.unpack_from(memory)
    arguments_at = HEAD_BYTES + records * RECORD_BYTES
    names_at = arguments_at + room
    names: dict[int, str] = {0: UNNAMED}
    spans: list[Span] = []
    lost = 0
    for number in range(max(first, written - records, 0), written):
        place = HEAD_BYTES + number % records * RECORD_BYTES
        mark, start, end, link, value, at, name, thread, length, kind, flags = RECORD.unpack_from(memory, place)
        if mark != number + 1:
            continue  # being written, or taken over since
        if thread_only not in (0, thread):
            continue
        if name not in names:
            names[name] = _name_at(memory, names_at + name - 1, names_at + name_room)
        args = None
        if length:
            text = bytes(memory[arguments_at + at % room : arguments_at + at % room + length])
            argument_bytes = _WRITTEN.unpack_from(memory, _WRITTEN_AT)[1]
            if argument_bytes > at + room or at % room + length > room:
                lost += 1
            else:
                args = _arguments(text, flags)
                lost += args is None
        if RECORD.unpack_from(memory, place)[0] != mark:
            continue
        if kind in KINDS:
            closed = end if end else None
            fields = (thread, link, value, args, bool(flags & INSTANT))
            spans.append(Span(number, names[name], KINDS[kind], start, closed, *fields))
    spans.sort(key=lambda span: (span.start_ns, -(span.end_ns or 1 << 63), span.number))
    return spans, lost


KINDS = {int(kind): kind for kind in SpanKind}


def _threads(memory: memoryview, names_at: int, written: int) -> dict[int, str]:
    """The names of the threads that wrote, by number."""
    found: dict[int, str] = {}
    at = 0
    while at + _NAME.size <= written:
        text = _name_at(memory, names_at + at, names_at + written)
        if text.startswith(THREAD):
            number, _, name = text[len(THREAD) :].partition(" ")
            if number.isdecimal():  # else it is torn
                found[int(number)] = name
        at += _NAME.size + _NAME.unpack_from(memory, names_at + at)[0]
    return found


def _name_at(memory: memoryview, place: int, end: int) -> str:
    if place + _NAME.size > end:
        return UNNAMED
    (length,) = _NAME.unpack_from(memory, place)
    text = bytes(memory[place + _NAME.size : min(place + _NAME.size + length, end)])
    return text.decode("utf-8", "replace")


def _arguments(text: bytes, flags: int) -> dict[str, Any] | None:
    try:
        return {"inputs": operands_of(text)} if flags & OPERANDS else json.loads(text)
    except (ValueError, struct.error, IndexError, RecursionError):  # overwritten while it was read
        return None


@dataclass(slots=True, frozen=True)
class TensorInput:
    """What is kept of a tensor that an operation was given."""

    shape: tuple[int, ...]
    strides: tuple[int, ...]
    """In elements."""
    dtype: str
    """As numpy spells its kind and size: "f4", "i8", "b1", "V2" (bfloat16)."""


def operands_of(text: bytes) -> list[Any]:
    """The inputs of an operation: a TensorInput, a list of them, a number, a str, None, or ... for anything else.

    The short form, one after the other: a letter, then
    t: kind (1 byte), item size (1), dimensions (1), then shape and strides, 8 bytes each; l: count (1), then as many;
    i: 8 bytes; f: a double; b: 1 byte; s: length (1), utf-8; n and o: nothing.
    """
    values = _Cursor(text)
    return list(values)


class _Cursor:
    def __init__(self, text: bytes) -> None:
        self._text, self._at = text, 0

    def __iter__(self) -> Iterator[Any]:
        while self._at < len(self._text):
            yield self._next()

    def _take(self, form: str) -> tuple[Any, ...]:
        found = struct.unpack_from("<" + form, self._text, self._at)
        self._at += struct.calcsize("<" + form)
        return found

    def _next(self) -> Any:
        (letter,) = self._take("c")
        if letter == b"t":
            kind, item, dims = self._take("cBB")
            shape, strides = self._take(f"{dims}q"), self._take(f"{dims}q")
            return TensorInput(shape, strides, f"{kind.decode('latin-1')}{item}")
        if letter == b"l":
            (count,) = self._take("B")
            return [self._next() for _ in range(count)]
        if letter == b"i" or letter == b"f":
            return self._take("q" if letter == b"i" else "d")[0]
        if letter == b"b":
            return bool(self._take("B")[0])
        if letter == b"s":
            (length,) = self._take("B")
            text = self._text[self._at : self._at + length]
            self._at += length
            return text.decode("utf-8", "replace")
        if letter == b"n":
            return None
        if letter == b"o":
            return ...
        raise ValueError(f"unknown operand {letter!r}")
