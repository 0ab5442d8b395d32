"""Hands objects to another process on this host. Arrays travel in shared memory, not through the pipe.

A message is pickled with its arrays out of band. A small one goes through the connection. Of a larger one only places
go through it, and the receiver copies the arrays from there into memory of its own:

    Outbox -> Inbox   arenas: the sender's tensors lie in memfds anyway (core.machine.memory). The receiver gets each
                      arena's descriptor once; what it has not copied yet the sender keeps. No page is fresh.
    send -> receive   one memfd per message; also where there are no arenas, without native code.

Memfds have no name, no limit of /dev/shm, and end with their last descriptor: nothing can be left behind.
"""

from __future__ import annotations

import os
import pickle
import socket
from collections import deque
from collections.abc import Sequence
from multiprocessing import reduction
from multiprocessing.connection import Connection
from typing import Any

import numpy as np

from resilin.core.machine import memory
from resilin.errors import ResilinError

INLINE_BYTES = 2048  # below this a message fits any socket buffer many times over, so that senders need not wait
_ALIGN = 64  # arrays start at a cache line

Packed = list[memoryview]  # the pickle, then its arrays
_Layout = list[tuple[int, int]]  # (offset, length) of the pickle and of each array
_Place = tuple[int, int, int]  # (arena, offset, length)

# what a connection carries, pickled: one of
#   ("inline", parts)
#   ("memfd", layout)                    then one descriptor
#   ("arenas", new arenas, places)       then a descriptor for each new arena; short parts are bytes among the places


def pack(message: Any) -> Packed:
    """`message` pickled, its arrays beside it and not copied. Raises whatever pickling raises."""
    buffers: list[pickle.PickleBuffer] = []
    head = pickle.dumps(message, protocol=5, buffer_callback=buffers.append)
    return [memoryview(head), *(buffer.raw() for buffer in buffers)]


def unpack(parts: Packed) -> Any:
    """What `pack` packed; its arrays lie in the memory of `parts`. Raises whatever unpickling raises."""
    return pickle.loads(parts[0], buffers=parts[1:])


def send(connection: Connection[Any, Any], message: Any) -> None:
    """Send `message`. It must be picklable; its arrays are copied, here and by the receiver."""
    send_packed(connection, pack(message))


def send_packed(connection: Connection[Any, Any], parts: Packed) -> None:
    """Send what `pack` made. Raises: OSError when there is no shared memory for it; nothing is sent then."""
    if sum(part.nbytes for part in parts) <= INLINE_BYTES or not hasattr(os, "memfd_create"):
        connection.send_bytes(pickle.dumps(("inline", [bytearray(part) for part in parts])))
        return
    layout, size = _lay_out([part.nbytes for part in parts])
    descriptor = os.memfd_create("resilin-batch", os.MFD_CLOEXEC)
    try:
        os.ftruncate(descriptor, size)
        for (offset, _), part in zip(layout, parts, strict=True):
            _write(descriptor, part, offset)
        _send_with_descriptors(connection, ("memfd", layout), [descriptor])
    finally:
        os.close(descriptor)


def receive(connection: Connection[Any, Any]) -> Any:
    """The next message. Raises EOFError when the other end is closed."""
    return unpack(Inbox(connection).receive())


class Outbox:
    """The sending end of a connection whose receiver says how many messages it has copied.

    lends:  arrays of messages are not written any more, so that the receiver may copy them where they lie; else they
            are copied here first.
    """

    def __init__(self, connection: Connection[Any, Any], lends: bool) -> None:
        self._connection = connection
        self._lends = lends
        self._known: set[int] = set()  # arenas whose descriptors the receiver has
        self._sent = 0
        self._lent: deque[tuple[int, Any]] = deque()  # number of a message and what keeps its memory, oldest first

    def send(self, parts: Packed) -> None:
        """Send what `pack` made. Raises: OSError when there is no shared memory for it; nothing is sent then."""
        if sum(part.nbytes for part in parts) <= INLINE_BYTES or not self._send_places(parts):
            send_packed(self._connection, parts)
        self._sent += 1

    def release(self, received: int) -> None:
        """The receiver has copied that many messages: their memory may be used again."""
        while self._lent and self._lent[0][0] < received:
            self._lent.popleft()

    def _send_places(self, parts: Packed) -> bool:
        """Whether the parts lie in arenas, or could be laid there, and were sent so."""
        places: list[Any] = [_locate(part) if self._lends else None for part in parts]
        others = [number for number, place in enumerate(places) if place is None]
        block = None
        if sum(parts[number].nbytes for number in others) <= INLINE_BYTES:
            for number in others:
                places[number] = bytes(parts[number])
        else:
            block = _laid(parts, others, places)
            if block is None:
                return False
        new = sorted({place[0] for place in places if isinstance(place, tuple)} - self._known)
        _send_with_descriptors(self._connection, ("arenas", new, places), [memory.arena_fd(arena) for arena in new])
        self._known.update(new)
        self._lent.append((self._sent, (parts, block)))
        return True


class Inbox:
    """The receiving end of a connection. Owns the descriptors that came with it, until `close()`."""

    def __init__(self, connection: Connection[Any, Any]) -> None:
        self._connection = connection
        self._arenas: dict[int, int] = {}  # the sender's arenas: their descriptors
        self.received = 0
        """How many messages have come, each copied: the sender may use the memory of theirs again."""

    def receive(self) -> Packed:
        """The parts of the next message. Raises EOFError when the other end is closed."""
        kind, *rest = pickle.loads(self._connection.recv_bytes())
        if kind == "inline":
            parts = [memoryview(part) for part in rest[0]]
        elif kind == "memfd":
            parts = self._read_memfd(rest[0])
        else:
            parts = self._read_arenas(*rest)
        self.received += 1
        return parts

    def close(self) -> None:
        """Close the connection and every descriptor that came through it."""
        for descriptor in self._arenas.values():
            os.close(descriptor)
        self._arenas = {}
        self._connection.close()

    def _read_memfd(self, layout: _Layout) -> Packed:
        [descriptor] = self._receive_descriptors(1)
        try:
            memory = _read(descriptor, 0, os.fstat(descriptor).st_size)
        finally:
            os.close(descriptor)
        return [memory[offset : offset + length] for offset, length in layout]

    def _read_arenas(self, new: Sequence[int], places: Sequence[bytes | _Place]) -> Packed:
        if new:
            self._arenas.update(zip(new, self._receive_descriptors(len(new)), strict=True))
        return [
            memoryview(bytearray(place)) if isinstance(place, bytes) else _read(self._arenas[place[0]], *place[1:])
            for place in places
        ]

    def _receive_descriptors(self, count: int) -> Sequence[int]:
        try:
            with _socket_of(self._connection) as own:
                return reduction.recvfds(own, count)
        except (
            OSError,
            RuntimeError,
        ) as error:  # RuntimeError: the kernel drops descriptors for which there is no room
            raise ResilinError(
                "DataLoader: shared memory of another process could not be received, most likely because this process "
                f"has too many open files: raise the limit (`ulimit -n`) or close some ({error})"
            ) from None


def _socket_of(connection: Connection[Any, Any]) -> socket.socket:
    return socket.fromfd(connection.fileno(), socket.AF_UNIX, socket.SOCK_STREAM)


def _send_with_descriptors(connection: Connection[Any, Any], header: Any, descriptors: list[int]) -> None:
    """What can fail, fails before anything is sent: afterwards the receiver would wait for the rest."""
    if not descriptors:
        connection.send_bytes(pickle.dumps(header))
        return
    with _socket_of(connection) as own:
        connection.send_bytes(pickle.dumps(header))
        reduction.sendfds(own, descriptors)


def check_picklable(message: Any) -> Any:
    """`message` pickled and read back. Raises whatever either raises."""
    return pickle.loads(pickle.dumps(message))


# Written and read by system calls, not mapped: fresh mappings fault page by page, which costs more than the copies, and
# each would hold a descriptor for as long as its batch lives. What is read lands in the tensors' own allocator.


def _write(descriptor: int, part: memoryview, offset: int) -> None:
    part = part.cast("B") if part.nbytes else part
    while part.nbytes:
        done = os.pwrite(descriptor, part, offset)
        part, offset = part[done:], offset + done


def _read(descriptor: int, offset: int, length: int) -> memoryview:
    memory = np.empty(length, np.uint8).data
    done = 0
    while done < length:
        count = os.preadv(descriptor, [memory[done:]], offset + done)
        if count == 0:
            raise EOFError(f"a batch of {length} bytes ended after {done}")
        done += count
    return memory


def _locate(part: memoryview) -> _Place | None:
    if part.nbytes == 0:
        return None
    place = memory.locate(np.frombuffer(part, np.uint8))
    return None if place is None else (*place, part.nbytes)


def _laid(parts: Packed, numbers: Sequence[int], places: list[Any]) -> Any:
    """The block of an arena into which the parts of `numbers` were copied; fills in their places. None: no arenas."""
    layout, size = _lay_out([parts[number].nbytes for number in numbers])
    block = np.empty(size, np.uint8)
    place = memory.locate(block)
    if place is None:
        return None
    for number, (offset, length) in zip(numbers, layout, strict=True):
        if length:
            block[offset : offset + length] = np.frombuffer(parts[number], np.uint8)
        places[number] = (place[0], place[1] + offset, length)
    return block


def _lay_out(lengths: list[int]) -> tuple[_Layout, int]:
    layout: _Layout = []
    end = 0
    for length in lengths:
        offset = -(-end // _ALIGN) * _ALIGN
        layout.append((offset, length))
        end = offset + length
    return layout, end
