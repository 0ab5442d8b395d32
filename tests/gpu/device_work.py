"""Counts what the stand-ins for CuPy and for the kernels' launches would have put on a GPU."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np

# Functions of CuPy that look at their result on the host to know its shape
WAITING = frozenset(("nonzero", "flatnonzero", "argwhere", "unique", "extract", "compress"))


class Work:
    """Since the last `clear`, by name: kernels launched, waits of the host, copies between host and device."""

    def __init__(self) -> None:
        self.launches: Counter[str] = Counter()
        self.waits: Counter[str] = Counter()
        self.copies: Counter[str] = Counter()

    def clear(self) -> None:
        """Begin to count anew."""
        for counter in (self.launches, self.waits, self.copies):
            counter.clear()

    def totals(self) -> dict[str, int]:
        """The sums over all names."""
        return {name: counter.total() for name, counter in vars(self).items()}

    def called(self, name: str, found: Any, given: list[Any], written: bool) -> None:
        """A function of CuPy made `found` of the arrays `given`, or wrote into one of them.

        A view, and an array without elements, is no work on the device.
        """
        if name in WAITING:
            self.waits[name] += 1
        parts = found if isinstance(found, tuple | list) else [found]
        if written or any(_is_new(part, given) for part in parts):
            self.launches[name] += 1

    def read(self, name: str) -> None:
        """The host waited for an array and copied it."""
        self.waits[name] += 1
        self.copies[name] += 1


def _is_new(found: Any, given: list[Any]) -> bool:
    if isinstance(found, np.generic):
        return True
    if not isinstance(found, np.ndarray) or not found.size:
        return False
    return not any(found is array or np.may_share_memory(found, array) for array in given)


WORK = Work()
