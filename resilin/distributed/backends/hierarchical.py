"""Serve groups that span hosts: shared memory inside each host, sockets between hosts.

    host A  0 ─┐ shm        all_reduce:  1. every host reduces to its leader        (shared memory)
            1 ─┤                         2. the leaders all-reduce                  (over TCP)
               ├── 0 ~~ TCP ~~ 2         3. every leader broadcasts inside its host (shared memory)
    host B  2 ─┤
            3 ─┘ shm        so each host's link carries its data once, not once per rank.

What all ranks of a host need alike, or give to a sum, goes through its leader: all_reduce, reduce, broadcast,
all_gather, reduce_scatter, tree_all_reduce. What one rank has for one other (gather, scatter, all_to_all) crosses a
link once in any case: between hosts it goes straight from rank to rank, for a leader would only copy it, and inside a
host through shared memory. Hosts may have different numbers of ranks, or one.

All ranks agree on every call over the sockets, so a mismatch is seen by all: on calls through leaders before anything
else, on others together with what crosses the links.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.lib.stride_tricks import as_strided

from resilin._base.clock import Deadline
from resilin.distributed.backends.base import Call, clobbers
from resilin.distributed.backends.scheduled import Among, Opening, Transfer, opening_of_parts
from resilin.distributed.backends.shm.collectives import ShmBackend
from resilin.distributed.backends.socket import SocketBackend
from resilin.distributed.wire import schedules, shard_tree
from resilin.distributed.wire.frames import Descriptor, Frame
from resilin.distributed.wire.reduce_op import Array, ReduceOp, accumulator, finish
from resilin.distributed.wire.shard_tree import Plan, Subtree


class HierarchicalBackend:
    """`hosts`: the ranks that share memory, host by host, leaders first.

    `flat` connects all ranks, `local` those of this host; a host of one rank has none.
    """

    name = "shm+stream"

    def __init__(
        self, rank: int, hosts: Sequence[Sequence[int]], flat: SocketBackend, local: ShmBackend | None
    ) -> None:
        self._rank = rank
        self._size = sum(len(members) for members in hosts)
        self._hosts = [list(members) for members in hosts]
        self._host_of = {member: i for i, members in enumerate(hosts) for member in members}
        self._home = self._host_of[rank]
        self._members = self._hosts[self._home]
        self._order = [member for members in hosts for member in members]
        self._flat, self.local = flat, local
        leads = self._members[0] == rank
        self._leaders = Among(flat, [members[0] for members in hosts]) if leads else None

    def attach(self, deadline: Deadline) -> None:
        """See Backend."""
        if self.local is not None:
            self.local.attach(deadline)

    def agree(self, mine: Descriptor, deadline: Deadline) -> None:
        """See Backend."""
        self._flat.agree(mine, deadline)

    def barrier(self, call: Call) -> None:
        """See Backend."""
        self._flat.barrier(call)

    # --- through the leaders ---

    def all_reduce(self, call: Call, array: Array, op: ReduceOp) -> None:
        """See Backend. Reduced inside hosts in rank order, then between leaders."""
        inner = self._begin(call, call.describe(array, op))
        total = self._sum(inner, array, op)
        if self._leaders is not None:
            finish(op, total, self._size)
            if total is not array:
                array[...] = total
        self._spread(inner, array)

    def reduce(self, call: Call, array: Array, op: ReduceOp, root: int) -> None:
        """See Backend. Between leaders to the root's, inside its host to the root."""
        inner = self._begin(call, call.describe(array, op, root))
        home = self._host_of[root]
        total = accumulator(array, op)
        if self._rank != root and self._is_written(root) and np.may_share_memory(total, array):
            total = total.copy()
        if self.local is not None:
            self.local.reduce(inner, total, _inside(op), 0)
        if self._leaders is not None:
            self._leaders.collect(total.reshape(-1), op, home, call.deadline())
        if self._home != home:
            return
        if self._leaders is not None:
            finish(op, total, self._size)
        result = total.astype(array.dtype, copy=False).reshape(array.shape)
        if self.local is not None and root != self._members[0]:
            self.local.broadcast(inner, result, 0)
        if root == self._rank and not np.may_share_memory(array, result):
            np.copyto(array, result)

    def _is_written(self, root: int) -> bool:
        """Whether a reduce writes this rank's part: sums arrive at leaders, and where the root is none, at its host."""
        return self._leaders is not None or (self._home == self._host_of[root] and root != self._members[0])

    def broadcast(self, call: Call, array: Array, root: int) -> None:
        """See Backend. Inside the root's host, between leaders, inside the other hosts."""
        inner = self._begin(call, call.describe(array, None, root))
        home = self._host_of[root]
        if self.local is not None and self._home == home:
            self.local.broadcast(inner, array, self._members.index(root))
        if self._leaders is not None:
            self._leaders.spread(array.reshape(-1), home, call.deadline())
        if self._home != home:
            self._spread(inner, array)

    def all_gather(self, call: Call, array: Array, outputs: Sequence[Array]) -> None:
        """See Backend. Gathered by every leader, exchanged between leaders, broadcast inside hosts."""
        inner = self._begin(call, call.describe(array))
        if clobbers([array], outputs, 0, outputs[self._rank]):
            array = array.copy()
        whole = _joined([outputs[member] for member in self._order])
        rows = whole.reshape(self._size, -1)
        blocks = self._blocks(rows)
        if self.local is None:
            np.copyto(blocks[self._home][0], array.reshape(-1))
        else:
            mine = list(blocks[self._home]) if self._leaders is not None else None
            self.local.gather(inner, array.reshape(-1), mine, 0)
        if self._leaders is not None:
            pairs = schedules.pairwise(self._home, len(self._hosts))
            moves = [Transfer(to, blocks[self._home], source, blocks[source]) for to, source in pairs]
            self._leaders.flow(moves, None, call.deadline())
        self._spread(inner, whole)
        for member, row in zip(self._order, rows, strict=True):
            if not np.may_share_memory(row, outputs[member]):
                np.copyto(outputs[member].reshape(-1), row)

    def reduce_scatter(self, call: Call, inputs: Sequence[Array], output: Array, op: ReduceOp) -> None:
        """See Backend. Every host reduces all parts to its leader; leaders sum each other's blocks, then scatter."""
        inner = self._begin(call, call.describe(output, op))
        whole = np.concatenate([accumulator(inputs[member], op).reshape(-1) for member in self._order])
        if self.local is not None:
            self.local.reduce(inner, whole, _inside(op), 0)
        rows = whole.reshape(self._size, output.size)
        blocks = self._blocks(rows)
        mine = blocks[self._home]
        if self._leaders is not None:
            self._leaders.reduce_parts(blocks, mine, _inside(op), call.deadline())
            finish(op, mine, self._size)
        result = mine[0] if self.local is None else np.empty(output.size, whole.dtype)
        if self.local is not None:
            self.local.scatter(inner, list(mine) if self._leaders is not None else None, result, 0)
        output.reshape(-1)[:] = result.astype(output.dtype, copy=False)

    def tree_all_reduce(self, call: Call, parts: dict[Subtree, Array], output: Array, plan: Plan) -> None:
        """See Backend. Every leader joins its host's parts as far as the tree allows, leaders join the rest."""
        inner = self._begin(call, call.describe(output, ReduceOp.SUM, shards=plan.shards))
        coarse = plan.grouped(self._hosts)
        if coarse is None:  # a host's shards are scattered over the tree: there is nothing to join inside it
            self._flat.sum_along(parts, output, plan, call.deadline())
            return
        values = self._gather_parts(inner, parts, output, plan)
        if self._leaders is not None:
            tops = coarse.subtrees(self._home)
            for node, left, right in [join for top in tops for join in shard_tree.joins(top, set(values))]:
                values[node] = values[left] + values[right]
            self._leaders.sum_along({node: values[node] for node in tops}, output, coarse, call.deadline())
        self._spread(inner, output)

    def _gather_parts(self, inner: Call, parts: dict[Subtree, Array], like: Array, plan: Plan) -> dict[Subtree, Array]:
        """On a leader: the parts of all ranks of its host. Elsewhere: of no use."""
        if self.local is None:
            return dict(parts)
        most = max(len(plan.subtrees(member)) for member in self._members)
        stack = np.zeros((most, *like.shape), like.dtype)
        for row, (_, part) in zip(stack, sorted(parts.items()), strict=False):
            row[...] = part
        stacks = [np.empty_like(stack) for _ in self._members] if self._leaders is not None else None
        self.local.gather(inner, stack, stacks, 0)
        rows = zip(self._members, stacks or (), strict=False)
        return {node: row for member, own in rows for node, row in zip(plan.subtrees(member), own, strict=False)}

    def _begin(self, call: Call, mine: Descriptor) -> Call:
        """Agree with all ranks; the call that the parts inside the host are made with, which nobody records."""
        self._flat.agree(mine, call.deadline())
        return call.unrecorded()

    def _blocks(self, rows: Array) -> list[Array]:
        """`rows`, one per rank in the order of hosts, cut by host."""
        ends = np.cumsum([len(members) for members in self._hosts])
        return [rows[end - len(members) : end] for end, members in zip(ends, self._hosts, strict=True)]

    def _sum(self, inner: Call, array: Array, op: ReduceOp) -> Array:
        """On leaders: `op` over all ranks, in the accumulator's dtype, AVG not divided. Elsewhere: of no use."""
        total = accumulator(array, op)
        if self.local is not None:
            self.local.reduce(inner, total, _inside(op), 0)
        if self._leaders is not None:
            self._leaders.sum_up(total.reshape(-1), op, inner.deadline())
        return total

    def _spread(self, inner: Call, array: Array) -> None:
        if self.local is not None:
            self.local.broadcast(inner, array, 0)

    # --- from rank to rank ---

    def gather(self, call: Call, array: Array, outputs: Sequence[Array] | None, root: int) -> None:
        """See Backend. Inside the root's host through memory; from other hosts straight to the root."""
        opening, moves = Opening(call.describe(array, None, root)), []
        if outputs is not None:
            if clobbers([array], outputs, 0, outputs[root]):
                array = array.copy()
            moves = [Transfer(None, None, peer, outputs[peer]) for peer in self._far()]
        elif self._home != self._host_of[root]:
            moves = [Transfer(root, array, None, None)]
        self._flat.flow(moves, None, call.deadline(), opening)
        if self._home != self._host_of[root]:
            return
        if self.local is not None:
            near = None if outputs is None else [outputs[member] for member in self._members]
            self.local.gather(call.unrecorded(), array, near, self._members.index(root))
        elif outputs is not None:
            np.copyto(outputs[root], array)

    def scatter(self, call: Call, inputs: Sequence[Array] | None, output: Array, root: int) -> None:
        """See Backend. Inside the root's host through memory; to other hosts straight from the root."""
        opening, moves = Opening(call.describe(output, None, root)), []
        if inputs is not None:
            if clobbers(inputs, [output], self._rank, output):
                inputs = [part.copy() for part in inputs]
            moves = [Transfer(peer, inputs[peer], None, None) for peer in self._far()]
        elif self._home != self._host_of[root]:
            moves = [Transfer(None, None, root, output)]
        self._flat.flow(moves, None, call.deadline(), opening)
        if self._home != self._host_of[root]:
            return
        if self.local is not None:
            near = None if inputs is None else [inputs[member] for member in self._members]
            self.local.scatter(call.unrecorded(), near, output, self._members.index(root))
        elif inputs is not None:
            np.copyto(output, inputs[root])

    def all_to_all(self, call: Call, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        """See Backend. Inside hosts through memory; between hosts straight from rank to rank."""
        opening = opening_of_parts(call, inputs, outputs)
        if clobbers(inputs, outputs, self._rank, outputs[self._rank]):
            inputs = [part.copy() for part in inputs]
        moves = []
        for to, source in schedules.pairwise(self._rank, self._size):
            out = inputs[to] if self._host_of[to] != self._home else None
            into = outputs[source] if self._host_of[source] != self._home else None
            moves.append(Transfer(to, out, source, into))
        self._flat.flow(moves, None, call.deadline(), opening)
        if self.local is None:
            np.copyto(outputs[self._rank], inputs[self._rank])
        else:
            near = ([arrays[member] for member in self._members] for arrays in (inputs, outputs))
            self.local.all_to_all(call.unrecorded(), *near)

    def _far(self) -> list[int]:
        return [peer for peer in range(self._size) if self._host_of[peer] != self._home]

    # --- events and end ---

    def abort(self, rank: int, lost: bool) -> None:
        """See Backend."""
        self._flat.abort(rank, lost)
        if self.local is not None:
            self.local.abort(rank, lost)

    def peer_left(self, rank: int) -> None:
        """See Backend. Ranks of other hosts are missed by those that wait for their streams."""
        self._flat.peer_left(rank)
        if self.local is not None:
            self.local.peer_left(rank)

    def on_fd(self, rank: int, kind: Frame, tag: int, payload: bytes, fd: int) -> None:
        """See Backend."""
        (self.local or self._flat).on_fd(rank, kind, tag, payload, fd)

    def close(self) -> None:
        """See Backend."""
        if self.local is not None:
            self.local.close()
        self._flat.close()


def _inside(op: ReduceOp) -> ReduceOp:
    """What is done on the way: averages are divided once, at the end."""
    return ReduceOp.SUM if op is ReduceOp.AVG else op


def _joined(arrays: Sequence[Array]) -> Array:
    """The arrays as one flat array: themselves where they lie one after the other in memory, else fresh memory."""
    first = arrays[0]
    starts = [array.__array_interface__["data"][0] for array in arrays]
    if all(start == starts[0] + i * first.nbytes for i, start in enumerate(starts)):
        return as_strided(first.reshape(-1), (len(arrays) * first.size,), (first.itemsize,))
    return np.empty(len(arrays) * first.size, first.dtype)
