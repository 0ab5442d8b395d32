"""The `cuda` backend: CuPy's arrays. The only file that imports CuPy, and only when a CUDA device is asked for.

One process computes on one GPU, that of its first tensor: CuPy works on the thread's current device, and a result
labelled with another would be wrong.
"""

from __future__ import annotations

import importlib
from typing import Any

import numpy as np

from resilin.core.backends import cuda_driver
from resilin.core.backends.base import ArrayBackend
from resilin.core.backends.cupy_names import make_xp
from resilin.core.kernels.common import register_namespace
from resilin.errors import OutOfMemoryError

HostArray = np.ndarray[Any, Any]

INSTALL = "pip install 'resilin[cuda12]', or 'resilin[cuda13]' with a driver for CUDA 13"


def load(host: Any) -> CupyBackend:
    """The backend over the installed CuPy; `host` is numpy's namespace. RuntimeError says why there is none."""
    try:
        cupy: Any = importlib.import_module("cupy")
    except ImportError as error:
        raise RuntimeError(f"device type 'cuda' needs CuPy, which cannot be imported ({error}): {INSTALL}") from None
    try:
        count = cupy.cuda.runtime.getDeviceCount()
    except cupy.cuda.runtime.CUDARuntimeError as error:
        raise RuntimeError(f"device type 'cuda' needs a CUDA device, and CuPy finds none: {error}") from None
    if not count:
        raise RuntimeError("device type 'cuda' needs a CUDA device, and CuPy finds none")
    importlib.import_module("cupyx.scipy.special")
    return CupyBackend(cupy, importlib.import_module("cupyx"), host, cuda_driver.load(cupy))


class CupyBackend(ArrayBackend):
    """CUDA devices through CuPy."""

    type = "cuda"

    def __init__(self, cupy: Any, cupyx: Any, host: Any, driver: Any = None) -> None:
        self.cupy = cupy
        self.xp = make_xp(cupy, cupyx, host, driver)
        self.computing_on: int | None = None  # the one device of this process, once it has a tensor
        self.peak_bytes = self.peak_reserved_bytes = 0  # since the last `reset_peaks`
        register_namespace(cupy.ndarray, self.xp)
        self._pool = cupy.get_default_memory_pool()
        cupy.cuda.set_allocator(self._allocate)

    def count(self) -> int:
        """Number of CUDA devices that this process sees."""
        return int(self.cupy.cuda.runtime.getDeviceCount())

    def cuda_version(self) -> str:
        """The version of CUDA, such as "12.9"."""
        number = int(self.cupy.cuda.runtime.runtimeGetVersion())
        return f"{number // 1000}.{number % 1000 // 10}"

    def current(self) -> int:
        """The device that `cuda` without a number means."""
        return int(self.cupy.cuda.runtime.getDevice()) if self.computing_on is None else self.computing_on

    def choose(self, index: int) -> None:
        """Compute on device `index`. RuntimeError when this process already has tensors on another."""
        if self.computing_on not in (None, index):
            raise RuntimeError(
                f"cuda:{index} was asked for, but this process computes on cuda:{self.computing_on}: one process uses "
                "one GPU. Start one process for each GPU (elastic-run), or call resilin.cuda.set_device before the "
                "first tensor is made"
            )
        self.cupy.cuda.Device(index).use()

    def nccl(self) -> Any:
        """CuPy's NCCL, which it imports when asked to; `available` is False where it finds no library."""
        return importlib.import_module("cupy.cuda.nccl")

    def from_host(self, array: HostArray, index: int) -> Any:
        """A copy of a numpy array in the memory of device `index`."""
        self.choose(index)
        self.computing_on = index
        return self.cupy.array(array)

    def to_host(self, array: Any) -> HostArray:
        """A copy as a numpy array; waits for what computes it. IndexError where a kernel met an index out of range."""
        copied: HostArray = array.get()
        self.xp.faults.check()
        return copied

    def pin(self, array: HostArray) -> HostArray:
        """A copy in page-locked memory, from CuPy's pool of it."""
        memory = self.cupy.cuda.alloc_pinned_memory(max(array.nbytes, 1))
        pinned = np.frombuffer(memory, np.uint8, array.nbytes).view(array.dtype).reshape(array.shape)
        pinned[...] = array
        return pinned

    def is_pinned(self, array: HostArray) -> bool:
        """Whether the array lies in memory that `pin` gave."""
        owner: Any = array
        while isinstance(owner, np.ndarray):
            owner = owner.base
        return isinstance(getattr(owner, "obj", owner), self.cupy.cuda.PinnedMemoryPointer)

    def synchronize(self, index: int) -> None:
        """Return when everything queued on device `index` is done. IndexError as `to_host`."""
        self.cupy.cuda.Device(index).synchronize()
        self.xp.faults.check()

    def _allocate(self, size: int) -> Any:
        """CuPy's pool, with an eye on the most that was taken."""
        try:
            memory = self._pool.malloc(size)
        except self.cupy.cuda.memory.OutOfMemoryError:
            raise OutOfMemoryError(
                f"cuda:{self.current()}: no memory for {size} bytes more; tensors take {self.used_bytes()} bytes, the "
                f"pool holds {self.reserved_bytes()}. Free tensors or use smaller batches"
            ) from None
        self.peak_bytes = max(self.peak_bytes, self._pool.used_bytes())
        self.peak_reserved_bytes = max(self.peak_reserved_bytes, self._pool.total_bytes())
        return memory

    def used_bytes(self) -> int:
        """Bytes that arrays take now."""
        return int(self._pool.used_bytes())

    def reserved_bytes(self) -> int:
        """Bytes that the pool has of the driver."""
        return int(self._pool.total_bytes())

    def reset_peaks(self) -> None:
        """Let the peaks start from what is taken now."""
        self.peak_bytes, self.peak_reserved_bytes = self.used_bytes(), self.reserved_bytes()

    def empty_cache(self) -> None:
        """Give what no array uses back to the driver."""
        self._pool.free_all_blocks()

    def limit(self, fraction: float) -> None:
        """Let the pool take at most this part of the device's memory; 1 is all of it."""
        self._pool.set_limit(fraction=fraction)

    def memory_info(self, index: int) -> tuple[int, int]:
        """(free, total) bytes of device `index`, of all processes."""
        free, total = self.cupy.cuda.Device(index).mem_info
        return free, total

    def properties(self, index: int) -> dict[str, Any]:
        """CUDA's own description of device `index`."""
        found: dict[str, Any] = self.cupy.cuda.runtime.getDeviceProperties(index)
        return found
