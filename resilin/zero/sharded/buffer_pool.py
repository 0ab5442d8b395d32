"""Memory for gathered parameters and their gradients: few pieces, used again and again within a pass.

A slab whose last reader is a collective that still runs may be lent again at once to a later collective of the same
group, which runs collectives one after the other; who writes it himself waits first. So gathering, computing and
reducing need no more than two slabs at a time.
"""

from __future__ import annotations

import sys
from typing import Any

import numpy as np

from resilin.core.device import device
from resilin.distributed import Work

Array = Any


class Slab:
    """Some bytes on one device, and the collective that reads them last."""

    __slots__ = ("memory", "work")

    def __init__(self, memory: Array) -> None:
        self.memory = memory
        self.work: Work | None = None

    def array(self, dtype: Any, numel: int) -> Array:
        """The first `numel` elements, as a flat array of `dtype`."""
        return self.memory[: numel * dtype.itemsize].view(dtype)

    def settle(self) -> None:
        """Wait for the end of the collective, well or not: who launched it raises its error."""
        work, self.work = self.work, None
        if work is not None:
            work.get_future().settled_within(None)

    def held(self, known: int = 0) -> bool:
        """Whether others than `known` arrays look into this memory; True where that cannot be known."""
        return type(self.memory) is not np.ndarray or sys.getrefcount(self.memory) - _alone > known


def _when_alone() -> int:
    probe = Slab(np.empty(0, np.uint8))
    return sys.getrefcount(probe.memory)


_alone = _when_alone()  # what is said of memory that only its slab holds


class BufferPool:
    """The slabs of one module. Main thread only."""

    def __init__(self, dev: device) -> None:
        self._dev = dev
        self._idle: list[Slab] = []

    def take(self, nbytes: int, queued: bool) -> Slab:
        """A slab of at least `nbytes`. queued: a collective writes it first, behind the one that reads it now."""
        self._idle = [slab for slab in self._idle if slab.work is not None or not slab.held()]
        fitting = [slab for slab in self._idle if slab.memory.nbytes >= nbytes]
        if fitting:
            slab = min(fitting, key=lambda slab: int(slab.memory.nbytes))
            self._idle.remove(slab)
            if not queued:
                slab.settle()
            return slab
        self.clear()  # too small: their memory goes before more is taken
        return Slab(self._dev.xp.empty(nbytes, np.uint8))

    def give(self, slab: Slab) -> None:
        """Take a slab back: nobody looks into it but its collective, or it is let go."""
        self._idle.append(slab)

    def clear(self) -> None:
        """Let all go that nobody uses."""
        for slab in self._idle:
            slab.settle()
        self._idle = []
