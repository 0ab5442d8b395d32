"""Carry tensors of CUDA devices between processes of one host: the borrower maps memory, and copies them out of it.

    pack      copy the block into a slab (a snapshot), record an event    LOAN: slab, offset, event, handles
    unpack    map the slab once, let the GPU wait for the event, copy     ENDED: the loan
    later     a slab that lends nothing and is not needed                 RETIRED: the slab
              the borrower unmaps it                                      UNMAPPED: the slab, which is freed then

A handle of CUDA's covers a whole allocation, so the offset travels; and it is undefined to free what another process
has mapped, so a slab stays until every borrower has let go of it, or is lost.

Whether a peer can read the memory is compared, never guessed: its host, and the identity of each GPU that its own can
read. Where mapping fails all the same (containers that hide it), the borrower says so, and nothing more goes this way.
What has run on a GPU, and what over stand-ins: docs/gpu.md.
"""

from __future__ import annotations

import json
import logging
import os
import struct
import threading
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

from resilin._base import host, log
from resilin.core import device as devices
from resilin.core.backends.cupy import CupyBackend
from resilin.errors import RpcError
from resilin.rpc.channels import device_memory
from resilin.rpc.channels.base import Block, Packed, Post, TensorChannel
from resilin.rpc.channels.device_memory import CupyMemory
from resilin.rpc.channels.staged import target_in
from resilin.rpc.transports.base import Buffer

_LOG = log.logger("rpc.cuda_ipc")
SLAB_BYTES = 32 << 20
IDLE_BYTES = 64 << 20  # of slabs that lend nothing: what is more is given back
_ALIGN = 512  # of loans in a slab: loads of any width stay aligned
_LOAN = struct.Struct("<16sQQQQ64s64s")  # the lender's token, loan, slab, offset, bytes, handles of memory and event
_ENDED, _REFUSED, _RETIRED, _UNMAPPED = range(4)
_POST = struct.Struct("<BQ")  # kind, loan or slab


@dataclass(slots=True)
class _Slab:
    """An allocation that peers map. Guarded by the channel's lock, as everything below."""

    number: int
    at: int
    size: int
    index: int
    handle: bytes
    taken: dict[int, int] = field(default_factory=dict)  # offset -> end
    mapped_by: set[int] = field(default_factory=set)
    is_retired: bool = False

    def reserve(self, size: int) -> int | None:
        """Return where there is room for `size` bytes, now taken; None where there is none."""
        offset = 0
        for begin, end in sorted(self.taken.items()):
            if begin - offset >= size:
                break
            offset = end
        if self.size - offset < size:
            return None
        self.taken[offset] = offset + size
        return offset


@dataclass(slots=True)
class _Loan:
    peer: int
    slab: _Slab
    offset: int
    event: tuple[Any, bytes]
    """With its handle."""


@dataclass(slots=True)
class _Mapping:
    """A slab of a peer."""

    at: int
    users: int = 0
    is_over: bool = False


class CudaIpcChannel(TensorChannel):
    """Lends copies of CUDA tensors to processes of the same host whose GPU can read this one's memory.

    It describes the GPUs of a process that uses CUDA when the channel is made: where CUDA is not in use it reaches
    nobody, and nobody reaches it, so that workers of the host's memory need not load it.
    """

    name = "cuda_ipc"

    def __init__(self, post: Post) -> None:
        self._post = post
        self._token = os.urandom(16)
        self._lock = threading.RLock()
        self._slabs: dict[int, _Slab] = {}  # guarded by _lock
        self._loans: dict[int, _Loan] = {}  # guarded by _lock
        self._number = 0  # guarded by _lock: of the last loan or slab
        self._events: list[tuple[Any, bytes]] = []  # guarded by _lock: that no loan uses
        self._maps: dict[tuple[int, int], _Mapping] = {}  # guarded by _lock: (peer, slab)
        self._opened: dict[tuple[int, bytes], int] = {}  # guarded by _lock: (peer, handle) -> event
        self._closed = False
        self._refused = False
        backend = devices.loaded_backend_of("cuda")
        self._memory: CupyMemory | None = None
        self._identities: dict[str, str] = {}
        reads: dict[str, list[str]] = {}
        if isinstance(backend, CupyBackend):
            self._memory = CupyMemory(backend)
            self._runtime = backend.cupy.cuda.runtime
            self._identities, reads = _identities(self._runtime, backend.count())
        self._host = host.host_id()
        self._description = json.dumps({"host": self._host, "reads": reads})

    def describe(self) -> str:
        """Return the host's identity, and by device the identities of the GPUs that it can read."""
        return self._description

    def reaches(self, block: Block, theirs: str) -> bool:
        """Return whether the peer is on this host, and the GPU that the block goes to can read the one it lies on."""
        identity = self._identities.get(block.device)
        if identity is None or not block.size or self._closed or self._refused:
            return False
        there, reads = _parsed(theirs)
        return there == self._host and identity in reads.get(block.target, ())

    # --- the lender ---

    def pack(self, block: Block, peer: int) -> Packed:
        """See TensorChannel. Waits for nothing: the peer's GPU waits for the copy."""
        memory, index = self._memory, device_memory.number_of(block.device)
        assert memory is not None, block.device
        memory.backend.choose(index)
        cuda = memory.backend.cupy.cuda
        with self._lock:
            number, loan = self._lend(block.size, peer, index)
            slab, event = loan.slab, loan.event
        try:
            stream = cuda.get_current_stream()
            self._runtime.memcpyAsync(slab.at + loan.offset, block.start, block.size, _DEVICE_TO_DEVICE, stream.ptr)
            event[0].record(stream)
        except BaseException:
            self._end(peer, number)
            raise
        note = _LOAN.pack(self._token, number, slab.number, loan.offset, block.size, slab.handle, event[1])
        return Packed(note + block.target.encode("ascii"), ())

    def _lend(self, size: int, peer: int, index: int) -> tuple[int, _Loan]:
        room = -(-size // _ALIGN) * _ALIGN
        for slab in self._slabs.values():
            if not slab.is_retired and slab.index == index and (offset := slab.reserve(room)) is not None:
                break
        else:
            slab = self._new_slab(room, index)
            offset = slab.reserve(room)
            assert offset is not None
        try:
            event = self._events.pop() if self._events else self._new_event()
        except BaseException:
            del slab.taken[offset]
            raise
        slab.mapped_by.add(peer)
        self._number += 1
        loan = self._loans[self._number] = _Loan(peer, slab, offset, event)
        return self._number, loan

    def _new_slab(self, room: int, index: int) -> _Slab:
        size = max(SLAB_BYTES, room)
        at = int(self._runtime.malloc(size))
        try:
            handle = bytes(self._runtime.ipcGetMemHandle(at))
        except BaseException:
            self._runtime.free(at)
            raise
        self._number += 1
        slab = self._slabs[self._number] = _Slab(self._number, at, size, index, handle)
        return slab

    def _new_event(self) -> tuple[Any, bytes]:
        assert self._memory is not None
        event = self._memory.backend.cupy.cuda.Event(disable_timing=True, interprocess=True)
        return event, bytes(self._runtime.ipcGetEventHandle(event.ptr))

    def withdraw(self, packed: Packed, peer: int) -> None:
        """See TensorChannel."""
        self._end(peer, _LOAN.unpack_from(packed.note)[1])

    def _end(self, peer: int, number: int) -> None:
        with self._lock:
            loan = self._loans.get(number)
            if loan is None or loan.peer != peer:
                return
            del self._loans[number]
            del loan.slab.taken[loan.offset]
            self._events.append(loan.event)
            told = self._retire()
        for borrower, slab in told:
            self._post(borrower, _POST.pack(_RETIRED, slab))

    def _retire(self) -> list[tuple[int, int]]:
        """Choose the slabs that are not needed; return whom to tell. With the lock held."""
        told: list[tuple[int, int]] = []
        idle = [slab for slab in self._slabs.values() if not slab.taken and not slab.is_retired]
        kept = 0
        for slab in idle:
            kept += slab.size
            if kept > IDLE_BYTES or self._closed:
                slab.is_retired = True
                told += [(peer, slab.number) for peer in slab.mapped_by]
                self._free_if_unmapped(slab)
        return told

    def _free_if_unmapped(self, slab: _Slab) -> None:
        if slab.is_retired and not slab.taken and (not slab.mapped_by or self._closed):
            del self._slabs[slab.number]
            self._runtime.free(slab.at)

    # --- the borrower ---

    def unpack(self, note: bytes, parts: Sequence[Buffer], source: int) -> Any:
        """See TensorChannel: a copy on the device that the note names. RpcError where it cannot be mapped."""
        if parts or len(note) <= _LOAN.size:
            raise ValueError(f"cuda_ipc block of worker {source}: {len(parts)} parts and a note of {len(note)} bytes")
        token, number, slab, offset, size, handle, event_handle = _LOAN.unpack_from(note)
        target = target_in(note[_LOAN.size :])
        memory = self._memory
        if memory is None or target.type != "cuda":
            raise ValueError(f"cuda_ipc block of worker {source} for {target}: CUDA was not in use when RPC began")
        try:
            made = memory.empty(size, target.index or 0)
            if token == self._token:
                self._copy_own(number, source, made, size)
            else:
                self._copy_out((source, slab), handle, event_handle, offset, made, size)
        except self._runtime.CUDARuntimeError as error:
            self._post(source, _POST.pack(_REFUSED, number))
            raise RpcError(
                f"cuda_ipc: {size} bytes of worker {source} cannot be read ({error}); the next tensors go another way"
            ) from error
        except BaseException:
            self._post(source, _POST.pack(_ENDED, number))
            raise
        self._post(source, _POST.pack(_ENDED, number))
        return made

    def _copy_own(self, number: int, source: int, made: Any, size: int) -> None:
        """Copy what this worker has sent to itself: CUDA maps nothing into the process that has it."""
        with self._lock:
            loan = self._loans.get(number)
            if loan is None or loan.peer != source:
                raise ValueError(f"cuda_ipc block of worker {source}: loan {number} is not there")
            at, event = loan.slab.at + loan.offset, loan.event[0].ptr
        self._copy(at, made, size, event)

    def _copy_out(
        self, key: tuple[int, int], handle: bytes, event_handle: bytes, offset: int, made: Any, size: int
    ) -> None:
        with self._lock:
            mapping = self._maps.get(key)
            if mapping is None:
                mapping = self._maps[key] = _Mapping(int(self._runtime.ipcOpenMemHandle(handle)))
            event = self._opened.get((key[0], event_handle))
            if event is None:
                event = self._opened[key[0], event_handle] = int(self._runtime.ipcOpenEventHandle(event_handle))
            mapping.users += 1
        try:
            self._copy(mapping.at + offset, made, size, event)
        finally:
            with self._lock:
                mapping.users -= 1
                if mapping.is_over and not mapping.users:
                    self._unmap(mapping.at)

    def _copy(self, at: int, made: Any, size: int, event: int) -> None:
        """Copy behind the lender's event; the loan may end when this returns."""
        assert self._memory is not None
        stream = self._memory.backend.cupy.cuda.get_current_stream()
        self._runtime.streamWaitEvent(stream.ptr, event)
        self._runtime.memcpyAsync(int(made.data.ptr), at, size, _DEVICE_TO_DEVICE, stream.ptr)
        stream.synchronize()

    def _forget(self, key: tuple[int, int]) -> None:
        """Unmap a slab, or let its last user do so. With the lock held."""
        mapping = self._maps.pop(key, None)
        if mapping is not None:
            mapping.is_over = True
            if not mapping.users:
                self._unmap(mapping.at)

    def _unmap(self, at: int) -> None:
        try:
            self._runtime.ipcCloseMemHandle(at)
        except self._runtime.CUDARuntimeError as error:  # its owner may be dead
            log.event(_LOG, logging.DEBUG, "a peer's memory could not be unmapped", reason=str(error))

    # --- both ---

    def handle(self, source: int, note: bytes) -> None:
        """Take the ends of loans, and of slabs."""
        if len(note) != _POST.size:
            raise ValueError(f"cuda_ipc: a note of {len(note)} bytes from worker {source}")
        kind, number = _POST.unpack(note)
        if kind in (_ENDED, _REFUSED):
            if kind == _REFUSED and not self._refused:
                self._refused = True
                log.event(_LOG, logging.WARNING, "CUDA memory cannot be mapped by a peer of this host", peer=source)
            self._end(source, number)
        elif kind == _RETIRED:
            with self._lock:
                self._forget((source, number))
            self._post(source, _POST.pack(_UNMAPPED, number))
        elif kind == _UNMAPPED:
            with self._lock:
                slab = self._slabs.get(number)
                if slab is not None and slab.is_retired:
                    slab.mapped_by.discard(source)
                    self._free_if_unmapped(slab)
        else:
            raise ValueError(f"cuda_ipc: a note of kind {kind} from worker {source}")

    def lost(self, peer: int) -> None:
        """See TensorChannel. What came from it was copied out."""
        with self._lock:
            loans = [number for number, loan in self._loans.items() if loan.peer == peer]
            for slab in list(self._slabs.values()):
                slab.mapped_by.discard(peer)
            self._let_go([key for key in self._maps if key[0] == peer], [key for key in self._opened if key[0] == peer])
        for number in loans:
            self._end(peer, number)
        with self._lock:
            for slab in list(self._slabs.values()):
                self._free_if_unmapped(slab)

    def _let_go(self, maps: list[tuple[int, int]], events: list[tuple[int, bytes]]) -> None:
        """With the lock held."""
        for key in maps:
            self._forget(key)
        for event in events:
            try:
                self._runtime.eventDestroy(self._opened.pop(event))
            except self._runtime.CUDARuntimeError as error:
                log.event(_LOG, logging.DEBUG, "a peer's event could not be closed", reason=str(error))

    def close(self) -> None:
        """Unmap what peers have lent, and free what this worker lends; a slab on loan is freed when its loans end."""
        with self._lock:
            self._closed = True
            self._let_go(list(self._maps), list(self._opened))
            self._events.clear()
            for slab in list(self._slabs.values()):
                slab.is_retired = True
                self._free_if_unmapped(slab)

    def stats(self) -> dict[str, int]:
        """Return how many loans have not ended, how many slabs there are, and how many of peers are mapped."""
        with self._lock:
            return {"loans": len(self._loans), "slabs": len(self._slabs), "maps": len(self._maps)}


_DEVICE_TO_DEVICE = 4  # cudaMemcpyDefault: CUDA finds the devices by the addresses


def _identities(runtime: Any, count: int) -> tuple[dict[str, str], dict[str, list[str]]]:
    """The identities of this process's GPUs by device, and of those that each can read. None for one without a UUID."""
    own: dict[str, str] = {}
    for index in range(count):
        uuid = runtime.getDeviceProperties(index).get("uuid")
        if uuid:  # the PCI address, too: the text of a UUID may be cut at a zero
            own[f"cuda:{index}"] = f"{runtime.deviceGetPCIBusId(index)} {bytes(uuid).hex()}"
    reads = {}
    for name in own:
        index = device_memory.number_of(name)
        reads[name] = [
            identity
            for other, identity in own.items()
            if other == name or runtime.deviceCanAccessPeer(index, device_memory.number_of(other))
        ]
    return own, reads


@lru_cache(maxsize=256)
def _parsed(description: str) -> tuple[str, dict[str, list[str]]]:
    """The host, and what each device there can read. Of another form: nothing."""
    try:
        found = json.loads(description)
        return str(found["host"]), {str(name): list(reads) for name, reads in found["reads"].items()}
    except (ValueError, TypeError, KeyError, AttributeError):
        return "", {}
