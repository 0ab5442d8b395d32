"""Reach the memory of devices' arrays by addresses: what channels copy from, and what they make for the receiver.

Of backends whose memory cannot be reached so (`of` returns None) tensors are copied to the host and back whole.
"""

from __future__ import annotations

import abc
from collections.abc import Callable
from typing import Any

import numpy as np

from resilin.core.backends.cupy import CupyBackend
from resilin.core.backends.numpy import NumpyBackend
from resilin.core.device import device

HostArray = np.ndarray[Any, Any]
Wait = Callable[[], None]
"""Returns when a copy is done."""
_FROM_ANY_TO_ANY = 4  # cudaMemcpyDefault: CUDA finds out by the addresses
_PHASE = 256  # CUDA's allocations begin at multiples of it, and what is made for the receiver does, too


class DeviceMemory(abc.ABC):
    """The memory of one backend's arrays."""

    phase = 1
    """Blocks begin at multiples of this, so that tensors in them stay aligned at the receiver."""

    @abc.abstractmethod
    def place(self, array: Any) -> tuple[Any, int]:
        """Return what owns the memory of `array`, and the address of its first element."""

    @abc.abstractmethod
    def empty(self, size: int, index: int) -> Any:
        """Return a new one-dimensional uint8 array on device `index`."""

    @abc.abstractmethod
    def adopt(self, host: HostArray, index: int) -> Any:
        """Return the bytes of `host`, which nobody else has, as a one-dimensional uint8 array on device `index`."""

    @abc.abstractmethod
    def shaped(self, block: Any, offset: int, shape: tuple[int, ...], dtype: Any, strides: tuple[int, ...]) -> Any:
        """Return the array whose first element lies at `offset` of a block."""

    @abc.abstractmethod
    def buffer(self, size: int) -> HostArray:
        """Return bytes of the host's memory from which copies are fastest: pinned where the device has such."""

    @abc.abstractmethod
    def read(self, address: int, into: HostArray, index: int) -> Wait:
        """Begin to copy from device `index` to the host, behind what computes there."""

    @abc.abstractmethod
    def write(self, source: HostArray, address: int, index: int) -> Wait:
        """Begin to copy from the host to device `index`, before what computes there next."""


class _Bytes:
    """Memory that numpy may look at. Who asks keeps it."""

    def __init__(self, address: int, size: int, is_read_only: bool) -> None:
        self.__array_interface__ = {
            "data": (address, is_read_only),
            "shape": (size,),
            "typestr": "|u1",
            "version": 3,
        }


def _done() -> None:
    """Nothing to wait for."""


class NumpyMemory(DeviceMemory):
    """Memory of devices that compute with numpy."""

    def place(self, array: Any) -> tuple[Any, int]:
        """See DeviceMemory."""
        owner = array
        while type(base := getattr(owner, "base", None)) is np.ndarray:
            owner = base
        return owner, array.__array_interface__["data"][0]

    def empty(self, size: int, index: int) -> Any:
        """See DeviceMemory."""
        return np.empty(size, np.uint8)

    def adopt(self, host: HostArray, index: int) -> Any:
        """See DeviceMemory: the array itself."""
        return host

    def shaped(self, block: Any, offset: int, shape: tuple[int, ...], dtype: Any, strides: tuple[int, ...]) -> Any:
        """See DeviceMemory."""
        return np.ndarray(shape, dtype, block, offset, strides)

    def buffer(self, size: int) -> HostArray:
        """See DeviceMemory."""
        return np.empty(size, np.uint8)

    def read(self, address: int, into: HostArray, index: int) -> Wait:
        """See DeviceMemory."""
        into[:] = np.asarray(_Bytes(address, into.size, True))
        return _done

    def write(self, source: HostArray, address: int, index: int) -> Wait:
        """See DeviceMemory."""
        np.asarray(_Bytes(address, source.size, False))[:] = source
        return _done


class CupyMemory(DeviceMemory):
    """Memory of CUDA devices. Copies go in the order of the thread's current stream."""

    phase = _PHASE

    def __init__(self, backend: CupyBackend) -> None:
        self.backend = backend
        self._cupy = backend.cupy

    def place(self, array: Any) -> tuple[Any, int]:
        """See DeviceMemory."""
        return array.data.mem, int(array.data.ptr)

    def empty(self, size: int, index: int) -> Any:
        """See DeviceMemory."""
        self.backend.choose(index)
        self.backend.computing_on = index
        return self._cupy.empty(size, np.uint8)

    def adopt(self, host: HostArray, index: int) -> Any:
        """See DeviceMemory: a copy on the device."""
        made = self.empty(host.size, index)
        if host.size:
            self.write(host, int(made.data.ptr), index)()
        return made

    def shaped(self, block: Any, offset: int, shape: tuple[int, ...], dtype: Any, strides: tuple[int, ...]) -> Any:
        """See DeviceMemory."""
        first = block[offset : offset + np.dtype(dtype).itemsize].view(dtype)
        return self._cupy.lib.stride_tricks.as_strided(first, shape, strides)

    def buffer(self, size: int) -> HostArray:
        """See DeviceMemory: from CuPy's pool of pinned memory."""
        memory = self._cupy.cuda.alloc_pinned_memory(max(size, 1))
        return np.frombuffer(memory, np.uint8, size)

    def read(self, address: int, into: HostArray, index: int) -> Wait:
        """See DeviceMemory."""
        return self.copy(address, into.__array_interface__["data"][0], into.size, index)

    def write(self, source: HostArray, address: int, index: int) -> Wait:
        """See DeviceMemory."""
        return self.copy(source.__array_interface__["data"][0], address, source.size, index)

    def copy(self, source: int, into: int, size: int, index: int) -> Wait:
        """Begin to copy between any two addresses."""
        self.backend.choose(index)
        cuda = self._cupy.cuda
        stream, event = cuda.get_current_stream(), cuda.Event(disable_timing=True)
        cuda.runtime.memcpyAsync(into, source, size, _FROM_ANY_TO_ANY, stream.ptr)
        event.record(stream)
        waits: Wait = event.synchronize
        return waits


NUMPY: DeviceMemory = NumpyMemory()
_cuda: dict[int, CupyMemory] = {}  # by id of the backend, which the memory keeps


def of(dev: device) -> DeviceMemory | None:
    """Return how to reach the memory of `dev`'s arrays; None where only its backend can."""
    backend = dev.backend
    if isinstance(backend, NumpyBackend):
        return NUMPY
    if isinstance(backend, CupyBackend):
        found = _cuda.get(id(backend))
        return found if found is not None else _cuda.setdefault(id(backend), CupyMemory(backend))
    return None


def number_of(name: str) -> int:
    """Return the index in the name of a device; 0 where there is none."""
    return int(name.partition(":")[2] or 0)
