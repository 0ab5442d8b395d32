"""One optimizer step over many parameters in one call. In place; formulas and order of operations as in PyTorch."""

from __future__ import annotations

import math
from collections.abc import Sequence

from resilin.core.kernels.common import Array
from resilin.core.kernels.loader import kernel
from resilin.core.kernels.optimizer_rules import dispatch

Arrays = Sequence[Array]

_native_sgd = kernel("sgd")
_native_adam = kernel("adam")


def sgd(
    params: Arrays,
    grads: Arrays,
    bufs: Arrays | None,
    *,
    lr: float,
    momentum: float,
    dampening: float,
    weight_decay: float,
    nesterov: bool,
    maximize: bool,
    first: bool,
) -> None:
    """Stochastic gradient descent. `bufs` hold the momentum; `first` sets them to the gradient."""
    bufs = bufs if momentum and bufs is not None else None
    rates = (lr, momentum, dampening, weight_decay, nesterov, maximize, first)
    sign = -1.0 if maximize else 1.0
    constants = (sign, weight_decay, momentum, 1 - dampening, lr, float(nesterov), float(first))
    dispatch("sgd", (params, grads, bufs), constants, lambda lists: bool(_native_sgd(*lists, *rates)))


def adam(
    params: Arrays,
    grads: Arrays,
    exp_avg: Arrays,
    exp_avg_sq: Arrays,
    max_exp_avg_sq: Arrays | None,
    *,
    step: int,
    lr: float,
    beta1: float,
    beta2: float,
    eps: float,
    weight_decay: float,
    decoupled: bool,
    maximize: bool,
) -> None:
    """Adam; AdamW when `decoupled`; AMSGrad when `max_exp_avg_sq` is given. `step` counts from 1."""
    rates = (step, lr, beta1, beta2, eps, weight_decay, decoupled, maximize)
    constants = (
        -1.0 if maximize else 1.0,
        0.0 if decoupled else weight_decay,
        1 - lr * weight_decay if decoupled else 1.0,
        1 - beta1,
        beta2,
        1 - beta2,
        math.sqrt(1 - beta2**step),
        eps,
        lr / (1 - beta1**step),
    )
    lists = (params, grads, exp_avg, exp_avg_sq, max_exp_avg_sq)
    dispatch("adam", lists, constants, lambda lists: bool(_native_adam(*lists, *rates)))
