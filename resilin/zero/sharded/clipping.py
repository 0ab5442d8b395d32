"""The norm of gradients of which each rank has a range: the same bits however many ranks there are."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

import numpy as np

import resilin.distributed as dist
from resilin.core.ops import errstate
from resilin.core.tensor import Tensor, wrap
from resilin.distributed.wire.shard_tree import Plan, Subtree
from resilin.errors import CollectiveMismatch, ResilinError, UsageError
from resilin.zero.partition import BLOCK
from resilin.zero.sharded.unit import Unit

Array = Any
_CHUNK = 1 << 14  # elements that are squared at once: in float64 they fit in the core's own cache


def clip_grad_norm_(
    units: Sequence[Unit], max_norm: float, norm_type: float, error_if_nonfinite: bool, group: dist.ProcessGroup
) -> Tensor:
    """See ShardedModule.clip_grad_norm_. Collective: all ranks call it, also those whose pieces are empty."""
    order = float(norm_type)
    if not order > 0:
        raise UsageError(f"clip_grad_norm_: norm_type must be positive, or inf, got {norm_type}")
    total = _norm(units, order, {"max_norm": float(max_norm), "norm_type": order}, group)
    if error_if_nonfinite and not math.isfinite(total):
        raise ResilinError(
            f"the norm of order {norm_type} of the gradients is {total}, so they cannot be clipped; look for the first "
            "step with a loss that is not finite, or pass error_if_nonfinite=False"
        )
    pieces = [piece for unit in units for piece in unit.pieces]
    norm = np.asarray(total, _real(pieces))
    factor = float(max_norm) / (float(norm) + 1e-6)
    if factor < 1 or math.isnan(factor):  # NaN goes into the gradients, as in PyTorch
        with np.errstate(all="ignore"):
            for gradient in (piece._grad for piece in pieces if piece._grad is not None):
                errstate.scale(gradient._array, factor)
                gradient._bump()
    return wrap(norm, Tensor._wrap(norm)._dev)


def _norm(units: Sequence[Unit], order: float, arguments: Mapping[str, float], group: dist.ProcessGroup) -> float:
    """Each rank sums the subtrees of its range by itself, and all complete the trees alike. What is exchanged begins
    with the `arguments`, which must be alike, too."""
    rank, world = group.rank(), group.size()
    plans = [_plan(unit.share, unit.total, world) for unit in units]
    places = np.cumsum([len(arguments), *(max(len(plan.subtrees(r)) for r in range(world)) for plan in plans)])
    mine = np.zeros(places[-1])
    mine[: len(arguments)] = list(arguments.values())
    with np.errstate(all="ignore"):
        for unit, plan, at in zip(units, plans, places, strict=False):
            nodes = plan.subtrees(rank)
            mine[at : at + len(nodes)] = _sums(unit, order, nodes, plan.run(rank).start)
    every = np.empty((world, mine.size))
    dist.all_gather_into_tensor(Tensor._wrap(every.reshape(-1)), Tensor._wrap(mine), group=group)
    _compare(list(arguments), every)
    if order == math.inf:
        return float(np.max(every[:, len(arguments) :], initial=0.0))  # NaN where one is
    total = 0.0
    for plan, at in zip(plans, places, strict=False):
        total += _completed(
            plan, {node: float(every[r, at + n]) for r in range(world) for n, node in _numbered(plan, r)}
        )
    return total ** (1 / order) if not math.isnan(total) else total


def _compare(names: Sequence[str], every: Array) -> None:
    for place, name in enumerate(names):
        for rank, other in enumerate(every[:, place]):
            if not np.array_equal(other, every[0, place], equal_nan=True):
                raise CollectiveMismatch(
                    f"clip_grad_norm_: {name} is {every[0, place]} on rank 0 and {other} on rank {rank}; each rank "
                    "scales its range, so all must give the same"
                )


@cache
def _plan(share: int, total: int, world: int) -> Plan:
    """The tree over the blocks of a row of `total` elements, of which each rank has `share`: it is the same in any
    world, because ranks begin at blocks."""
    blocks, each = -(-total // BLOCK), share // BLOCK
    runs = tuple(range(min(rank * each, blocks), min((rank + 1) * each, blocks)) for rank in range(world))
    return Plan(blocks, world, runs)


def _numbered(plan: Plan, rank: int) -> Sequence[tuple[int, Subtree]]:
    return list(enumerate(plan.subtrees(rank)))


def _completed(plan: Plan, sums: dict[Subtree, float]) -> float:
    if not plan.shards:
        return 0.0
    for node, left, right in plan.joins:
        sums[node] = sums[left] + sums[right]
    return sums[plan.root]


def _sums(unit: Unit, order: float, nodes: Sequence[Subtree], first: int) -> list[float]:
    """The sums of powers of absolute values under `nodes`, in float64; with infinity the maxima."""
    row = np.zeros(unit.share, unit.dtype)
    for piece, part in zip(unit.pieces, unit.spread(row), strict=True):
        if piece._grad is not None:
            part[...] = piece._grad._dev.backend.to_host(piece._grad._array)
    blocks, join = np.empty(len(row) // BLOCK), np.maximum if order == math.inf else np.add
    for start in range(0, len(row), _CHUNK):
        powers = _powers(row[start : start + _CHUNK], order).reshape(-1, BLOCK)
        join.reduce(powers, axis=1, out=blocks[start // BLOCK : start // BLOCK + len(powers)])
    return [_joined(blocks[node.start - first : node.stop - first], join) for node in nodes]


def _joined(blocks: Array, join: np.ufunc) -> float:
    """Along the tree of `dist.shard_tree` over blocks: halves that are a power of two long are joined in pairs."""
    size = len(blocks)
    if size & (size - 1):
        half = 1 << (size.bit_length() - 1)
        return float(join(_joined(blocks[:half], join), _joined(blocks[half:], join)))
    while size > 1:
        size //= 2
        blocks = join(blocks[0::2], blocks[1::2])
    return float(blocks[0])


def _powers(values: Array, order: float) -> Array:
    """Absolute values to the power of `order`, in float64; with infinity themselves."""
    wide = values.astype(np.complex128 if values.dtype.kind == "c" else np.float64)
    if order == 2 and wide.dtype.kind == "f":
        return wide * wide
    wide = np.abs(wide)
    return wide if order in (1, math.inf) else wide**order


def _real(pieces: Sequence[Tensor]) -> np.dtype[Any]:
    """The (real) dtype of the norm: of the pieces, as `nn.utils.clip_grad_norm_` has it."""
    kinds = {np.dtype(piece._array.real.dtype) for piece in pieces if piece._rg}
    return max(kinds, key=lambda kind: kind.itemsize, default=np.dtype(np.float32))
