"""Carry tensors of devices through the host: copied there, on as bytes of the message, and to the device that is named.

Reaches every peer, between any two devices: what device tensors take where nothing faster does.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from resilin.core.device import device, present
from resilin.errors import RpcError
from resilin.rpc.channels import device_memory
from resilin.rpc.channels.base import Block, Packed, Post, TensorChannel
from resilin.rpc.channels.inline import InlineChannel, bytes_of
from resilin.rpc.transports.base import Buffer

_VERSION = "staged 1"


class StagedChannel(TensorChannel):
    """Copies a device's block into (pinned) memory of the host, whose bytes the message carries."""

    name = "staged"

    def __init__(self, post: Post) -> None:
        self._inline = InlineChannel(post)

    def describe(self) -> str:
        """See TensorChannel: it compares nothing, for bytes reach every peer."""
        return _VERSION

    def reaches(self, block: Block, theirs: str) -> bool:
        """See TensorChannel: whenever a device is at one of the ends."""
        return theirs == _VERSION and not block.device == "cpu" == block.target

    def pack(self, block: Block, peer: int) -> Packed:
        """See TensorChannel. Waits for what computes the tensors."""
        note = block.target.encode("ascii")
        if block.device == "cpu":
            return Packed(note, (bytes_of(block),))
        memory, index = memory_of(block.device), device_memory.number_of(block.device)
        host = memory.buffer(block.size)
        memory.read(block.start, host, index)()
        return Packed(note, (host.data,))

    def unpack(self, note: bytes, parts: Sequence[Buffer], source: int) -> Any:
        """See TensorChannel. The host's array where the target is the host, or a device that only its backend reaches.

        RpcError where there is no such device.
        """
        target = target_in(note)
        return onto(self._inline.unpack(b"", parts, source), target)

    def handle(self, source: int, note: bytes) -> None:
        """See TensorChannel: it posts nothing."""
        raise ValueError(f"staged block: a note that nobody writes: {note!r:.40}")

    def lost(self, peer: int) -> None:
        """See TensorChannel: it keeps nothing."""

    def close(self) -> None:
        """See TensorChannel: it keeps nothing."""


def memory_of(name: str) -> device_memory.DeviceMemory:
    """Return how to reach the memory of the device of a block, which `device_memory.of` has reached."""
    found = device_memory.of(device(name))
    assert found is not None, name
    return found


def target_in(note: bytes) -> device:
    """Return the device whose name a note is. ValueError for what is no name, RpcError where there is none of it."""
    try:
        name = note.decode("ascii")
    except UnicodeDecodeError:
        raise ValueError(f"a block of tensors: expected the name of a device, got {note!r:.40}") from None
    try:
        return present(name)
    except RuntimeError as error:
        raise RpcError(
            f"tensors were sent to {name!r:.40}, which this worker does not have: {error}. Correct the sender's "
            "device_maps"
        ) from None


def onto(host: np.ndarray[Any, Any], target: device) -> Any:
    """Return bytes that nobody else has as a block on `target`; as they are where only its backend can reach it."""
    memory = None if target.type == "cpu" else device_memory.of(target)
    return host if memory is None else memory.adopt(host, target.index or 0)
