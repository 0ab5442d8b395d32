"""The memory of CUDA devices: CuPy's pool, which keeps freed blocks for the stream that they were taken on, counted.

Allocations and frees are counted by native code around the pool (`native/memory/device_counter.cpp`); this file's
`Counter` is its form in Python. What the pool takes from the driver is rare, and counted here.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NoReturn

from resilin.core.kernels.loader import native
from resilin.errors import OutOfMemoryError

HELD: list[Callable[[Any], str]] = []
"""Who knows tensors says here how it tells what they hold, given CuPy: for the error of a full device."""

_FIELDS = ("current", "peak", "allocated", "freed")
_ADDED = (".allocated", ".freed")
_COUNTED = (("allocation", "active"), ("allocated_bytes", "active_bytes"), ("requested_bytes",))


class _Figure:
    """How much of something there is, was at most, and has been taken and given back."""

    __slots__ = ("current", "freed", "peak", "taken")

    def __init__(self) -> None:
        self.current = self.peak = self.taken = self.freed = 0

    def take(self, n: int) -> None:
        """There is more of it."""
        self.current += n
        self.taken += n
        self.peak = max(self.peak, self.current)

    def give(self, n: int) -> None:
        """There is less of it."""
        self.current -= n
        self.freed += n

    def all(self) -> tuple[int, int, int, int]:
        """(current, peak, taken, freed)."""
        return self.current, self.peak, self.taken, self.freed


class _Block:
    """What an array's memory names as its owner: the pool's block, until the array is gone."""

    __slots__ = ("block", "figures", "sizes")

    def __init__(self, figures: tuple[_Figure, ...], block: Any, sizes: tuple[int, ...]) -> None:
        self.figures, self.block, self.sizes = figures, block, sizes
        for figure, size in zip(figures, sizes, strict=True):
            figure.take(size)

    def __del__(self) -> None:
        for figure, size in zip(self.figures, self.sizes, strict=True):
            figure.give(size)


class Counter:
    """The native `DeviceCounter` in Python: an allocator around the pool's, `malloc`."""

    def __init__(
        self, malloc: Callable[[int], Any], memory: Any, pointer: Any, error: Any, full: Callable[[int], NoReturn]
    ) -> None:
        self._malloc, self._memory, self._pointer, self._error, self._full = malloc, memory, pointer, error, full
        self._figures = (_Figure(), _Figure(), _Figure())

    def allocate(self, size: int) -> Any:
        """Memory for an array."""
        try:
            block = self._malloc(size)
        except self._error:
            self._full(size)
        held = _Block(self._figures, block, (1, block.mem.size, size))
        return self._pointer(self._memory(block.ptr, block.mem.size, held, block.mem.device_id), 0)

    def figures(self) -> tuple[tuple[int, ...], ...]:
        """Of blocks, their bytes, and the bytes that were asked for."""
        return tuple(figure.all() for figure in self._figures)

    def reset_peaks(self) -> None:
        """Let the peaks start from what there is."""
        for figure in self._figures:
            figure.peak = figure.current


class CountedPool:
    """The pool of a process's device, and its figures."""

    def __init__(self, cupy: Any, name: Callable[[], str]) -> None:
        """`name` says which device it is."""
        self._cupy, self._name = cupy, name
        self._segments, self._reserved = _Figure(), _Figure()
        self._retries = self._full = 0
        self._before: dict[str, int] = {}  # what had been added up when that was to start anew
        self.fraction = 1.0  # of the device's memory, that the pool may take
        self._segment = _segment_type(cupy.cuda.Memory, self._segments, self._reserved)
        self._pool = cupy.cuda.MemoryPool(self._from_driver)
        made = getattr(native, "DeviceCounter", Counter)
        error = cupy.cuda.memory.OutOfMemoryError
        self._counter = made(self._pool.malloc, cupy.cuda.UnownedMemory, cupy.cuda.MemoryPointer, error, self._refuse)
        self.allocate: Callable[[int], Any] = self._counter.allocate
        cupy.cuda.set_allocator(self.allocate)

    def _from_driver(self, size: int) -> Any:
        """Memory for the pool; it frees what it keeps, and asks again, where the driver has none."""
        try:
            memory = self._segment(size)
        except self._cupy.cuda.runtime.CUDARuntimeError:
            self._retries += 1
            raise
        self._segments.take(1)
        self._reserved.take(size)
        return self._cupy.cuda.MemoryPointer(memory, 0)

    def _refuse(self, size: int) -> NoReturn:
        self._full += 1
        held = "".join(f"\n{of(self._cupy)}" for of in HELD)
        raise OutOfMemoryError(
            f"{self._name()}: no memory for {size} bytes more; tensors take {self.used_bytes} bytes, the pool holds "
            f"{self.reserved_bytes}. Free tensors or use smaller batches{held}"
        ) from None

    @property
    def used_bytes(self) -> int:
        """Bytes of the blocks that arrays have."""
        return int(self._counter.figures()[1][0])

    @property
    def reserved_bytes(self) -> int:
        """Bytes that the pool has of the driver."""
        return int(self._pool.total_bytes())

    def stats(self) -> dict[str, int]:
        """The figures, by PyTorch's names."""
        found = {}
        for names, figures in zip(_COUNTED, self._counter.figures(), strict=True):
            for name in names:
                found.update(_named(name, figures))
        found.update(_named("segment", self._segments.all()))
        found.update(_named("reserved_bytes", self._reserved.all()))
        found["inactive_split_bytes.all.current"] = self._reserved.current - found["allocated_bytes.all.current"]
        found["num_alloc_retries"], found["num_ooms"] = self._retries, self._full
        found["num_device_alloc"], found["num_device_free"] = self._segments.taken, self._segments.freed
        return {name: value - self._before.get(name, 0) for name, value in found.items()}

    def reset_accumulated(self) -> None:
        """Let what is added up, and never goes down, start from 0."""
        self._before, found = {}, self.stats()
        self._before = {name: value for name, value in found.items() if name.endswith(_ADDED) or name[:4] == "num_"}

    def reset_peaks(self) -> None:
        """Let the peaks start from what is taken now."""
        self._counter.reset_peaks()
        for figure in (self._segments, self._reserved):
            figure.peak = figure.current

    def empty_cache(self) -> None:
        """Give what no array uses back to the driver."""
        self._pool.free_all_blocks()

    def limit(self, fraction: float) -> None:
        """Let the pool take at most this part of the device's memory; 1 is all of it."""
        self._pool.set_limit(fraction=fraction)
        self.fraction = fraction


def _named(name: str, figures: tuple[int, ...]) -> dict[str, int]:
    return {f"{name}.all.{field}": value for field, value in zip(_FIELDS, figures, strict=True)}


def _segment_type(memory: Any, segments: _Figure, reserved: _Figure) -> Any:
    """CuPy's memory of the driver, counted as given back when it is."""

    def gone(self: Any) -> None:
        if self.ptr:  # it was given any
            segments.give(1)
            reserved.give(self.size)

    return type("Segment", (memory,), {"__slots__": (), "__del__": gone})
