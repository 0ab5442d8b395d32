"""A flight recorder: a process's last calls in a ring in a mapped file, to be read while it runs and after its death.

The file is a header, written once, and `capacity` records of equal size. A record is written when a call is made, and
again as it runs and ends; the kernel keeps what was written when the process is killed. Reading needs no help from the
process. `Recorder` is the reference of the format; distributed/native/flight.cpp writes the same bytes faster.

A process may die, and a reader may look, between any two stores. So a record begins with its call's number, which is 0
while the record is being filled. What comes later (what it carries, start, end) is written before the byte that says
that it is there. A copy of the file takes bytes in any order, so a reader makes three: of the first it believes what
says that something is there, of the second what that is, and by the third whether the record's number has stayed.

A reader distrusts the file. Checksums go with the header and with whose call a record is; of the rest of a record
whatever is counted or computed with is checked in `flight_record`, as it was when it was written. A record that makes
no sense is left out, and `Flight.damage` says so.
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
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from resilin._base import flight_record
from resilin._base.clock import SYSTEM
from resilin._base.flight_record import DATA_AT, RECORD_BYTES, STATE_AT, Call, CallState, Place, text_of
from resilin.errors import UsageError

SUFFIX = ".flight"
MOST_CALLS = 1 << 20  # in one file
_MAGIC = b"RSLNFLT5"
_MAKE = b"RSLNFLT"  # and then a digit, the version
# magic, process id, capacity, whether a lock tells if the process lives, wall time less monotonic time; host, job
_HEADER = struct.Struct("<8sIII4xd64s96s")
_SUM = struct.Struct("<I")  # after the header: its checksum
HEADER_BYTES = 256


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

    UsageError for what no reader would believe: see `flight_record`.

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
            os.fchmod(file, 0o600)  # a umask may take from the owner, too
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
            record = flight_record.fresh(place, what, line, by, tag, SYSTEM.monotonic())
            flight_record.number(self.map, at, 0)
            self.map[at : at + RECORD_BYTES] = record
            flight_record.number(self.map, at, slot)
        return slot

    def start(self, slot: int, sequence: int) -> None:
        """The call runs, as number `sequence` of its group."""
        with self._lock:
            if self._holds(slot):
                flight_record.start(self.map, self._at(slot), sequence, SYSTEM.monotonic())

    def describe(self, slot: int, dtype: bytes, shape: tuple[int, ...], op: bytes, root: int, shards: int = 0) -> None:
        """What it carries; the first to say counts. Of more than eight dimensions the first eight are kept."""
        with self._lock:
            if self._holds(slot):
                flight_record.describe(self.map, self._at(slot), dtype, shape, op, root, shards)

    def end(self, slot: int, failed: bool) -> None:
        """The call is over."""
        with self._lock:
            if self._holds(slot):
                flight_record.end(self.map, self._at(slot), failed, SYSTEM.monotonic())

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
        number, call = flight_record.decode(
            before[at : at + DATA_AT] + data[at + DATA_AT : at + RECORD_BYTES], 0, header.offset
        )
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
    found = [flight_record.decode(data, at, header.offset) for at in places if data[at + STATE_AT] == CallState.RUNNING]
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
    if data.startswith(_MAKE) and data[: len(_MAGIC)] != _MAGIC:
        raise UsageError(
            f"{path}: expected a flight recorder's file of this version, which begins with {_MAGIC!r}, got "
            f"{data[: len(_MAGIC)]!r}: another version of resilin wrote it; read it with that one"
        )
    if len(data) < HEADER_BYTES or data[: len(_MAGIC)] != _MAGIC:
        raise UsageError(f"{path}: expected a flight recorder's file of this version, which begins with {_MAGIC!r}")
    _, pid, capacity, locked, offset, host, job = _HEADER.unpack_from(data)
    if _SUM.unpack_from(data, _HEADER.size)[0] != zlib.crc32(data[: _HEADER.size]) or not 1 <= capacity <= MOST_CALLS:
        raise UsageError(f"{path}: expected a flight recorder's file, but its header is damaged")
    return _Header(pid, capacity, bool(locked), offset, text_of(host), text_of(job))


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
