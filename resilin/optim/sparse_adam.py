"""SparseAdam: Adam that leaves rows without gradient alone."""

from __future__ import annotations

import math

import numpy as np

from resilin.core.kernels import optimizers as kernels
from resilin.core.tensor import Tensor, wrap
from resilin.errors import UsageError
from resilin.optim.optimizer import Group, Optimizer, Params, fitting


class SparseAdam(Optimizer):
    """Adam for tables of which few rows are used in a step: the others and their means stay as they are.

    There are no sparse tensors: gradients are dense, and a row (along the first dimension) whose gradient is zero
    everywhere counts as one that PyTorch's sparse gradient would not hold. Rows with a gradient move as PyTorch moves
    them: lr * sqrt(1 - beta2 ** t) / (1 - beta1 ** t) * mean / (sqrt(mean of squares) + eps), t steps of the parameter.

    State per parameter, as in PyTorch: `step` (int), `exp_avg`, `exp_avg_sq`.
    """

    def __init__(
        self,
        params: Params,
        lr: float | Tensor = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        maximize: bool = False,
    ) -> None:
        defaults = {"lr": lr, "betas": betas, "eps": eps, "maximize": maximize}
        self._check_numbers(defaults, "lr")
        if not float(lr) > 0:  # in a group it may be 0: a schedule may end there
            raise UsageError(f"SparseAdam: lr must be above 0, got {lr}")
        super().__init__(params, defaults)

    def _check_group(self, group: Group) -> None:
        self._check_not_negative(group, "lr", "eps")
        if not float(group["eps"]) > 0:
            raise UsageError(f"SparseAdam: eps must be above 0, got {group['eps']}")
        self._check_betas(group)
        if any(p.is_complex() for p in group["params"]):
            raise UsageError("SparseAdam: complex parameters are not supported; use Adam")

    def _moments(self, group: Group) -> tuple[str, ...]:
        return ("exp_avg", "exp_avg_sq")

    def _update(self, group: Group) -> None:
        for p in group["params"]:
            if p._grad is None:
                continue
            state = self.state[p]
            if not state:
                state["step"] = 0
                for name in self._moments(group):
                    state[name] = wrap(p._dev.xp.zeros_like(p._array), p._dev)
            self._apply(group, p, state["step"] + 1)
            state["step"] += 1

    def _apply(self, group: Group, p: Tensor, step: int) -> None:
        state, grad = self.state[p], p._grad._array  # type: ignore[union-attr]
        beta1, beta2 = group["betas"]
        means = {name: state[name]._array for name in self._moments(group)}
        used = np.flatnonzero(np.atleast_1d(np.any(grad != 0, axis=tuple(range(1, grad.ndim)))))
        if not used.size:
            return
        whole = [np.atleast_1d(array) for array in (p._array, grad, *means.values())]
        with fitting("SparseAdam", [p], ["grad", *means], [[grad], *([array] for array in means.values())]):
            rows = [array[used] for array in whole]
            kernels.adam(
                [rows[0]],
                [rows[1]],
                [rows[2]],
                [rows[3]],
                None,
                step=step,
                lr=float(group["lr"]),
                beta1=float(beta1),
                beta2=float(beta2),
                # Adam adds eps to the root after its correction, SparseAdam before
                eps=float(group["eps"]) / math.sqrt(1 - beta2**step),
                weight_decay=0.0,
                decoupled=False,
                maximize=group["maximize"],
            )
        for array, changed in zip((whole[0], whole[2], whole[3]), (rows[0], rows[2], rows[3]), strict=True):
            array[used] = changed
        p._bump()
