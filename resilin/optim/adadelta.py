"""Adadelta: moves in units of the moves before."""

from __future__ import annotations

from resilin.core.tensor import Tensor
from resilin.errors import UsageError
from resilin.optim.elementwise import Constants, Counters, Elementwise
from resilin.optim.optimizer import Group, Params


class Adadelta(Elementwise):
    """Adadelta (Zeiler, 2012), with PyTorch's formulas.

    rho:           decay of the running means of squared gradients and of squared moves. eps: added under both roots.
    weight_decay:  an L2 penalty added to the gradient.
    maximize:      follow the gradient upwards. foreach: accepted, every step is one native call.
    capturable, differentiable: refused.

    State per parameter, as in PyTorch: `step` (0-dim float32), `square_avg`, `acc_delta`.
    """

    _rule = "adadelta"

    def __init__(
        self,
        params: Params,
        lr: float | Tensor = 1.0,
        rho: float = 0.9,
        eps: float = 1e-6,
        weight_decay: float = 0,
        foreach: bool | None = None,
        *,
        capturable: bool = False,
        maximize: bool = False,
        differentiable: bool = False,
    ) -> None:
        defaults = {
            "lr": lr,
            "rho": rho,
            "eps": eps,
            "weight_decay": weight_decay,
            "maximize": maximize,
            "capturable": capturable,
            "foreach": foreach,
            "differentiable": differentiable,
        }
        super().__init__(params, defaults)

    def _check_group(self, group: Group) -> None:
        self._check_not_negative(group, "lr", "eps", "weight_decay", "rho")
        if not 0 <= group["rho"] <= 1:
            raise UsageError(f"Adadelta: rho must be between 0 and 1, got {group['rho']}")

    def _states(self, group: Group) -> tuple[str | None, ...]:
        return ("square_avg", "acc_delta")

    def _advance(self, group: Group, counters: Counters) -> tuple[Counters, Constants]:
        rho, sign = float(group["rho"]), -1.0 if group["maximize"] else 1.0
        constants = (sign, float(group["weight_decay"]), rho, 1 - rho, float(group["eps"]), float(group["lr"]))
        return (counters[0] + 1,), constants
