"""Pack descriptors of calls and the frames of the control channel. No I/O.

A descriptor (80 bytes, equal layout in native/segment.hpp) says what a rank called: ranks compare them before any
data moves. A control frame is a header (type, tag, length) and `length` bytes.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum

from resilin.distributed.wire.reduce_op import DTYPES, ReduceOp

MAX_DIMS = 8
_DESCRIPTOR = struct.Struct("<QBBBBi8q")
DESCRIPTOR_BYTES = _DESCRIPTOR.size
DTYPE_BYTE = 9  # where a packed descriptor has its dtype's code
_OP_BYTE = 10
HEADER = struct.Struct("<B3xiQ")
NO_OP = 255
REFUSED = 254  # for the op: this rank refuses its own arguments, and makes the call so that its peers hear of it
NO_DTYPE = 255
ANY_EXTENT = -1  # in a shape: ranks need not agree on this extent
_FOLD, _FOLD_MASK = 1_000_003, (1 << 48) - 1  # as in native/module.cpp
_DEVICES = ("cpu", "cuda", "sim")  # device types with a code of their own
_OTHER_DEVICE = 7
_SEQUENCE_BITS = 40  # of the number of a call; what else is to be equal stands above them
_LAYOUT = 1 << 23  # of several tensors in one call: this and 23 bits of a checksum
_ROW = 1 << 8  # of the first of several calls: this and how many there are
FUNCTIONS = (
    "all_gather_object",
    "gather_object",
    "broadcast_object_list",
    "scatter_object_list",
    "_coalescing_manager",
    "DistributedDataParallel",
    "ZeroRedundancyOptimizer",
    "zero.shard",
    "checkpoint.save",
    "checkpoint.save_async",
    "SaveHandle.wait",
    "checkpoint.load",
    "GradScaler",
    "schedule.step",
    "pipelining.clip_grad_norm_",
)
"""Functions that are made of collectives; one plus the place stands above the number of the first of these."""
_KIND_BITS = 5  # of the kind's byte; the device's code is above them


class Kind(IntEnum):
    """Collectives, as written in descriptors."""

    BARRIER = 0
    ALL_REDUCE = 1
    BROADCAST = 2
    REDUCE = 3
    ALL_GATHER = 4
    REDUCE_SCATTER = 5
    GATHER = 6
    SCATTER = 7
    ALL_TO_ALL = 8
    TREE_ALL_REDUCE = 9
    P2P = 10
    NEW_GROUP = 11


class Frame(IntEnum):
    """Types of control frames."""

    BYE = 1
    ABORT = 2
    ARENA = 3
    P2P = 4
    SEGMENT = 5
    RENEW = 6
    BELL = 7
    LATE = 8
    REFUSAL = 9


@dataclass(frozen=True)
class Descriptor:
    """Describe what one rank called."""

    sequence: int
    """Number of the call in its group, `stamped` when it carries several tensors or is the first of several calls."""
    kind: Kind
    dtype: int = NO_DTYPE
    op: int = NO_OP
    root: int = -1
    shape: tuple[int, ...] = ()
    device: int = 0
    """Of the tensors: a `device_code`."""
    shards: int = 0
    """Of TREE_ALL_REDUCE, which has no root: over how many. In its place among the bytes."""

    def pack(self) -> bytes:
        """80 bytes; dimensions from the eighth on, where there are more, become one number that tells them apart."""
        kind = self.kind | self.device << _KIND_BITS
        root = self.shards if self.kind is Kind.TREE_ALL_REDUCE else self.root
        return pack(self.sequence, kind, self.dtype, self.op, root, self.shape)

    def name(self) -> str:
        """What was called, and its number: the function that the call is the first one of, or its kind."""
        number, more = self.sequence & (1 << _SEQUENCE_BITS) - 1, self.sequence >> _SEQUENCE_BITS
        function = FUNCTIONS[more - 1] if 0 < more <= len(FUNCTIONS) else self.kind.name.lower()
        return f"{function} #{number}"

    def __str__(self) -> str:
        more = self.sequence >> _SEQUENCE_BITS
        parts = [] if self.kind is Kind.P2P else [self.name()]  # not numbered
        if self.op == REFUSED:
            return f"{parts[0]} with arguments that it refuses (its own error says why)"
        if more >= _LAYOUT:
            several = "several groups, or one with a group_desc" if self.kind is Kind.NEW_GROUP else "several tensors"
            parts.append(f"of {several} (layout {more:06x})")
        elif more > _ROW:
            parts.append(f"(the first of {more - _ROW} in one block or list)")
        if self.kind is Kind.NEW_GROUP:
            parts.append(f"of ranks [{', '.join(map(_spell, self.shape))}]")
        elif self.dtype != NO_DTYPE:
            parts.append(f"{DTYPES[self.dtype]}[{', '.join(map(_spell, self.shape))}]")
        if self.op != NO_OP:
            parts.append(ReduceOp(self.op).name)
        if self.shards:
            parts.append(f"of {self.shards} shard{'s'[: self.shards - 1]}")
        if self.root >= 0:
            parts.append(f"root {self.root}")
        if self.device:
            parts.append(f"on {_DEVICES[self.device] if self.device < len(_DEVICES) else 'another device'}")
        return " ".join(parts)


def _spell(extent: int) -> str:
    return str(extent) if extent >= 0 else "*" if extent == ANY_EXTENT else f"...{-extent:x}"


def pack(sequence: int, kind: int, dtype: int, op: int, root: int, shape: Sequence[int]) -> bytes:
    """The bytes of a descriptor; root: of TREE_ALL_REDUCE the number of shards."""
    dims = len(shape)
    if dims > MAX_DIMS:
        rest = 0
        for extent in shape[MAX_DIMS - 1 :]:
            rest = (rest * _FOLD + extent + 1) & _FOLD_MASK
        shape = (*shape[: MAX_DIMS - 1], ANY_EXTENT - 1 - rest)
    return _DESCRIPTOR.pack(sequence, kind, dtype, op, min(dims, 255), root, *shape, *(0,) * (MAX_DIMS - len(shape)))


def named(sequence: int, function: str) -> int:
    """The number of a call that is the first of one of FUNCTIONS: differs from that of another, and of a call alone."""
    return sequence | FUNCTIONS.index(function) + 1 << _SEQUENCE_BITS


def stamped(sequence: int, shapes: Sequence[tuple[int, ...]], row: int = 0) -> int:
    """The number of a call that carries tensors of these shapes in a row, and is the first of `row` calls of one block
    or list; 0: it is in none.

    It differs where any of that does (but for 2^-23, where there are shapes).
    """
    if shapes:
        layout = zlib.crc32(repr([row, *(list(shape) for shape in shapes)]).encode()) % _LAYOUT
        return sequence | (_LAYOUT | layout) << _SEQUENCE_BITS
    return sequence | (_ROW + min(row, _LAYOUT - _ROW - 1)) << _SEQUENCE_BITS if row else sequence


def unpack(data: bytes) -> Descriptor:
    """The descriptor that `pack` wrote. ValueError on a byte that no version of resilin writes."""
    sequence, kind, dtype, op, dims, root, *shape = _DESCRIPTOR.unpack(data[:DESCRIPTOR_BYTES])
    if dtype != NO_DTYPE and dtype >= len(DTYPES):
        raise ValueError(f"unknown dtype code {dtype}")
    kind, device = Kind(kind & (1 << _KIND_BITS) - 1), kind >> _KIND_BITS
    root, shards = (-1, root) if kind is Kind.TREE_ALL_REDUCE else (root, 0)
    return Descriptor(sequence, kind, dtype, op, root, tuple(shape[: min(dims, MAX_DIMS)]), device, shards)


def refuses(word: bytes) -> bool:
    """Whether a packed descriptor is of a call that its rank refuses."""
    return word[_OP_BYTE] == REFUSED


def device_code(kind: str) -> int:
    """The code of a device type; one for all that resilin does not bring."""
    return _DEVICES.index(kind) if kind in _DEVICES else _OTHER_DEVICE
