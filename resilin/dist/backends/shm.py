"""Collectives through shared memory inside one host: the peers' tensors are read and written where they lie.

A control segment (native/segment.hpp) holds one slot per rank. A call publishes its descriptor, and either up to
INLINE_BYTES of data (one barrier and done) or where its tensors lie (arena, offset). After the barrier each rank works
straight on the peers' memory; a second barrier says that nobody touches it any more.

Once a call has failed on one rank, no rank starts another block in its memory: peers' memory is written in blocks of
256 KiB, before each of which the abort word is read, and the failing rank waits up to 50 ms for blocks in flight before
it raises. One case is left: a rank that is stopped (SIGSTOP, a debugger) in the middle of a block for longer than that
writes the rest of this one block when it runs again.

Tensors lie in `core.machine.memory`'s arenas, whose descriptors go to each peer once, over its control socket. Memory from
elsewhere is staged through an arena of the group.
"""

from __future__ import annotations

import contextlib
import math
import mmap
import os
import struct
import threading
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from resilin._base import host
from resilin._base.clock import Deadline, spell
from resilin.core.machine import memory
from resilin.dist import loader, schedules
from resilin.dist.backends.base import Aborted, Call, clobbers, join, mismatch, split_mismatch
from resilin.dist.message import Descriptor, Frame, unpack
from resilin.dist.reduce_op import DTYPE_CODES, Array, ReduceOp
from resilin.dist.tree import Plan, Subtree
from resilin.errors import CollectiveTimeout, DistNetworkError, PeerLost, UsageError

INLINE_BYTES: int = getattr(loader.native, "INLINE_BYTES", 0)
SPIN_S = 50e-6  # a wake from a futex costs about this much: waiting longer than it awake gains nothing
_ARENA = struct.Struct("<QQ")  # id, size
_STAGE_ID = 1 << 63  # ids of staging arenas start here; core.machine.memory counts from 0
_STAGE_MIN_BYTES = 1 << 20
_MAX_REGIONS = (INLINE_BYTES // 8 - 1) // 3
_LOST, _ABORTED, _LEFT = 1, 2, 3  # why the abort word is set
_OK, _STATUS_ABORTED, _STATUS_TIMEOUT, _STATUS_MISMATCH, _STATUS_MISSING = range(5)
_NOTHING = np.empty(0, np.uint8)

Share = Callable[[int, Frame, bytes, int], None]  # (peer, frame, payload, fd): sends a descriptor to a peer


class _Stage:
    """Memory of the group for tensors that peers cannot map: one memfd that grows."""

    def __init__(self) -> None:
        self.id = _STAGE_ID
        self.size = 0
        self.fd = -1
        self.bytes: Array = _NOTHING

    def reserve(self, size: int) -> None:
        """Make room for `size` bytes; growing starts a new arena."""
        if size <= self.size:
            return
        self.close()
        self.id += 1
        self.size = max(_STAGE_MIN_BYTES, 1 << (size - 1).bit_length())
        self.fd = os.memfd_create("resilin-stage", os.MFD_CLOEXEC)
        os.ftruncate(self.fd, self.size)
        self.bytes = np.frombuffer(mmap.mmap(self.fd, self.size), np.uint8)  # unmapped with its last view

    def close(self) -> None:
        """Give the memory back; peers' mappings live on until they end."""
        if self.fd >= 0:
            os.close(self.fd)
        self.fd, self.size, self.bytes = -1, 0, _NOTHING


class ShmBackend:
    """One rank's end. `attach` gives it the control segment before the first call.

    `rank` and `size` count the ranks of this host; `members` are their ranks in the group.
    """

    name = "shm"

    def __init__(self, rank: int, size: int, share: Share, members: Sequence[int] | None = None) -> None:
        self._members = list(range(size)) if members is None else list(members)  # the group's ranks behind ours
        self._rank = rank
        self._size = size
        self._share = share
        self._segment: Any = None  # guarded by _changed until attached
        self._changed = threading.Condition()  # an arena was mapped, the segment came, or the group was aborted
        self._early: list[tuple[int, bytes, int]] = []  # guarded by _changed: arenas that came before the segment
        self._stopped = False  # guarded by _changed
        self._shared: set[int] = set()
        self._stage = _Stage()
        self._spin_s = SPIN_S if size <= host.cpu_count() else 0.0

    # --- memory ---

    def attach(self, deadline: Deadline) -> None:
        """Make the control segment and send it to the peers (rank 0), or wait for it."""
        assert loader.native is not None
        if self._segment is not None:
            return
        if self._rank == 0:
            fd = os.memfd_create("resilin-dist", os.MFD_CLOEXEC)
            try:
                segment = loader.native.Segment(fd, 0, self._size, True)
                for peer in range(1, self._size):
                    self._share(self._members[peer], Frame.SEGMENT, b"", fd)
            finally:
                os.close(fd)
            self._use(segment)
            return
        with self._changed:
            if not self._changed.wait_for(lambda: self._segment is not None or self._stopped, deadline.left()):
                leader = self._members[0]
                raise CollectiveTimeout(
                    f"rank {leader} sent no control segment within {spell(deadline.seconds)}", [leader]
                )
            if self._segment is None:
                raise Aborted

    def _use(self, segment: Any) -> None:
        with self._changed:
            self._segment = segment
            early, self._early = self._early, []
            self._changed.notify_all()
        for rank, payload, fd in early:
            self._map(rank, payload, fd)

    def on_fd(self, rank: int, kind: Frame, tag: int, payload: bytes, fd: int) -> None:
        """See Backend."""
        assert loader.native is not None
        if kind == Frame.SEGMENT:
            try:
                self._use(loader.native.Segment(fd, self._rank, self._size, False))
            finally:
                os.close(fd)
            return
        with self._changed:
            if self._segment is None:
                self._early.append((rank, payload, fd))
                return
        self._map(rank, payload, fd)

    def _map(self, rank: int, payload: bytes, fd: int) -> None:
        segment = self._segment
        try:
            if segment is not None:
                if len(payload) != _ARENA.size:
                    raise DistNetworkError(f"rank {rank} described its memory in {len(payload)} bytes")
                identity, size = _ARENA.unpack(payload)
                mapped = segment.add_arena(self._members.index(rank), identity, fd, size)
                if not mapped and self._segment is segment:  # else closed meanwhile: nobody needs it
                    raise DistNetworkError(
                        f"{size} bytes of shared memory of rank {rank} cannot be mapped: its file is shorter, or this "
                        "process has no address space (ulimit -v) or mappings (vm.max_map_count) left"
                    )
        finally:
            os.close(fd)
        with self._changed:
            self._changed.notify_all()

    def _publish(self, arena: int, fd: int, size: int) -> None:
        """Send the peers an arena that a call is about to name for the first time."""
        if arena not in self._shared:
            for peer in range(self._size):
                if peer != self._rank:
                    self._share(self._members[peer], Frame.ARENA, _ARENA.pack(arena, size), fd)
            self._shared.add(arena)

    def _place(self, array: Array) -> tuple[int, int] | None:
        """Where `array` lies, peers informed; None when it must be staged."""
        place = memory.locate(array)
        if place is not None and place[0] not in self._shared:
            self._publish(place[0], memory.arena_fd(place[0]), memory.arena_size(place[0]))
        return place

    def _staged(self, arrays: Sequence[Array]) -> list[Array]:
        """Copies of the arrays in the staging arena."""
        self._stage.reserve(sum(_aligned(array.nbytes) for array in arrays))
        if self._stage.fd >= 0:
            self._publish(self._stage.id, self._stage.fd, self._stage.size)
        at, copies = 0, []
        for array in arrays:
            copy = self._stage.bytes[at : at + array.nbytes].view(array.dtype).reshape(array.shape)
            np.copyto(copy, array)
            copies.append(copy)
            at += _aligned(array.nbytes)
        return copies

    # --- meeting ---

    def _limits(self, call: Call) -> tuple[float, float]:
        return call.started + call.timeout_s, 0.0 if call.background else self._spin_s

    def _barrier(self, call: Call) -> None:
        status = self._native().barrier(*self._limits(call))
        if status:
            self._raise(call, status)

    def _native(self) -> Any:
        segment = self._segment
        if segment is None:
            raise Aborted
        return segment

    def _inline(self, call: Call, descriptor: Descriptor, mine: Array) -> list[Array]:
        """Meet, and return every rank's payload as bytes; valid until the next call. One barrier."""
        segment = self._native()
        status = segment.exchange(descriptor.pack(), mine, *self._limits(call))
        if status:
            self._raise(call, status)
        return [np.frombuffer(segment.payload(rank, INLINE_BYTES), np.uint8) for rank in range(self._size)]

    def _meet(self, call: Call, descriptor: Descriptor, arrays: Sequence[Array]) -> list[list[Array]]:
        """Meet, and return every rank's `arrays` as bytes in place. `_barrier` must follow the last touch."""
        if len(arrays) > _MAX_REGIONS:
            raise UsageError(f"{len(arrays)} tensors in one call: shared memory carries at most {_MAX_REGIONS}")
        table = np.zeros(1 + 3 * len(arrays), np.uint64)
        table[0] = len(arrays)
        places = [self._place(array) if array.nbytes else (0, 0) for array in arrays]
        for i, (array, place) in enumerate(zip(arrays, places, strict=True)):
            if place is None:  # the caller staged what could not be placed
                at = array.ctypes.data - self._stage.bytes.ctypes.data
                place = (self._stage.id, at)
            table[1 + 3 * i : 4 + 3 * i] = (*place, array.nbytes)
        payloads = self._inline(call, descriptor, table.view(np.uint8))
        tables = [payload.view(np.uint64)[: 1 + 3 * int(payload.view(np.uint64)[0])].copy() for payload in payloads]
        return [
            [_flat(array) for array in arrays]
            if rank == self._rank
            else [self._view(call, rank, *(int(x) for x in rows[1 + 3 * i : 4 + 3 * i])) for i in range(int(rows[0]))]
            for rank, rows in enumerate(tables)
        ]

    def _view(self, call: Call, rank: int, arena: int, offset: int, size: int) -> Array:
        if size == 0:
            return _NOTHING
        segment = self._native()
        found = segment.view(rank, arena, offset, size)
        if found is None:
            self._await_arena(call, lambda: segment.view(rank, arena, offset, size) is not None, rank)
            found = segment.view(rank, arena, offset, size)
        return np.frombuffer(found, np.uint8)

    def _await_arena(self, call: Call, mapped: Callable[[], bool], rank: int) -> None:
        left = call.deadline().left()
        with self._changed:
            if not self._changed.wait_for(lambda: mapped() or self._stopped, left):
                owner = self._members[rank]
                raise CollectiveTimeout(f"the memory of rank {owner} did not arrive", [owner])
            if self._stopped:
                raise Aborted

    def _shareable(self, arrays: Sequence[Array], overwritten: bool = False) -> tuple[list[Array], bool]:
        """`arrays` themselves when peers can map all of them, else staged copies; and whether they are copies.

        `overwritten`: this call changes them while peers still read, so they are copied in any case.
        """
        if not overwritten and all(array.nbytes == 0 or self._place(array) is not None for array in arrays):
            return list(arrays), False
        return self._staged(arrays), True

    def _raise(self, call: Call, status: int) -> None:
        segment = self._native()
        if status == _STATUS_MISMATCH:
            other = segment.mismatched()
            sides = [(self._members[i], unpack(segment.descriptor(i))) for i in (0, other)]
            raise mismatch(*sides)
        if status == _STATUS_TIMEOUT:
            late = [self._members[i] for i in segment.late()]
            names = ", ".join(f"rank {rank}" for rank in late)
            raise CollectiveTimeout(f"{names or 'a peer'} did not arrive", late)
        word = segment.aborted()
        code, rank = word >> 32, (word & 0xFFFFFFFF) - 1
        if code == _LEFT and rank != self._members[self._rank]:
            raise PeerLost(f"rank {rank} left the group (destroy_process_group, or its program ended)", [rank])
        if code == _LOST:
            raise PeerLost(f"rank {rank} died or closed its connection", [rank])
        raise Aborted

    def _write(
        self, call: Call, code: int, op: ReduceOp, sources: list[Array], destinations: list[Array], count: int
    ) -> None:
        """`_reduce` into peers' memory: stops within one block once the group is aborted."""
        status = self._native().write(code, int(op), sources, destinations, count)
        if status:
            self._raise(call, status)

    # --- collectives ---

    def agree(self, mine: Descriptor, deadline: Deadline) -> None:
        """See Backend."""
        left = deadline.left()
        self._inline(Call(mine.kind, mine.sequence, math.inf if left is None else left), mine, _NOTHING)

    def barrier(self, call: Call) -> None:
        """See Backend."""
        self._inline(call, call.describe(), _NOTHING)

    def all_reduce(self, call: Call, array: Array, op: ReduceOp) -> None:
        """See Backend. Each rank reduces one slice of all ranks' buffers, in rank order, and writes it to all."""
        segment = self._native()
        call.note(array.dtype, array.shape, op)
        work, place = array, (0, 0)
        if array.nbytes > INLINE_BYTES:
            found = self._place(array)
            if found is None:
                (work,) = self._staged([array])
                place = (self._stage.id, 0)
            else:
                place = found
        deadline, spin = self._limits(call)
        code = DTYPE_CODES[array.dtype]
        status = segment.all_reduce(work, call.sequence, int(call.kind), code, int(op), *place, deadline, spin)
        while status == _STATUS_MISSING:
            rank, arena = segment.missing()
            self._await_arena(call, lambda: segment.view(rank, arena, 0, 1) is not None, rank)  # noqa: B023
            status = segment.resume(deadline, spin)
        if status:
            self._raise(call, status)
        if work is not array:
            np.copyto(array, work)

    def reduce(self, call: Call, array: Array, op: ReduceOp, root: int) -> None:
        """See Backend. Each rank reduces one slice into the root's buffer."""
        code = DTYPE_CODES[array.dtype]
        descriptor = call.describe(array, op, root)
        if array.nbytes <= INLINE_BYTES:
            payloads = self._inline(call, descriptor, _flat(array))
            if self._rank == root:
                _reduce(code, op, [p[: array.nbytes] for p in payloads], [_flat(array)], array.size)
            return
        (work,), copied = self._shareable([array])
        buffers = [views[0] for views in self._meet(call, descriptor, [work])]
        cut = schedules.bounds(array.size, self._size)
        mine = slice(cut[self._rank] * array.itemsize, cut[self._rank + 1] * array.itemsize)
        count = cut[self._rank + 1] - cut[self._rank]
        self._write(call, code, op, [b[mine] for b in buffers], [buffers[root][mine]], count)
        self._barrier(call)
        if copied and self._rank == root:
            np.copyto(array, work)

    def broadcast(self, call: Call, array: Array, root: int) -> None:
        """See Backend. Every rank copies from the root's memory."""
        descriptor = call.describe(array, None, root)
        source = self._rank == root
        if array.nbytes <= INLINE_BYTES:
            payloads = self._inline(call, descriptor, _flat(array) if source else _NOTHING)
            if not source:
                _flat(array)[:] = payloads[root][: array.nbytes]
            return
        published = self._shareable([array])[0] if source else []
        buffers = self._meet(call, descriptor, published)
        if not source:
            _flat(array)[:] = buffers[root][0]
        self._barrier(call)

    def all_gather(self, call: Call, array: Array, outputs: Sequence[Array]) -> None:
        """See Backend. Every rank copies from every other's memory."""
        self._collect(call, call.describe(array), array, outputs)

    def gather(self, call: Call, array: Array, outputs: Sequence[Array] | None, root: int) -> None:
        """See Backend. The root copies from every rank's memory."""
        self._collect(call, call.describe(array, None, root), array, outputs)

    def _collect(self, call: Call, descriptor: Descriptor, array: Array, outputs: Sequence[Array] | None) -> None:
        if array.nbytes <= INLINE_BYTES:
            payloads = self._inline(call, descriptor, _flat(array))
            for output, payload in zip(outputs or (), payloads, strict=False):
                _flat(output)[:] = payload[: array.nbytes]
            return
        overwritten = outputs is not None and clobbers([array], outputs, 0, outputs[self._rank])
        published, _ = self._shareable([array], overwritten)
        buffers = self._meet(call, descriptor, published)
        if outputs is not None:
            for step in range(self._size):  # each rank starts at another peer, so that they do not queue
                rank = (self._rank + step) % self._size
                _flat(outputs[rank])[:] = buffers[rank][0]
        self._barrier(call)

    def reduce_scatter(self, call: Call, inputs: Sequence[Array], output: Array, op: ReduceOp) -> None:
        """See Backend. Every rank reduces its part straight from all inputs."""
        code, size = DTYPE_CODES[output.dtype], output.nbytes
        descriptor = call.describe(output, op)
        if size * self._size <= INLINE_BYTES:
            payloads = self._inline(call, descriptor, np.concatenate([_flat(part) for part in inputs]))
            mine = slice(self._rank * size, (self._rank + 1) * size)
            _reduce(code, op, [p[mine] for p in payloads], [_flat(output)], output.size)
            return
        published, _ = self._shareable(inputs, clobbers(inputs, [output], self._rank, output))
        buffers = self._meet(call, descriptor, published)
        _reduce(code, op, [views[self._rank] for views in buffers], [_flat(output)], output.size)
        self._barrier(call)

    def scatter(self, call: Call, inputs: Sequence[Array] | None, output: Array, root: int) -> None:
        """See Backend. Every rank copies its part from the root's memory."""
        descriptor, size = call.describe(output, None, root), output.nbytes
        if size * self._size <= INLINE_BYTES:
            whole = _NOTHING if inputs is None else np.concatenate([_flat(part) for part in inputs])
            payloads = self._inline(call, descriptor, whole)
            _flat(output)[:] = payloads[root][self._rank * size : (self._rank + 1) * size]
            return
        published: list[Array] = []
        if inputs is not None:
            published, _ = self._shareable(inputs, clobbers(inputs, [output], self._rank, output))
        buffers = self._meet(call, descriptor, published)
        _flat(output)[:] = buffers[root][self._rank]
        self._barrier(call)

    def all_to_all(self, call: Call, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        """See Backend. Every rank copies its part from every other's memory."""
        published, _ = self._shareable(inputs, clobbers(inputs, outputs, self._rank, outputs[self._rank]))
        buffers = self._meet(call, call.describe_parts(inputs), published)
        wrong: list[tuple[int, int, int]] = []
        for step in range(self._size):
            rank = (self._rank + step) % self._size
            source, target = buffers[rank][self._rank], _flat(outputs[rank])
            if source.size == target.size:
                target[:] = source
            else:
                wrong.append((self._members[rank], source.size, target.size))
        self._barrier(call)
        if wrong:
            raise split_mismatch(wrong)

    def tree_all_reduce(self, call: Call, parts: dict[Subtree, Array], output: Array, plan: Plan) -> None:
        """See Backend. Each rank joins one slice of all parts and writes it to every output."""
        descriptor = call.describe(output, ReduceOp.SUM, plan.shards)
        most = max(len(plan.subtrees(rank)) for rank in range(self._size))
        mine = [part for _, part in sorted(parts.items())]
        if most * output.nbytes <= INLINE_BYTES:
            whole = np.concatenate([_flat(part) for part in mine]) if mine else _NOTHING
            payloads = self._inline(call, descriptor, whole)
            rows = [_rows(payload, output, len(plan.subtrees(r))) for r, payload in enumerate(payloads)]
            output.reshape(-1)[:] = join(_by_node(rows, plan), plan)
            return
        overwritten = any(clobbers([part], [output], 0, output) for part in mine)
        published, copied = self._shareable([*mine, output], overwritten)
        buffers = self._meet(call, descriptor, published)
        cut = schedules.bounds(output.size, self._size)
        share = slice(cut[self._rank], cut[self._rank + 1])
        typed = [[view.view(output.dtype)[share] for view in views] for views in buffers]
        outputs = [views[-1] for views in typed]
        last = _join(_by_node([views[:-1] for views in typed], plan), plan)
        self._write(call, DTYPE_CODES[output.dtype], ReduceOp.SUM, last, outputs, outputs[0].size)
        self._barrier(call)
        if copied:
            np.copyto(output, published[-1])

    # --- end ---

    def abort(self, rank: int, lost: bool) -> None:
        """See Backend. Sets the abort word that every wait reads, for all ranks of the host."""
        self._stop(_LOST if lost else _ABORTED, rank)

    def peer_left(self, rank: int) -> None:
        """See Backend. A barrier that `rank` entered before it left still succeeds."""
        if rank in self._members:
            self._stop(_LEFT, rank)

    def _stop(self, code: int, rank: int) -> None:
        segment = self._segment
        if segment is not None:
            dead = self._members.index(rank) if code == _LOST and rank in self._members else -1
            segment.abort(code, rank, dead)
        with self._changed:
            self._stopped = True
            self._changed.notify_all()

    def close(self) -> None:
        """See Backend."""
        self._stop(_LEFT, self._members[self._rank])
        segment, self._segment = self._segment, None
        if segment is not None:
            segment.close()
        self._stage.close()
        with self._changed:
            early, self._early = self._early, []
        for _, _, fd in early:
            with contextlib.suppress(OSError):
                os.close(fd)


def _flat(array: Array) -> Array:
    return array.reshape(-1).view(np.uint8)


def _aligned(size: int) -> int:
    return (size + 63) & ~63


def _reduce(code: int, op: ReduceOp, sources: list[Array], destinations: list[Array], count: int) -> None:
    """Native reduction over byte views of `count` elements each."""
    assert loader.native is not None
    if count:
        loader.native.reduce(code, int(op), sources, destinations, count)


def _join(values: dict[Subtree, Array], plan: Plan) -> list[Array]:
    """Sum along the tree up to the root's children; their sum (or the root itself, when it is a leaf) is the result."""
    for node, left, right in plan.joins[:-1]:
        first = values.pop(left)
        total = np.empty_like(first)
        _reduce(DTYPE_CODES[total.dtype], ReduceOp.SUM, [first, values.pop(right)], [total], total.size)
        values[node] = total
    return [values[child] for child in plan.joins[-1][1:]] if plan.joins else [values[plan.root]]


def _rows(payload: Array, like: Array, count: int) -> list[Array]:
    return [payload[i * like.nbytes : (i + 1) * like.nbytes].view(like.dtype) for i in range(count)]


def _by_node(rows: Sequence[Sequence[Array]], plan: Plan) -> dict[Subtree, Array]:
    return {node: row for rank, own in enumerate(rows) for node, row in zip(plan.subtrees(rank), own, strict=True)}
