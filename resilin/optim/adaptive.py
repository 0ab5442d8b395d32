"""Optimizers that divide by running squares of the gradient: Adagrad, Adadelta and RMSprop."""

from __future__ import annotations

from resilin.core.tensor import Tensor
from resilin.errors import UsageError
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
        """Refused with NotImplementedError: processes do not see one another's writes to the state."""
        raise NotImplementedError(
            "Adagrad.share_memory is not supported: processes do not see one another's writes; "
            "use resilin.ddp for training with several processes"
        )

    def _states(self, group: Group) -> tuple[str | None, ...]:
        return ("sum",)

    def _first_state(self, group: Group, name: str) -> float:
        return float(group["initial_accumulator_value"])

    def _advance(self, group: Group, counters: Counters) -> tuple[Counters, Constants]:
        step = counters[0] + 1
        rate = float(group["lr"]) / (1 + (step - 1) * group["lr_decay"])
        sign = -1.0 if group["maximize"] else 1.0
        return (step,), (sign, float(group["weight_decay"]), rate, float(group["eps"]))


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
