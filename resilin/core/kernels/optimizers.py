"""One optimizer step over many parameters in one call. In place; formulas and order of operations as in PyTorch."""

from __future__ import annotations

import math
from collections.abc import Sequence

from resilin.core.kernels.common import Array
from resilin.core.kernels.loader import kernel
from resilin.core.kernels.optimizer_rules import Constants, dispatch

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
    lists = (params, grads, bufs)
    dispatch("sgd", lists, lambda: sgd_constants(*rates), lambda lists: bool(_native_sgd(*lists, *rates)))


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
    lists = (params, grads, exp_avg, exp_avg_sq, max_exp_avg_sq)
    dispatch("adam", lists, lambda: adam_constants(*rates), lambda lists: bool(_native_adam(*lists, *rates)))


def sgd_constants(
    lr: float, momentum: float, dampening: float, weight_decay: float, nesterov: bool, maximize: bool, first: bool
) -> Constants:
    """What `optimizer_rules.sgd` takes after the arrays, in float64."""
    sign = -1.0 if maximize else 1.0
    return (sign, weight_decay, momentum, 1 - dampening, lr, float(nesterov), float(first))


def adam_constants(
    step: int,
    lr: float,
    beta1: float,
    beta2: float,
    eps: float,
    weight_decay: float,
    decoupled: bool,
    maximize: bool,
) -> Constants:
    """What `optimizer_rules.adam` takes after the arrays, in float64."""
    return (
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
