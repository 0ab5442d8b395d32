"""Hands objects to another process on this host. Arrays travel in anonymous shared memory, not through the pipe.

A message is pickled with its arrays out of band. A small one goes through the connection; a larger one is laid into one
memfd, whose descriptor follows the header, and the receiver reads it into memory of its own. A memfd has no name and
ends with its last descriptor, so nothing can be left behind.
"""

from __future__ import annotations

import os
import pickle
from multiprocessing import reduction
from multiprocessing.connection import Connection
from typing import Any

import numpy as np

INLINE_BYTES = 2048  # below this a message fits any socket buffer many times over, so that senders need not wait
_ALIGN = 64  # arrays start at a cache line

Packed = list[memoryview]  # the pickle, then its arrays
_Layout = list[tuple[int, int]]  # (offset, length) of the pickle and of each array


def pack(message: Any) -> Packed:
    """`message` pickled, its arrays beside it and not copied. Raises whatever pickling raises."""
    buffers: list[pickle.PickleBuffer] = []
    head = pickle.dumps(message, protocol=5, buffer_callback=buffers.append)
    return [memoryview(head), *(buffer.raw() for buffer in buffers)]


def send(connection: Connection[Any, Any], message: Any, receiver_pid: int) -> None:
    """Send `message`. It must be picklable; its arrays are copied, here and by the receiver."""
    send_packed(connection, pack(message), receiver_pid)


def send_packed(connection: Connection[Any, Any], parts: Packed, receiver_pid: int) -> None:
    """Send what `pack` made."""
    total = sum(part.nbytes for part in parts)
    if total <= INLINE_BYTES or not hasattr(os, "memfd_create"):
        connection.send_bytes(pickle.dumps([bytearray(part) for part in parts]))
        return
    layout, size = _lay_out([part.nbytes for part in parts])
    descriptor = os.memfd_create("resilin-batch", os.MFD_CLOEXEC)
    try:
        os.ftruncate(descriptor, size)
        for (offset, _), part in zip(layout, parts, strict=True):
            _write(descriptor, part, offset)
        connection.send_bytes(pickle.dumps(layout))
        reduction.send_handle(connection, descriptor, receiver_pid)
    finally:
        os.close(descriptor)


def receive(connection: Connection[Any, Any]) -> Any:
    """The next message. Raises EOFError when the other end is closed."""
    header = pickle.loads(connection.recv_bytes())
    if isinstance(header[0], bytearray):
        return pickle.loads(header[0], buffers=header[1:])
    descriptor = reduction.recv_handle(connection)
    try:
        memory = _read(descriptor)
    finally:
        os.close(descriptor)
    head, *arrays = (memory[offset : offset + length] for offset, length in header)
    return pickle.loads(head, buffers=arrays)


# Written and read by system calls, not mapped: fresh mappings fault page by page, which costs more than the copies, and
# each would hold a descriptor for as long as its batch lives. What is read lands in the tensors' own allocator.


def _write(descriptor: int, part: memoryview, offset: int) -> None:
    part = part.cast("B") if part.nbytes else part
    while part.nbytes:
        done = os.pwrite(descriptor, part, offset)
        part, offset = part[done:], offset + done


def _read(descriptor: int) -> memoryview:
    memory = np.empty(os.fstat(descriptor).st_size, np.uint8).data
    done = 0
    while done < memory.nbytes:
        count = os.preadv(descriptor, [memory[done:]], done)
        if count == 0:
            raise EOFError(f"a batch of {memory.nbytes} bytes ended after {done}")
        done += count
    return memory


def _lay_out(lengths: list[int]) -> tuple[_Layout, int]:
    layout: _Layout = []
    end = 0
    for length in lengths:
        offset = -(-end // _ALIGN) * _ALIGN
        layout.append((offset, length))
        end = offset + length
    return layout, end


def check_picklable(message: Any) -> None:
    """Raise whatever pickling `message` and reading it back raises."""
    pickle.loads(pickle.dumps(message))
