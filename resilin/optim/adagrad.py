"""Adagrad: rates divided by the root of the sum of squared gradients."""

from __future__ import annotations

from resilin.core.state import sharing
from resilin.core.tensor import Tensor
from resilin.optim.elementwise import Constants, Counters, Elementwise
from resilin.optim.optimizer import Group, Params


class Adagrad(Elementwise):
    """Adagrad (Duchi, Hazan and Singer, 2011), with PyTorch's formulas.

    lr_decay:                   the rate of step t is lr / (1 + (t - 1) * lr_decay).
    weight_decay:               an L2 penalty added to the gradient.
    initial_accumulator_value:  what the sum of squares starts with. eps: added to its root.
    maximize:                   follow the gradient upwards. foreach, fused: accepted, every step is one native call.
    differentiable:             refused.

    State per parameter, made with the optimizer as in PyTorch: `step` (0-dim float32), `sum`.
    """

    _rule = "adagrad"

    def __init__(
        self,
        params: Params,
        lr: float | Tensor = 1e-2,
        lr_decay: float = 0,
        weight_decay: float = 0,
        initial_accumulator_value: float = 0,
        eps: float = 1e-10,
        foreach: bool | None = None,
        *,
        maximize: bool = False,
        differentiable: bool = False,
        fused: bool | None = None,
    ) -> None:
        defaults = {
            "lr": lr,
            "lr_decay": lr_decay,
            "eps": eps,
            "weight_decay": weight_decay,
            "initial_accumulator_value": initial_accumulator_value,
            "foreach": foreach,
            "maximize": maximize,
            "differentiable": differentiable,
            "fused": fused,
        }
        super().__init__(params, defaults)

    def _check_group(self, group: Group) -> None:
        self._check_not_negative(group, "lr", "lr_decay", "weight_decay", "initial_accumulator_value", "eps")

    def add_param_group(self, param_group: Group) -> None:
        """See Optimizer. The state of the group's parameters is made at once."""
        super().add_param_group(param_group)
        for p in self.param_groups[-1]["params"]:
            self._start(p, self.param_groups[-1])

    def share_memory(self) -> None:
        """Move the state to memory that other processes can read and write."""
        sharing.share(value for state in self.state.values() for value in state.values() if isinstance(value, Tensor))

    def _states(self, group: Group) -> tuple[str | None, ...]:
        return ("sum",)

    def _first_state(self, group: Group, name: str) -> float:
        return float(group["initial_accumulator_value"])

    def _advance(self, group: Group, counters: Counters) -> tuple[Counters, Constants]:
        step = counters[0] + 1
        rate = float(group["lr"]) / (1 + (step - 1) * group["lr_decay"])
        sign = -1.0 if group["maximize"] else 1.0
        return (step,), (sign, float(group["weight_decay"]), rate, float(group["eps"]))
