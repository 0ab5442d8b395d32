"""Rprop and Lion, which use the gradient's sign only, and ASGD, which averages the parameters."""

from __future__ import annotations

from resilin.core.tensor import Tensor
from resilin.errors import UsageError
from resilin.optim.elementwise import Constants, Counters, Elementwise
from resilin.optim.optimizer import Group, Params


class Rprop(Elementwise):
    """Resilient backpropagation (Riedmiller and Braun, 1993), for gradients of the whole data set.

    etas:        factors of an element's step size when its gradient turned, and when it kept its sign.
    step_sizes:  smallest and largest step size; the first one is lr.
    maximize:    follow the gradient upwards. foreach: accepted, every step is one native call.
    capturable, differentiable: refused.

    State per parameter, as in PyTorch: `step` (0-dim float32), `prev`, `step_size`.
    """

    _rule = "rprop"

    def __init__(
        self,
        params: Params,
        lr: float | Tensor = 1e-2,
        etas: tuple[float, float] = (0.5, 1.2),
        step_sizes: tuple[float, float] = (1e-6, 50),
        *,
        capturable: bool = False,
        foreach: bool | None = None,
        maximize: bool = False,
        differentiable: bool = False,
    ) -> None:
        defaults = {
            "lr": lr,
            "etas": etas,
            "step_sizes": step_sizes,
            "foreach": foreach,
            "maximize": maximize,
            "differentiable": differentiable,
            "capturable": capturable,
        }
        super().__init__(params, defaults)

    def _check_group(self, group: Group) -> None:
        self._check_not_negative(group, "lr")
        self._check_several(group, "step_sizes", "two numbers", 2)
        self._check_several(group, "etas", "two numbers", 2)
        if not 0 < group["etas"][0] < 1 < group["etas"][1]:
            raise UsageError(f"Rprop: etas must be below 1 (and above 0) and above 1, got {group['etas']}")

    def _states(self, group: Group) -> tuple[str | None, ...]:
        return ("prev", "step_size")

    def _first_state(self, group: Group, name: str) -> float:
        return float(group["lr"]) if name == "step_size" else 0.0

    def _advance(self, group: Group, counters: Counters) -> tuple[Counters, Constants]:
        sign = -1.0 if group["maximize"] else 1.0
        return (counters[0] + 1,), (sign, *map(float, group["etas"]), *map(float, group["step_sizes"]))


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


class Lion(Elementwise):
    """Lion (Chen et al., 2023): a step of size lr along the sign of a mix of momentum and gradient.

    betas:         share of the momentum in the mix, and the momentum's own decay.
    weight_decay:  decoupled: p *= 1 - lr * weight_decay before each step.
    maximize:      follow the gradient upwards. foreach: accepted, every step is one native call.

    PyTorch has no Lion: names and defaults are the paper's. State per parameter: `step` (0-dim float32), `exp_avg`.
    """

    _rule = "lion"

    def __init__(
        self,
        params: Params,
        lr: float | Tensor = 1e-4,
        betas: tuple[float, float] = (0.9, 0.99),
        weight_decay: float = 0,
        *,
        foreach: bool | None = None,
        maximize: bool = False,
    ) -> None:
        defaults = {
            "lr": lr,
            "betas": betas,
            "weight_decay": weight_decay,
            "foreach": foreach,
            "maximize": maximize,
        }
        super().__init__(params, defaults)

    def _check_group(self, group: Group) -> None:
        self._check_not_negative(group, "lr", "weight_decay")
        self._check_betas(group)

    def _states(self, group: Group) -> tuple[str | None, ...]:
        return ("exp_avg",)

    def _advance(self, group: Group, counters: Counters) -> tuple[Counters, Constants]:
        lr, (beta1, beta2) = float(group["lr"]), group["betas"]
        sign = -1.0 if group["maximize"] else 1.0
        return (counters[0] + 1,), (sign, 1 - lr * group["weight_decay"], 1 - beta1, 1 - beta2, lr)
