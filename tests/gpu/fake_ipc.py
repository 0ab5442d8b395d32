"""A stand-in for CUDA's IPC between threads as ranks: handles, mappings, events, and what goes wrong with them.

Memory is the host's. A mapping of a peer's memory has an address of its own (as in another process) that leads to the
same bytes, and cannot be used once it is closed or its owner has freed the memory.
"""

from __future__ import annotations

import ctypes
import itertools
from types import SimpleNamespace
from typing import Any

import cupy_standin
import fake_nccl
import numpy as np

HANDLE_BYTES = 64
_MAPPED_AT = 1 << 60  # mappings' addresses, which no host memory has


class CudaError(RuntimeError):
    """CuPy's CUDARuntimeError."""


class FakeIpc:
    """The driver: of all ranks."""

    def __init__(self) -> None:
        self.owned: dict[int, Any] = {}  # address -> memory
        self.handles: dict[bytes, int] = {}
        self.mapped: dict[int, int] = {}  # address of a mapping -> the owner's
        self.events: dict[int, Any] = {}
        self.opened = self.closed = 0
        self.waited: list[Any] = []
        self.no_access: set[tuple[int, int]] = set()
        self._next = itertools.count(1)

    def malloc(self, size: int) -> int:
        memory = (ctypes.c_uint8 * size)()
        self.owned[ctypes.addressof(memory)] = memory
        return ctypes.addressof(memory)

    def free(self, at: int) -> None:
        del self.owned[at]

    def get_handle(self, at: int) -> bytes:
        if at not in self.owned:
            raise CudaError("cudaErrorInvalidValue: not the start of an allocation")
        handle = at.to_bytes(8, "little").ljust(HANDLE_BYTES, b"h")
        self.handles[handle] = at
        return handle

    def open_handle(self, handle: bytes, flags: int = 1) -> int:
        if len(handle) != HANDLE_BYTES or self.handles.get(handle) not in self.owned:
            raise CudaError("cudaErrorInvalidResourceHandle: invalid resource handle")
        at = _MAPPED_AT + next(self._next) * (1 << 40)
        self.mapped[at] = self.handles[handle]
        self.opened += 1
        return at

    def close_handle(self, at: int) -> None:
        if self.mapped.pop(at, None) is None:
            raise CudaError("cudaErrorInvalidValue: not mapped")
        self.closed += 1

    def address(self, at: int) -> int:
        """The host's address behind a device's. CudaError for what is not mapped, or freed by its owner."""
        for start, owner in list(self.mapped.items()):  # other ranks map meanwhile
            if start <= at < start + (1 << 40):
                if owner not in self.owned:
                    break
                return owner + at - start
        if any(start <= at < start + len(memory) for start, memory in list(self.owned.items())):
            return at
        raise CudaError("cudaErrorIllegalAddress: an illegal memory access was encountered")

    def memcpy(self, into: int, source: int, size: int, kind: int, stream: Any) -> None:
        """Copy between any two addresses, the host's among them."""
        ctypes.memmove(*(at if at < _MAPPED_AT else self.address(at) for at in (into, source)), size)

    def event_handle(self, event: int) -> bytes:
        return event.to_bytes(8, "little").ljust(HANDLE_BYTES, b"e")

    def open_event(self, handle: bytes) -> int:
        if handle[8:] != b"e" * (HANDLE_BYTES - 8):
            raise CudaError("cudaErrorInvalidResourceHandle: invalid resource handle")
        return int.from_bytes(handle[:8], "little")

    def can_access(self, device: int, peer: int) -> int:
        return int((device, peer) not in self.no_access)


def install(module: Any, monkeypatch: Any) -> FakeIpc:
    """Give the stand-in for CuPy these functions, and arrays over a device's addresses."""
    fake, real = FakeIpc(), cupy_standin.ndarray.__init__

    def over_memory(self: Any, host: Any, base: Any = None, memptr: Any = None) -> None:
        if memptr is None:
            real(self, host, base)
            return
        shape, dtype = host, np.dtype(base)
        count = int(np.prod(shape, dtype=np.int64))
        raw = (ctypes.c_uint8 * (count * dtype.itemsize)).from_address(fake.address(memptr.mem.ptr + memptr.offset))
        real(self, np.frombuffer(raw, dtype).reshape(shape))

    monkeypatch.setattr(cupy_standin.ndarray, "__init__", over_memory)
    cuda = module.cuda
    properties = cuda.runtime.getDeviceProperties
    cuda.Stream, cuda.Event = fake_nccl.Stream, fake_nccl.Event
    cuda.get_current_stream = lambda: fake_nccl.Stream.null
    cuda.UnownedMemory = lambda ptr, size, owner, device_id=-1: SimpleNamespace(ptr=ptr, size=size)
    cuda.MemoryPointer = lambda mem, offset: SimpleNamespace(mem=mem, offset=offset)
    vars(cuda.runtime).update(
        CUDARuntimeError=CudaError,
        malloc=fake.malloc,
        free=fake.free,
        ipcGetMemHandle=fake.get_handle,
        ipcOpenMemHandle=fake.open_handle,
        ipcCloseMemHandle=fake.close_handle,
        ipcGetEventHandle=fake.event_handle,
        ipcOpenEventHandle=fake.open_event,
        memcpyAsync=fake.memcpy,
        eventDestroy=lambda event: None,
        streamWaitEvent=lambda stream, event, flags=0: fake.waited.append((stream, event)),
        getDeviceProperties=lambda index: {**properties(index), "uuid": b"stand-in %d" % index},
        deviceGetPCIBusId=lambda index: f"0000:{index:02x}:00.0",
        deviceGetByPCIBusId=lambda bus: int(bus[5:7], 16),
        deviceCanAccessPeer=fake.can_access,
    )
    return fake
