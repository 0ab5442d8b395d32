"""Collectives in Python over one primitive: send to one rank while receiving from another.

A backend that can move bytes between two ranks gets every collective from here, with the semantics, the order of
summation and the errors of all others:

    class Pigeons(ScheduledBackend):
        name = "pigeons"

        def exchange(self, to, out, source, into, deadline):
            ...  # send `out` to rank `to` and fill `into` from rank `source`, both at once

        def abort(self, rank, lost): ...      # make a blocked exchange raise Aborted, from another thread
        def close(self): ...                  # free the connections

It may replace any collective that its transport does better (an MPI library's own broadcast), provided that it calls
`agree` first and keeps to the contract in `base.py`. Algorithms are schedules (`dist.schedules`); `run` walks through
their steps. Before data moves, ranks agree on the call by passing descriptors round (dissemination, log2 P steps), so a
mismatch is an error on all of them.
"""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Sequence

import numpy as np

from resilin._base.clock import Deadline
from resilin.dist import schedules
from resilin.dist.backends.base import Call, clobbers, join, mismatch, split_mismatch
from resilin.dist.message import DESCRIPTOR_BYTES, Descriptor, Frame, unpack
from resilin.dist.reduce_op import Array, ReduceOp, accumulator, array_bytes, combine, finish
from resilin.dist.schedules import Part, Step
from resilin.dist.tree import Plan, Subtree

RING_MIN_BYTES = 256 << 10  # below this the log2 P steps of doubling beat the ring's bandwidth on loopback


class ScheduledBackend(ABC):
    """Every collective of `Backend`, over `exchange`. Subclasses define `name`, `exchange`, `abort` and `close`.

    `rank` of `size` are this group's own numbers; `members` are the group's ranks behind the numbers 0 to size-1, for
    error messages (the same numbers unless a few ranks of a larger group speak, as leaders of hosts do).
    """

    name: str

    def __init__(self, rank: int, size: int, members: Sequence[int] | None = None) -> None:
        self._members = list(range(size)) if members is None else list(members)
        self._rank = rank
        self._size = size

    @abstractmethod
    def exchange(
        self, to: int | None, out: memoryview | None, source: int | None, into: memoryview | None, deadline: Deadline
    ) -> None:
        """Send the bytes `out` to rank `to` while filling `into` from rank `source`; return when both are done.

        Either side may be absent (None, None); views may be empty and then nothing moves. `to` and `source` may be one
        rank, never this one. Messages between two ranks arrive in the order in which they were sent, and both sides
        know their lengths beforehand. The two directions must make progress independently: all ranks may send first.
        `out` may be changed as soon as this returns. Called by one thread at a time.

        Raises: Aborted once `abort` was called; CollectiveTimeout with the ranks that did not answer, at `deadline`;
        PeerLost with the rank that is gone. After an error the backend is never used again.
        """

    @abstractmethod
    def abort(self, rank: int, lost: bool) -> None:
        """See Backend."""

    @abstractmethod
    def close(self) -> None:
        """See Backend."""

    def attach(self, deadline: Deadline) -> None:  # noqa: B027 - most subclasses need nothing here
        """See Backend. Connections that exist before the backend need nothing here."""

    def peer_left(self, rank: int) -> None:  # noqa: B027 - as above
        """See Backend. Where data of a peer that said goodbye still arrives and then ends, nothing needs doing."""

    def on_fd(self, rank: int, kind: Frame, tag: int, payload: bytes, fd: int) -> None:
        """See Backend. No memory is shared here."""
        os.close(fd)

    def barrier(self, call: Call) -> None:
        """See Backend."""
        self.agree(call.describe(), call.deadline())

    def all_reduce(self, call: Call, array: Array, op: ReduceOp) -> None:
        """See Backend. Below RING_MIN_BYTES recursive doubling, else a ring."""
        deadline = call.deadline()
        self.agree(call.describe(array, op), deadline)
        total = accumulator(array, op).reshape(-1)
        self.sum_up(total, op, deadline)
        finish(op, total, self._size)
        _store(array, total)

    def sum_up(self, total: Array, op: ReduceOp, deadline: Deadline) -> None:
        """The data phase of an all_reduce of a flat accumulator, without agreement and without AVG's division."""
        ring = total.nbytes >= RING_MIN_BYTES and total.size >= self._size
        schedule = schedules.ring_all_reduce if ring else schedules.doubling_all_reduce
        self.run(schedule(self._rank, self._size), total, op, deadline)

    def spread(self, flat: Array, root: int, deadline: Deadline) -> None:
        """The data phase of a broadcast."""
        self.run(schedules.binomial_broadcast(self._rank, self._size, root), flat, None, deadline)

    def reduce(self, call: Call, array: Array, op: ReduceOp, root: int) -> None:
        """See Backend. A binomial tree."""
        deadline = call.deadline()
        self.agree(call.describe(array, op, root), deadline)
        total = accumulator(array, op).reshape(-1)
        total = total.copy() if np.may_share_memory(total, array) else total
        self.run(schedules.binomial_reduce(self._rank, self._size, root), total, op, deadline)
        if self._rank == root:
            finish(op, total, self._size)
            _store(array, total)

    def broadcast(self, call: Call, array: Array, root: int) -> None:
        """See Backend. A binomial tree."""
        deadline = call.deadline()
        self.agree(call.describe(array, None, root), deadline)
        self.spread(array.reshape(-1), root, deadline)

    def all_gather(self, call: Call, array: Array, outputs: Sequence[Array]) -> None:
        """See Backend. Every pair exchanges, one partner after the other."""
        deadline = call.deadline()
        self.agree(call.describe(array), deadline)
        if clobbers([array], outputs, 0, outputs[self._rank]):
            array = array.copy()
        np.copyto(outputs[self._rank], array)
        for to, source in schedules.pairwise(self._rank, self._size):
            self.exchange(to, array_bytes(array), source, array_bytes(outputs[source]), deadline)

    def reduce_scatter(self, call: Call, inputs: Sequence[Array], output: Array, op: ReduceOp) -> None:
        """See Backend. A ring over the concatenated inputs."""
        deadline = call.deadline()
        self.agree(call.describe(output, op), deadline)
        total = np.concatenate([accumulator(part, op).reshape(-1) for part in inputs])
        self.run(schedules.ring_reduce_scatter(self._rank, self._size), total, op, deadline)
        mine = total[self._rank * output.size : (self._rank + 1) * output.size]
        finish(op, mine, self._size)
        _store(output, mine)

    def gather(self, call: Call, array: Array, outputs: Sequence[Array] | None, root: int) -> None:
        """See Backend. `root` receives from one rank after the other."""
        deadline = call.deadline()
        self.agree(call.describe(array, None, root), deadline)
        if outputs is None:
            self.exchange(root, array_bytes(array), None, None, deadline)
            return
        np.copyto(outputs[self._rank], array)
        for peer in range(self._size):
            if peer != self._rank:
                self.exchange(None, None, peer, array_bytes(outputs[peer]), deadline)

    def scatter(self, call: Call, inputs: Sequence[Array] | None, output: Array, root: int) -> None:
        """See Backend. `root` sends to one rank after the other."""
        deadline = call.deadline()
        self.agree(call.describe(output, None, root), deadline)
        if inputs is None:
            self.exchange(None, None, root, array_bytes(output), deadline)
            return
        if clobbers(inputs, [output], self._rank, output):
            inputs = [part.copy() for part in inputs]
        np.copyto(output, inputs[self._rank])
        for peer in range(self._size):
            if peer != self._rank:
                self.exchange(peer, array_bytes(inputs[peer]), None, None, deadline)

    def all_to_all(self, call: Call, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        """See Backend. Pairwise exchanges, sizes first."""
        deadline = call.deadline()
        self.agree(call.describe_parts(inputs), deadline)
        if clobbers(inputs, outputs, self._rank, outputs[self._rank]):
            inputs = [part.copy() for part in inputs]
        wrong: list[tuple[int, int, int]] = []
        for to, source in [(self._rank, self._rank), *schedules.pairwise(self._rank, self._size)]:
            out, into = array_bytes(inputs[to]), array_bytes(outputs[source])
            size = bytearray(len(out).to_bytes(8, "little"))
            announced = bytearray(size)
            if source != self._rank:
                self.exchange(to, memoryview(size), source, memoryview(announced), deadline)
            coming = int.from_bytes(announced, "little")
            if coming != len(into):
                wrong.append((self._members[source], coming, len(into)))
                into = memoryview(bytearray(coming))
            if source == self._rank:
                into[:] = out
            else:
                self.exchange(to, out, source, into, deadline)
        if wrong:
            raise split_mismatch(wrong)

    def tree_all_reduce(self, call: Call, parts: dict[Subtree, Array], output: Array, plan: Plan) -> None:
        """See Backend. Every rank sends its parts of slice s to rank s, which joins them; then slices are gathered."""
        deadline = call.deadline()
        self.agree(call.describe(output, ReduceOp.SUM, plan.shards), deadline)
        cut = schedules.bounds(output.size, self._size)
        mine = slice(cut[self._rank], cut[self._rank + 1])
        slices: dict[Subtree, Array] = {node: part.reshape(-1)[mine] for node, part in parts.items()}
        for to, source in schedules.pairwise(self._rank, self._size):
            send = [part.reshape(-1)[cut[to] : cut[to + 1]] for _, part in sorted(parts.items())]
            nodes = plan.subtrees(source)
            block = np.empty((len(nodes), mine.stop - mine.start), output.dtype)
            packed = np.concatenate(send) if send else np.empty(0, output.dtype)
            self.exchange(to, array_bytes(packed), source, array_bytes(block), deadline)
            slices.update(zip(nodes, block, strict=True))
        flat = output.reshape(-1)
        flat[mine] = join(slices, plan)
        self.run(schedules.ring_all_gather(self._rank, self._size), flat, None, deadline)

    def agree(self, mine: Descriptor, deadline: Deadline) -> None:
        """Return when every rank has made the same call; CollectiveMismatch on every rank when one has not.

        Each message holds up to two different descriptors heard of so far with the rank that called each. After the
        dissemination everybody has heard of everybody, so all ranks know of a difference or none does.
        """
        seen: list[tuple[int, bytes]] = [(self._rank, mine.pack())]
        record = 4 + DESCRIPTOR_BYTES
        for step in schedules.dissemination(self._rank, self._size):
            assert step.send is not None
            assert step.recv is not None
            out = bytearray(2 * record)
            for i, (rank, packed) in enumerate(seen):
                out[i * record : (i + 1) * record] = (rank + 1).to_bytes(4, "little") + packed
            got = bytearray(2 * record)
            self.exchange(step.send.peer, memoryview(out), step.recv.peer, memoryview(got), deadline)
            for i in range(2):
                rank = int.from_bytes(got[i * record : i * record + 4], "little") - 1
                packed = bytes(got[i * record + 4 : (i + 1) * record])
                if rank >= 0 and len(seen) < 2 and packed != seen[0][1]:
                    seen.append((rank, packed))
        if len(seen) == 2:
            a, b = sorted(seen)
            raise mismatch((a[0], unpack(a[1])), (b[0], unpack(b[1])))

    def run(self, steps: Sequence[Step], flat: Array, op: ReduceOp | None, deadline: Deadline) -> None:
        """Walk through one rank's steps over a flat array, cut by `schedules.bounds`; what arrives combines by `op`."""
        cut = schedules.bounds(flat.size, self._size)
        scratch: Array | None = None
        for step in steps:
            into = None
            if step.recv is not None:
                into = _part(flat, cut, step.recv)
                if step.combine:
                    if scratch is None or scratch.size < into.size:
                        scratch = np.empty(into.size, flat.dtype)
                    target, into = into, scratch[: into.size]
            out = None if step.send is None else array_bytes(_part(flat, cut, step.send))
            self.exchange(
                step.send.peer if step.send else None,
                out,
                step.recv.peer if step.recv else None,
                None if into is None else array_bytes(into),
                deadline,
            )
            if step.combine and into is not None and op is not None:
                combine(op, target, into)


def _part(flat: Array, cut: Sequence[int], part: Part) -> Array:
    return flat[cut[part.start] : cut[part.stop]]


def _store(array: Array, flat: Array) -> None:
    if not np.may_share_memory(array, flat):
        array.reshape(-1)[:] = flat.astype(array.dtype)
