"""A flight recorder: a process's last calls in a ring in a mapped file, to be read while it runs and after its death.

The file is a header, written once, and `capacity` records of equal size. A record is written when a call is made, and
again as it runs and ends; the kernel keeps what was written when the process is killed. Reading needs no help from the
process. `Recorder` is the reference of the format; dist/native/flight.cpp writes the same bytes faster.

A process may die, and a reader may look, between any two stores. So a record begins with its call's number, which is 0
while the record is being filled. What comes later (what it carries, start, end) is written before the byte that says
that it is there. A copy of the file takes bytes in any order, so a reader makes three: of the first it believes what
says that something is there, of the second what that is, and by the third whether the record's number has stayed.

A reader distrusts the file. Checksums go with the header and with whose call a record is; of the rest of a record
whatever is counted or computed with is checked in `_record`, and a record that makes no sense is left out.
"""

from __future__ import annotations

import fcntl
import mmap
import os
import socket
import stat
import struct
import threading
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum
from functools import lru_cache
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

from resilin._base.clock import SYSTEM
from resilin.errors import UsageError

SUFFIX = ".flight"
MAX_DIMS = 8
MOST_CALLS = 1 << 20  # in one file
_MOST_RANKS = 1 << 24  # that a group may say to have: reports count them
_LAST_TIME_S = 253_402_300_799  # the end of the year 9999, the last of calendars
_MAGIC = b"RSLNFLT4"
# magic, process id, capacity, whether a lock tells if the process lives, wall time less monotonic time; host, job
_HEADER = struct.Struct("<8sIII4xd64s96s")
_SUM = struct.Struct("<I")  # after the header: its checksum
HEADER_BYTES = 256
# number, state, 1 + dims once described, rank, size, root, generation, sequence, key, shape, made, started, ended;
# what, dtype, op, group, line, tag, by
_RECORD = struct.Struct("<QBB2xiiiqqQ8q3d24s12s12s56s144sq32s")
RECORD_BYTES = _RECORD.size
_STATE_AT = 8
_DESCRIBED_AT = 9
_DATA_AT = 10  # from here on is what the bytes before say is there
_ROOT_AT = struct.calcsize("<QBB2xii")
_PLACE = struct.Struct("<56sIqii")  # what a place's checksum is of
_SEQUENCE_AT = struct.calcsize("<QBB2xiiiq")
_SHAPE_AT = struct.calcsize("<QBB2xiiiqqQ")
_STARTED_AT = struct.calcsize("<QBB2xiiiqqQ8qd")
_DTYPE_AT = struct.calcsize("<QBB2xiiiqqQ8q3d24s")
LINE_BYTES = 144
JOIN = "join"  # what a record says that begins a rank's calls in a group


class State(IntEnum):
    """How far a call has come."""

    EMPTY = 0
    QUEUED = 1
    RUNNING = 2
    DONE = 3
    FAILED = 4


class Place(NamedTuple):
    """One rank of one group. `key`, of 32 bits, is the same on all its ranks and, but for chance, nowhere else."""

    group: bytes
    key: int
    generation: int
    rank: int
    size: int


_KEY = (1 << 32) - 1


@lru_cache(maxsize=256)  # of a file a few, of which each is read thousands of times
def sealed(place: Place) -> int:
    """What a record has for the key: above it a checksum of the place."""
    key = place.key & _KEY
    said = _PLACE.pack(place.group, key, place.generation, place.rank, place.size)
    return zlib.crc32(said) << 32 | key


@dataclass(frozen=True, kw_only=True)
class Call:
    """One recorded call. Times are seconds since the epoch on its host; 0 for what has not happened."""

    state: State
    group: str
    key: int
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
    tag: int = 0
    """Of a message: below zero the library's own. 0 for collectives."""
    by: str = ""
    """The function of this library that was called, as "all_gather_object"; "" where that is not known."""
    made: float
    started: float
    ended: float

    def __str__(self) -> str:
        text = self.what if self.sequence < 0 else f"{self.what} #{self.sequence}"
        if self.dtype:
            text += f" {self.dtype}[{', '.join('*' if extent < 0 else str(extent) for extent in self.shape)}]"
        text += f" {self.op}" if self.op else ""
        peer = {"send": "to", "recv": "from"}.get(self.what, "root")
        text += f" {peer} {self.root}" if self.root >= 0 else ""
        return text + (f" tag {self.tag}" if self.tag > 0 else "")

    def within(self) -> str:
        """The same, and the function that was called where it is another one."""
        return str(self) + (f" in {self.by}" if self.by not in ("", self.what, f"i{self.what}") else "")


@dataclass(frozen=True, kw_only=True)
class Flight:
    """What a file says: whose it is, and its calls, oldest first.

    `alive`: whether its process is there; None where that cannot be known; `stopped`: whether it is stopped (SIGSTOP).
    `damage`: what of the file is lost, or "".
    """

    path: Path
    host: str
    pid: int
    job: str
    recorded: int
    alive: bool | None
    stopped: bool
    damage: str
    calls: tuple[Call, ...]


class Recorder:
    """Writes one new file. `begin` gives a slot for `start`, `describe` and `end`; any thread may call them.

    OSError when the file cannot be made, FileExistsError when there is one: it may be mapped. Owner: the process, until
    `close`, which leaves the file. A slot whose record was overwritten by newer calls is written no more. While the
    process lives it holds a lock on the file.
    """

    def __init__(self, path: Path, host: str, capacity: int = 2048, job: str = "") -> None:
        if not 1 <= capacity <= MOST_CALLS:
            raise UsageError(f"a flight recorder has room for 1 to {MOST_CALLS} calls, got a capacity of {capacity}")
        self.path, self._capacity = path, capacity
        size = HEADER_BYTES + capacity * RECORD_BYTES
        file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            for at in range(0, size, len(_ZEROS)):  # a full disk is an error now, not a SIGBUS at some call
                _write(file, _ZEROS[: size - at], at)
            self.map = mmap.mmap(file, size)
            self._held, locked = _hold(path)
        except OSError:
            os.unlink(path)
            raise
        finally:
            os.close(file)
        offset = SYSTEM.wall() - SYSTEM.monotonic()
        header = _HEADER.pack(_MAGIC, os.getpid(), capacity, locked, offset, _text(host, 64), _text(job, 96))
        self.map[:HEADER_BYTES] = (header + _SUM.pack(zlib.crc32(header))).ljust(HEADER_BYTES, b"\0")
        self._number = 0
        self._stopped = False
        self._lock = threading.RLock()  # a signal handler may record while its thread does

    def begin(self, place: Place, what: bytes, line: bytes, by: bytes = b"", tag: int = 0) -> int:
        """A call was made, of the library's function `by`. Texts longer than the record's fields are cut."""
        with self._lock:
            if self._stopped:
                return 0
            self._number = slot = self._number + 1
            at = self._at(slot)
            struct.pack_into("<Q", self.map, at, 0)
            record = _RECORD.pack(
                0, State.QUEUED, 0, place.rank, place.size, -1, place.generation, -1, sealed(place), *(0,) * MAX_DIMS,
                SYSTEM.monotonic(), 0.0, 0.0, what, b"", b"", place.group, line, tag, by,
            )  # fmt: skip
            self.map[at : at + RECORD_BYTES] = record
            struct.pack_into("<Q", self.map, at, slot)
        return slot

    def start(self, slot: int, sequence: int) -> None:
        """The call runs, as number `sequence` of its group."""
        with self._lock:
            if self._holds(slot):
                at = self._at(slot)
                struct.pack_into("<q", self.map, at + _SEQUENCE_AT, sequence)
                struct.pack_into("<d", self.map, at + _STARTED_AT, SYSTEM.monotonic())
                self.map[at + _STATE_AT] = State.RUNNING

    def describe(self, slot: int, dtype: bytes, shape: tuple[int, ...], op: bytes, root: int) -> None:
        """What it carries; the first to say counts. Of more than eight dimensions the first eight are kept."""
        with self._lock:
            if self._holds(slot) and not self.map[(at := self._at(slot)) + _DESCRIBED_AT]:
                kept = shape[:MAX_DIMS]
                struct.pack_into("<i", self.map, at + _ROOT_AT, root)
                struct.pack_into(f"<{len(kept)}q", self.map, at + _SHAPE_AT, *kept)
                struct.pack_into("<12s12s", self.map, at + _DTYPE_AT, dtype, op)
                self.map[at + _DESCRIBED_AT] = 1 + len(kept)

    def end(self, slot: int, failed: bool) -> None:
        """The call is over."""
        with self._lock:
            if self._holds(slot):
                at = self._at(slot)
                struct.pack_into("<d", self.map, at + _STARTED_AT + 8, SYSTEM.monotonic())
                self.map[at + _STATE_AT] = State.FAILED if failed else State.DONE

    def close(self) -> None:
        """Write no more. The file stays. Never blocks: a forked child ends its hold on its parent's file with it."""
        if not self._stopped:
            self._stopped = True
            os.close(self._held)

    def _holds(self, slot: int) -> bool:
        return not self._stopped and slot > 0 and self._number - slot < self._capacity

    def _at(self, slot: int) -> int:
        return HEADER_BYTES + (slot - 1) % self._capacity * RECORD_BYTES


_ZEROS = bytes(1 << 20)


def _write(file: int, data: bytes, at: int) -> None:
    while data:
        done = os.pwrite(file, data, at)
        data, at = data[done:], at + done


def _hold(path: Path) -> tuple[int, bool]:
    """A descriptor that holds the file's lock, and whether it does: some network file systems have no locks.

    It is not the one that is mapped, of which the mapping keeps a copy: what a forked child closes must be all it has.
    """
    file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return file, False
    return file, True


class _Header(NamedTuple):
    pid: int
    capacity: int
    locked: bool
    offset: float
    host: str
    job: str


def read(path: Path) -> Flight:
    """The file's calls, oldest first. UsageError when it is no such file; OSError when it cannot be read.

    Of a file that was cut or damaged it returns what can be believed.
    """
    header, (before, data, after) = _contents(path, copies=3)
    capacity, whole = header.capacity, _records(min(before, data, after, key=len))
    damage = [] if whole == capacity else [f"it was cut: {whole} of {capacity} records are there"]
    numbered: list[tuple[int, Call]] = []
    strange = 0
    for index in range(whole):
        at = HEADER_BYTES + index * RECORD_BYTES
        if before[at : at + 8] == _NO_NUMBER or after[at : at + 8] != before[at : at + 8]:
            continue  # never written, or being overwritten by a newer call
        number, call = _record(before[at : at + _DATA_AT] + data[at + _DATA_AT : at + RECORD_BYTES], 0, header.offset)
        if call is None or (number - 1) % capacity != index:
            strange += 1
            continue
        numbered.append((number, call))
    calls, more = _of_one_ring(numbered, capacity)
    if strange + more:
        damage.append(f"{strange + more} records make no sense")
    alive = _alive(path, header)
    return Flight(
        path=path, host=header.host, pid=header.pid, job=header.job, recorded=calls[-1][0] if calls else 0,
        alive=alive, stopped=bool(alive) and _is_stopped(header.pid), damage="; ".join(damage),
        calls=tuple(call for _, call in calls),
    )  # fmt: skip


def running(path: Path) -> tuple[Call, ...]:
    """The calls that run, or ran when the process ended, oldest first. Parses no others, so it is quicker than `read`.

    Empty for what is no such file; OSError when it cannot be read.
    """
    try:
        header, (data,) = _contents(path)
    except UsageError:
        return ()
    places = range(HEADER_BYTES, len(data) - RECORD_BYTES + 1, RECORD_BYTES)
    found = [_record(data, at, header.offset) for at in places if data[at + _STATE_AT] == State.RUNNING]
    numbered = [(number, call) for number, call in found if number and call is not None]
    return tuple(call for _, call in sorted(numbered, key=lambda each: each[0]))


def newest(path: Path) -> int:
    """The number of the newest call. UsageError when it is no such file; OSError when it cannot be read."""
    _, (data,) = _contents(path)
    places = range(HEADER_BYTES, len(data) - RECORD_BYTES + 1, RECORD_BYTES)
    return max((struct.unpack_from("<Q", data, at)[0] for at in places), default=0)


_NO_NUMBER = bytes(8)


def _contents(path: Path, copies: int = 1) -> tuple[_Header, list[bytes]]:
    """The header, and the file copied that many times: no more of it than the header speaks of.

    Never waits: anything may have a file's name, as a pipe that nobody writes to.
    """
    file = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY)
    try:
        found = os.fstat(file)
        if not stat.S_ISREG(found.st_mode):
            raise UsageError(f"{path}: expected a flight recorder's file, got what is no regular file")
        header = _header(path, os.pread(file, HEADER_BYTES, 0))
        size = min(found.st_size, HEADER_BYTES + header.capacity * RECORD_BYTES)
        return header, [os.pread(file, size, 0) for _ in range(copies)]
    finally:
        os.close(file)


def _header(path: Path, data: bytes) -> _Header:
    if len(data) < HEADER_BYTES or data[: len(_MAGIC)] != _MAGIC:
        raise UsageError(f"{path}: expected a flight recorder's file of this version, which begins with {_MAGIC!r}")
    _, pid, capacity, locked, offset, host, job = _HEADER.unpack_from(data)
    if _SUM.unpack_from(data, _HEADER.size)[0] != zlib.crc32(data[: _HEADER.size]) or not 1 <= capacity <= MOST_CALLS:
        raise UsageError(f"{path}: expected a flight recorder's file, but its header is damaged")
    return _Header(pid, capacity, bool(locked), offset, _string(host), _string(job))


def _records(data: bytes) -> int:
    return max(0, len(data) - HEADER_BYTES) // RECORD_BYTES


def _of_one_ring(numbered: list[tuple[int, Call]], capacity: int) -> tuple[list[tuple[int, Call]], int]:
    """The calls in order, without those of numbers that no ring holds together with most others; how many these are."""
    if not numbered:
        return [], 0
    numbered = sorted(numbered, key=lambda each: each[0])
    middle = numbered[(len(numbered) - 1) // 2][0]
    kept = [each for each in numbered if abs(each[0] - middle) < capacity]
    return kept, len(numbered) - len(kept)


def _record(data: bytes, at: int, offset: float) -> tuple[int, Call | None]:
    """The number and the call, or None: the one place that looks whether a record makes sense."""
    number, state, described, rank, size, root, generation, sequence, key, *rest = _RECORD.unpack_from(data, at)
    (made, started, ended), (what, dtype, op, group, line, tag, by) = rest[8:11], rest[11:]
    if state not in _STATES or described > MAX_DIMS + 1:
        return number, None
    shape = tuple(rest[: max(0, described - 1)])
    root = root if described else -1  # what was not said to be there may be half written
    sequence, started = (sequence, started) if state > State.QUEUED else (-1, 0.0)
    ended = ended if state > State.RUNNING else 0.0
    if not 0 <= rank < size <= _MOST_RANKS or not -1 <= root < size or sequence < -1 or min(shape, default=0) < -1:
        return number, None
    if key != sealed(Place(group, key & _KEY, generation, rank, size)):
        return number, None
    if not _in_order([made, *filter(None, (started, ended))], offset) or (state == State.RUNNING and not started):
        return number, None
    return number, Call(
        state=State(state), group=_string(group), key=key & _KEY, generation=generation, rank=rank, size=size,
        sequence=sequence, what=_string(what), dtype=_string(dtype) if described else "", shape=shape,
        op=_string(op) if described else "", root=root, line=_string(line), tag=tag, by=_string(by),
        made=made + offset, started=started + offset if started else 0.0, ended=ended + offset if ended else 0.0,
    )  # fmt: skip


def _in_order(times: Sequence[float], offset: float) -> bool:
    """Whether these are times, one after the other: comparisons with what is no number are false."""
    return times[0] > 0 and all(a <= b for a, b in pairwise(times)) and times[-1] + offset < _LAST_TIME_S


_STATES = frozenset(State) - {State.EMPTY}


def _alive(path: Path, header: _Header) -> bool | None:
    if header.host != socket.gethostname():
        return None
    if header.locked:
        return is_held(path)
    try:
        os.kill(header.pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass
    return True


def _is_stopped(pid: int) -> bool:
    """Where the kernel tells, which not every one does."""
    try:
        status = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return False
    return status.rpartition(")")[2].split()[0] in ("T", "t")


def is_held(path: Path) -> bool:
    """Whether a process of this host writes the file: it holds the lock. OSError when the file cannot be opened."""
    file = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)  # a pipe may have its name
    try:
        fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(file)
    return False


def _text(text: str, size: int) -> bytes:
    return text.encode("utf-8", "replace")[:size]


def _string(data: bytes) -> str:
    text = data.split(b"\0", 1)[0].decode("utf-8", "replace")
    return text if text.isprintable() else "".join(each if each.isprintable() else "\ufffd" for each in text)
