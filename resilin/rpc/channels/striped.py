"""Carry large tensors of devices in stripes over two pinned buffers: the device copies one while the other is read.

    device ──DMA──> pinned buffer k % 2 ──copy──> part k of the message ──> pinned buffer k % 2 ──DMA──> device

Pinned memory stays at two buffers a message under way, however large the block is; `staged` would pin all of it.
"""

from __future__ import annotations

import struct
import threading
from collections.abc import Sequence
from typing import Any

import numpy as np

from resilin.rpc.channels import device_memory
from resilin.rpc.channels.base import Block, Packed, Post, TensorChannel
from resilin.rpc.channels.device_memory import DeviceMemory, HostArray, Wait
from resilin.rpc.channels.staged import memory_of, onto, target_in
from resilin.rpc.transports.base import Buffer

MIN_BYTES = 8 << 20  # below, two stripes or fewer: nothing to overlap
STRIPE_BYTES = 4 << 20
_IDLE_PAIRS = 4  # pairs of buffers that are kept for the next message
_VERSION = "striped 1"
_NOTE = struct.Struct("<QQ")  # bytes, bytes of a stripe; behind it the target's name


class StripedChannel(TensorChannel):
    """Copies large blocks of devices stripe by stripe. Any thread: each message under way has its own two buffers."""

    name = "striped"

    def __init__(self, post: Post) -> None:
        self._lock = threading.Lock()
        self._idle: list[tuple[DeviceMemory, list[HostArray]]] = []  # guarded by _lock
        self._closed = False

    def describe(self) -> str:
        """See TensorChannel: it compares nothing, for bytes reach every peer."""
        return _VERSION

    def reaches(self, block: Block, theirs: str) -> bool:
        """See TensorChannel: what is large, between two devices."""
        return theirs == _VERSION and block.size >= MIN_BYTES and block.device != "cpu" != block.target

    def pack(self, block: Block, peer: int) -> Packed:
        """See TensorChannel. Waits for what computes the tensors."""
        memory, index = memory_of(block.device), device_memory.number_of(block.device)
        whole = np.empty(block.size, np.uint8)
        stripes = _stripes(block.size, STRIPE_BYTES)
        buffers = self._take(memory, STRIPE_BYTES)
        waits: list[Wait] = []
        for number, (begin, end) in enumerate(stripes):
            waits.append(memory.read(block.start + begin, buffers[number % 2][: end - begin], index))
            if number:
                _drain(waits[number - 1], buffers[(number - 1) % 2], whole, stripes[number - 1])
        _drain(waits[-1], buffers[(len(stripes) - 1) % 2], whole, stripes[-1])
        self._give_back(memory, buffers)
        note = _NOTE.pack(block.size, STRIPE_BYTES) + block.target.encode("ascii")
        return Packed(note, [whole[begin:end].data for begin, end in stripes])

    def unpack(self, note: bytes, parts: Sequence[Buffer], source: int) -> Any:
        """See TensorChannel. RpcError where there is no such device."""
        if len(note) < _NOTE.size:
            raise ValueError(f"striped block of worker {source}: a note of {len(note)} bytes")
        size, stripe = _NOTE.unpack_from(note)
        target = target_in(note[_NOTE.size :])
        sizes = [len(memoryview(part).cast("B")) for part in parts]
        if not stripe or sum(sizes) != size or sizes != [end - begin for begin, end in _stripes(size, stripe)]:
            raise ValueError(
                f"striped block of worker {source}: expected {size} bytes in stripes of {stripe}, got {len(sizes)} "
                f"parts of {sum(sizes)} bytes"
            )
        memory = None if target.type == "cpu" else device_memory.of(target)
        if memory is None:
            return onto(np.concatenate([np.frombuffer(part, np.uint8) for part in parts]), target)
        index = target.index or 0
        made = memory.empty(size, index)
        _, address = memory.place(made)
        buffers = self._take(memory, min(stripe, size))
        waits: list[Wait] = []
        for number, part in enumerate(parts):
            if number >= 2:
                waits[number - 2]()  # the device is done with this buffer
            source_bytes = buffers[number % 2][: sizes[number]]
            source_bytes[:] = np.frombuffer(part, np.uint8)
            waits.append(memory.write(source_bytes, address + number * stripe, index))
        for wait in waits[-2:]:
            wait()
        self._give_back(memory, buffers)
        return made

    def _take(self, memory: DeviceMemory, stripe: int) -> list[HostArray]:
        with self._lock:
            for at, (kind, buffers) in enumerate(self._idle):
                if kind is memory and buffers[0].size >= stripe:
                    del self._idle[at]
                    return buffers
        return [memory.buffer(stripe), memory.buffer(stripe)]

    def _give_back(self, memory: DeviceMemory, buffers: list[HostArray]) -> None:
        """Keep buffers whose copies are done; after an error they are not kept, for a copy may go on."""
        with self._lock:
            if not self._closed and len(self._idle) < _IDLE_PAIRS and buffers[0].size == STRIPE_BYTES:
                self._idle.append((memory, buffers))

    def handle(self, source: int, note: bytes) -> None:
        """See TensorChannel: it posts nothing."""
        raise ValueError(f"striped block: a note that nobody writes: {note!r:.40}")

    def lost(self, peer: int) -> None:
        """See TensorChannel: it keeps nothing for peers."""

    def close(self) -> None:
        """See TensorChannel."""
        with self._lock:
            self._closed = True
            self._idle.clear()

    def stats(self) -> dict[str, int]:
        """Return how many pairs of pinned buffers wait for the next message."""
        with self._lock:
            return {"idle_pairs": len(self._idle)}


def _stripes(size: int, stripe: int) -> list[tuple[int, int]]:
    return [(begin, min(begin + stripe, size)) for begin in range(0, size, stripe)]


def _drain(wait: Wait, buffer: HostArray, whole: HostArray, place: tuple[int, int]) -> None:
    wait()
    begin, end = place
    whole[begin:end] = buffer[: end - begin]
