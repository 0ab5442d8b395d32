"""A flight recorder: a process's last calls in a ring in a mapped file, to be read while it runs and after its death.

The file is a header and `capacity` records of equal size. A record is written when a call is made, and again as it runs
and ends; the kernel keeps what was written when the process is killed. Reading needs no help from the process.
"""

from __future__ import annotations

import mmap
import os
import struct
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from enum import IntEnum
from pathlib import Path

from resilin._base.clock import SYSTEM
from resilin.errors import UsageError

SUFFIX = ".flight"
MAX_DIMS = 8
_MAGIC = b"RSLNFLT1"
# magic, process id, capacity, calls recorded so far, wall time less monotonic time, the host's name
_HEADER = struct.Struct("<8sIIQd64s")
_HEADER_BYTES = 128
_COUNT_AT = 16
# state, dims, rank, size, generation, sequence, root, shape, made, started, ended; what, dtype, op, group, line
_RECORD = struct.Struct("<BB2xiiqqi4x8q3d24s12s12s56s96s")
_RECORD_BYTES = 352
_STARTED_AT = struct.calcsize("<BB2xiiqqi4x8qd")


class State(IntEnum):
    """How far a call has come."""

    EMPTY = 0
    QUEUED = 1
    RUNNING = 2
    DONE = 3
    FAILED = 4


@dataclass(frozen=True, kw_only=True)
class Call:
    """One recorded call. Times are seconds since the epoch on its host; 0 for what has not happened."""

    state: State
    group: str
    generation: int
    rank: int
    size: int
    sequence: int
    what: str
    dtype: str
    shape: tuple[int, ...]
    op: str
    root: int
    line: str
    made: float
    started: float
    ended: float

    def __str__(self) -> str:
        text = self.what if self.sequence < 0 else f"{self.what} #{self.sequence}"
        if self.dtype:
            text += f" {self.dtype}[{', '.join('*' if extent < 0 else str(extent) for extent in self.shape)}]"
        text += f" {self.op}" if self.op else ""
        peer = {"send": "to", "recv": "from"}.get(self.what, "root")
        return text + (f" {peer} {self.root}" if self.root >= 0 else "")


@dataclass(frozen=True, kw_only=True)
class Flight:
    """What a file says: whose it is, and its calls, oldest first."""

    path: Path
    host: str
    pid: int
    recorded: int
    calls: tuple[Call, ...]


class Recorder:
    """Writes one file. `begin` gives a slot for `start`, `describe` and `end`; any thread may call them.

    OSError when the file cannot be made. Owner: the process, until `close`, which leaves the file. A slot whose record
    was overwritten by newer calls is written no more.
    """

    def __init__(self, path: Path, host: str, capacity: int = 2048) -> None:
        if capacity < 1:
            raise UsageError(f"a flight recorder needs room for a call, got a capacity of {capacity}")
        self.path, self._capacity = path, capacity
        size = _HEADER_BYTES + capacity * _RECORD_BYTES
        with open(path, "wb+") as file:
            file.write(bytes(size))  # a full disk is an error now, not a SIGBUS at some call
            file.flush()
            self._map = mmap.mmap(file.fileno(), size)
        self._offset = SYSTEM.wall() - SYSTEM.monotonic()
        _HEADER.pack_into(self._map, 0, _MAGIC, os.getpid(), capacity, 0, self._offset, _text(host, 64))
        self._count = 0
        self._lock = threading.Lock()

    def begin(
        self, group: bytes, generation: int, rank: int, size: int, sequence: int, what: bytes, line: bytes
    ) -> int:
        """A call was made. Texts longer than the record's fields are cut."""
        with self._lock:
            slot = self._count
            self._count += 1
            _RECORD.pack_into(
                self._map, self._at(slot), State.QUEUED, 0, rank, size, generation, sequence, -1, *(0,) * MAX_DIMS,
                SYSTEM.monotonic(), 0.0, 0.0, what, b"", b"", group, line,
            )  # fmt: skip
            struct.pack_into("<Q", self._map, _COUNT_AT, self._count)
        return slot

    def start(self, slot: int, sequence: int) -> None:
        """The call runs, as number `sequence` of its group."""
        if self._alive(slot):
            at = self._at(slot)
            struct.pack_into("<q", self._map, at + _SEQUENCE_AT, sequence)
            struct.pack_into("<d", self._map, at + _STARTED_AT, SYSTEM.monotonic())
            self._map[at] = State.RUNNING

    def describe(self, slot: int, dtype: bytes, shape: tuple[int, ...], op: bytes, root: int) -> None:
        """What it carries. Of more than eight dimensions the first eight are kept."""
        if self._alive(slot):
            at, kept = self._at(slot), shape[:MAX_DIMS]
            self._map[at + 1] = len(kept)
            struct.pack_into("<i4x8q", self._map, at + _ROOT_AT, root, *kept, *(0,) * (MAX_DIMS - len(kept)))
            struct.pack_into("<12s12s", self._map, at + _DTYPE_AT, dtype, op)

    def end(self, slot: int, failed: bool) -> None:
        """The call is over."""
        if self._alive(slot):
            at = self._at(slot)
            struct.pack_into("<d", self._map, at + _STARTED_AT + 8, SYSTEM.monotonic())
            self._map[at] = State.FAILED if failed else State.DONE

    def close(self) -> None:
        """Write no more. The file stays."""
        with self._lock:
            self._map.close()

    def _alive(self, slot: int) -> bool:
        return self._count - slot <= self._capacity and not self._map.closed

    def _at(self, slot: int) -> int:
        return _HEADER_BYTES + slot % self._capacity * _RECORD_BYTES


_SEQUENCE_AT = struct.calcsize("<BB2xiiq")
_ROOT_AT = struct.calcsize("<BB2xiiqq")
_DTYPE_AT = struct.calcsize("<BB2xiiqqi4x8q3d24s")


def read(path: Path) -> Flight:
    """The file's calls, oldest first. UsageError when it is no such file, or cut."""
    data = path.read_bytes()
    if len(data) < _HEADER_BYTES or data[: len(_MAGIC)] != _MAGIC:
        raise UsageError(f"{path}: expected a flight recorder's file, which begins with {_MAGIC!r}")
    _, pid, capacity, count, offset, host = _HEADER.unpack_from(data)
    if len(data) != _HEADER_BYTES + capacity * _RECORD_BYTES:
        raise UsageError(f"{path}: expected {capacity} records, got {len(data)} bytes: it was cut")
    calls = tuple(_calls(data, capacity, count, offset))
    return Flight(path=path, host=_string(host), pid=pid, recorded=count, calls=calls)


def _calls(data: bytes, capacity: int, count: int, offset: float) -> Iterator[Call]:
    for slot in range(max(0, count - capacity), count):
        state, dims, rank, size, generation, sequence, root, *rest = _RECORD.unpack_from(
            data, _HEADER_BYTES + slot % capacity * _RECORD_BYTES
        )
        if state not in _STATES or dims > MAX_DIMS:
            continue  # torn: it was being written
        shape, (made, started, ended), (what, dtype, op, group, line) = rest[:dims], rest[8:11], rest[11:]
        yield Call(
            state=State(state), group=_string(group), generation=generation, rank=rank, size=size, sequence=sequence,
            what=_string(what), dtype=_string(dtype), shape=tuple(shape), op=_string(op), root=root,
            line=_string(line), made=made + offset, started=started and started + offset,
            ended=ended and ended + offset,
        )  # fmt: skip


_STATES = frozenset(State) - {State.EMPTY}


def _text(text: str, size: int) -> bytes:
    return text.encode("utf-8", "replace")[:size]


def _string(data: bytes) -> str:
    return data.rstrip(b"\0").decode("utf-8", "replace")
