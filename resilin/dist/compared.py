"""Collectives that compare more than their tensors: facts on which what they carry depends, as options of an update.

A checksum of the facts goes with the number of the call, which ranks compare anyway: equal facts cost nothing. Where
checksums differ ranks exchange the facts, and all raise the same error; where only roundings differ, they go on.
"""

from __future__ import annotations

import json
import math
import zlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from resilin.dist.arguments import Input, Output, rows_of
from resilin.dist.backends.base import Call, SaidApart
from resilin.dist.group import ProcessGroup
from resilin.dist.message import Kind
from resilin.dist.work import Work
from resilin.errors import CollectiveMismatch

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
    target = Output(tensor, "broadcast: tensor")
    backend, flat = group.backend, target.flat

    def task(call: Call) -> None:
        if root == group.rank():
            target.load()
        _run(group, call, facts, lambda part: backend.broadcast(part, flat, root))
        if root != group.rank():
            target.store()

    group.run(Kind.BROADCAST, task, [tensor], async_op=False)


def agree(facts: Facts, group: ProcessGroup) -> None:
    """Return when all ranks have called this with equal `facts`: where nothing is exchanged that they could go with.

    CollectiveMismatch as above.
    """
    backend = group.backend

    def task(call: Call) -> None:
        _run(group, call, facts, lambda part: backend.agree(part.describe(), part.deadline()))

    group.run(Kind.BARRIER, task)


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
    return [json.loads(row[: int(size)].tobytes()) for row, (size,) in zip(rows, sizes, strict=True)]


def _alike(a: Any, b: Any) -> bool:
    if isinstance(a, list) and isinstance(b, list):
        return len(a) == len(b) and all(map(_alike, a, b))
    if isinstance(a, float) and isinstance(b, float):
        return math.isclose(a, b, rel_tol=_RELATIVE) or (math.isnan(a) and math.isnan(b))
    return bool(a == b)
