"""Hands objects to another process on this host. Arrays travel in anonymous shared memory, not through the pipe.

A message is pickled with its arrays out of band. A small one goes through the connection; for a larger one everything
is laid into one memfd, whose descriptor follows the header, and the receiver's arrays are views of its mapping. The
memory is freed when the last view is gone; it has no name, so nothing can be left behind.
"""

from __future__ import annotations

import mmap
import os
import pickle
from multiprocessing import reduction
from multiprocessing.connection import Connection
from typing import Any

INLINE_BYTES = 2048  # below this a message fits any socket buffer many times over, so that senders need not wait
_ALIGN = 64  # arrays start at a cache line

_Layout = list[tuple[int, int]]  # (offset, length) of the pickle and of each array


def send(connection: Connection[Any, Any], message: Any, receiver_pid: int) -> None:
    """Send `message`. It must be picklable; its arrays are copied once."""
    buffers: list[pickle.PickleBuffer] = []
    head = pickle.dumps(message, protocol=5, buffer_callback=buffers.append)
    parts = [memoryview(head), *(buffer.raw() for buffer in buffers)]
    total = sum(part.nbytes for part in parts)
    if total <= INLINE_BYTES or not hasattr(os, "memfd_create"):
        connection.send_bytes(pickle.dumps([bytearray(part) for part in parts]))
        return
    layout, size = _lay_out([part.nbytes for part in parts])
    descriptor = os.memfd_create("resilin-batch", os.MFD_CLOEXEC)
    try:
        os.ftruncate(descriptor, size)
        with mmap.mmap(descriptor, size) as memory:
            for (offset, length), part in zip(layout, parts, strict=True):
                memory[offset : offset + length] = part
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
        memory = memoryview(mmap.mmap(descriptor, 0))
    finally:
        os.close(descriptor)
    head, *arrays = (memory[offset : offset + length] for offset, length in header)
    return pickle.loads(head, buffers=arrays)


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
