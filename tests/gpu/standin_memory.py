"""CuPy's memory for the stand-in: a driver with a few gigabytes of addresses, and the pool in front of it."""

from __future__ import annotations

import itertools
from typing import Any

TOTAL = 4 << 30
UNIT = 512  # sizes are multiples of it, as CuPy's

_addresses = itertools.count(1)


class OutOfMemoryError(MemoryError):
    """CuPy's."""


class CUDARuntimeError(RuntimeError):
    """CuPy's."""


class Memory:
    """What the driver gave; it has it back when this is gone."""

    taken = 0  # of all

    def __init__(self, size: int) -> None:
        self.ptr, self.size, self.device_id = 0, size, 0
        if Memory.taken + size > TOTAL:
            raise CUDARuntimeError("cudaErrorMemoryAllocation: out of memory")
        self.ptr = next(_addresses) << 40
        self._owned = True
        Memory.taken += size

    def __init_subclass__(cls, **options: Any) -> None:
        """Given back also where a class of ours has a `__del__` of its own: CuPy's does it beneath Python."""
        own = cls.__dict__.get("__del__")
        cls.__del__ = lambda self: (own(self) if own else None, Memory.__del__(self))  # type: ignore[attr-defined]

    def __del__(self) -> None:
        if getattr(self, "_owned", False):
            Memory.taken -= self.size


class UnownedMemory:
    """Memory that somebody else frees."""

    def __init__(self, ptr: int, size: int, owner: Any, device_id: int = -1) -> None:
        self.ptr, self.size, self.device_id, self._owner = ptr, size, device_id, owner


class MemoryPointer:
    """A place in memory."""

    def __init__(self, mem: Any, offset: int) -> None:
        self.mem, self.ptr, self.device_id = mem, mem.ptr + offset, mem.device_id


class _Pooled:
    """A block in use."""

    def __init__(self, pool: MemoryPool, segment: Any) -> None:
        self._pool, self._segment = pool, segment
        self.ptr, self.size, self.device_id = segment.ptr, segment.size, 0

    def __del__(self) -> None:
        self._pool.kept.setdefault(self.size, []).append(self._segment)


class MemoryPool:
    """Keeps freed blocks by size. Blocks are not split."""

    def __init__(self, allocator: Any) -> None:
        self._allocator, self._limit, self._total = allocator, 0, 0
        self.kept: dict[int, list[Any]] = {}

    def malloc(self, size: int) -> MemoryPointer:
        size = -(-size // UNIT) * UNIT
        kept = self.kept.get(size)
        return MemoryPointer(_Pooled(self, kept.pop() if kept else self._from_driver(size)), 0)

    def _from_driver(self, size: int) -> Any:
        if self._limit and self._total + size > self._limit:
            raise OutOfMemoryError(f"Out of memory allocating {size} bytes")
        for attempt in range(3):
            try:
                found = self._allocator(size).mem
            except CUDARuntimeError:
                if attempt == 2:
                    raise OutOfMemoryError(f"Out of memory allocating {size} bytes") from None
                self.free_all_blocks()
            else:
                self._total += size
                return found
        raise AssertionError

    def free_all_blocks(self) -> None:
        self._total -= sum(size * len(kept) for size, kept in self.kept.items())
        self.kept.clear()

    def total_bytes(self) -> int:
        return self._total

    def set_limit(self, size: int | None = None, fraction: float | None = None) -> None:
        self._limit = int(TOTAL * fraction) if fraction not in (None, 1) else size or 0
