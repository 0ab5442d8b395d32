"""Relatives of Adam: Adamax, NAdam and RAdam."""

from __future__ import annotations

import math

import numpy as np

from resilin.core.tensor import Tensor
from resilin.optim.elementwise import Constants, Counters, Elementwise
from resilin.optim.optimizer import Group, Params


class Adamax(Elementwise):
    """Adamax (Kingma and Ba, 2015): Adam with the decayed largest gradient in place of the second mean.

    betas:         decay of the running mean of gradients and of the largest one. eps: added to each gradient's size.
    weight_decay:  an L2 penalty added to the gradient.
    maximize:      follow the gradient upwards. foreach: accepted, every step is one native call.
    capturable, differentiable: refused.

    State per parameter, as in PyTorch: `step` (0-dim float32), `exp_avg`, `exp_inf`.
    """

    _rule = "adamax"

    def __init__(
        self,
        params: Params,
        lr: float | Tensor = 2e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0,
        foreach: bool | None = None,
        *,
        maximize: bool = False,
        differentiable: bool = False,
        capturable: bool = False,
    ) -> None:
        defaults = {
            "lr": lr,
            "betas": betas,
            "eps": eps,
            "weight_decay": weight_decay,
            "foreach": foreach,
            "maximize": maximize,
            "differentiable": differentiable,
            "capturable": capturable,
        }
        super().__init__(params, defaults)

    def _check_group(self, group: Group) -> None:
        self._check_not_negative(group, "lr", "eps", "weight_decay")
        self._check_betas(group)

    def _states(self, group: Group) -> tuple[str | None, ...]:
        return ("exp_avg", "exp_inf")

    def _advance(self, group: Group, counters: Counters) -> tuple[Counters, Constants]:
        step, (beta1, beta2) = counters[0] + 1, group["betas"]
        sign = -1.0 if group["maximize"] else 1.0
        rate = float(group["lr"]) / (1 - beta1**step)
        return (step,), (sign, float(group["weight_decay"]), 1 - beta1, beta2, float(group["eps"]), rate)


def _gradient_and_means(group: Group) -> Constants:
    """Sign, penalty, shrink factor, and the factors of the two running means, of NAdam and RAdam."""
    beta1, beta2 = group["betas"]
    decay, sign = float(group["weight_decay"]), -1.0 if group["maximize"] else 1.0
    if group["decoupled_weight_decay"]:
        return (sign, 0.0, 1 - float(group["lr"]) * decay, 1 - beta1, beta2, 1 - beta2)
    return (sign, decay, 1.0, 1 - beta1, beta2, 1 - beta2)


class NAdam(Elementwise):
    """NAdam (Dozat, 2016): Adam with Nesterov's momentum, whose strength follows a schedule.

    betas:           decay of the running mean of gradients and of their squares. eps: added to the second's root.
    weight_decay:    an L2 penalty added to the gradient, or with decoupled_weight_decay AdamW's.
    momentum_decay:  momentum of step t is beta1 * (1 - 0.5 * 0.96 ** (t * momentum_decay)).
    maximize:        follow the gradient upwards. foreach: accepted, every step is one native call.
    capturable, differentiable: refused.

    State per parameter, as in PyTorch: `step`, `mu_product` (0-dim float32), `exp_avg`, `exp_avg_sq`.
    """

    _rule = "nadam"
    _counters = ("step", "mu_product")

    def __init__(
        self,
        params: Params,
        lr: float | Tensor = 2e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0,
        momentum_decay: float = 4e-3,
        decoupled_weight_decay: bool = False,
        *,
        foreach: bool | None = None,
        maximize: bool = False,
        capturable: bool = False,
        differentiable: bool = False,
    ) -> None:
        defaults = {
            "lr": lr,
            "betas": betas,
            "eps": eps,
            "weight_decay": weight_decay,
            "momentum_decay": momentum_decay,
            "decoupled_weight_decay": decoupled_weight_decay,
            "maximize": maximize,
            "foreach": foreach,
            "capturable": capturable,
            "differentiable": differentiable,
        }
        super().__init__(params, defaults)

    def _check_group(self, group: Group) -> None:
        self._check_not_negative(group, "lr", "eps", "weight_decay", "momentum_decay")
        self._check_betas(group)

    def _states(self, group: Group) -> tuple[str | None, ...]:
        return ("exp_avg", "exp_avg_sq")

    def _first_counter(self, group: Group, name: str) -> float:
        return 1.0 if name == "mu_product" else 0.0

    def _advance(self, group: Group, counters: Counters) -> tuple[Counters, Constants]:
        step, (beta1, beta2) = counters[0] + 1, group["betas"]
        momentum_now, momentum_next = (
            beta1 * (1 - 0.5 * 0.96 ** (t * group["momentum_decay"])) for t in (step, step + 1)
        )
        product = float(np.float32(counters[1]) * np.float32(momentum_now))  # kept in float32, as PyTorch does
        lr = float(group["lr"])
        constants = (
            *_gradient_and_means(group),
            1 / (1 - beta2**step),
            float(group["eps"]),
            lr * (1 - momentum_now) / (1 - product),
            lr * momentum_next / (1 - product * momentum_next),
        )
        return (step, product), constants


class RAdam(Elementwise):
    """RAdam (Liu et al., 2020): Adam that moves like momentum until the second mean is known well enough.

    betas:         decay of the running mean of gradients and of their squares. eps: added to the second's root.
    weight_decay:  an L2 penalty added to the gradient, or with decoupled_weight_decay AdamW's.
    maximize:      follow the gradient upwards. foreach: accepted, every step is one native call.
    capturable, differentiable: refused.

    State per parameter, as in PyTorch: `step` (0-dim float32), `exp_avg`, `exp_avg_sq`.
    """

    _rule = "radam"

    def __init__(
        self,
        params: Params,
        lr: float | Tensor = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0,
        decoupled_weight_decay: bool = False,
        *,
        foreach: bool | None = None,
        maximize: bool = False,
        capturable: bool = False,
        differentiable: bool = False,
    ) -> None:
        defaults = {
            "lr": lr,
            "betas": betas,
            "eps": eps,
            "weight_decay": weight_decay,
            "maximize": maximize,
            "foreach": foreach,
            "capturable": capturable,
            "decoupled_weight_decay": decoupled_weight_decay,
            "differentiable": differentiable,
        }
        super().__init__(params, defaults)

    def _check_group(self, group: Group) -> None:
        self._check_not_negative(group, "lr", "eps", "weight_decay")
        self._check_betas(group)

    def _states(self, group: Group) -> tuple[str | None, ...]:
        return ("exp_avg", "exp_avg_sq")

    def _advance(self, group: Group, counters: Counters) -> tuple[Counters, Constants]:
        step, (beta1, beta2) = counters[0] + 1, group["betas"]
        rate = float(group["lr"]) / (1 - beta1**step)
        bias2 = 1 - beta2**step
        longest = 2 / (1 - beta2) - 1
        length = longest - 2 * step * beta2**step / bias2  # of the average that the second mean amounts to
        adaptive = length > 5
        if adaptive:
            share = (length - 4) * (length - 2) * longest / ((longest - 4) * (longest - 2) * length)
            rate *= math.sqrt(bias2 * share)
        return (step,), (*_gradient_and_means(group), float(group["eps"]), rate, float(adaptive))
