"""A tensor's elements in C order, read and written in ranges through host memory, wherever and however it lies."""

from __future__ import annotations

from typing import Any

import numpy as np

from resilin.core.tensor import Tensor


class Flat:
    """The elements of `tensor` as one row.

    Contiguous memory of the host is shown as it is (`view`); of all else, a range at a time is copied. Elements of a
    tensor on a device that does not lie in C order pass through a second copy of it there. Call `finish` after writing.
    """

    def __init__(self, tensor: Tensor) -> None:
        self._tensor = tensor
        self._array = array = tensor._array
        self.dtype, self.itemsize, self.size = array.dtype, int(array.dtype.itemsize), int(array.size)
        self._on_host = isinstance(array, np.ndarray)
        self._row: Any = array.reshape(-1) if not self._on_host or array.flags.c_contiguous else None
        self._row_is_copy = not self._on_host and not array.flags.c_contiguous

    def view(self, start: int, stop: int) -> Any:
        """The elements [start, stop) in place, as a flat numpy array, or None where they do not lie so."""
        return self._row[start:stop] if self._on_host and self._row is not None else None

    def read(self, start: int, stop: int) -> Any:
        """The elements [start, stop) as a flat numpy array, contiguous."""
        if not self._on_host:
            return self._tensor._dev.backend.to_host(self._row[start:stop])
        return self._array.flat[start:stop] if self._row is None else self._row[start:stop]

    def write(self, start: int, data: Any) -> None:
        """Set the elements from `start` on to those of the flat numpy array `data`."""
        if not self._on_host:
            device = self._tensor._dev
            self._row[start : start + data.size] = device.backend.from_host(data, device.index or 0)
        elif self._row is None:
            self._array.flat[start : start + data.size] = data
        else:
            self._row[start : start + data.size] = data

    def finish(self) -> None:
        """Say that the tensor was written to."""
        if self._row_is_copy:
            self._array[...] = self._row.reshape(self._array.shape)
        self._tensor._bump()


def is_writable(tensor: Tensor) -> bool:
    """Whether a range of it can be written: not so for expanded and read-only memory."""
    return bool(getattr(tensor._array.flags, "writeable", True))


def as_bytes(array: Any) -> memoryview:
    """The bytes of a contiguous numpy array."""
    return memoryview(array.reshape(-1).view(np.uint8)) if array.size else memoryview(b"")
