"""Make the state of all members of a new generation equal: who is right is decided by a pure function.

report          every member: was it ever equal to the others, its step, is it intact
choose          sources: intact members at the highest committed step; receivers: all others
small part      broadcast from the first source, unless every digest agrees and nobody receives
divided state   from all who have slices to all who need them in the new world (`divided`), aside
tensors         receivers only, from all sources (`transfer`); each chunk is checked by hash
check           what each object says of itself after load_state_dict() against what it was given (`State._settle`)
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

import resilin.distributed as dist
from resilin._base import log
from resilin.core import host_copies
from resilin.core.host_copies import on_host
from resilin.core.tensor import Tensor
from resilin.distributed.api import records
from resilin.distributed.wire.packing import ByteStream
from resilin.elastic.worker import transfer
from resilin.elastic.worker.registered_objects import Layout
from resilin.elastic.worker.sharded_part import Redivision
from resilin.elastic.worker.source_election import Choice, Report, choose
from resilin.elastic.worker.state import CONSENT, Small, State

_LOG = log.logger("elastic.sync")
_RANKS_TOLD = 8


def _untold(_: str) -> None:
    """Nobody wants to know."""


def make_equal(
    state: State, group: dist.ProcessGroup, rank: int, world_size: int, doing: Callable[[str], None] = _untold
) -> int:
    """Bring `state` to the same step and bits on all ranks of `group`. Returns the bytes of tensors moved here.

    doing: takes what is done now, for the report of an error.
    Errors: StateError (no source, other model, wrong hash); PeerLost and WorldChanged as any collective.
    """
    if state._last is None:
        state._capture()
    own: Small = state._last.small
    report = Report(
        settled=state._settled,
        step=own.step,
        intact=state._intact(),
        digests=own.digests(),
        generation=own.generation,
        work=state._due_work.stand,
        divided=state._stands(),
    )
    reports = records.gather(Report, report, group) if world_size > 1 else [report]
    choice = choose(reports)
    if choice.receivers:
        step = reports[choice.sources[0]].step
        doing(f"the transfer of step {step}'s state from {_ranks(choice.sources)} to {_ranks(choice.receivers)}")
    division = Redivision(state._divided(), group)
    moved = division.prepare([each.divided for each in reports], choice.sources, choice.holders)
    if choice.receivers or not choice.agreed:
        moved += _exchange(state, choice, group, rank)
    division.take_over()
    state._joined(rank, world_size)
    state._due_work.hear(state.step, [each.work for each in reports])
    log.event(
        _LOG,
        logging.INFO,
        "state is equal",
        step=state.step,
        sources=list(choice.sources),
        receivers=list(choice.receivers),
        moved_bytes=moved,
    )
    return moved


@dataclass(frozen=True, slots=True)
class Sent:
    """What the first source tells all others."""

    small: Small
    layout: Mapping[str, Layout]
    """What the tensors that follow look like, by object."""


def _ranks(ranks: Sequence[int]) -> str:
    """ "rank 3", "ranks 0, 2"; of many the first few."""
    shown = ", ".join(map(str, ranks[:_RANKS_TOLD])) + (", ..." if len(ranks) > _RANKS_TOLD else "")
    return f"rank{'s' if len(ranks) > 1 else ''} {shown}"


def _exchange(state: State, choice: Choice, group: dist.ProcessGroup, rank: int) -> int:
    lead = choice.sources[0]
    source = rank in choice.sources
    sent = records.broadcast(
        Sent,
        Sent(state._last.small, state._layout()) if rank == lead else None,
        lead,
        group,
        wanted=not source or not choice.agreed,
        weights_only=state._weights_only,
        instead=CONSENT,
    )
    if source:
        if rank != lead and sent is not None:
            state._adopt_small(sent.small, f"rank {lead} sent")
        stream = ByteStream([on_host(tensor) for tensor in state._guarded()])
        return _move(stream, choice, group, rank)
    assert sent is not None, "it is wanted by all who receive"
    filled = state._accept(sent.layout)
    tensors: list[Tensor] = [tensor for some in filled.values() for tensor in some]
    # received aside: a source that dies half-way must not leave this rank with a mixture of two steps
    staged = [np.empty(tensor._array.shape, tensor._array.dtype) for tensor in tensors]
    moved = _move(ByteStream(staged), choice, group, rank)
    for tensor, array in zip(tensors, staged, strict=True):
        host_copies.write(tensor, array)
    state._settle(sent.small, filled, f"rank {lead} sent")
    return moved


def _move(stream: ByteStream, choice: Choice, group: dist.ProcessGroup, rank: int) -> int:
    if not choice.receivers:
        return 0
    return transfer.run(stream, transfer.plan(stream.nbytes, choice.sources, choice.receivers), rank, group)
