"""The state of a divided optimizer as a tree: described to all ranks, gathered on one, sliced, and taken apart again.

Every rank tells the others what it has (`describe`, a small object); from then on all know the same. A tensor of the
state is a *slice* of one with its parameter's shape, or, of a parameter that is not cut, of any shape and all of it on
one rank. Everything else (counters, numbers) is a value, equal on all ranks that have a piece of the parameter.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import resilin.distributed as dist
from resilin.checkpoint import sliced
from resilin.checkpoint.sliced import Sliced, Slices
from resilin.core.tensor import Tensor, wrap
from resilin.distributed.agreement.guard import abort_group_on_error
from resilin.errors import ResilinError, UsageError
from resilin.optim import Optimizer
from resilin.resharding.state_slices import Piece, Told, counters_of, told_of
from resilin.zero import agreement
from resilin.zero.flat_param import FlatParameter, HeldParameters
from resilin.zero.local_optimizer import LocalOptimizer

Description = dict[int, dict[str, Told]]


class StateLayout:
    """Where the pieces of all parameters are: what all ranks know of the partition."""

    def __init__(self, rows: Sequence[FlatParameter]) -> None:
        self.params: dict[int, Tensor] = {}
        self.owners: dict[int, list[tuple[int, Piece]]] = {}  # by number, in the order of elements
        for row in rows:
            for rank, pieces in enumerate(row.shares):
                for piece in pieces:
                    number = row.numbers[piece.param]
                    self.params[number] = row.params[piece.param]
                    self.owners.setdefault(number, []).append((rank, piece))


def describe(owned: LocalOptimizer) -> Description:
    """What this rank has."""
    counters = counters_of(owned.optimizer)
    state = owned.optimizer.state
    return {
        each.number: {
            name: told_of(each.piece, each.whole, name, value, counters) for name, value in state[each.proxy].items()
        }
        for each in owned.held
        if each.proxy in state
    }


def exchange(owned: LocalOptimizer, layout: StateLayout, group: dist.ProcessGroup, asked: str) -> Description:
    """What there is on any rank, the same on all, by number; asked: the call that needs it.

    Raises CollectiveMismatch (on all ranks) when they ask for different things, ResilinError when owners of one
    parameter differ.
    """
    everybody: list[Description] = agreement.gather(asked, Description, describe(owned), group)
    found: Description = {}
    for number in sorted(layout.owners):
        entries = [(rank, everybody[rank].get(number, {})) for rank, _ in layout.owners[number]]
        first_rank, first = entries[0]
        for rank, other in entries:
            if {name: told.dtype for name, told in other.items()} != {name: told.dtype for name, told in first.items()}:
                raise ResilinError(
                    f"ZeroRedundancyOptimizer: of parameter {number}, rank {first_rank} has the state "
                    f"{sorted(first)} and rank {rank} has {sorted(other)}; had it a gradient on some ranks only?"
                )
        if first:
            found[number] = first
    return found


def consolidate(
    owned: LocalOptimizer, rows: Sequence[FlatParameter], group: dist.ProcessGroup, target: Any
) -> dict[Tensor, dict[str, Any]] | None:
    """The whole state by parameter on the global rank `target`, None on the others.

    Tensors are sent one by one straight to their places: no rank needs memory for more than what it keeps. Raises
    CollectiveMismatch when ranks name different ones, UsageError for one that is not in the group.
    """
    layout = StateLayout(rows)
    told = exchange(owned, layout, group, f"consolidate_state_dict(to={target!r:.80})")
    to = _place_of(target, group)
    here = {each.number: owned.optimizer.state.get(each.proxy, {}) for each in owned.held}
    whole: dict[Tensor, dict[str, Any]] = {}
    with abort_group_on_error(group, "left consolidate_state_dict half-way"):
        for number, entries in told.items():
            whole[layout.params[number]] = {
                name: _copy(one.value) if one.dtype is None else _collect(name, one, number, layout, here, group, to)
                for name, one in entries.items()
            }
    return whole if group.rank() == to else None


def _place_of(target: Any, group: dist.ProcessGroup) -> int:
    """The rank in `group` of the global rank `target`, which all ranks have named."""
    if isinstance(target, bool) or not isinstance(target, int) or target not in group.ranks:
        raise UsageError(
            "ZeroRedundancyOptimizer.consolidate_state_dict: to must be a global rank of the optimizer's group, which "
            f"has {', '.join(map(str, group.ranks))}, got {target!r:.80}"
        )
    return group.ranks.index(target)


def _copy(value: Any) -> Any:
    return value.detach().clone() if isinstance(value, Tensor) else value


def _collect(
    name: str, told: Told, number: int, layout: StateLayout, here: Mapping[int, Any], group: dist.ProcessGroup, to: int
) -> Tensor | None:
    """One tensor of the state, on rank `to`."""
    param, rank = layout.params[number], group.rank()
    shape = tuple(param.shape) if told.shape is None else told.shape
    assert told.dtype is not None, "values are not collected"
    full = param._dev.xp.empty(shape, told.dtype.np) if rank == to else None
    for owner, piece in layout.owners[number]:
        flat = None if full is None else full.reshape(-1)
        target = flat if flat is None or told.shape is not None else flat[piece.start : piece.stop]
        if owner == rank:
            mine = here[number][name].reshape(-1)
            if target is not None:
                target[...] = mine._array
            elif mine.numel():
                dist.send(mine, group=group, group_dst=to)
        elif target is not None and target.size:
            dist.recv(wrap(target, param._dev), group=group, group_src=owner)
    return None if full is None else wrap(full, param._dev)


def slices(owned: LocalOptimizer, rows: Sequence[FlatParameter], group: dist.ProcessGroup) -> dict[int, dict[str, Any]]:
    """The state by number, the same tree on all ranks, with a Sliced for every tensor that is divided."""
    layout = StateLayout(rows)
    here = {each.number: each for each in owned.held}
    tree: dict[int, dict[str, Any]] = {}
    for number, entries in exchange(owned, layout, group, "sharded_state_dict()").items():
        param, held = layout.params[number], here.get(number)
        tree[number] = {
            name: told.value if told.dtype is None else _slice(name, told, param, held, owned.optimizer)
            for name, told in entries.items()
        }
    return tree


def _slice(name: str, told: Told, param: Tensor, held: HeldParameters | None, inner: Optimizer) -> Sliced:
    assert told.dtype is not None, "values are not sliced"
    shape = tuple(param.shape) if told.shape is None else told.shape
    if held is None:
        return Sliced(shape, told.dtype, 0, wrap(param._dev.xp.empty(0, told.dtype.np), param._dev))
    mine = inner.state[held.proxy][name].detach().reshape(-1)
    return Sliced(shape, told.dtype, held.piece.start, mine)


def parts_of(owned: LocalOptimizer, state: Mapping[Any, Mapping[str, Any]]) -> dict[Tensor, dict[str, Any]]:
    """What this rank's pieces need of a whole state, or of slices that cover them, by proxy.

    Raises UsageError for a tensor that fits its parameter no more.
    """
    counters = counters_of(owned.optimizer)
    return {
        each.proxy: {name: _part(each, name, value, counters) for name, value in state[each.number].items()}
        for each in owned.held
        if each.number in state
    }


def _part(held: HeldParameters, name: str, value: Any, counters: frozenset[str]) -> Any:
    if not isinstance(value, Tensor | Slices):
        return value
    shape = tuple(value.shape)
    if name not in counters and not held.whole:
        if shape == tuple(held.param.shape):
            return sliced.part(value, held.piece.start, held.piece.stop)
        if shape:
            raise UsageError(
                f"ZeroRedundancyOptimizer: {name} of shape {list(shape)} does not fit parameter {held.number} of shape "
                f"{list(held.param.shape)}; was it saved of another model?"
            )
    return value if isinstance(value, Tensor) else sliced.part(value, 0, math.prod(shape)).reshape(shape)
