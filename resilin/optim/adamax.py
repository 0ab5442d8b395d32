"""Adamax: Adam with the decayed largest gradient in place of the second mean."""

from __future__ import annotations

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
