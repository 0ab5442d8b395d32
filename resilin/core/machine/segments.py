"""Memory that several processes read and write: memory files (memfd) that each maps as it is.

Unlike a block of an arena, which its allocator uses again, a segment belongs to whoever has it: the kernel keeps it
until the last process has neither a mapping nor a descriptor of it. Forked children have it as their parents do.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import sys
import threading
import weakref
from typing import Any

import numpy as np

from resilin.core.kernels.common import Array

available: bool = hasattr(os, "memfd_create")
"""Whether this system has files in memory."""

_LARGE = 1 << 30  # from here on the allocator asks whether memory suffices
_lock = threading.Lock()
_mapped: weakref.WeakValueDictionary[tuple[int, int], Segment] = weakref.WeakValueDictionary()
# guarded by _lock: by device and number of the file, so that what comes back to a process is mapped there once

if hasattr(os, "register_at_fork"):  # a child must not begin with a lock that nobody will give back
    os.register_at_fork(before=_lock.acquire, after_in_parent=_lock.release, after_in_child=_lock.release)

_WITHOUT_DUPLICATE: dict[str, Any] = {"trackfd": False} if sys.version_info >= (3, 13) else {}


class Segment(mmap.mmap):
    """A mapping of a memory file. It ends with the last array that lies in it."""

    fd: int
    """The file; whoever wants to keep it duplicates it."""
    address: int
    """Of the first byte."""

    def __new__(cls, fd: int, size: int) -> Segment:
        """Map all of a file. It owns `fd` from now on."""
        made = super().__new__(cls, fd, size, **_WITHOUT_DUPLICATE)
        made.fd = fd
        made.address = ctypes.addressof(ctypes.c_char.from_buffer(made))
        return made

    def __del__(self) -> None:
        fd, self.fd = getattr(self, "fd", -1), -1
        if fd >= 0:
            os.close(fd)

    def array(self, offset: int, shape: tuple[int, ...], strides: tuple[int, ...], dtype: Any) -> Array:
        """What lies from byte `offset` on, as an array. ValueError where it would reach beyond."""
        return np.ndarray(shape, dtype, buffer=self, offset=offset, strides=strides)


def create(size: int) -> Segment:
    """A new segment of `size` bytes, all 0. MemoryError where memory has no room for it."""
    if size >= _LARGE:
        np.empty(size, np.uint8)  # the allocator asks memory, swap and control groups; a file would be a mere promise
    fd = os.memfd_create("resilin-shared", os.MFD_CLOEXEC)
    try:
        os.ftruncate(fd, max(size, 1))
        return attach(fd)
    except BaseException:
        os.close(fd)
        raise


def attach(fd: int) -> Segment:
    """The segment of a memory file, which owns `fd` if this returns. Of one that is mapped here already, that one."""
    status = os.fstat(fd)
    key = (status.st_dev, status.st_ino)
    with _lock:
        known = _mapped.get(key)
        if known is None:
            made = _mapped[key] = Segment(fd, status.st_size)
            return made
    os.close(fd)
    return known


def segment_of(array: Any) -> Segment | None:
    """The segment that an array lies in, else None."""
    base = array
    while base is not None:
        if isinstance(base, Segment):
            return base
        base = getattr(base, "base", None)
    return None
