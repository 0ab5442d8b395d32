"""What must be equal on all ranks: facts, as the options of an update, and the layout of parameters.

Collectives may compare facts beside their tensors: a checksum of them goes with the number of the call, which ranks
compare anyway, so equal facts cost nothing. Where checksums differ ranks exchange the facts, and all raise the same
error; where only roundings differ, they go on. Layouts are exchanged as objects.
"""

from __future__ import annotations

import json
import math
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import zip_longest
from typing import Any, NamedTuple, TypeVar

import numpy as np

from resilin._base import json_text
from resilin.core.tensor import Parameter, Tensor
from resilin.distributed.agreement import broadcast as sending
from resilin.distributed.agreement.exchange import gather_records, record_of
from resilin.distributed.backends.base import Call, SaidApart
from resilin.distributed.group.arguments import Input, Output, rows_of
from resilin.distributed.group.process_group import ProcessGroup
from resilin.distributed.wire import record_codec
from resilin.distributed.wire.frames import Kind
from resilin.distributed.work.work import Work
from resilin.errors import CollectiveMismatch

T = TypeVar("T")

_RELATIVE = 1e-9  # between floats that count as equal: other hosts' libraries may round a schedule's cosine otherwise


Groups = Sequence[tuple[str, Mapping[str, Any]]]
"""Facts by name, in groups: each with what is added to the names of its facts to tell them apart."""


class Facts:
    """What all ranks must have alike: numbers, texts, None and lists of these. Immutable.

    about: what they belong to, and why: what becomes of ranks that differ; both for the error.
    """

    def __init__(self, about: str, groups: Groups, why: str) -> None:
        self.about, self.groups, self.why = about, groups, why
        self.checksum = zlib.crc32(repr(groups).encode())  # differs (but for 2^-24) where facts do

    def check(self, everybody: Sequence[Groups]) -> None:
        """CollectiveMismatch, which names the first of the ranks' facts that differs, and both values."""
        first, *others = (
            {name + end: value for end, group in groups for name, value in group.items()} for groups in everybody
        )
        for rank, theirs in enumerate(others, 1):
            for name in {**first, **theirs}:
                zero, other = first.get(name, "absent"), theirs.get(name, "absent")
                if not _alike(zero, other):
                    raise CollectiveMismatch(
                        f"{self.about}: {name} is {zero} on rank 0 and {other} on rank {rank}; {self.why}"
                    )


def all_gather_into_tensor(
    output_tensor: Any, input_tensor: Any, facts: Facts, group: ProcessGroup, async_op: bool = False
) -> Work | None:
    """As `dist.all_gather_into_tensor`. CollectiveMismatch on all ranks, before data moves, when `facts` differ."""
    source = Input(input_tensor, "all_gather_into_tensor: input_tensor")
    target = Output(output_tensor, "all_gather_into_tensor: output_tensor")
    rows, backend = (
        rows_of(target.flat, source.flat, group.size(), "all_gather_into_tensor: output_tensor"),
        group.backend,
    )

    def task(call: Call) -> None:
        array = source.load()
        _run(group, call, facts, lambda part: backend.all_gather(part, array, rows))
        target.store()

    return group.run(Kind.ALL_GATHER, task, [target.tensor], async_op=async_op)


def broadcast(tensor: Any, root: int, facts: Facts, group: ProcessGroup) -> None:
    """As `dist.broadcast` from rank `root` of the group. CollectiveMismatch as above."""
    sending.broadcast(tensor, root, group, lambda call, run: _run(group, call, facts, run))


KIND = Kind.BARRIER
"""The collective that `agree` is, for `propagate_errors` around what comes before it."""


def agree(facts: Facts, group: ProcessGroup) -> None:
    """Return when all ranks have called this with equal `facts`: where nothing is exchanged that they could go with.

    CollectiveMismatch as above.
    """
    backend = group.backend

    def task(call: Call) -> None:
        _run(group, call, facts, lambda part: backend.agree(part.describe(), part.deadline()))

    group.run(KIND, task)


def _run(group: ProcessGroup, call: Call, facts: Facts, run: Callable[[Call], None]) -> None:
    call.carry([(facts.checksum,)])
    try:
        run(call)
    except SaidApart:  # all ranks have seen it, and nothing has moved
        facts.check(_everybodys(group, call, facts))
        run(call.plain())


def _everybodys(group: ProcessGroup, call: Call, facts: Facts) -> list[Groups]:
    data = np.frombuffer(json.dumps(facts.groups).encode(), np.uint8)
    sizes = np.empty((group.size(), 1), np.int64)
    group.backend.all_gather(call.plain(), np.array([data.size], np.int64), list(sizes))
    rows = np.zeros((group.size(), int(sizes.max())), np.uint8)
    padded = np.zeros(rows.shape[1], np.uint8)
    padded[: data.size] = data
    group.backend.all_gather(call.plain(), padded, list(rows))
    return [json_text.parse(row[: int(size)].tobytes()) for row, (size,) in zip(rows, sizes, strict=True)]


def _alike(a: Any, b: Any) -> bool:
    if isinstance(a, list) and isinstance(b, list):
        return len(a) == len(b) and all(map(_alike, a, b))
    if isinstance(a, float) and isinstance(b, float):
        return math.isclose(a, b, rel_tol=_RELATIVE) or (math.isnan(a) and math.isnan(b))
    return bool(a == b)


# --- the layout of parameters ---


class TensorEntry(NamedTuple):
    """What ranks compare of one tensor."""

    name: str
    shape: tuple[int, ...]
    dtype: str
    frozen: bool = False

    def __str__(self) -> str:
        said = f"of shape {list(self.shape)} and dtype {self.dtype}"
        return f"{said}, frozen" if self.frozen else said


def entries_of(named: Sequence[tuple[str, Tensor]]) -> list[TensorEntry]:
    """Of parameters and buffers by name."""
    return [
        TensorEntry(name, each._array.shape, each._array.dtype.name, isinstance(each, Parameter) and not each._rg)
        for name, each in named
    ]


def compare_parameters(
    function: str,
    entries: Sequence[TensorEntry],
    settings: Mapping[str, str],
    group: ProcessGroup,
    *,
    same: str,
    call: str = "",
    facts: Facts | None = None,
    given: Any = None,
) -> list[Any]:
    """Compare tensors by name, shape, dtype and whether they are frozen, and `settings`; what each rank has `given`.

    CollectiveMismatch on all ranks names the first difference, and both sides; of settings those that both ranks have.
    function: what was called, one of
    wire.frames.FUNCTIONS; call: and how, where it can be called in several ways. same: what all ranks must do, for the
    message. facts: compared last, in their own words.
    """
    groups = None if facts is None else tuple((end, dict(each)) for end, each in facts.groups)
    mine = _Layout(
        dict(settings), tuple((each.name, each.shape, each.dtype, each.frozen) for each in entries), groups, given
    )
    everybody = gather_in_call(function, call, _Layout, mine, group)
    first_settings, first = everybody[0].settings, everybody[0].entries
    for rank, each in enumerate(everybody):
        theirs, others = each.settings, each.entries
        for zero, other in zip_longest(first, others):
            if zero != other:
                same_name = zero is None or other is None or zero[0] == other[0]
                sides = [
                    "absent" if each is None else f"{'' if same_name else each[0] + ' '}{TensorEntry(*each)}"
                    for each in (zero, other)
                ]
                raise CollectiveMismatch(
                    f"{function}: {(zero or other)[0]} is {sides[0]} on rank 0 and {sides[1]} on rank {rank}; {same}"
                )
        names = [name for name, value in first_settings.items() if theirs.get(name, value) != value]
        if names:
            sides = [", ".join(f"{name}={each.get(name)}" for name in names) for each in (first_settings, theirs)]
            raise CollectiveMismatch(f"{function}: rank 0 was made with {sides[0]}, rank {rank} with {sides[1]}")
    if facts is not None:
        facts.check([each.facts or () for each in everybody])
    return [each.given for each in everybody]


@dataclass(frozen=True, slots=True)
class _Layout:
    """What ranks tell one another of parameters, for `compare_parameters`."""

    settings: Mapping[str, str]
    entries: tuple[tuple[str, tuple[int, ...], str, bool], ...]
    facts: tuple[tuple[str, Mapping[str, Any]], ...] | None
    given: Any


@dataclass(frozen=True, slots=True)
class _Said:
    """What a rank says, and in which call."""

    call: str
    mine: Any


def gather_in_call(function: str, call: str, kind: Any, mine: T, group: ProcessGroup) -> list[T]:
    """What every rank says, of type `kind`, in the same `call` of `function`. CollectiveMismatch names both where
    another was made, DistError who says something of another type."""
    if group.size() == 1:
        return [mine]
    said = gather_records(function, _Said, _Said(call, record_codec.plain(kind, mine)), group)
    for rank, other in enumerate(said):
        if other.call != said[0].call:
            raise CollectiveMismatch(
                f"{function}: rank {group.ranks[0]} called {said[0].call}, rank {group.ranks[rank]} called "
                f"{other.call}; all ranks must make the same call, with the same arguments"
            )
    return [record_of(kind, each.mine, rank, group) for rank, each in enumerate(said)]


@contextmanager
def explain_mismatch(function: str, before: str, after: str = "") -> Iterator[None]:
    """Say around a CollectiveMismatch of this block what it means that another rank made another call.

    One that `function` has worded itself stays as it is.
    """
    try:
        yield
    except CollectiveMismatch as error:
        if f"{function}: " in str(error):
            raise
        raise CollectiveMismatch(f"{function}: {before}{error}{after}") from None
