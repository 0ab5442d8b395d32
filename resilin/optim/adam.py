"""Adam: running means of gradients and of their squares."""

from __future__ import annotations

from typing import Any

import numpy as np

from resilin.core.kernels import optimizers as kernels
from resilin.core.tensor import Tensor, wrap
from resilin.optim import lists
from resilin.optim.elementwise import parts
from resilin.optim.optimizer import Group, Optimizer, Params, fitting


class Adam(Optimizer):
    """Adam (Kingma and Ba, 2015), with PyTorch's formulas.

    betas:         decay of the running mean of gradients and of their squares.
    eps:           added to the root of the second mean.
    weight_decay:  an L2 penalty added to the gradient, or with decoupled_weight_decay AdamW's.
    amsgrad:       divide by the largest second mean so far (Reddi et al., 2018).
    maximize:      follow the gradient upwards. foreach and fused are accepted: every step is one native call;
    capturable and differentiable are refused.

    A complex parameter is treated as its real and imaginary parts.
    State per parameter, as in PyTorch: `step` (0-dim float32), `exp_avg`, `exp_avg_sq`, `max_exp_avg_sq` (amsgrad).
    """

    _counters = ("step",)
    _complex = False  # whether any parameter is

    def __init__(
        self,
        params: Params,
        lr: float | Tensor = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0,
        amsgrad: bool = False,
        *,
        foreach: bool | None = None,
        maximize: bool = False,
        capturable: bool = False,
        differentiable: bool = False,
        fused: bool | None = None,
        decoupled_weight_decay: bool = False,
    ) -> None:
        defaults = {
            "lr": lr,
            "betas": betas,
            "eps": eps,
            "weight_decay": weight_decay,
            "amsgrad": amsgrad,
            "maximize": maximize,
            "foreach": foreach,
            "capturable": capturable,
            "differentiable": differentiable,
            "fused": fused,
            "decoupled_weight_decay": decoupled_weight_decay,
        }
        super().__init__(params, defaults)

    def _check_group(self, group: Group) -> None:
        self._check_not_negative(group, "lr", "eps", "weight_decay")
        self._check_betas(group)
        if any(p.is_complex() for p in group["params"]):
            self._complex = True

    def _update(self, group: Group) -> None:
        names = self._moments(group)
        found = lists.usual(group["params"], self.state, ("step",), names)
        if found is not None:
            parameters, entries, (step,), arrays = found
            self._apply(group, int(step) + 1, parameters, entries, arrays)
            return
        # nearly always one step: only parameters that had no gradient at times are behind
        by_step: dict[int, tuple[list[Any], list[Any]]] = {}
        for p in group["params"]:
            if p._grad is None:
                continue
            state = self.state[p]
            if not state:
                self._start(p, state, group)
            if not isinstance(state["step"], Tensor):  # of a program that fills the state itself
                state["step"] = Tensor._wrap(np.array(state["step"], np.float32))
            step = int(state["step"]._array.item()) + 1
            of_step = by_step.get(step)
            if of_step is None:
                of_step = by_step[step] = ([], [])
            of_step[0].append(p)
            of_step[1].append(state)
        for step, (parameters, states) in by_step.items():
            self._apply(group, step, parameters, states, lists.arrays(parameters, states, names))

    def _moments(self, group: Group) -> tuple[str, ...]:
        return ("exp_avg", "exp_avg_sq", "max_exp_avg_sq")[: 3 if group["amsgrad"] else 2]

    def _start(self, p: Tensor, state: dict[str, Any], group: Group) -> None:
        state["step"] = Tensor._wrap(np.zeros((), np.float32))
        for name in self._moments(group):
            state[name] = wrap(p._dev.xp.zeros_like(p._array), p._dev)

    def _apply(
        self, group: Group, step: int, parameters: list[Any], states: list[dict[str, Any]], arrays: list[list[Any]]
    ) -> None:
        beta1, beta2 = group["betas"]
        given = [[part for array in each for part in parts(array)] for each in arrays] if self._complex else arrays
        with fitting(type(self).__name__, parameters, ("grad", *self._moments(group)), arrays[1:]):
            kernels.adam(
                given[0],
                given[1],
                given[2],
                given[3],
                given[4] if group["amsgrad"] else None,
                step=step,
                lr=float(group["lr"]),
                beta1=float(beta1),
                beta2=float(beta2),
                eps=float(group["eps"]),
                weight_decay=float(group["weight_decay"]),
                decoupled=group.get("decoupled_weight_decay", False),
                maximize=group["maximize"],
            )
        lists.advance(parameters, states, ("step",), (step,))
