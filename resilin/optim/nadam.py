"""NAdam: Adam with Nesterov's momentum."""

from __future__ import annotations

import numpy as np

from resilin.core.tensor import Tensor
from resilin.optim.elementwise import Constants, Counters, Elementwise, gradient_and_means
from resilin.optim.optimizer import Group, Params


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
            *gradient_and_means(group),
            1 / (1 - beta2**step),
            float(group["eps"]),
            lr * (1 - momentum_now) / (1 - product),
            lr * momentum_next / (1 - product * momentum_next),
        )
        return (step, product), constants
