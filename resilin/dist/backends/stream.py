"""Collectives over one stream socket per pair of ranks, with numpy's arithmetic. Works on any POSIX host.

Algorithms are schedules (`dist.schedules`); this file runs their steps. Before data moves, ranks agree on the call by
passing descriptors round (dissemination, log2 P steps), so a mismatch is an error on all of them.
"""

from __future__ import annotations

import contextlib
import os
import select
import socket
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from resilin._base.clock import Deadline
from resilin.dist import schedules
from resilin.dist.backends.base import Aborted, Call, clobbers, join, mismatch, split_mismatch
from resilin.dist.forked import track
from resilin.dist.message import DESCRIPTOR_BYTES, Descriptor, Frame, unpack
from resilin.dist.reduce_op import Array, ReduceOp, accumulator, array_bytes, combine, finish
from resilin.dist.schedules import Part, Step
from resilin.dist.tree import Plan, Subtree
from resilin.errors import CollectiveTimeout, PeerLost

RING_MIN_BYTES = 256 << 10  # below this the log2 P steps of doubling beat the ring's bandwidth on loopback
_SOCKET_BUFFER_BYTES = 4 << 20
_PIECE_BYTES = 1 << 20  # most bytes per system call, so that both directions of an exchange take turns


class StreamBackend:
    """The data connections of one rank. `sockets` maps each peer's number to its connection; owned from here on.

    `members` are the group's ranks behind the numbers 0 to size-1, for error messages.
    """

    name = "stream"

    def __init__(
        self, rank: int, size: int, sockets: Mapping[int, socket.socket], members: Sequence[int] | None = None
    ) -> None:
        self._members = list(range(size)) if members is None else list(members)
        self._rank = rank
        self._size = size
        self._sockets = dict(sockets)
        self._aborted = False
        for sock in self._sockets.values():
            track(sock).setblocking(False)
            if sock.family != socket.AF_UNIX:
                sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            else:
                for option in (socket.SO_SNDBUF, socket.SO_RCVBUF):
                    sock.setsockopt(socket.SOL_SOCKET, option, _SOCKET_BUFFER_BYTES)

    def attach(self, deadline: Deadline) -> None:
        """See Backend. Sockets are connected already."""

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
        self._run(schedule(self._rank, self._size), total, op, deadline)

    def spread(self, flat: Array, root: int, deadline: Deadline) -> None:
        """The data phase of a broadcast."""
        self._run(schedules.binomial_broadcast(self._rank, self._size, root), flat, None, deadline)

    def reduce(self, call: Call, array: Array, op: ReduceOp, root: int) -> None:
        """See Backend. A binomial tree."""
        deadline = call.deadline()
        self.agree(call.describe(array, op, root), deadline)
        total = accumulator(array, op).reshape(-1)
        total = total.copy() if np.may_share_memory(total, array) else total
        self._run(schedules.binomial_reduce(self._rank, self._size, root), total, op, deadline)
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
            self._exchange(to, array_bytes(array), source, array_bytes(outputs[source]), deadline)

    def reduce_scatter(self, call: Call, inputs: Sequence[Array], output: Array, op: ReduceOp) -> None:
        """See Backend. A ring over the concatenated inputs."""
        deadline = call.deadline()
        self.agree(call.describe(output, op), deadline)
        total = np.concatenate([accumulator(part, op).reshape(-1) for part in inputs])
        self._run(schedules.ring_reduce_scatter(self._rank, self._size), total, op, deadline)
        mine = total[self._rank * output.size : (self._rank + 1) * output.size]
        finish(op, mine, self._size)
        _store(output, mine)

    def gather(self, call: Call, array: Array, outputs: Sequence[Array] | None, root: int) -> None:
        """See Backend. `root` receives from one rank after the other."""
        deadline = call.deadline()
        self.agree(call.describe(array, None, root), deadline)
        if outputs is None:
            self._exchange(root, array_bytes(array), None, None, deadline)
            return
        np.copyto(outputs[self._rank], array)
        for peer in range(self._size):
            if peer != self._rank:
                self._exchange(None, None, peer, array_bytes(outputs[peer]), deadline)

    def scatter(self, call: Call, inputs: Sequence[Array] | None, output: Array, root: int) -> None:
        """See Backend. `root` sends to one rank after the other."""
        deadline = call.deadline()
        self.agree(call.describe(output, None, root), deadline)
        if inputs is None:
            self._exchange(None, None, root, array_bytes(output), deadline)
            return
        if clobbers(inputs, [output], self._rank, output):
            inputs = [part.copy() for part in inputs]
        np.copyto(output, inputs[self._rank])
        for peer in range(self._size):
            if peer != self._rank:
                self._exchange(peer, array_bytes(inputs[peer]), None, None, deadline)

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
                self._exchange(to, memoryview(size), source, memoryview(announced), deadline)
            coming = int.from_bytes(announced, "little")
            if coming != len(into):
                wrong.append((self._members[source], coming, len(into)))
                into = memoryview(bytearray(coming))
            if source == self._rank:
                into[:] = out
            else:
                self._exchange(to, out, source, into, deadline)
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
            self._exchange(to, array_bytes(packed), source, array_bytes(block), deadline)
            slices.update(zip(nodes, block, strict=True))
        flat = output.reshape(-1)
        flat[mine] = join(slices, plan)
        self._run(schedules.ring_all_gather(self._rank, self._size), flat, None, deadline)

    def abort(self, rank: int, lost: bool) -> None:
        """See Backend. A shut socket returns whoever reads or writes it."""
        self._aborted = True
        for sock in self._sockets.values():
            with contextlib.suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)

    def peer_left(self, rank: int) -> None:
        """See Backend. Its data ends with the end of its stream."""

    def on_fd(self, rank: int, kind: Frame, tag: int, payload: bytes, fd: int) -> None:
        """See Backend. Streams share no memory."""
        os.close(fd)

    def close(self) -> None:
        """See Backend."""
        for sock in self._sockets.values():
            sock.close()

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
            self._exchange(step.send.peer, memoryview(out), step.recv.peer, memoryview(got), deadline)
            for i in range(2):
                rank = int.from_bytes(got[i * record : i * record + 4], "little") - 1
                packed = bytes(got[i * record + 4 : (i + 1) * record])
                if rank >= 0 and len(seen) < 2 and packed != seen[0][1]:
                    seen.append((rank, packed))
        if len(seen) == 2:
            a, b = sorted(seen)
            raise mismatch((a[0], unpack(a[1])), (b[0], unpack(b[1])))

    def _run(self, steps: Sequence[Step], flat: Array, op: ReduceOp | None, deadline: Deadline) -> None:
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
            self._exchange(
                step.send.peer if step.send else None,
                out,
                step.recv.peer if step.recv else None,
                None if into is None else array_bytes(into),
                deadline,
            )
            if step.combine and into is not None and op is not None:
                combine(op, target, into)

    def _exchange(
        self, to: int | None, out: memoryview | None, source: int | None, into: memoryview | None, deadline: Deadline
    ) -> None:
        """Send `out` to rank `to` and fill `into` from rank `source`, both at once."""
        sending = out if out is not None and len(out) else None
        receiving = into if into is not None and len(into) else None
        while sending is not None or receiving is not None:
            moved = False
            try:
                if sending is not None and to is not None:
                    count = self._try(to, self._sockets[to].send, sending[:_PIECE_BYTES])
                    moved = count > 0
                    sending = sending[count:] if count < len(sending) else None
                if receiving is not None and source is not None:
                    count = self._try(source, self._sockets[source].recv_into, receiving[:_PIECE_BYTES])
                    moved = moved or count > 0
                    receiving = receiving[count:] if count < len(receiving) else None
            except ValueError as error:  # the socket was closed under us
                raise Aborted from error
            if not moved:
                self._wait(to if sending is not None else None, source if receiving is not None else None, deadline)

    def _try(self, peer: int, attempt: Callable[[memoryview], int], piece: memoryview) -> int:
        try:
            count = attempt(piece)
        except BlockingIOError:
            return 0
        except OSError as error:
            raise self._gone(peer) from error
        if count == 0:
            raise self._gone(peer)
        return count

    def _gone(self, peer: int) -> Exception:
        rank = self._members[peer]
        return Aborted() if self._aborted else PeerLost(f"rank {rank} closed the connection", [rank])

    def _wait(self, to: int | None, source: int | None, deadline: Deadline) -> None:
        poller = select.poll()
        if to is not None:
            poller.register(self._sockets[to], select.POLLOUT)
        if source is not None:
            both = select.POLLIN | (select.POLLOUT if to == source else 0)
            poller.register(self._sockets[source], both)
        left = deadline.left()
        if not poller.poll(None if left is None else left * 1000 + 1) and deadline.passed():
            if self._aborted:
                raise Aborted
            late = {self._members[peer] for peer in (to, source) if peer is not None}
            names = " and ".join(f"rank {rank}" for rank in sorted(late))
            raise CollectiveTimeout(f"{names} did not answer", late)


def _part(flat: Array, cut: Sequence[int], part: Part) -> Array:
    return flat[cut[part.start] : cut[part.stop]]


def _store(array: Array, flat: Array) -> None:
    if not np.may_share_memory(array, flat):
        array.reshape(-1)[:] = flat.astype(array.dtype)
