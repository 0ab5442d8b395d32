"""One optimizer step over many parameters in one call. In place; formulas and order of operations as in PyTorch."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from resilin.core.kernels.common import Array, array_namespace
from resilin.core.kernels.loader import kernel
from resilin.core.kernels.optimizer_rules import Lists, dispatch, widened

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
    dispatch(
        (params, grads, bufs),
        lambda lists: bool(_native_sgd(*lists, *rates)),
        lambda lists: _one_by_one(reference_sgd, lists, rates),
    )


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
    dispatch(
        (params, grads, exp_avg, exp_avg_sq, max_exp_avg_sq),
        lambda lists: bool(_native_adam(*lists, *rates)),
        lambda lists: _one_by_one(reference_adam, lists, rates),
    )


def _one_by_one(reference: Callable[..., None], lists: Lists, rates: tuple[Any, ...]) -> None:
    for number, parameter in enumerate(lists[0] or ()):
        states = [None if each is None else each[number] for each in lists[1:]]
        if parameter.dtype.itemsize == 2:
            widened(reference, parameter, states, rates)
        else:
            reference(parameter, *states, *rates)


def reference_sgd(
    p: Array,
    g: Array,
    buf: Array | None,
    lr: float,
    momentum: float,
    dampening: float,
    weight_decay: float,
    nesterov: bool,
    maximize: bool,
    first: bool,
) -> None:
    """numpy form of `sgd` for one parameter, also for a device's arrays."""
    d = -g if maximize else g
    if weight_decay:
        d = d + p * p.dtype.type(weight_decay)
    if buf is not None:
        if first:
            buf[...] = d
        else:
            buf *= buf.dtype.type(momentum)
            buf += d * buf.dtype.type(1 - dampening)
        d = d + buf * buf.dtype.type(momentum) if nesterov else buf
    p -= (d * p.dtype.type(lr)).astype(p.dtype, copy=False)


def reference_adam(
    p: Array,
    g: Array,
    m: Array,
    v: Array,
    top: Array | None,
    step: int,
    lr: float,
    beta1: float,
    beta2: float,
    eps: float,
    weight_decay: float,
    decoupled: bool,
    maximize: bool,
) -> None:
    """numpy form of `adam` for one parameter, also for a device's arrays."""
    t, xp = p.dtype.type, array_namespace(p)
    d = -g if maximize else g
    if weight_decay and decoupled:
        p *= t(1 - lr * weight_decay)
    elif weight_decay:
        d = d + p * t(weight_decay)
    m += (d - m) * t(1 - beta1)
    v *= t(beta2)
    v += d * t(1 - beta2) * d  # in this order large gradients do not overflow
    if top is not None:
        xp.maximum(top, v, out=top)
    denom = xp.sqrt(v if top is None else top) / t(math.sqrt(1 - beta2**step)) + t(eps)
    p -= m / denom * t(lr / (1 - beta1**step))
