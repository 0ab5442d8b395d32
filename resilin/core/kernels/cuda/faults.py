"""What kernels find wrong with values that the host does not see: noted in a word on the device, raised later.

A kernel that meets an index out of range goes on with zeros and writes the word. The host looks at it where it waits
for the device anyway, and optimizers' kernels do nothing once it is written. With CUDA_LAUNCH_BLOCKING=1 in the
environment the host looks after every such kernel, as it does with PyTorch.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from resilin._base import env

VALUE_BITS = 44  # of the word's lower bits, with the value found, shifted to be positive; the code of the fault above
_SHIFT = 1 << (VALUE_BITS - 1)


class Faults:
    """The word of one device. `word` is the array that kernels get."""

    def __init__(self, xp: Any) -> None:
        self._xp = xp
        self._word: Any = None
        self._texts: list[tuple[type[Exception], str]] = []
        self._codes: dict[tuple[type[Exception], str], int] = {}
        self._pending = False  # whether a kernel may have written since the host looked
        self._at_once = env.get("CUDA_LAUNCH_BLOCKING") == "1"

    @property
    def word(self) -> Any:
        """One int64 on the device, 0 while nothing is wrong."""
        if self._word is None:
            self._word = self._xp.zeros(1, np.int64)
        return self._word

    def code(self, error: type[Exception], text: str) -> Any:
        """What a kernel adds the value to that it found, to note the fault `error(text)`; {value} in it names it."""
        key = (error, text)
        found = self._codes.get(key)
        if found is None:
            self._texts.append(key)
            found = self._codes[key] = len(self._texts)
        return np.int64((found << VALUE_BITS) + _SHIFT)

    def launched(self) -> None:
        """A kernel that may note a fault is on its way."""
        self._pending = True
        if self._at_once:
            self.check()

    def check(self) -> None:
        """Raise what a kernel noted since the last time; waits for the device if one may have."""
        if not self._pending:
            return
        self._pending = False
        word = int(self.word.get()[0])
        if not word:
            return
        self.word.fill(0)
        error, text = self._texts[(word >> VALUE_BITS) - 1]
        raise error(text.format(value=(word & ((1 << VALUE_BITS) - 1)) - _SHIFT))
