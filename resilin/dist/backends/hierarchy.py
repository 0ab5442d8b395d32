"""Groups that span hosts: shared memory inside each host, one leader per host on the network.

    host A  0 ─┐ shm        all_reduce:  1. every host reduces to its leader        (shared memory)
            1 ─┤                         2. the leaders all-reduce                  (ring or doubling over TCP)
               ├── 0 ~~ TCP ~~ 2         3. every leader broadcasts inside its host (shared memory)
    host B  2 ─┤
            3 ─┘ shm        so each host's link carries its data once, not once per rank.

Ranks agree on every call over the sockets first (dissemination over all ranks), so a mismatch is seen by all. What is
not all_reduce, reduce, broadcast or a barrier runs flat over the sockets.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from resilin._base.clock import Deadline
from resilin.dist.backends.base import Call
from resilin.dist.backends.shm import ShmBackend
from resilin.dist.backends.stream import StreamBackend
from resilin.dist.message import Descriptor, Frame
from resilin.dist.reduce_op import Array, ReduceOp, accumulator, finish
from resilin.dist.tree import Plan, Subtree


class HierarchyBackend:
    """`flat` connects all ranks, `local` this host's; `leaders` the first rank of every host (on leaders only)."""

    name = "shm+stream"

    def __init__(
        self,
        rank: int,
        hosts: Sequence[Sequence[int]],
        flat: StreamBackend,
        local: ShmBackend | None,
        leaders: StreamBackend | None,
    ) -> None:
        self._rank = rank
        self._size = sum(len(members) for members in hosts)
        self._host_of = {member: i for i, members in enumerate(hosts) for member in members}
        self._members = hosts[self._host_of[rank]]
        self._flat, self.local, self._leaders = flat, local, leaders

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

    def all_reduce(self, call: Call, array: Array, op: ReduceOp) -> None:
        """See Backend. Reduced inside hosts in rank order, then between leaders."""
        self._flat.agree(call.describe(array, op), call.deadline())
        total = self._sum(call, array, op)
        if self._leaders is not None:
            finish(op, total, self._size)
            if total is not array:
                array[...] = total
        if self.local is not None:
            self.local.broadcast(call, array, 0)

    def reduce(self, call: Call, array: Array, op: ReduceOp, root: int) -> None:
        """See Backend. An all_reduce whose result only `root` keeps."""
        self._flat.agree(call.describe(array, op, root), call.deadline())
        total = self._sum(call, array.copy(), op)
        if self._leaders is not None:
            finish(op, total, self._size)
        if root in self._members:
            result = total.astype(array.dtype, copy=False).reshape(array.shape)
            if self.local is not None:
                self.local.broadcast(call, result, 0)
            if root == self._rank:
                np.copyto(array, result)

    def broadcast(self, call: Call, array: Array, root: int) -> None:
        """See Backend. Inside the root's host to its leader, between leaders, inside the other hosts."""
        self._flat.agree(call.describe(array, None, root), call.deadline())
        home = self._host_of[root]
        if self.local is not None and root in self._members:
            self.local.broadcast(call, array, list(self._members).index(root))
        if self._leaders is not None:
            self._leaders.spread(array.reshape(-1), home, call.deadline())
        if self.local is not None and root not in self._members:
            self.local.broadcast(call, array, 0)

    def _sum(self, call: Call, array: Array, op: ReduceOp) -> Array:
        """On leaders: `op` over all ranks, in the accumulator's dtype, AVG not divided. Elsewhere: of no use."""
        total = accumulator(array, op)
        if self.local is not None:
            self.local.reduce(call, total, ReduceOp.SUM if op is ReduceOp.AVG else op, 0)
        if self._leaders is not None:
            self._leaders.sum_up(total.reshape(-1), op, call.deadline())
        return total

    def all_gather(self, call: Call, array: Array, outputs: Sequence[Array]) -> None:
        """See Backend."""
        self._flat.all_gather(call, array, outputs)

    def reduce_scatter(self, call: Call, inputs: Sequence[Array], output: Array, op: ReduceOp) -> None:
        """See Backend."""
        self._flat.reduce_scatter(call, inputs, output, op)

    def gather(self, call: Call, array: Array, outputs: Sequence[Array] | None, root: int) -> None:
        """See Backend."""
        self._flat.gather(call, array, outputs, root)

    def scatter(self, call: Call, inputs: Sequence[Array] | None, output: Array, root: int) -> None:
        """See Backend."""
        self._flat.scatter(call, inputs, output, root)

    def all_to_all(self, call: Call, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        """See Backend."""
        self._flat.all_to_all(call, inputs, outputs)

    def tree_all_reduce(self, call: Call, parts: dict[Subtree, Array], output: Array, plan: Plan) -> None:
        """See Backend."""
        self._flat.tree_all_reduce(call, parts, output, plan)

    def abort(self, rank: int, lost: bool) -> None:
        """See Backend."""
        self._flat.abort(rank, lost)
        if self._leaders is not None:
            self._leaders.abort(rank, lost)
        if self.local is not None:
            self.local.abort(rank, lost)

    def peer_left(self, rank: int) -> None:
        """See Backend. Ranks of other hosts are missed by the leaders, whose streams end."""
        self._flat.peer_left(rank)
        if self._leaders is not None:
            self._leaders.peer_left(rank)
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
        if self._leaders is not None:
            self._leaders.close()
