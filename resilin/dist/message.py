"""Descriptors of calls and the frames of the control channel. No I/O.

A descriptor (80 bytes, equal layout in native/segment.hpp) says what a rank called: ranks compare them before any
data moves. A control frame is a header (type, tag, length) and `length` bytes.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum

from resilin.dist.reduce_op import DTYPES, ReduceOp

MAX_DIMS = 8
_DESCRIPTOR = struct.Struct("<QBBBBi8q")
DESCRIPTOR_BYTES = _DESCRIPTOR.size
HEADER = struct.Struct("<B3xiQ")
NO_OP = 255
NO_DTYPE = 255
ANY_EXTENT = -1  # in a shape: ranks need not agree on this extent


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


class Frame(IntEnum):
    """Types of control frames."""

    BYE = 1
    ABORT = 2
    ARENA = 3
    P2P = 4
    SEGMENT = 5


@dataclass(frozen=True)
class Descriptor:
    """What one rank called."""

    sequence: int
    kind: Kind
    dtype: int = NO_DTYPE
    op: int = NO_OP
    root: int = -1
    shape: tuple[int, ...] = ()

    def pack(self) -> bytes:
        """80 bytes; more than eight dimensions are folded into the eighth."""
        return pack(self.sequence, self.kind, self.dtype, self.op, self.root, self.shape)

    def __str__(self) -> str:
        parts = [f"{self.kind.name.lower()} #{self.sequence}"]
        if self.dtype != NO_DTYPE:
            extents = ", ".join("*" if extent == ANY_EXTENT else str(extent) for extent in self.shape)
            parts.append(f"{DTYPES[self.dtype]}[{extents}]")
        if self.op != NO_OP:
            parts.append(ReduceOp(self.op).name)
        if self.root >= 0:
            parts.append(f"root {self.root}")
        return " ".join(parts)


def pack(sequence: int, kind: int, dtype: int, op: int, root: int, shape: Sequence[int]) -> bytes:
    """The bytes of a descriptor."""
    dims = len(shape)
    if dims > MAX_DIMS:
        rest = 1
        for extent in shape[MAX_DIMS - 1 :]:
            rest *= extent
        shape = (*shape[: MAX_DIMS - 1], rest)
    return _DESCRIPTOR.pack(sequence, kind, dtype, op, min(dims, 255), root, *shape, *(0,) * (MAX_DIMS - len(shape)))


def unpack(data: bytes) -> Descriptor:
    """The descriptor that `pack` wrote. ValueError on a byte that no version of resilin writes."""
    sequence, kind, dtype, op, dims, root, *shape = _DESCRIPTOR.unpack(data[:DESCRIPTOR_BYTES])
    if dtype != NO_DTYPE and dtype >= len(DTYPES):
        raise ValueError(f"unknown dtype code {dtype}")
    return Descriptor(sequence, Kind(kind), dtype, op, root, tuple(shape[: min(dims, MAX_DIMS)]))
