"""Copies of what a rank is about to write, so that training can go on: into memory that the next save uses again."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from resilin.checkpoint.flatten_state import Gathered
from resilin.checkpoint.plan import Range
from resilin.checkpoint.writing import BLOCK_BYTES, owned

_ALIGN = 64  # cache line


class Snapshot:
    """Memory for one rank's share. `take` fills it; `source` gives what was taken, until the next `take`."""

    def __init__(self) -> None:
        self._memory: Any = np.empty(0, np.uint8)
        self._runs: dict[int, tuple[int, Any]] = {}  # tensor: its first element here, and the elements

    def take(self, ranges: Sequence[Range], gathered: Gathered) -> None:
        """Copy the elements of `ranges`, in pieces of a block."""
        runs = owned(ranges)
        sizes = {number: one.stop - one.start for number, one in runs.items()}
        nbytes = {number: size * gathered.tensors[number].dtype.itemsize for number, size in sizes.items()}
        total = sum(-(-count // _ALIGN) * _ALIGN for count in nbytes.values())
        if self._memory.size < total:
            self._runs.clear()
            self._memory = np.empty(0, np.uint8)  # the old memory goes before the new comes
            self._memory = np.empty(total, np.uint8)
        place = 0
        self._runs = {}
        for number, one in runs.items():
            row = self._memory[place : place + nbytes[number]].view(gathered.tensors[number].dtype.np)
            self._runs[number] = one.start, row
            _copy(gathered, number, one, row)
            place += -(-nbytes[number] // _ALIGN) * _ALIGN

    def source(self, tensor: int, start: int, stop: int) -> tuple[Any, bool]:
        """For `writing.write_share`."""
        first, row = self._runs[tensor]
        return row[start - first : stop - first], True

    @property
    def nbytes(self) -> int:
        """Of the memory held."""
        return int(self._memory.size)


def _copy(gathered: Gathered, number: int, one: Range, row: Any) -> None:
    flat, first = gathered.sources[number], gathered.start(number)
    step = max(1, BLOCK_BYTES // row.itemsize)
    for start in range(one.start, one.stop, step):
        stop = min(start + step, one.stop)
        row[start - one.start : stop - one.start] = flat.read(start - first, stop - first)
