"""Provide the `cuda_ipc` backend: ranks of one host, each a process, whose GPUs (or one GPU) read one another's memory.

    rank 0  tensors ──> arena 0 ─┐   CUDA IPC    every rank copies what others need into an arena of its own, which they
    rank 1  tensors ──> arena 1 ─┴─> mapped      have mapped, tells them over the CPU's backend, and reads from theirs

A call: agree on it; copy inputs into the arena and record an event; exchange cards (which arena, which event); let the
GPU wait for the peers' events; read. Nobody writes into its arena again before the next call is agreed on, so before
all have read. An arena grows by a new allocation with the next generation, which peers map in place of the one before.

Results are those of arithmetic in rank order (in float32 for half types), so all ranks get equal bits. Where a rank
cannot read another's memory, the whole group copies through the host instead, and says so. What ran on a
GPU: docs/gpu.md.
"""

from __future__ import annotations

import json
import logging
import struct
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import Any

import numpy as np

from resilin._base import host, json_text, log
from resilin._base.clock import spell
from resilin.core import device as devices
from resilin.core.backends.cupy import CupyBackend
from resilin.distributed.backends.backend_context import BackendContext
from resilin.distributed.backends.base import Call, join
from resilin.distributed.backends.gpu.base import DeviceBackend, fold
from resilin.distributed.backends.gpu.host_staging import StagedBackend
from resilin.distributed.wire import schedules
from resilin.distributed.wire.reduce_op import ReduceOp
from resilin.distributed.wire.shard_tree import Plan, Subtree
from resilin.errors import CollectiveTimeout, DistBackendError, ResilinError

_LOG = log.logger("distributed.cuda_ipc")
_CARD = struct.Struct("<QQ64s64s")  # generation and bytes of the arena, its handle, the event's handle
_ALIGN = 256  # bytes between parts in an arena: loads of any width stay aligned
_ARENA_MIN_BYTES = 1 << 20
_SLICED_MIN_BYTES = 256 << 10  # from here on each rank reduces one slice, and slices are gathered; below, one phase

Place = tuple[int, int]  # of a part in an arena: offset, bytes


def make(setup: BackendContext, options: Any) -> CudaIpcBackend | StagedBackend:
    """The backend of one group; staged through the host when a rank cannot read another's memory."""
    try:
        device = devices.backend_of("cuda")
    except RuntimeError as error:
        raise DistBackendError(f"backend 'cuda_ipc' cannot be used: {error}") from error
    assert isinstance(device, CupyBackend)
    runtime, own = device.cupy.cuda.runtime, device.current()
    card = {"host": host.host_id(), "bus": runtime.deviceGetPCIBusId(own)}
    cards = [json_text.parse(text) for text in setup.peers.all_gather(json.dumps(card).encode(), setup.deadline)]
    mine = unreachable(setup.group_rank, cards, _access(runtime, own))
    reasons = [
        text
        for part in setup.peers.all_gather(json.dumps(mine).encode(), setup.deadline)
        for text in json_text.parse(part)
    ]
    if not reasons:
        return CudaIpcBackend(setup, device)
    why = "; ".join(reasons)
    log.event(_LOG, logging.WARNING, "tensors go through the host", group=setup.group_id, reason=why)
    assert setup.cpu is not None
    return StagedBackend(setup.cpu, device, setup.group_rank)


def _access(runtime: Any, own: int) -> Callable[[str], str | None]:
    """Why this process's GPU cannot read the one at a PCI address; None when it can."""

    def why(bus: str) -> str | None:
        try:
            other = runtime.deviceGetByPCIBusId(bus)
        except runtime.CUDARuntimeError:
            return "which this process does not see (CUDA_VISIBLE_DEVICES)"
        if other == own or runtime.deviceCanAccessPeer(own, other):
            return None
        return "for which there is no peer access (NVLink, or PCIe that allows it)"

    return why


def unreachable(rank: int, cards: Sequence[dict[str, str]], access: Callable[[str], str | None]) -> list[str]:
    """Say what keeps `rank` from reading its peers' memory. `cards`: host and PCI address of every rank's GPU."""
    found = []
    for peer, card in enumerate(cards):
        if card["host"] != cards[rank]["host"]:
            found.append(f"rank {peer} is on another host than rank {rank}")
        elif (why := access(card["bus"])) is not None:
            found.append(f"rank {rank} cannot read the GPU {card['bus']} of rank {peer}, {why}")
    return found


class Arena:
    """Memory of this rank that peers map. `generation` counts its allocations."""

    def __init__(self, runtime: Any) -> None:
        self._runtime = runtime
        self.generation = 0
        self.size = 0
        self.at = 0

    def reserve(self, size: int) -> None:
        """Make room; peers have read all that was in it."""
        if size <= self.size:
            return
        self.free()
        self.size = max(_ARENA_MIN_BYTES, 1 << (size - 1).bit_length())
        self.at = self._runtime.malloc(self.size)
        self.generation += 1

    def handle(self) -> bytes:
        """Return what peers open; empty while there is no memory."""
        return bytes(self._runtime.ipcGetMemHandle(self.at)) if self.at else b""

    def free(self) -> None:
        """Give the memory back."""
        if self.at:
            self._runtime.free(self.at)
        self.at = self.size = 0


class Maps:
    """Hold what this process has mapped of its peers: one arena and one event of each."""

    def __init__(self, runtime: Any) -> None:
        self._runtime = runtime
        self._arenas: dict[int, tuple[int, int]] = {}  # rank -> generation, address here
        self._events: dict[int, int] = {}  # rank -> event

    def arena(self, rank: int, generation: int, handle: bytes) -> int:
        """Return where the arena of `rank` is here. One of an older generation is unmapped."""
        known = self._arenas.get(rank)
        if known is not None and known[0] == generation:
            return known[1]
        if known is not None:
            self._runtime.ipcCloseMemHandle(known[1])
            del self._arenas[rank]
        at = int(self._runtime.ipcOpenMemHandle(handle))
        self._arenas[rank] = generation, at
        return at

    def event(self, rank: int, handle: bytes) -> int:
        """The event that `rank` records."""
        if rank not in self._events:
            self._events[rank] = int(self._runtime.ipcOpenEventHandle(handle))
        return self._events[rank]

    def close(self) -> None:
        """Unmap all."""
        for _, at in self._arenas.values():
            with suppress(self._runtime.CUDARuntimeError):  # the owner may be dead
                self._runtime.ipcCloseMemHandle(at)
        for event in self._events.values():
            with suppress(self._runtime.CUDARuntimeError):
                self._runtime.eventDestroy(event)
        self._arenas.clear()
        self._events.clear()


class CudaIpcBackend(DeviceBackend):
    """One rank's end. `reduce_views(cupy, op, views)` is the arithmetic: a kernel of its own may take its place."""

    name = "cuda_ipc"

    def __init__(self, setup: BackendContext, device: CupyBackend, reduce_views: Callable[..., Any] = fold) -> None:
        super().__init__(setup, device)
        runtime = device.cupy.cuda.runtime
        self._fold = reduce_views
        self._arena = Arena(runtime)
        self._maps = Maps(runtime)
        self._event = device.cupy.cuda.Event(disable_timing=True, interprocess=True)

    def close(self) -> None:
        """See Backend. Peers that still read get errors of their own: they were told that this rank left."""
        super().close()
        self._maps.close()
        self._arena.free()

    # --- moving ---

    def _guard(self, what: str, step: Callable[[], Any]) -> Any:
        """`step()`, without exceptions of CUDA's."""
        try:
            return step()
        except (ResilinError, self._cupy.cuda.runtime.CUDARuntimeError) as error:
            if isinstance(error, ResilinError):
                raise
            raise DistBackendError(f"cuda_ipc, {what}: {error}") from error

    def _run(self, call: Call, what: str, work: Callable[[Any], None]) -> None:
        """`work(stream)` in the lane, on that stream, until the GPU has done it."""
        deadline = call.deadline()

        def on_stream(stream: Any) -> None:
            with stream:
                work(stream)

        if not self._guard(what, lambda: self._queue.run(on_stream, deadline, lambda: None)):
            raise CollectiveTimeout(f"the GPU did not finish {what} within {spell(deadline.seconds)}")

    def _publish(self, call: Call, arrays: Sequence[Any]) -> list[Place]:
        """Copy `arrays` into the arena; where each is there."""
        places = _places([array.nbytes for array in arrays])
        self._guard("growing the arena", lambda: self._arena.reserve(sum(_aligned(size) for _, size in places)))

        def copy(stream: Any) -> None:
            for array, (offset, _) in zip(arrays, places, strict=True):
                if array.nbytes:
                    self._view(self._arena.at, offset, array.shape, array.dtype)[...] = array
            self._event.record(stream)

        self._run(call, "copying into the arena", copy)
        return places

    def _exchange(self, call: Call) -> list[int]:
        """Where every rank's arena is here, once all have published."""
        runtime = self._cupy.cuda.runtime
        mine = self._guard(
            "sharing memory",
            lambda: _CARD.pack(
                self._arena.generation,
                self._arena.size,
                self._arena.handle(),
                bytes(runtime.ipcGetEventHandle(self._event.ptr)),
            ),
        )
        rows = np.empty((self._size, _CARD.size), np.uint8)
        self._cpu.all_gather(call, np.frombuffer(mine, np.uint8), list(rows))
        found = []
        for rank, row in enumerate(rows):
            generation, size, handle, event = _CARD.unpack(row.tobytes())
            if rank == self._rank or not size:
                found.append(self._arena.at if rank == self._rank else 0)
                continue
            at = self._guard(f"mapping rank {rank}'s memory", partial(self._maps.arena, rank, generation, handle))
            self._guard(f"opening rank {rank}'s event", partial(self._maps.event, rank, event))
            found.append(at)
        return found

    def _read(self, call: Call, what: str, arenas: Sequence[int], work: Callable[[], None]) -> None:
        """`work()` on the GPU, after what the peers have published."""
        runtime = self._cupy.cuda.runtime

        def after_peers(stream: Any) -> None:
            for rank, at in enumerate(arenas):
                if rank != self._rank and at:
                    runtime.streamWaitEvent(stream.ptr, self._maps.event(rank, b""))
            work()

        self._run(call, what, after_peers)

    def _view(self, at: int, offset: int, shape: tuple[int, ...], dtype: Any) -> Any:
        """The array that lies at `offset` in an arena."""
        cuda = self._cupy.cuda
        size = int(np.prod(shape, dtype=np.int64)) * np.dtype(dtype).itemsize
        memory = cuda.UnownedMemory(at + offset, size, self, self._index)
        return self._cupy.ndarray(shape, dtype, cuda.MemoryPointer(memory, 0))

    # --- collectives ---

    def all_reduce(self, call: Call, array: Any, op: ReduceOp) -> None:
        """See Backend. Small: everybody reduces all; large: everybody one slice, then slices are gathered."""
        self.agree(call.describe(array, op), call.deadline())
        self._publish(call, [array.reshape(-1)])
        arenas = self._exchange(call)
        if array.nbytes < _SLICED_MIN_BYTES:
            self._read(call, "all_reduce", arenas, lambda: self._reduce_into(array, op, arenas, 0))
            return
        cut = schedules.bounds(array.size, self._size)
        start, stop = cut[self._rank : self._rank + 2]

        def own_slice() -> None:
            into = self._view(arenas[self._rank], start * array.itemsize, (stop - start,), array.dtype)
            self._reduce_into(into, op, arenas, start * array.itemsize)
            self._event.record(self._cupy.cuda.get_current_stream())

        self._read(call, "all_reduce", arenas, own_slice)
        arenas = self._exchange(call)

        def all_slices() -> None:
            flat = array.reshape(-1)
            for rank, at in enumerate(arenas):
                count = cut[rank + 1] - cut[rank]
                if count:
                    flat[cut[rank] : cut[rank + 1]] = self._view(at, cut[rank] * array.itemsize, (count,), array.dtype)

        self._read(call, "all_reduce", arenas, all_slices)

    def _reduce_into(self, into: Any, op: ReduceOp, arenas: Sequence[int], offset: int) -> None:
        """`into = op over ranks` of what lies at `offset` in their arenas, in rank order."""
        if into.nbytes:
            into[...] = self._fold(self._cupy, op, [self._view(at, offset, into.shape, into.dtype) for at in arenas])

    def reduce(self, call: Call, array: Any, op: ReduceOp, root: int) -> None:
        """See Backend. The root reads all."""
        self.agree(call.describe(array, op, root), call.deadline())
        self._publish(call, [array])
        arenas = self._exchange(call)
        if self._rank == root:
            self._read(call, "reduce", arenas, lambda: self._reduce_into(array, op, arenas, 0))

    def broadcast(self, call: Call, array: Any, root: int) -> None:
        """See Backend. Every rank reads the root's arena."""
        self.agree(call.describe(array, None, root), call.deadline())
        if self._rank == root:
            self._publish(call, [array])
        arenas = self._exchange(call)
        if self._rank != root:
            self._collect(call, "broadcast", arenas, [(array, root, 0)])

    def all_gather(self, call: Call, array: Any, outputs: Sequence[Any]) -> None:
        """See Backend. Every rank reads all arenas."""
        self.agree(call.describe(array), call.deadline())
        self._publish(call, [array])
        self._collect(call, "all_gather", self._exchange(call), [(out, rank, 0) for rank, out in enumerate(outputs)])

    def gather(self, call: Call, array: Any, outputs: Sequence[Any] | None, root: int) -> None:
        """See Backend. The root reads all arenas."""
        self.agree(call.describe(array, None, root), call.deadline())
        self._publish(call, [array])
        arenas = self._exchange(call)
        if outputs is not None:
            self._collect(call, "gather", arenas, [(out, rank, 0) for rank, out in enumerate(outputs)])

    def scatter(self, call: Call, inputs: Sequence[Any] | None, output: Any, root: int) -> None:
        """See Backend. Every rank reads its part of the root's arena."""
        self.agree(call.describe(output, None, root), call.deadline())
        if inputs is not None:
            self._publish(call, inputs)
        arenas = self._exchange(call)
        self._collect(call, "scatter", arenas, [(output, root, self._rank * _aligned(output.nbytes))])

    def all_to_all(self, call: Call, inputs: Sequence[Any], outputs: Sequence[Any]) -> None:
        """See Backend. Every rank reads its part of every arena."""
        deadline = call.deadline()
        self.agree(call.describe_parts(inputs), deadline)
        sizes = self._compare_sizes(inputs, outputs, deadline)
        self._publish(call, inputs)
        places = [_places(row)[self._rank][0] for row in sizes]
        wanted = [(out, rank, places[rank]) for rank, out in enumerate(outputs)]
        self._collect(call, "all_to_all", self._exchange(call), wanted)

    def reduce_scatter(self, call: Call, inputs: Sequence[Any], output: Any, op: ReduceOp) -> None:
        """See Backend. Every rank reduces its part of all arenas."""
        self.agree(call.describe(output, op), call.deadline())
        self._publish(call, inputs)
        arenas, offset = self._exchange(call), self._rank * _aligned(output.nbytes)
        self._read(call, "reduce_scatter", arenas, lambda: self._reduce_into(output, op, arenas, offset))

    def tree_all_reduce(self, call: Call, parts: dict[Subtree, Any], output: Any, plan: Plan) -> None:
        """See Backend. Every rank reads all parts and joins them."""
        self.agree(call.describe(output, ReduceOp.SUM, shards=plan.shards), call.deadline())
        self._publish(call, [part for _, part in sorted(parts.items())])
        arenas = self._exchange(call)

        def joined() -> None:
            if output.nbytes:
                step = _aligned(output.nbytes)
                output[...] = join(
                    {
                        node: self._view(at, i * step, output.shape, output.dtype)
                        for rank, at in enumerate(arenas)
                        for i, node in enumerate(plan.subtrees(rank))
                    },
                    plan,
                )

        self._read(call, "tree_all_reduce", arenas, joined)

    def _collect(self, call: Call, what: str, arenas: Sequence[int], wanted: Sequence[tuple[Any, int, int]]) -> None:
        """Fill arrays with what lies in the arenas of ranks, at offsets."""

        def copy() -> None:
            for into, rank, offset in wanted:
                if into.nbytes:
                    into[...] = self._view(arenas[rank], offset, into.shape, into.dtype)

        self._read(call, what, arenas, copy)


def _aligned(size: int) -> int:
    return -(-size // _ALIGN) * _ALIGN


def _places(sizes: Sequence[int]) -> list[Place]:
    """Parts of these sizes, one after the other, aligned."""
    found, at = [], 0
    for size in sizes:
        found.append((at, size))
        at += _aligned(size)
    return found
