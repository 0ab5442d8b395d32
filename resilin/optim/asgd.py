"""ASGD: stochastic gradient descent with an average of the parameters."""

from __future__ import annotations

from resilin.core.tensor import Tensor
from resilin.optim.elementwise import Constants, Counters, Elementwise
from resilin.optim.optimizer import Group, Params


class ASGD(Elementwise):
    """Averaged stochastic gradient descent (Polyak and Juditsky, 1992), with PyTorch's formulas.

    lambd:         decay of the parameters. alpha: power of the rate's decay, lr / (1 + lambd * lr * t) ** alpha.
    t0:            step from which on the parameters are averaged; before, the average follows them.
    weight_decay:  an L2 penalty added to the gradient.
    maximize:      follow the gradient upwards. foreach: accepted, every step is one native call.
    capturable, differentiable: refused.

    State per parameter, as in PyTorch: `step`, `eta` (the next rate), `mu` (the next share; all 0-dim float32), and
    `ax`, the average.
    """

    _rule = "asgd"
    _counters = ("step", "eta", "mu")

    def __init__(
        self,
        params: Params,
        lr: float | Tensor = 1e-2,
        lambd: float = 1e-4,
        alpha: float = 0.75,
        t0: float = 1e6,
        weight_decay: float = 0,
        foreach: bool | None = None,
        maximize: bool = False,
        differentiable: bool = False,
        capturable: bool = False,
    ) -> None:
        defaults = {
            "lr": lr,
            "lambd": lambd,
            "alpha": alpha,
            "t0": t0,
            "weight_decay": weight_decay,
            "foreach": foreach,
            "maximize": maximize,
            "differentiable": differentiable,
            "capturable": capturable,
        }
        super().__init__(params, defaults)

    def _check_group(self, group: Group) -> None:
        self._check_not_negative(group, "lr", "weight_decay")
        self._check_numbers(group, "lambd", "alpha", "t0")

    def _states(self, group: Group) -> tuple[str | None, ...]:
        return ("ax",)

    def _first_counter(self, group: Group, name: str) -> float:
        return {"step": 0.0, "eta": float(group["lr"]), "mu": 1.0}[name]

    def _advance(self, group: Group, counters: Counters) -> tuple[Counters, Constants]:
        step, eta, mu = counters[0] + 1, counters[1], counters[2]
        lr, lambd = float(group["lr"]), float(group["lambd"])
        after = (step, lr / (1 + lambd * lr * step) ** group["alpha"], 1 / max(1, step - group["t0"]))
        sign = -1.0 if group["maximize"] else 1.0
        return after, (sign, float(group["weight_decay"]), 1 - lambd * eta, eta, mu)
