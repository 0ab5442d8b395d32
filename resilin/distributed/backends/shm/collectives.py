"""Run collectives through shared memory inside one host: the peers' tensors are read and written where they lie.

A control segment (native/segment.hpp) holds one slot per rank. A call publishes its descriptor and its tensors: copied
into the slot up to `inline_bytes` (one barrier and done), above that as (arena, offset). After the barrier each rank
works straight on the peers' memory (native/collectives.cpp); a second barrier says that nobody touches it any more.

Once a call has failed on one rank, no rank starts another block in its memory: peers' memory is written in blocks of
256 KiB, before each of which the abort word is read, and the failing rank waits up to 50 ms for blocks in flight before
it raises. One case is left: a rank that is stopped (SIGSTOP, a debugger) in the middle of a block for longer than that
writes the rest of this one block when it runs again.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from resilin._base import host
from resilin._base.clock import Deadline
from resilin.distributed.backends.base import Aborted, Call, clobbers, join, mismatch, split_mismatch
from resilin.distributed.backends.shm.mailbox import SPIN_S, SharedMailbox
from resilin.distributed.backends.shm.memory import ABORTED, LEFT, LOST, Place, Share, SharedMemory
from resilin.distributed.wire import loader, schedules
from resilin.distributed.wire.frames import ANY_EXTENT, NO_DTYPE, NO_OP, Descriptor, Frame, Kind, refuses, unpack
from resilin.distributed.wire.p2p_matching import Mailbox
from resilin.distributed.wire.reduce_op import DTYPE_CODES, Array, ReduceOp
from resilin.distributed.wire.shard_tree import Plan, Subtree
from resilin.errors import CollectiveTimeout, PeerLost, UsageError

_LINE_BYTES = 64  # tensors in a slot start at a cache line
_MAX_REGIONS: int = getattr(loader.native, "MAX_REGIONS", 0)
_SHARED_MIN_BYTES: int = getattr(loader.native, "SHARED_MIN_BYTES", 0)
_OK, _STATUS_ABORTED, _STATUS_TIMEOUT, _STATUS_MISMATCH, _STATUS_MISSING = range(5)
_NOTHING = np.empty(0, np.uint8)


class ShmBackend:
    """One rank's end. `attach` gives it the control segment before the first call.

    `rank` and `size` count the ranks of this host; `members` are their ranks in the group.
    """

    name = "shm"
    one_path = True  # every element is summed in rank order, wherever it is

    def __init__(self, rank: int, size: int, share: Share, members: Sequence[int] | None = None) -> None:
        self._members = list(range(size)) if members is None else list(members)  # the group's ranks behind ours
        self._rank = rank
        self._size = size
        self._memory = SharedMemory(rank, self._members, share)
        self._collectives: Any = None  # native; set by `attach`
        self._inline_bytes = 0  # set by `attach`
        self._crowded = size > host.cpu_count()

    def attach(self, deadline: Deadline) -> None:
        """See Backend."""
        assert loader.native is not None
        self._memory.attach(deadline)
        segment = self._memory.segment()
        self._inline_bytes = segment.inline_bytes()
        segment.crowded = self._crowded
        self._collectives = loader.native.Collectives(segment)

    def post(self, mailbox: Mailbox, call: Callable[[int], None]) -> SharedMailbox:
        """Messages to other ranks of this host: what comes is put into `mailbox`; `call(rank)` makes a peer look."""
        return SharedMailbox(self._memory, self._members, self._members[self._rank], self._crowded, mailbox, call)

    def inherit(self, before: ShmBackend, ranks: Mapping[int, int]) -> None:
        """Take over what `before` has mapped of its peers; `ranks`: rank in its group -> rank in this one."""
        self._memory.inherit(before._memory, ranks)

    def holds(self) -> bool:
        """Return whether there is what `inherit` could take over."""
        return self._memory.holds()

    @property
    def adopted(self) -> int:
        """Arenas of peers that are mapped since an older generation."""
        return self._memory.adopted

    def on_fd(self, rank: int, kind: Frame, tag: int, payload: bytes, fd: int) -> None:
        """See Backend."""
        self._memory.on_fd(rank, kind, payload, fd)

    # --- meeting ---

    def _limits(self, call: Call) -> tuple[float, float]:
        return call.started + call.timeout_s, 0.0 if call.background else SPIN_S

    def _run(
        self,
        call: Call,
        kind: Kind,
        like: Array,
        inputs: list[Array],
        outputs: list[Array],
        op: ReduceOp | None = None,
        root: int = -1,
        stage: tuple[Array, Place] | None = None,
        targets: list[Place] | None = None,
    ) -> list[Array]:
        """Do the whole call. All ranks agree on `like`; returns the memory of the inputs that the peers have touched.

        That is `inputs` themselves, or copies where peers cannot map them, or where this call overwrites them while
        peers still read. With a `stage` the one input passes through it, piece by piece. `targets`: where the outputs
        lie, for peers to write into them.
        """
        self._memory.segment()
        native = self._collectives
        used, places = self._placed(inputs, outputs) if stage is None else (inputs, [stage[1]])
        through = None if stage is None else stage[0]
        deadline, spin = self._limits(call)
        code, combine = DTYPE_CODES[like.dtype], NO_OP if op is None else int(op)
        status = native.run(
            like, call.stamp, int(kind), code, combine, root, used, places, outputs, deadline, spin, through, targets
        )
        while status == _STATUS_MISSING:
            self._await_missing(call)
            status = native.resume(deadline, spin)
        if status:
            self._raise(call, status)
        return used

    def _placed(
        self, inputs: list[Array], outputs: list[Array], in_slot: bool = True
    ) -> tuple[list[Array], list[Place | None]]:
        """The inputs as peers shall see them, and where they lie: None for those in the slot."""
        if len(inputs) > _MAX_REGIONS:
            raise UsageError(f"{len(inputs)} tensors in one call: shared memory carries at most {_MAX_REGIONS}")
        if in_slot and _slot_bytes(inputs) <= self._inline_bytes:
            return inputs, [None] * len(inputs)
        if not self._overwritten(inputs, outputs):
            places = [self._memory.place(array) if array.nbytes else None for array in inputs]
            if all(place is not None or not array.nbytes for place, array in zip(places, inputs, strict=True)):
                return inputs, places
        return self._memory.stage(inputs)

    def _targets(self, outputs: list[Array]) -> list[Place] | None:
        """Where outputs lie that peers may write into; None when they are small, or one cannot be mapped by peers."""
        if not outputs or outputs[0].nbytes < _SHARED_MIN_BYTES or len(outputs) >= _MAX_REGIONS:
            return None
        places = [self._memory.place(array) for array in outputs]
        return None if None in places else [place for place in places if place is not None]

    def _overwritten(self, inputs: list[Array], outputs: list[Array]) -> bool:
        if not outputs or not inputs:
            return False
        own = self._rank if len(inputs) > 1 else 0
        return clobbers(inputs, outputs, own, outputs[self._rank if len(outputs) > 1 else 0])

    def _await_missing(self, call: Call) -> None:
        segment = self._memory.segment()
        rank, arena = segment.missing()
        self._memory.await_arena(lambda: segment.view(rank, arena, 0, 1) is not None, rank, call.deadline().left())

    def _barrier(self, call: Call) -> None:
        status = self._memory.segment().barrier(*self._limits(call))
        if status:
            self._raise(call, status)

    def _meet(
        self, call: Call, descriptor: Descriptor, arrays: list[Array], in_slot: bool = True
    ) -> tuple[list[list[Array]], list[Array]]:
        """Meet; return every rank's `arrays` as bytes where they are, and our own.

        Those in slots are valid until the next call; else `_barrier` must follow the last touch.
        """
        segment = self._memory.segment()
        used, places = self._placed(arrays, [], in_slot)
        status = segment.exchange(descriptor.pack(), used, places, *self._limits(call))
        if status:
            self._raise(call, status)
        views = [
            [_flat(array) for array in used]
            if rank == self._rank
            else [self._view(call, rank, i) for i in range(segment.regions(rank))]
            for rank in range(self._size)
        ]
        return views, used

    def _view(self, call: Call, rank: int, index: int) -> Array:
        segment = self._memory.segment()
        while (found := segment.region(rank, index)) is None:
            self._await_missing(call)
        return np.frombuffer(found, np.uint8)

    def agree(self, mine: Descriptor, deadline: Deadline) -> None:
        """See Backend."""
        left = deadline.left()
        self._meet(Call(mine.kind, mine.sequence, math.inf if left is None else left), mine, [])

    def _raise(self, call: Call, status: int) -> None:
        segment = self._memory.segment()
        if status == _STATUS_MISMATCH:
            words = [segment.descriptor(i) for i in range(self._size)]
            other = next((i for i, word in enumerate(words) if i and refuses(word)), segment.mismatched())
            raise mismatch(*((self._members[i], unpack(words[i])) for i in (0, other)))
        if status == _STATUS_TIMEOUT:
            late = [self._members[i] for i in segment.late()]
            names = ", ".join(f"rank {rank}" for rank in late)
            raise CollectiveTimeout(f"{names or 'a peer'} did not arrive", late)
        word = segment.aborted()
        code, rank = word >> 32, (word & 0xFFFFFFFF) - 1
        if code == LEFT and rank != self._members[self._rank]:
            raise PeerLost(f"rank {rank} left the group (destroy_process_group, or its program ended)", [rank])
        if code == LOST:
            raise PeerLost(f"rank {rank} died or closed its connection", [rank])
        raise Aborted(self._members[i] for i in segment.late() if i != self._rank)

    # --- collectives ---

    def barrier(self, call: Call) -> None:
        """See Backend."""
        self._memory.segment()
        call.note(None, ())
        deadline, spin = self._limits(call)
        nothing: list[Array] = []
        status = self._collectives.run(
            _NOTHING, call.sequence, int(Kind.BARRIER), NO_DTYPE, NO_OP, -1, nothing, nothing, nothing, deadline, spin
        )
        if status:
            self._raise(call, status)

    def all_reduce(self, call: Call, array: Array, op: ReduceOp) -> None:
        """See Backend. Each rank reduces one slice of all ranks' buffers, in rank order, and writes it to all."""
        call.note(array.dtype, array.shape, op)
        stage = None
        if array.nbytes > self._inline_bytes and self._memory.place(array) is None:
            stage = self._memory.stage_pieces()
        self._run(call, Kind.ALL_REDUCE, array, [array], [], op, stage=stage)

    def reduce(self, call: Call, array: Array, op: ReduceOp, root: int) -> None:
        """See Backend. Each rank reduces one slice into the root's buffer."""
        call.note(array.dtype, array.shape, op, root)
        (work,) = self._run(call, Kind.REDUCE, array, [array], [], op, root)
        if work is not array and self._rank == root:
            np.copyto(array, work)

    def broadcast(self, call: Call, array: Array, root: int) -> None:
        """See Backend. Every rank copies from the root's memory, and of what is large the root copies a part."""
        call.note(array.dtype, array.shape, None, root)
        inputs, outputs = ([array], []) if self._rank == root else ([], [array])
        self._run(call, Kind.BROADCAST, array, inputs, outputs, None, root, targets=self._targets(outputs))

    def all_gather(self, call: Call, array: Array, outputs: Sequence[Array]) -> None:
        """See Backend. Every rank copies from every other's memory."""
        call.note(array.dtype, array.shape)
        self._run(call, Kind.ALL_GATHER, array, [array], list(outputs))

    def gather(self, call: Call, array: Array, outputs: Sequence[Array] | None, root: int) -> None:
        """See Backend. The root copies from every rank's memory; what is large every rank copies into the root's."""
        call.note(array.dtype, array.shape, None, root)
        parts = list(outputs or ())
        self._run(call, Kind.GATHER, array, [array], parts, None, root, targets=self._targets(parts))

    def reduce_scatter(self, call: Call, inputs: Sequence[Array], output: Array, op: ReduceOp) -> None:
        """See Backend. Every rank reduces its part straight from all inputs."""
        call.note(output.dtype, output.shape, op)
        self._run(call, Kind.REDUCE_SCATTER, output, list(inputs), [output], op)

    def scatter(self, call: Call, inputs: Sequence[Array] | None, output: Array, root: int) -> None:
        """See Backend. Every rank copies its part from the root's memory."""
        call.note(output.dtype, output.shape, None, root)
        self._run(call, Kind.SCATTER, output, list(inputs or ()), [output], None, root)

    def all_to_all(self, call: Call, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        """See Backend. Every rank copies its part from every other's memory."""
        call.note(inputs[0].dtype, (ANY_EXTENT, *inputs[0].shape[1:]))
        self._run(call, Kind.ALL_TO_ALL, inputs[0], list(inputs), list(outputs))
        if wrong := self._collectives.misfits():
            members = self._members
            raise split_mismatch([(members[source], members[to], *sizes) for source, to, *sizes in wrong])

    def tree_all_reduce(self, call: Call, parts: dict[Subtree, Array], output: Array, plan: Plan) -> None:
        """See Backend. Each rank joins one slice of all parts and writes it to every output."""
        descriptor = call.describe(output, ReduceOp.SUM, shards=plan.shards)
        most = max(len(plan.subtrees(rank)) for rank in range(self._size))
        mine = [part for _, part in sorted(parts.items())]
        if most * _slot_bytes([output]) <= self._inline_bytes:
            views, _ = self._meet(call, descriptor, mine)
            typed = [[view.view(output.dtype) for view in row] for row in views]
            output.reshape(-1)[:] = join(_by_node(typed, plan), plan)
            return
        if any(clobbers([part], [output], 0, output) for part in mine):
            mine = [part.copy() for part in mine]
        views, used = self._meet(call, descriptor, [*mine, output], in_slot=False)
        cut = schedules.bounds(output.size, self._size)
        share = slice(cut[self._rank], cut[self._rank + 1])
        typed = [[view.view(output.dtype)[share] for view in row] for row in views]
        outputs = [row[-1] for row in typed]
        last = _join(_by_node([row[:-1] for row in typed], plan), plan)
        code = DTYPE_CODES[output.dtype]
        status = self._memory.segment().write(code, int(ReduceOp.SUM), last, outputs, outputs[0].size)
        if status:
            self._raise(call, status)
        self._barrier(call)
        if used[-1] is not output:
            np.copyto(output, used[-1])

    # --- end ---

    def abort(self, rank: int, lost: bool) -> None:
        """See Backend. Sets the abort word that every wait reads, for all ranks of the host."""
        self._memory.stop(LOST if lost else ABORTED, rank, dead=lost)

    def settle(self) -> None:
        """This rank has left a call by an exception, and aborted: return when no peer writes into its tensors."""
        self._memory.segment().settle()

    def peer_left(self, rank: int) -> None:
        """See Backend. A barrier that `rank` entered before it left still succeeds."""
        if rank in self._members:
            self._memory.stop(LEFT, rank, dead=False)

    def close(self) -> None:
        """See Backend."""
        self._memory.stop(LEFT, self._members[self._rank], dead=False)
        self._memory.close()


def _flat(array: Array) -> Array:
    return array.reshape(-1).view(np.uint8)


def _slot_bytes(arrays: Sequence[Array]) -> int:
    """What the arrays take in a slot, each from a cache line on."""
    if len(arrays) == 1:  # the common case, on the way of every call
        return -(-arrays[0].nbytes // _LINE_BYTES) * _LINE_BYTES
    return -sum([-array.nbytes // _LINE_BYTES for array in arrays]) * _LINE_BYTES


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


def _by_node(rows: Sequence[Sequence[Array]], plan: Plan) -> dict[Subtree, Array]:
    return {node: row for rank, own in enumerate(rows) for node, row in zip(plan.subtrees(rank), own, strict=True)}
