"""RAdam: Adam that moves like momentum until the second mean is known well enough."""

from __future__ import annotations

import math

from resilin.core.tensor import Tensor
from resilin.optim.elementwise import Constants, Counters, Elementwise, gradient_and_means
from resilin.optim.optimizer import Group, Params


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
        return (step,), (*gradient_and_means(group), float(group["eps"]), rate, float(adaptive))
