"""Define the contract between a process group and what moves its bytes."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Protocol

import numpy as np

from resilin._base.clock import SYSTEM, Deadline
from resilin.core.kernels.common import address_of
from resilin.distributed.wire.flight_recorder import FlightEntry
from resilin.distributed.wire.frames import (
    ANY_EXTENT,
    NO_OP,
    REFUSED,
    Descriptor,
    Frame,
    Kind,
    named,
    refuses,
    stamped,
    unpack,
)
from resilin.distributed.wire.reduce_op import DTYPE_CODES, Array, ReduceOp
from resilin.distributed.wire.shard_tree import Plan, Subtree
from resilin.errors import CollectiveMismatch


class Aborted(Exception):
    """The group was aborted while a backend waited; the group knows why. Never leaves the package.

    `awaited`: the ranks of the group that it waited for, as far as it knows.
    """

    def __init__(self, awaited: Iterable[int] = ()) -> None:
        super().__init__()
        self.awaited = frozenset(awaited)


class Call:
    """One collective on its way: its number in the group and its limits. `row`: of how many calls of one
    block or list it is the first; 0: it is in none."""

    __slots__ = ("_row", "background", "entry", "kind", "noted", "sequence", "stamp", "started", "timeout_s")

    def __init__(
        self,
        kind: Kind,
        sequence: int,
        timeout_s: float,
        background: bool = False,
        entry: FlightEntry | None = None,
        row: int = 0,
    ) -> None:
        self.background = background  # on the worker thread: the program computes meanwhile, so waits do not spin
        self.entry = entry  # in the flight recorder
        self.kind = kind
        self.noted = False  # whether the others are told of it, or have been
        self.sequence = sequence
        self._row = row
        self.stamp = stamped(sequence, (), row)  # what ranks compare; also of several tensors in one call, or calls
        self.timeout_s = timeout_s
        self.started = SYSTEM.monotonic()

    def unrecorded(self) -> Call:
        """The same call without its entry in the flight recorder: for the parts that a backend makes it of."""
        part = Call(self.kind, self.sequence, self.timeout_s, self.background)
        part.started, part.stamp = self.started, self.stamp
        return part

    def deadline(self) -> Deadline:
        """Return when this call gives up."""
        return Deadline(max(0.0, self.started + self.timeout_s - SYSTEM.monotonic()))

    def plain(self) -> Call:
        """`unrecorded()`, and nothing is said but the number."""
        part = self.unrecorded()
        part.stamp = self.sequence
        return part

    def carry(self, shapes: Sequence[tuple[int, ...]]) -> None:
        """Several tensors of `shapes` go as one array: ranks must bring the same."""
        self.stamp = stamped(self.sequence, shapes, self._row)

    def begins(self, function: str) -> None:
        """This is the first collective of `function`, one of message.FUNCTIONS: errors name that."""
        self.stamp = named(self.sequence, function)

    def name(self) -> str:
        """What it is called by: `all_reduce #3`, or by the function that it begins."""
        return Descriptor(self.stamp, self.kind).name()

    def refusal(self) -> Descriptor:
        """Describe to the others a call whose arguments this rank refuses."""
        self.note(None, ())
        return Descriptor(self.stamp, self.kind, op=REFUSED)

    def note(
        self,
        dtype: np.dtype[np.generic] | None,
        shape: tuple[int, ...],
        op: ReduceOp | None = None,
        root: int = -1,
        shards: int = 0,
    ) -> None:
        """Tell the flight recorder what the call carries, just before the others are told."""
        self.noted = True
        if self.entry is not None:
            self.entry.describe(dtype, shape, op, root, shards)

    def describe_parts(self, parts: Sequence[Array]) -> Descriptor:
        """Describe parts cut along a first dimension that may differ from part to part and rank to rank."""
        shape = (ANY_EXTENT, *parts[0].shape[1:])
        self.note(parts[0].dtype, shape)
        return Descriptor(self.stamp, self.kind, DTYPE_CODES[parts[0].dtype], shape=shape)

    def describe(
        self, array: Array | None = None, op: ReduceOp | None = None, root: int = -1, shards: int = 0
    ) -> Descriptor:
        """Describe the call to the other ranks. shards: of a sum along a tree, over how many."""
        if array is None:
            self.note(None, (), None, root)
            return Descriptor(self.stamp, self.kind, root=root)
        self.note(array.dtype, array.shape, op, root, shards)
        code = DTYPE_CODES[array.dtype]
        return Descriptor(
            self.stamp, self.kind, code, NO_OP if op is None else int(op), root, array.shape, shards=shards
        )


class SaidApart(CollectiveMismatch):
    """Ranks made equal calls with other stamps (`Call.carry`), or other numbers. Never leaves the package."""


class Refused(CollectiveMismatch):
    """`rank` refuses its call, `called` what this says. The group has been told why. Never leaves the package."""

    rank: int
    called: str


def mismatch(a: tuple[int, Descriptor], b: tuple[int, Descriptor]) -> CollectiveMismatch:
    """The error that shows both sides."""
    refusing = next((each for each in (a, b) if each[1].op == REFUSED), None)
    said = f"ranks disagree: rank {a[0]} called {a[1]}, rank {b[0]} called {b[1]}; tensors are unchanged"
    if refusing is not None:
        refused = Refused(said)
        refused.rank, refused.called = refusing[0], refusing[1].name()
        return refused
    return (SaidApart if replace(a[1], sequence=0) == replace(b[1], sequence=0) else CollectiveMismatch)(said)


def split_mismatch(wrong: Sequence[tuple[int, int, int, int]]) -> CollectiveMismatch:
    """The error for an all_to_all whose (sender, receiver, bytes sent, bytes expected) do not fit."""
    sides = "; ".join(
        f"rank {sender} sends {sent} bytes to rank {receiver}, which expects {expected}"
        for sender, receiver, sent, expected in wrong[:_SHOWN]
    )
    more = f"; and {len(wrong) - _SHOWN} pairs more" if len(wrong) > _SHOWN else ""
    return CollectiveMismatch(f"ranks disagree on split sizes: {sides}{more}; tensors are unchanged")


_SHOWN = 8  # pairs in one error message


def judge(said: Iterable[tuple[int, bytes]]) -> None:
    """Return when all ranks' packed descriptors are equal; CollectiveMismatch that shows two others else, one that is
    refused before any other."""
    (one, word), *others = said
    apart = [(rank, its) for rank, its in others if its != word]
    if apart:
        other, its = next((each for each in apart if refuses(each[1])), apart[0])
        raise mismatch((one, unpack(word)), (other, unpack(its)))


def judge_sizes(table: Array) -> None:
    """Return when the sizes that all ranks of an all_to_all said, (P, 2, P), fit; CollectiveMismatch else."""
    sent, expected = table[:, 0], table[:, 1].T
    wrong = np.argwhere(sent != expected)
    if len(wrong):
        raise split_mismatch([(int(a), int(b), int(sent[a, b]), int(expected[a, b])) for a, b in wrong])


def clobbers(inputs: Sequence[Array], outputs: Sequence[Array], own: int, result: Array) -> bool:
    """Return whether writing `outputs` changes `inputs` that are still to be read; all are contiguous.

    `inputs[own]` is read by this rank alone, before or while `result` is written: the two may be one memory.
    """
    in_place = _extent(inputs[own]) == _extent(result)
    spans = [(*_extent(a), 0) for i, a in enumerate(inputs) if a.nbytes and not (in_place and i == own)]
    spans += [(*_extent(a), 1) for a in outputs if a.nbytes]
    ends = [0, 0]  # of the inputs and of the outputs so far, in the order of memory
    for start, end, side in sorted(spans):
        if start < ends[1 - side]:
            return True
        ends[side] = max(ends[side], end)
    return False


def _extent(array: Array) -> tuple[int, int]:
    start = address_of(array)
    return start, start + array.nbytes


def join(slices: dict[Subtree, Array], plan: Plan) -> Array:
    """The root's value from the ranks' parts: left + right at every node of the plan, rounded to the dtype there."""
    values = dict(slices)
    for node, left, right in plan.joins:
        values[node] = values.pop(left) + values.pop(right)
    return values[plan.root]


class Backend(Protocol):
    """Blocking collectives on C-contiguous arrays. One thread at a time, in the same order on every rank.

    Every method first makes sure that all ranks called the same (CollectiveMismatch on all ranks otherwise; the group
    stays usable). Other errors end the group: `Aborted` when `abort` was called or a peer is gone, CollectiveTimeout at
    the call's deadline, PeerLost when this rank saw the loss first. Arrays may then hold partial results.
    Outputs may overlap inputs, though not one another: results are those of separate memory.

    An attribute `one_path = True` says that every element is reduced in one order, whatever its place and the array's
    size: then small all_reduces of a block are one call of more than two ranks, too (`group/coalescing_buffer.py`).
    """

    name: str

    def attach(self, deadline: Deadline) -> None:
        """Finish what needs the peers' help, before the first call. Aborted, CollectiveTimeout, PeerLost."""

    def agree(self, mine: Descriptor, deadline: Deadline) -> None:
        """Return when every rank has called this with an equal descriptor; CollectiveMismatch on all ranks else."""

    def barrier(self, call: Call) -> None:
        """Return when every rank has called it."""

    def all_reduce(self, call: Call, array: Array, op: ReduceOp) -> None:
        """`array = op over ranks`, in place; equal bits on all ranks."""

    def reduce(self, call: Call, array: Array, op: ReduceOp, root: int) -> None:
        """Reduce as all_reduce, but only on `root`; unchanged elsewhere."""

    def broadcast(self, call: Call, array: Array, root: int) -> None:
        """`array` of `root` to all."""

    def all_gather(self, call: Call, array: Array, outputs: Sequence[Array]) -> None:
        """`outputs[r] = array of rank r`."""

    def reduce_scatter(self, call: Call, inputs: Sequence[Array], output: Array, op: ReduceOp) -> None:
        """`output = op over ranks of inputs[this rank]`."""

    def gather(self, call: Call, array: Array, outputs: Sequence[Array] | None, root: int) -> None:
        """`outputs[r] = array of rank r`, on `root` only."""

    def scatter(self, call: Call, inputs: Sequence[Array] | None, output: Array, root: int) -> None:
        """`output = inputs[this rank] of root`."""

    def all_to_all(self, call: Call, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        """`outputs[r] = inputs[this rank] of rank r`; first dimensions may differ from pair to pair."""

    def tree_all_reduce(self, call: Call, parts: dict[Subtree, Array], output: Array, plan: Plan) -> None:
        """`output = sum of all ranks' parts along the plan's tree`."""

    def abort(self, rank: int, lost: bool) -> None:
        """Return every blocked call with `Aborted` within milliseconds. Any thread, never blocks. `rank`: to blame."""

    def peer_left(self, rank: int) -> None:
        """`rank` said goodbye: calls that still wait for it fail, calls it has finished do not. Any thread."""

    def on_fd(self, rank: int, kind: Frame, tag: int, payload: bytes, fd: int) -> None:
        """`rank` shares the memory behind `fd`, which is ours now. Control thread."""

    def close(self) -> None:
        """Free everything. No call is running."""


METHODS: tuple[str, ...] = tuple(name for name in vars(Backend) if not name.startswith("_"))
"""What an object must have to be a Backend."""
