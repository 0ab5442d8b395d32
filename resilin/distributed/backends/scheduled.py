"""Run collectives in Python over one primitive: send to one rank while receiving from another.

A backend that can move bytes between two ranks gets every collective from here, with the semantics, the order of
summation and the errors of all others:

    class Pigeons(ScheduledBackend):
        name = "pigeons"

        def exchange(self, to, out, source, into, deadline):
            ...  # send `out` to rank `to` and fill `into` from rank `source`, both at once

        def abort(self, rank, lost): ...      # make a blocked exchange raise Aborted, from another thread
        def close(self): ...                  # free the connections

It may replace any collective that its transport does better (an MPI library's own broadcast), provided that it calls
`agree` first and keeps to the contract in `base.py`. Algorithms are schedules (`wire.schedules`), which become lists of
transfers; `flow` walks through them, one step after the other, and a transport that can overlap steps without changing
their results may replace it. Before data moves, ranks agree on the call by passing descriptors round (dissemination,
log2 P steps), so a mismatch is an error on all of them. A transport may let data follow its descriptor at once, if
what arrives changes nothing before all ranks are known to have made the same call.
"""

from __future__ import annotations

import os
import struct
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from resilin._base.clock import Deadline
from resilin.distributed.backends.base import Call, clobbers, join, judge, split_mismatch
from resilin.distributed.wire import call_phases, schedules
from resilin.distributed.wire.frames import DESCRIPTOR_BYTES, Descriptor, Frame, refuses
from resilin.distributed.wire.reduce_op import Array, ReduceOp, accumulator, array_bytes, combine, finish
from resilin.distributed.wire.schedules import Part, Step
from resilin.distributed.wire.shard_tree import Plan, Subtree

_SIZES = struct.Struct("<4q")  # of a pair of an all_to_all: sender, receiver, bytes sent, bytes expected


class Transfer(NamedTuple):
    """One step: send `out` to rank `to` while `into` arrives from rank `source`; either side may be absent.

    Arrays are contiguous. Within a step `out` is what it was before anything arrived.
    """

    to: int | None
    out: Array | None
    source: int | None
    into: Array | None
    own: Array | None = None
    """What arrives is combined with this, which is `into` or apart from it (None: it replaces what is there)."""


class Opening(NamedTuple):
    """Say what a rank's call is before data moves."""

    mine: Descriptor
    sizes: Array | None = None
    """Of an all_to_all, (2, P): bytes for every rank, bytes expected of every rank."""


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
        """See Backend. Doubling, halving or direct, whichever costs least; half types and averages always direct."""
        deadline, opening = call.deadline(), Opening(call.describe(array, op))
        flat = array.reshape(-1)
        if not _widened(array, op, self._size) and op is not ReduceOp.AVG:
            self.sum_up(flat, op, deadline, opening)
            return
        cut = schedules.bounds(flat.size, self._size)
        parts = [flat[cut[i] : cut[i + 1]] for i in range(self._size)]
        self.reduce_parts(parts, parts[self._rank], op, deadline, opening)
        self.run(schedules.direct_all_gather(self._rank, self._size), flat, None, deadline)

    def sum_up(self, total: Array, op: ReduceOp, deadline: Deadline, opening: Opening | None = None) -> None:
        """An all_reduce of a flat accumulator without AVG's division; here and below ranks agree on `opening` first."""
        self.run(schedules.all_reduce(self._rank, self._size, total.nbytes), total, op, deadline, opening)

    def spread(self, flat: Array, root: int, deadline: Deadline, opening: Opening | None = None) -> None:
        """A broadcast of a flat array."""
        self.run(schedules.broadcast(self._rank, self._size, flat.nbytes, root), flat, None, deadline, opening)

    def reduce(self, call: Call, array: Array, op: ReduceOp, root: int) -> None:
        """See Backend. A binomial tree or a chain."""
        opening = Opening(call.describe(array, op, root))
        total = accumulator(array, op).reshape(-1)
        if self._rank != root and np.may_share_memory(total, array) and self._passes_on(total, root):
            total = total.copy()
        self.collect(total, op, root, call.deadline(), opening)
        if self._rank == root:
            finish(op, total, self._size)
            _store(array, total)

    def _passes_on(self, total: Array, root: int) -> bool:
        return any(step.recv for step in schedules.reduce(self._rank, self._size, total.nbytes, root))

    def collect(
        self, total: Array, op: ReduceOp, root: int, deadline: Deadline, opening: Opening | None = None
    ) -> None:
        """A reduce of a flat accumulator without AVG's division; it changes on other ranks, too."""
        self.run(schedules.reduce(self._rank, self._size, total.nbytes, root), total, op, deadline, opening)

    def broadcast(self, call: Call, array: Array, root: int) -> None:
        """See Backend. A binomial tree or a chain."""
        self.spread(array.reshape(-1), root, call.deadline(), Opening(call.describe(array, None, root)))

    def all_gather(self, call: Call, array: Array, outputs: Sequence[Array]) -> None:
        """See Backend. Every pair exchanges, one partner after the other."""
        opening = Opening(call.describe(array))
        if clobbers([array], outputs, 0, outputs[self._rank]):
            array = array.copy()
        pairs = schedules.pairwise(self._rank, self._size)
        transfers = [Transfer(to, array, source, outputs[source]) for to, source in pairs]
        self.flow(transfers, None, call.deadline(), opening)
        np.copyto(outputs[self._rank], array)

    def reduce_scatter(self, call: Call, inputs: Sequence[Array], output: Array, op: ReduceOp) -> None:
        """See Backend. Every rank sums its part as the others send it."""
        opening = Opening(call.describe(output, op))
        if clobbers(inputs, [output], self._rank, output):
            inputs = [part.copy() for part in inputs]
        self.reduce_parts(inputs, output, op, call.deadline(), opening)

    def reduce_parts(
        self,
        parts: Sequence[Array],
        output: Array,
        op: ReduceOp,
        deadline: Deadline,
        opening: Opening | None = None,
    ) -> None:
        """`output = op over ranks of their parts[this rank]`, averages divided: own part first, then rank-1, ...."""
        pairs = schedules.pairwise(self._rank, self._size)
        if not _widened(output, op, self._size):
            owns = [parts[self._rank], *[output] * (self._size - 2)]  # with which what arrives is combined
            transfers = [
                Transfer(to, parts[to], source, output, own) for (to, source), own in zip(pairs, owns, strict=False)
            ]
            self.flow(transfers, op, deadline, opening)
            if not pairs and output is not parts[self._rank]:
                np.copyto(output, parts[self._rank])
            finish(op, output, self._size)
            return
        arrived = np.empty((len(pairs), *output.shape), output.dtype)
        transfers = [Transfer(to, parts[to], source, row) for (to, source), row in zip(pairs, arrived, strict=True)]
        self.flow(transfers, None, deadline, opening)
        total = accumulator(parts[self._rank], op)
        for row in arrived:
            combine(op, total, accumulator(row, op))
        finish(op, total, self._size)
        output[...] = total.astype(output.dtype)

    def gather(self, call: Call, array: Array, outputs: Sequence[Array] | None, root: int) -> None:
        """See Backend. `root` receives from one rank after the other."""
        deadline, opening = call.deadline(), Opening(call.describe(array, None, root))
        if outputs is None:
            self.flow([Transfer(root, array, None, None)], None, deadline, opening)
            return
        if clobbers([array], outputs, 0, outputs[self._rank]):
            array = array.copy()
        self.flow([Transfer(None, None, peer, outputs[peer]) for peer in self._others()], None, deadline, opening)
        np.copyto(outputs[self._rank], array)

    def scatter(self, call: Call, inputs: Sequence[Array] | None, output: Array, root: int) -> None:
        """See Backend. `root` sends to one rank after the other."""
        deadline, opening = call.deadline(), Opening(call.describe(output, None, root))
        if inputs is None:
            self.flow([Transfer(None, None, root, output)], None, deadline, opening)
            return
        if clobbers(inputs, [output], self._rank, output):
            inputs = [part.copy() for part in inputs]
        self.flow([Transfer(peer, inputs[peer], None, None) for peer in self._others()], None, deadline, opening)
        np.copyto(output, inputs[self._rank])

    def _others(self) -> list[int]:
        return [peer for peer in range(self._size) if peer != self._rank]

    def all_to_all(self, call: Call, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        """See Backend. Every pair exchanges, one partner after the other, once all know that all sizes fit."""
        opening = opening_of_parts(call, inputs, outputs)
        if clobbers(inputs, outputs, self._rank, outputs[self._rank]):
            inputs = [part.copy() for part in inputs]
        pairs = schedules.pairwise(self._rank, self._size)
        transfers = [Transfer(to, inputs[to], source, outputs[source]) for to, source in pairs]
        self.flow(transfers, None, call.deadline(), opening)
        np.copyto(outputs[self._rank], inputs[self._rank])

    def _fit(self, sizes: Array, deadline: Deadline) -> None:
        """Return when every input of an all_to_all has its output's size; CollectiveMismatch on all ranks else.

        Every pair exchanges its sizes, then all hear whether somebody expected another one.
        """
        mine, expected = sizes
        coming = mine.copy()  # what each rank sends us; of ourselves we know
        pairs = schedules.pairwise(self._rank, self._size)
        announcements = [Transfer(to, mine[to : to + 1], source, coming[source : source + 1]) for to, source in pairs]
        self.flow(announcements, None, deadline)
        self._accept(coming, expected.tolist(), deadline)

    def _accept(self, coming: Array, expected: Sequence[int], deadline: Deadline) -> None:
        """Return when what comes to every rank has the size that it expects; CollectiveMismatch on all of them else."""
        wrong = [
            (self._members[source], self._members[self._rank], int(sent), size)
            for source, (sent, size) in enumerate(zip(coming, expected, strict=True))
            if sent != size
        ]
        mine = _SIZES.pack(*wrong[0]) if wrong else bytes(_SIZES.size)
        heard = [_SIZES.unpack_from(record) for _, record in self._hear(mine, deadline)]
        others = [one for one in heard if any(one) and one not in wrong]
        if wrong or others:
            raise split_mismatch([*wrong, *others])

    def tree_all_reduce(self, call: Call, parts: dict[Subtree, Array], output: Array, plan: Plan) -> None:
        """See Backend. Every rank sends its parts of slice s to rank s, which joins them; then slices are gathered."""
        opening = Opening(call.describe(output, ReduceOp.SUM, shards=plan.shards))
        self.sum_along(parts, output, plan, call.deadline(), opening)

    def sum_along(
        self,
        parts: dict[Subtree, Array],
        output: Array,
        plan: Plan,
        deadline: Deadline,
        opening: Opening | None = None,
    ) -> None:
        """A tree_all_reduce, once ranks have agreed on `opening`, if there is one."""
        cut = schedules.bounds(output.size, self._size)
        mine = slice(cut[self._rank], cut[self._rank + 1])
        slices: dict[Subtree, Array] = {node: part.reshape(-1)[mine] for node, part in parts.items()}
        transfers = []
        for to, source in schedules.pairwise(self._rank, self._size):
            send = [part.reshape(-1)[cut[to] : cut[to + 1]] for _, part in sorted(parts.items())]
            nodes = plan.subtrees(source)
            block = np.empty((len(nodes), mine.stop - mine.start), output.dtype)
            packed = send[0] if len(send) == 1 else np.concatenate(send) if send else np.empty(0, output.dtype)
            transfers.append(Transfer(to, packed, source, block))
            slices.update(zip(nodes, block, strict=True))
        self.flow(transfers, None, deadline, opening)
        flat = output.reshape(-1)
        flat[mine] = join(slices, plan)
        self.run(schedules.direct_all_gather(self._rank, self._size), flat, None, deadline)

    def agree(self, mine: Descriptor, deadline: Deadline) -> None:
        """Return when every rank has made the same call; CollectiveMismatch on every rank when one has not."""
        self.flow((), None, deadline, Opening(mine))

    def _open(self, opening: Opening, deadline: Deadline) -> None:
        """Return when every rank has said the same and sizes fit; CollectiveMismatch on every rank else."""
        judge(sorted(self._hear(opening.mine.pack(), deadline)))
        if call_phases.heard:
            call_phases.reached("agreed")
        if opening.sizes is not None:
            self._fit(opening.sizes, deadline)

    def _hear(self, mine: bytes, deadline: Deadline) -> list[tuple[int, bytes]]:
        """What ranks say, at most DESCRIPTOR_BYTES each: this one, and another with a different word if there is one.

        Each message holds up to two different words heard of so far with the rank that said each, that of a rank that
        refuses the call in the place of another. After the dissemination everybody has heard of everybody, so all ranks
        know of a difference or none does; and so of a refusal.
        """
        seen: list[tuple[int, bytes]] = [(self._rank, mine.ljust(DESCRIPTOR_BYTES, b"\0"))]
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
                first = len(seen) < 2 or (refuses(packed) and not refuses(seen[1][1]))
                if rank >= 0 and packed != seen[0][1] and first:
                    seen[1:] = [(rank, packed)]
        return seen

    def run(
        self,
        steps: Sequence[Step],
        flat: Array,
        op: ReduceOp | None,
        deadline: Deadline,
        opening: Opening | None = None,
    ) -> None:
        """Walk through one rank's steps over a flat array, cut by `schedules.bounds`; what arrives combines by `op`."""
        cut = schedules.bounds(flat.size, self._size)
        transfers = []
        for step in steps:
            to, out = (None, None) if step.send is None else (step.send.peer, _part(flat, cut, step.send))
            source, into = (None, None) if step.recv is None else (step.recv.peer, _part(flat, cut, step.recv))
            transfers.append(Transfer(to, out, source, into, into if step.combine else None))
        self.flow(transfers, op, deadline, opening)

    def flow(
        self,
        transfers: Sequence[Transfer],
        op: ReduceOp | None,
        deadline: Deadline,
        opening: Opening | None = None,
    ) -> None:
        """Make the transfers, with the results of one after the other; what arrives combines by `op`.

        With an `opening` ranks agree on it first: CollectiveMismatch on every rank, before anything is changed.
        """
        if opening is not None:
            self._open(opening, deadline)
        self._step_by_step(transfers, op, deadline)

    def _step_by_step(self, transfers: Sequence[Transfer], op: ReduceOp | None, deadline: Deadline) -> None:
        scratch = np.empty(0, np.uint8)
        for to, out, source, into, own in transfers:
            landing = into
            if own is not None and into is not None:
                if scratch.nbytes < into.nbytes:
                    scratch = np.empty(into.nbytes, np.uint8)
                landing = scratch[: into.nbytes].view(into.dtype)
            sent = None if out is None else array_bytes(out)
            self.exchange(to, sent, source, None if landing is None else array_bytes(landing), deadline)
            if own is not None and landing is not None and into is not None and op is not None:
                if own is not into:
                    np.copyto(into, own)
                combine(op, into.reshape(-1), landing)


class Among(ScheduledBackend):
    """Some ranks of a backend, this one among them, numbered anew in the order of `ranks`, over its connections."""

    def __init__(self, whole: ScheduledBackend, ranks: Sequence[int]) -> None:
        super().__init__(ranks.index(whole._rank), len(ranks), ranks)
        self.name = whole.name
        self._whole = whole

    def exchange(
        self, to: int | None, out: memoryview | None, source: int | None, into: memoryview | None, deadline: Deadline
    ) -> None:
        """See ScheduledBackend."""
        self._whole.exchange(self._number(to), out, self._number(source), into, deadline)

    def flow(
        self,
        transfers: Sequence[Transfer],
        op: ReduceOp | None,
        deadline: Deadline,
        opening: Opening | None = None,
    ) -> None:
        """See ScheduledBackend. Ranks of the whole agree, before its parts talk."""
        assert opening is None
        numbered = [t._replace(to=self._number(t.to), source=self._number(t.source)) for t in transfers]
        self._whole.flow(numbered, op, deadline)

    def _number(self, peer: int | None) -> int | None:
        return None if peer is None else self._members[peer]

    def abort(self, rank: int, lost: bool) -> None:
        """See Backend. The whole is aborted by whoever owns it."""

    def close(self) -> None:
        """See Backend. The connections are the whole's."""


def opening_of_parts(call: Call, inputs: Sequence[Array], outputs: Sequence[Array]) -> Opening:
    """Of an all_to_all."""
    sizes = [[part.nbytes for part in arrays] for arrays in (inputs, outputs)]
    return Opening(call.describe_parts(inputs), np.array(sizes, np.int64))


def _part(flat: Array, cut: Sequence[int], part: Part) -> Array:
    return flat[cut[part.start] : cut[part.stop]]


def _store(array: Array, flat: Array) -> None:
    if not np.may_share_memory(array, flat):
        array.reshape(-1)[:] = flat.astype(array.dtype)


def _widened(array: Array, op: ReduceOp, terms: int) -> bool:
    """Whether sums of `array` need a wider dtype than its own. Two terms do not: they are rounded once in any case."""
    wide = accumulator(array.reshape(-1)[:0], op).dtype != array.dtype
    return wide and not (terms == 2 and op in (ReduceOp.SUM, ReduceOp.PRODUCT))
