"""One record of a flight recorder: what it says of a call, and the bytes that say so. Pure: no file, no clock.

This is the one definition for who writes and who reads. What makes no sense is decided by `amiss_*` for both: a writer
refuses it with UsageError before a byte is written, a reader leaves the record out. So no record that was written whole
is left out. distributed/native/flight.cpp writes the same bytes and refuses the same.

What comes later (what it carries, start, end) is written before the byte that says that it is there.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum
from functools import lru_cache
from itertools import pairwise
from typing import Any, NamedTuple

from resilin.errors import UsageError

MAX_DIMS = 8
LINE_BYTES = 144
GROUP_BYTES = 56
JOIN = "join"  # what a record says that begins a rank's calls in a group
SEND, RECV = MESSAGES = "send", "recv"
_MOST_RANKS = 1 << 24  # that a group may say to have: reports count them
_LAST_TIME_S = 253_402_300_799  # the end of the year 9999, the last of calendars
# number, state, 1 + dims once described, rank, size, root, generation, sequence, key, shape, made, started, ended;
# what, dtype, op, group, line, tag, by, shards
_RECORD = struct.Struct("<QBB2xiiiqqQ8q3d24s12s12s56s144sq32si4x")
RECORD_BYTES = _RECORD.size
STATE_AT = 8
_DESCRIBED_AT = 9
DATA_AT = 10  # from here on is what the bytes before say is there
_PLACE = struct.Struct("<56sIqii")  # what a place's checksum is of
_ROOT_AT = struct.calcsize("<QBB2xii")
_SEQUENCE_AT = struct.calcsize("<QBB2xiiiq")
_SHAPE_AT = struct.calcsize("<QBB2xiiiqqQ")
_STARTED_AT = struct.calcsize("<QBB2xiiiqqQ8qd")
_DTYPE_AT = struct.calcsize("<QBB2xiiiqqQ8q3d24s")
_SHARDS_AT = struct.calcsize("<QBB2xiiiqqQ8q3d24s12s12s56s144sq32s")


class CallState(IntEnum):
    """How far a call has come."""

    EMPTY = 0
    QUEUED = 1
    RUNNING = 2
    DONE = 3
    FAILED = 4


_STATES = frozenset(CallState) - {CallState.EMPTY}


class Place(NamedTuple):
    """One rank of one group. `key`, of 32 bits, is the same on all its ranks and, but for chance, nowhere else."""

    group: bytes
    key: int
    generation: int
    rank: int
    size: int


@dataclass(frozen=True, kw_only=True)
class Call:
    """One recorded call. Times are seconds since the epoch on its host; 0 for what has not happened."""

    state: CallState
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
    """The rank that it goes from or to, of a message the other end; -1: of none, or of any."""
    line: str
    told: bool = False
    """Of a collective that runs: whether this rank has got as far as to tell the others what it calls."""
    shards: int = 0
    """Of a sum along a tree: over how many shards. 0 for all else."""
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
        text += f" of {self.shards} shard{'s'[: self.shards - 1]}" if self.shards else ""
        peer = {SEND: "to", RECV: "from"}.get(self.what, "root")
        text += f" {peer} {self.root}" if self.root >= 0 else ""
        return text + (f" tag {self.tag}" if self.tag > 0 else "")

    def within(self) -> str:
        """The same, and the function that was called where it is another one."""
        return str(self) + (f" in {self.by}" if self.by not in ("", self.what, f"i{self.what}") else "")


# ------------------------------------------------------------------------------------ what makes sense


def amiss_of_place(rank: int, size: int) -> str:
    """What is wrong with a rank and the size of its group; "" for nothing."""
    if not 0 < size <= _MOST_RANKS:
        return f"a group of {size} ranks: expected 1 to {_MOST_RANKS}"
    return "" if 0 <= rank < size else f"rank {rank} of a group of {size}: expected 0 to {size - 1}"


def amiss_of_sequence(sequence: int) -> str:
    """What is wrong with the number of a call in its group; "" for nothing."""
    return "" if sequence >= -1 else f"call number {sequence}: expected 0 or more, or -1 for none"


def amiss_of_contents(size: int, shape: Sequence[int], root: int, shards: int) -> str:
    """What is wrong with what a call in a group of `size` carries; "" for nothing."""
    if not -1 <= root < size:
        return f"root {root} in a group of {size}: expected 0 to {size - 1}, or -1 for none"
    if shards < 0:
        return f"{shards} shards: expected 0 or more"
    return "" if min(shape, default=0) >= -1 else f"shape {tuple(shape)}: expected extents of 0 or more, or -1 for any"


def _refuse(amiss: str) -> None:
    if amiss:
        raise UsageError(f"flight recorder: {amiss}; a reader would leave out the record")


_KEY = (1 << 32) - 1


@lru_cache(maxsize=256)  # of a file a few, of which each is read thousands of times
def sealed(place: Place) -> int:
    """What a record has for the key: above it a checksum of the place. UsageError for a place that cannot be."""
    _refuse(amiss_of_place(place.rank, place.size))
    key = place.key & _KEY
    said = _PLACE.pack(place.group, key, place.generation, place.rank, place.size)
    return zlib.crc32(said) << 32 | key


# -------------------------------------------------------------------------------------------- writing


def fresh(place: Place, what: bytes, line: bytes, by: bytes, tag: int, made: float) -> bytes:
    """The record of a call that was just made, with 0 for its number. Texts longer than their fields are cut."""
    return _RECORD.pack(
        0, CallState.QUEUED, 0, place.rank, place.size, -1, place.generation, -1, sealed(place), *(0,) * MAX_DIMS,
        made, 0.0, 0.0, what, b"", b"", place.group, line, tag, by, 0,
    )  # fmt: skip


def number(into: Any, at: int, value: int) -> None:
    """Write the record's number: 0 while it is being filled."""
    struct.pack_into("<Q", into, at, value)


def start(into: Any, at: int, sequence: int, now: float) -> None:
    """Write that the call runs."""
    _refuse(amiss_of_sequence(sequence))
    struct.pack_into("<q", into, at + _SEQUENCE_AT, sequence)
    struct.pack_into("<d", into, at + _STARTED_AT, now)
    into[at + STATE_AT] = CallState.RUNNING


def describe(into: Any, at: int, dtype: bytes, shape: tuple[int, ...], op: bytes, root: int, shards: int) -> None:
    """Write what the call carries, unless that is there. Of more than eight dimensions the first eight are kept.

    Without a dtype it says no more than that the others are told of the call; what it carries may come later.
    """
    kept = shape[:MAX_DIMS]
    (size,) = struct.unpack_from("<i", into, at + _ROOT_AT - 4)
    _refuse(amiss_of_contents(size, kept, root, shards))
    if into[at + _DESCRIBED_AT] and (into[at + _DTYPE_AT] or not dtype):
        return
    struct.pack_into("<i", into, at + _ROOT_AT, root)
    struct.pack_into("<i", into, at + _SHARDS_AT, shards)
    struct.pack_into(f"<{len(kept)}q", into, at + _SHAPE_AT, *kept)
    struct.pack_into("<12s12s", into, at + _DTYPE_AT, dtype, op)
    into[at + _DESCRIBED_AT] = 1 + len(kept)


def end(into: Any, at: int, failed: bool, now: float) -> None:
    """Write that the call is over."""
    struct.pack_into("<d", into, at + _STARTED_AT + 8, now)
    into[at + STATE_AT] = CallState.FAILED if failed else CallState.DONE


# -------------------------------------------------------------------------------------------- reading


def decode(data: bytes, at: int, offset: float) -> tuple[int, Call | None]:
    """The number and the call; None for the call where the bytes make no sense. offset: wall time less the record's."""
    count, state, described, rank, size, root, generation, sequence, key, *rest = _RECORD.unpack_from(data, at)
    (made, started, ended), (what, dtype, op, group, line, tag, by, shards) = rest[8:11], rest[11:]
    if state not in _STATES or described > MAX_DIMS + 1:
        return count, None
    shape = tuple(rest[: max(0, described - 1)])
    root, shards = (root, shards) if described else (-1, 0)  # what was not said to be there may be half written
    sequence, started = (sequence, started) if state > CallState.QUEUED else (-1, 0.0)
    ended = ended if state > CallState.RUNNING else 0.0
    if amiss_of_place(rank, size) or amiss_of_sequence(sequence) or amiss_of_contents(size, shape, root, shards):
        return count, None
    if key != sealed(Place(group, key & _KEY, generation, rank, size)):
        return count, None
    if not _in_order([made, *filter(None, (started, ended))], offset) or (state == CallState.RUNNING and not started):
        return count, None
    return count, Call(
        state=CallState(state), group=text_of(group), key=key & _KEY, generation=generation, rank=rank, size=size,
        sequence=sequence, what=text_of(what), dtype=text_of(dtype) if described else "", shape=shape,
        op=text_of(op) if described else "", told=bool(described), root=root, shards=shards, line=text_of(line),
        tag=tag, by=text_of(by),
        made=made + offset, started=started + offset if started else 0.0, ended=ended + offset if ended else 0.0,
    )  # fmt: skip


def _in_order(times: Sequence[float], offset: float) -> bool:
    """Whether these are times, one after the other: comparisons with what is no number are false."""
    return times[0] > 0 and all(a <= b for a, b in pairwise(times)) and times[-1] + offset < _LAST_TIME_S


def text_of(data: bytes) -> str:
    """The text of a field, printable."""
    text = data.split(b"\0", 1)[0].decode("utf-8", "replace")
    return text if text.isprintable() else "".join(each if each.isprintable() else "\ufffd" for each in text)
