"""RMSprop: rates divided by the root of the running mean of squared gradients."""

from __future__ import annotations

from resilin.core.tensor import Tensor
from resilin.optim.elementwise import Constants, Counters, Elementwise
from resilin.optim.optimizer import Group, Params


class RMSprop(Elementwise):
    """RMSprop (Tieleman and Hinton, 2012), with PyTorch's formulas.

    alpha:         decay of the running mean of squares. eps: added to its root.
    weight_decay:  an L2 penalty added to the gradient.
    momentum:      sum up the moves with this factor.
    centered:      subtract the square of the running mean (Graves, 2013).
    maximize:      follow the gradient upwards. foreach: accepted, every step is one native call.
    capturable, differentiable: refused.

    State per parameter, as in PyTorch: `step` (0-dim float32), `square_avg`, `momentum_buffer`, `grad_avg`.
    """

    _rule = "rmsprop"

    def __init__(
        self,
        params: Params,
        lr: float | Tensor = 1e-2,
        alpha: float = 0.99,
        eps: float = 1e-8,
        weight_decay: float = 0,
        momentum: float = 0,
        centered: bool = False,
        capturable: bool = False,
        foreach: bool | None = None,
        maximize: bool = False,
        differentiable: bool = False,
    ) -> None:
        defaults = {
            "lr": lr,
            "momentum": momentum,
            "alpha": alpha,
            "eps": eps,
            "centered": centered,
            "weight_decay": weight_decay,
            "capturable": capturable,
            "foreach": foreach,
            "maximize": maximize,
            "differentiable": differentiable,
        }
        super().__init__(params, defaults)

    def _check_group(self, group: Group) -> None:
        self._check_not_negative(group, "lr", "alpha", "eps", "weight_decay", "momentum")

    def _states(self, group: Group) -> tuple[str | None, ...]:
        mean = "grad_avg" if group["centered"] else None
        return ("square_avg", mean, "momentum_buffer" if group["momentum"] > 0 else None)

    def _advance(self, group: Group, counters: Counters) -> tuple[Counters, Constants]:
        alpha, sign = float(group["alpha"]), -1.0 if group["maximize"] else 1.0
        rates = (float(group["eps"]), float(group["momentum"]), float(group["lr"]))
        return (counters[0] + 1,), (sign, float(group["weight_decay"]), alpha, 1 - alpha, *rates)
