"""A divided optimizer inside a `Join`: a rank whose data ended updates its range as those that train would.

rank that trains       who trains? ── (the first of them) options, gradients of the others' ranges ──┐
rank without data      who trains? ── takes them ──────────────────────────────────────────────────┴─ update, gather

Gradients and options are those that the first rank that trains has when it calls `step`: clipped, scheduled, or absent.
"""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

import numpy as np

import resilin.dist as dist
from resilin.core.tensor import Tensor
from resilin.zero.owned import options_of
from resilin.zero.partition import Piece
from resilin.zero.row import Row

Group = dict[str, Any]
Gradients = Mapping[int, Tensor | None]
"""Of this rank's pieces, by id of the parameter."""


def who_trains(trains: bool, group: dist.ProcessGroup) -> list[bool]:
    """Of every rank, whether it is still given data. Collective.

    The numbers are wider than those of `Join`, so that ranks which do not step alike get a CollectiveMismatch.
    """
    told = np.zeros(group.size(), np.int32)
    told[group.rank()] = trains
    if group.size() > 1:
        dist.all_reduce(Tensor._wrap(told), op=dist.ReduceOp.MAX, group=group)
    return [bool(flag) for flag in told]


def tell(
    rows: Sequence[Row],
    groups: Sequence[Group],
    options: Mapping[str, Any],
    joined: Iterable[int],
    group: dist.ProcessGroup,
) -> None:
    """Send each rank of `joined` the groups' options, the step's `options`, and the gradients of its pieces."""
    used = frozenset(
        row.numbers[place] for row in rows for place, param in enumerate(row.params) if param._grad is not None
    )
    said = [[options_of(each) for each in groups], dict(options), used]
    for rank in joined:
        dist.send_object_list(said, group=group, group_dst=rank)
        for row in rows:
            flat, parts = _room(row, rank, used)
            for piece, part in parts:
                gradient = row.params[piece.param]._grad
                assert gradient is not None, "it is among those with one"
                part[...] = gradient._array.reshape(-1)[piece.start : piece.stop]
            if flat.size:
                dist.send(row.tensor(flat), group=group, group_dst=rank)


def listen(
    rows: Sequence[Row], groups: Sequence[Group], source: int, group: dist.ProcessGroup
) -> tuple[Gradients, Mapping[str, Any], Collection[int]]:
    """What `tell` on rank `source` sent: gradients, the options of the step, and the numbers of the parameters with a
    gradient, of whatever rank; the groups' options go into `groups`."""
    said: list[Any] = [None] * 3
    dist.recv_object_list(said, group=group, group_src=source)
    every, options, used = said
    for mine, theirs in zip(groups, every, strict=True):
        mine.update(theirs)
    gradients: dict[int, Tensor] = {}
    for row in rows:
        flat, parts = _room(row, group.rank(), used)
        if flat.size:
            dist.recv(row.tensor(flat), group=group, group_src=source)
        for piece, part in parts:
            shape = row.params[piece.param].shape if row.whole else part.shape
            gradients[id(row.params[piece.param])] = row.tensor(part.reshape(shape))
    return gradients, options, used


def _room(row: Row, rank: int, used: Collection[int]) -> tuple[Any, list[tuple[Piece, Any]]]:
    """Memory for the gradients of the pieces that `rank` has of `row`, and each one's part of it."""
    pieces = [piece for piece in row.shares[rank] if row.numbers[piece.param] in used]
    ends = list(itertools.accumulate((piece.numel for piece in pieces), initial=0))
    flat = row.empty(ends[-1])
    return flat, [
        (piece, flat[start:stop]) for piece, (start, stop) in zip(pieces, itertools.pairwise(ends), strict=True)
    ]
