"""A divided optimizer inside a `Join`: a rank whose data ended updates its range as those that train would.

rank that trains       who steps? ── (the first of them) options, gradients of the others' ranges ──┐
rank without data      who steps? ── takes them ──────────────────────────────────────────────────┴─ update, gather

Gradients and options are those that the first rank that trains has when it calls `step`: clipped, scheduled, or absent.
Nothing follows the question where nobody steps, because the loss scalers of those that train leave the step out.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

import numpy as np

import resilin.distributed as dist
from resilin.core.tensor import Tensor
from resilin.distributed.agreement.compare import explain_mismatch
from resilin.distributed.agreement.options import options_of
from resilin.errors import CollectiveMismatch
from resilin.resharding.state_slices import Piece
from resilin.zero.agreement import NAME
from resilin.zero.flat_param import FlatParameter

Group = dict[str, Any]
Gradients = Mapping[int, Tensor | None]
"""Of this rank's pieces, by id of the parameter."""

JOINED, STEPS, SKIPS = 0, 1, 2  # what a rank says of itself


def who_steps(mine: int, group: dist.ProcessGroup) -> list[bool]:
    """Of every rank, whether it steps on data of its own; none does where those with data leave it out. Collective.

    The numbers are wider than those of `Join`, so that ranks which do not step alike get a CollectiveMismatch; it names
    two, on all ranks, where some with data step and some leave it out.
    """
    told = np.zeros(group.size(), np.int32)
    told[group.rank()] = mine
    if group.size() > 1:
        with _waiting(mine):
            dist.all_reduce(Tensor._wrap(told), op=dist.ReduceOp.MAX, group=group)
    said = told.tolist()
    if STEPS in said and SKIPS in said:
        raise CollectiveMismatch(
            f"{NAME}: inside Join rank {said.index(SKIPS)} leaves out a step that rank {said.index(STEPS)} makes; "
            "gradients and loss scalers must be equal on all ranks that have data: list the "
            "DistributedDataParallel that makes them so before the optimizer, as in Join([model, optimizer])"
        )
    return [one == STEPS for one in said]


def _waiting(mine: int) -> contextlib.AbstractContextManager[None]:
    """Around the question: where a rank without data meets another call, those with data have gone on without it."""
    if mine != JOINED:
        return contextlib.nullcontext()
    return explain_mismatch(
        NAME,
        "inside Join ranks that have data went on without step(), for which those without data wait: ",
        ". Every iteration needs a step(): where it is to be left out, call skip_step() on all ranks that have data "
        "(GradScaler.step does so)",
    )


def tell(
    rows: Sequence[FlatParameter],
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
    rows: Sequence[FlatParameter], groups: Sequence[Group], source: int, group: dist.ProcessGroup
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


def _room(row: FlatParameter, rank: int, used: Collection[int]) -> tuple[Any, list[tuple[Piece, Any]]]:
    """Memory for the gradients of the pieces that `rank` has of `row`, and each one's part of it."""
    pieces = [piece for piece in row.shares[rank] if row.numbers[piece.param] in used]
    ends = list(itertools.accumulate((piece.numel for piece in pieces), initial=0))
    flat = row.empty(ends[-1])
    return flat, [
        (piece, flat[start:stop]) for piece, (start, stop) in zip(pieces, itertools.pairwise(ends), strict=True)
    ]
