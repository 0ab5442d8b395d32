"""See arrays as one run of bytes, so that many small ones travel as few large messages."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

Bytes = NDArray[np.uint8]


class ByteStream:
    """A list of arrays seen as one run of bytes. `write` changes the arrays, which must then be contiguous."""

    def __init__(self, arrays: Sequence[NDArray[Any]]) -> None:
        self._parts: list[Bytes] = [np.ascontiguousarray(array).reshape(-1).view(np.uint8) for array in arrays]
        self._ends = np.cumsum([len(part) for part in self._parts], dtype=np.int64)
        self.nbytes = int(self._ends[-1]) if len(self._parts) else 0

    def read(self, start: int, stop: int, out: Bytes) -> None:
        """Copy bytes [start, stop) to `out`."""
        done = 0
        for piece in self._pieces(start, stop):
            out[done : done + len(piece)] = piece
            done += len(piece)

    def write(self, start: int, data: Bytes) -> None:
        """Copy `data` to the bytes from `start` on."""
        done = 0
        for piece in self._pieces(start, start + len(data)):
            piece[:] = data[done : done + len(piece)]
            done += len(piece)

    def _pieces(self, start: int, stop: int) -> list[Bytes]:
        pieces = []
        index = int(np.searchsorted(self._ends, start, side="right"))
        while start < stop:
            part, end = self._parts[index], int(self._ends[index])
            begin = end - len(part)
            pieces.append(part[start - begin : min(stop, end) - begin])
            start = min(stop, end)
            index += 1
        return pieces
