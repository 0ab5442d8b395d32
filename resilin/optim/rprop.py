"""Rprop: a step size for each element, by the gradient's sign only."""

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
