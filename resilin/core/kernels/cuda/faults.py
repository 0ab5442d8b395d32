"""What kernels find wrong with values that the host does not see: noted in a word on the device, raised later.

A kernel that meets an index out of range goes on with zeros and writes the word. The host looks at it where it waits
for the device anyway, and optimizers' kernels do nothing once it is written. With CUDA_LAUNCH_BLOCKING=1 in the
environment the host looks after every such kernel, as it does with PyTorch.
"""

from __future__ import annotations

import sys
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np

from resilin._base import env

VALUE_BITS = 44  # of the word's lower bits, with the value found, shifted to be positive; the code of the fault above
_SHIFT = 1 << (VALUE_BITS - 1)
LINES = 100_000  # of a program with more, in sizes and places together, the later ones are not named
_OWN = str(Path(__file__).resolve().parents[3])  # the package
_Fault = tuple[type[Exception], str, tuple[str, int] | None]


class Faults:
    """The word of one device. `word` is the array that kernels get."""

    def __init__(self, xp: Any) -> None:
        self._xp = xp
        self._word: Any = None
        self._texts: list[_Fault] = []
        self._codes: dict[_Fault, int] = {}
        self._pending: set[int] = set()  # streams on which a kernel may have written since the host waited for them
        self._at_once = env.get("CUDA_LAUNCH_BLOCKING") == "1"

    @property
    def word(self) -> Any:
        """One int64 on the device, 0 while nothing is wrong."""
        if self._word is None:
            self._word = self._xp.zeros(1, np.int64)
        return self._word

    def code(self, error: type[Exception], text: str) -> Any:
        """What a kernel adds the value to that it found, to note the fault `error(text)`; {value} in it names it."""
        line = _line_of_user()
        if (error, text, line) not in self._codes and len(self._texts) >= LINES:
            line = None
        key = (error, text, line)
        found = self._codes.get(key)
        if found is None:
            self._texts.append(key)
            found = self._codes[key] = len(self._texts)
        return np.int64((found << VALUE_BITS) + _SHIFT)

    def launched(self) -> None:
        """A kernel that may note a fault is on its way."""
        self._pending.add(self._stream())
        if self._at_once:
            self.check()

    def check(self, *, waited_for: int | None = None, waited_for_all: bool = False) -> None:
        """Raise what a kernel noted since the last time; waits for the current stream if one may have.

        A kernel on another stream may still be running: it is asked about again, unless the host has waited for that
        stream, whose address is `waited_for`, or for all.
        """
        if not self._pending:
            return  # what is launched from here on counts anew
        if waited_for_all:
            self._pending.clear()
        self._pending -= {self._stream(), waited_for}
        word = int(self._xp.to_host(self.word)[0])
        if not word:
            return
        self.word.fill(0)
        error, text, line = self._texts[(word >> VALUE_BITS) - 1]
        where = f" (queued by {line[0]}:{line[1]})" if line else ""
        raise error(text.format(value=(word & ((1 << VALUE_BITS) - 1)) - _SHIFT) + where)

    def _stream(self) -> int:
        """The address of the current stream."""
        return int(self._xp.module.cuda.get_current_stream().ptr)


def _line_of_user() -> tuple[str, int] | None:
    """File and line that called this library."""
    frame: FrameType | None = sys._getframe(2)
    while frame is not None and frame.f_code.co_filename.startswith(_OWN):
        frame = frame.f_back
    return None if frame is None else (frame.f_code.co_filename, frame.f_lineno)
