"""The norm of gradients of which each rank has a range."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

import resilin.dist as dist
from resilin.core.tensor import Tensor, wrap
from resilin.errors import ResilinError, UsageError


def clip_grad_norm_(
    pieces: Sequence[Tensor], max_norm: float, norm_type: float, error_if_nonfinite: bool, group: dist.ProcessGroup
) -> Tensor:
    """See ShardedModule.clip_grad_norm_. Collective: all ranks call it, also those whose pieces are empty."""
    order = float(norm_type)
    if not order > 0:
        raise UsageError(f"clip_grad_norm_: norm_type must be positive, or inf, got {norm_type}")
    gradients = [piece._grad for piece in pieces if piece._grad is not None]
    mine = np.array([_share(gradients, order)])
    every = np.empty(group.size())
    dist.all_gather_into_tensor(Tensor._wrap(every), Tensor._wrap(mine), group=group)
    total = float(max(every, key=lambda value: math.inf if math.isnan(value) else value))
    if order != math.inf:
        total = 0.0
        for value in every:  # one after the other: the same order on all ranks
            total += float(value)
        total = total ** (1 / order) if not math.isnan(total) else total
    if error_if_nonfinite and not math.isfinite(total):
        raise ResilinError(
            f"the norm of order {norm_type} of the gradients is {total}, so they cannot be clipped; look for the first "
            "step with a loss that is not finite, or pass error_if_nonfinite=False"
        )
    norm = np.asarray(total, _real(pieces))
    factor = float(max_norm) / (float(norm) + 1e-6)
    if factor < 1 or math.isnan(factor):  # NaN goes into the gradients, as in PyTorch
        with np.errstate(all="ignore"):
            for gradient in gradients:
                gradient._array *= gradient._array.real.dtype.type(factor)
                gradient._bump()
    return wrap(norm, Tensor._wrap(norm)._dev)


def _share(gradients: Sequence[Tensor], order: float) -> float:
    """This rank's sum of powers of absolute values, in float64; with infinity their maximum."""
    total = 0.0
    for gradient in gradients:
        host = np.asarray(gradient._dev.backend.to_host(gradient._array))
        if not host.size:
            continue
        values: Any = np.abs(host.astype(np.complex128 if host.dtype.kind == "c" else np.float64))
        if order == math.inf:
            found = float(np.max(values))
            total = found if math.isnan(found) else max(total, found)
            if math.isnan(total):
                return total
        else:
            with np.errstate(all="ignore"):
                total += float(np.dot(values, values)) if order == 2 else float(np.sum(values**order))
    return total


def _real(pieces: Sequence[Tensor]) -> np.dtype[Any]:
    """The (real) dtype of the norm: of the pieces, as `nn.utils.clip_grad_norm_` has it."""
    kinds = {np.dtype(piece._array.real.dtype) for piece in pieces if piece._rg}
    return max(kinds, key=lambda kind: kind.itemsize, default=np.dtype(np.float32))
