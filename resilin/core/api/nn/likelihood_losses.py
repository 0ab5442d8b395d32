"""Losses that are negative log-likelihoods: of Poisson and normal distributions, and of several labels at once."""

from __future__ import annotations

import math
from typing import Any

from resilin.core.api.manipulation import indexing
from resilin.core.api.mathematics import reducing
from resilin.core.api.mathematics.half_precision import opened
from resilin.core.api.nn.activations import logsigmoid
from resilin.core.api.nn.loss_reduction import check_reduction, need_broadcast, old_reduction, reduced
from resilin.core.api.nn.neural import need_tensors
from resilin.core.autograd.grad_mode import no_grad
from resilin.core.ops import creation
from resilin.core.ops.errstate import quietly
from resilin.core.tensor import Tensor


def poisson_nll_loss(
    input: Tensor,
    target: Tensor,
    log_input: bool = True,
    full: bool = False,
    size_average: bool | None = None,
    eps: float = 1e-8,
    reduce: bool | None = None,
    reduction: str = "mean",
) -> Tensor:
    """exp(input) - target * input, or without log_input: input - target * log(input + eps); reduced.

    full: Stirling's approximation of log(target!) is added where target exceeds 1.
    """
    reduction = old_reduction(size_average, reduce, reduction)
    need_broadcast("poisson_nll_loss", input=input, target=target)
    input, target, narrow = opened(input, target)
    losses: Any = input.exp() - target * input if log_input else input - target * (input + eps).log()
    if full:
        many = target > 1
        safe = indexing.where(many, target, 1.0)
        stirling = safe * safe.log() - safe + 0.5 * (2 * math.pi * safe).log()
        losses = losses + indexing.where(many, stirling, 0.0)
    made: Tensor = narrow(reduced(losses, reduction))
    return made


@quietly
def gaussian_nll_loss(
    input: Tensor,
    target: Tensor,
    var: Tensor | float,
    full: bool = False,
    eps: float = 1e-6,
    reduction: str = "mean",
) -> Tensor:
    """0.5 * (log(var) + (input - target) ** 2 / var), reduced; var counts as at least `eps`, as a constant there.

    var: a number, of input's shape, or with the last dimension (or any one) missing or of length 1.
    full: 0.5 * log(2 pi) is added.
    """
    need_broadcast("gaussian_nll_loss", input=input, target=target)
    spread = creation.full_like(input, var) if isinstance(var, int | float) else var
    need_tensors("gaussian_nll_loss", var=spread)
    if (spread._array < 0).any():
        raise ValueError(f"gaussian_nll_loss: var has negative entry/entries, the least is {spread._array.min()}")
    x, v = input._array.shape, spread._array.shape
    if v != x:
        if x[:-1] == v:
            spread = spread.unsqueeze(-1)
        elif len(x) != len(v) or sum(b for a, b in zip(x, v, strict=True) if a != b) != 1:
            raise ValueError(f"gaussian_nll_loss: var is of incorrect size {v} for input {x}")
    check_reduction(reduction)
    input, target, spread, narrow = opened(input, target, spread)
    with no_grad():
        lift = spread.clamp(min=eps) - spread  # added as a constant, so that var has a gradient below eps, too
    spread = spread + lift
    losses: Any = 0.5 * (spread.log() + (input - target).square() / spread)
    made: Tensor = narrow(reduced(losses + 0.5 * math.log(2 * math.pi) if full else losses, reduction))
    return made


def multilabel_soft_margin_loss(
    input: Tensor,
    target: Tensor,
    weight: Tensor | None = None,
    size_average: bool | None = None,
    reduce: bool | None = None,
    reduction: str = "mean",
) -> Tensor:
    """The mean over classes of the binary cross entropy of sigmoid(input) with target, times weight; (N, C) or (C,)."""
    reduction = old_reduction(size_average, reduce, reduction)
    need_broadcast("multilabel_soft_margin_loss", input=input, target=target)
    input, target, weight, narrow = opened(input, target, weight)
    losses: Any = -(target * logsigmoid(input) + (1 - target) * logsigmoid(-input))
    if weight is not None:
        losses = losses * weight
    made: Tensor = narrow(reduced(reducing.mean(losses, -1), reduction))
    return made
