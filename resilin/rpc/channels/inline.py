"""Carry the memory of tensors as bytes of the message: what reaches every peer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from resilin.rpc.channels.base import Block, Packed, Post, TensorChannel
from resilin.rpc.transports.base import Buffer

_ALIGNED = 16  # bytes: what vector loads of kernels want


class _Window:
    """Memory that numpy may look at, with what keeps it."""

    def __init__(self, start: int, size: int, owner: Any) -> None:
        self.__array_interface__ = {"data": (start, True), "shape": (size,), "typestr": "|u1", "version": 3}
        self.owner = owner


def bytes_of(block: Block) -> memoryview:
    """Return the block's bytes as they lie there, to read."""
    lying: Any = np.asarray(_Window(block.start, block.size, block.owner))
    return memoryview(lying)


class InlineChannel(TensorChannel):
    """Hand the block's own bytes to the transport, which is done with them when its `send` returns: one copy."""

    name = "inline"

    def __init__(self, post: Post) -> None:
        self._post = post

    def describe(self) -> str:
        """See TensorChannel."""
        return "inline"

    def reaches(self, block: Block, theirs: str) -> bool:
        """See TensorChannel: whatever lies in the host's memory."""
        return block.device == "cpu" and theirs == "inline"

    def pack(self, block: Block, peer: int) -> Packed:
        """See TensorChannel."""
        return Packed(b"", (bytes_of(block),))

    def unpack(self, note: bytes, parts: Sequence[Buffer], source: int) -> Any:
        """See TensorChannel: the received bytes themselves where they may be written."""
        if note or len(parts) != 1:
            raise ValueError(f"inline block: expected one part and no note, got {len(parts)} and {note!r:.40}")
        array = np.frombuffer(parts[0], np.uint8)
        if not array.flags.writeable or array.__array_interface__["data"][0] % _ALIGNED:
            array = array.copy()
        return array

    def handle(self, source: int, note: bytes) -> None:
        """See TensorChannel: it posts nothing."""
        raise ValueError(f"inline block: a note that nobody writes: {note!r:.40}")

    def lost(self, peer: int) -> None:
        """See TensorChannel: it keeps nothing."""

    def close(self) -> None:
        """See TensorChannel: it keeps nothing."""
