"""Lion: steps along the sign of a mix of momentum and gradient."""

from __future__ import annotations

from resilin.core.tensor import Tensor
from resilin.optim.elementwise import Constants, Counters, Elementwise
from resilin.optim.optimizer import Group, Params


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
