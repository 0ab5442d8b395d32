"""The `cuda` backend: CuPy's arrays. The only file that imports CuPy, and only when a CUDA device is asked for.

One process computes on one GPU, that of its first tensor: CuPy works on the thread's current device, and a result
labelled with another would be wrong.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

import numpy as np

from resilin.core.backends import cuda_driver, device_errors
from resilin.core.backends.base import ArrayBackend
from resilin.core.backends.counted_pool import CountedPool
from resilin.core.backends.cupy_names import make_xp
from resilin.core.kernels.common import register_namespace
from resilin.core.kernels.cuda import philox

HostArray = np.ndarray[Any, Any]

LEAST = 14  # of CuPy: the first that knows bfloat16
INSTALL = "pip install 'resilin[cuda12]', or 'resilin[cuda13]' with a driver for CUDA 13"


def load(host: Any) -> CupyBackend:
    """The backend over the installed CuPy; `host` is numpy's namespace. RuntimeError says why there is none."""
    try:
        cupy: Any = importlib.import_module("cupy")
    except ImportError as error:
        raise RuntimeError(f"device type 'cuda' needs CuPy, which cannot be imported ({error}): {INSTALL}") from None
    version = str(getattr(cupy, "__version__", ""))
    if version.split(".")[0].isdigit() and int(version.split(".")[0]) < LEAST:
        raise RuntimeError(f"device type 'cuda' needs CuPy {LEAST} or newer, found {version}: {INSTALL}")
    try:
        count = cupy.cuda.runtime.getDeviceCount()
    except cupy.cuda.runtime.CUDARuntimeError as error:
        if "InsufficientDriver" in str(error):
            raise RuntimeError(_of_driver(cupy, error)) from None
        raise RuntimeError(f"device type 'cuda' needs a CUDA device, and CuPy finds none: {error}") from None
    if not count:
        raise RuntimeError("device type 'cuda' needs a CUDA device, and CuPy finds none")
    importlib.import_module("cupyx.scipy.special")
    return CupyBackend(cupy, importlib.import_module("cupyx"), host, cuda_driver.load(cupy))


def _of_driver(cupy: Any, error: Exception) -> str:
    runtime = cupy.cuda.runtime
    made_for, has = (_version(ask()) for ask in (runtime.runtimeGetVersion, runtime.driverGetVersion))
    return (
        f"device type 'cuda' needs a newer driver: the one here is for CUDA {has}, CuPy's libraries are of CUDA "
        f"{made_for} ({error}). Update the driver, or {INSTALL}"
    )


def _version(number: int) -> str:
    return f"{number // 1000}.{number % 1000 // 10}" if number else "none"


class CupyBackend(ArrayBackend):
    """CUDA devices through CuPy."""

    type = "cuda"

    def __init__(self, cupy: Any, cupyx: Any, host: Any, driver: Any = None) -> None:
        self.cupy = cupy
        self.xp = make_xp(cupy, cupyx, host, driver)
        self.computing_on: int | None = None  # the one device of this process, once it has a tensor
        register_namespace(cupy.ndarray, self.xp)
        self.memory = CountedPool(cupy, lambda: f"cuda:{self.current()}")

    def count(self) -> int:
        """Number of CUDA devices that this process sees."""
        return int(self.cupy.cuda.runtime.getDeviceCount())

    def cuda_version(self) -> str:
        """The version of CUDA, such as "12.9"."""
        return _version(int(self.cupy.cuda.runtime.runtimeGetVersion()))

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
        with device_errors.translated(self.xp, "a copy to the device"):
            return self.cupy.array(array)

    def draw(
        self, kind: str, take: Callable[..., Any], shape: tuple[int, ...], dtype: Any, index: int, **numbers: Any
    ) -> Any:
        """As declared; of floats, normal ones of float32 only."""
        self.choose(index)
        self.computing_on = index
        return philox.DRAWS[kind](self.xp, take, shape, np.dtype(dtype), **numbers)

    def to_host(self, array: Any) -> HostArray:
        """A copy as a numpy array; waits for what computes it. IndexError where a kernel met an index out of range."""
        copied: HostArray = self.xp.to_host(array)
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
        with device_errors.translated(self.xp, "synchronize"):
            self.cupy.cuda.Device(index).synchronize()
        self.xp.faults.check(waited_for_all=True)

    def check(self) -> None:
        """As declared. Waits for the current stream where a kernel on it may have noted something."""
        self.xp.faults.check()

    def explained(self, error: Exception, doing: str) -> Exception:
        """As declared: AcceleratorError for what CuPy raises of CUDA's errors."""
        is_cudas = isinstance(error, device_errors.of_cuda(self.cupy))
        return device_errors.fault(self.xp, doing, error) if is_cudas else error

    def memory_info(self, index: int) -> tuple[int, int]:
        """(free, total) bytes of device `index`, of all processes."""
        free, total = self.cupy.cuda.Device(index).mem_info
        return free, total

    def properties(self, index: int) -> dict[str, Any]:
        """CUDA's own description of device `index`."""
        found: dict[str, Any] = self.cupy.cuda.runtime.getDeviceProperties(index)
        return found

    def bus_id(self, index: int) -> str:
        """Where device `index` is attached, as all of NVIDIA's libraries name it."""
        return str(self.cupy.cuda.runtime.deviceGetPCIBusId(index))
