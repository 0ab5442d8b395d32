"""Adafactor: of a matrix's second mean, only its row and column means are kept."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from resilin.core import dtype as dtypes
from resilin.core.kernels.common import Array, array_namespace, has_elements
from resilin.core.tensor import Tensor, wrap
from resilin.errors import UsageError
from resilin.optim import state_checks
from resilin.optim.numpy_updates import in_float32, refuse_complex
from resilin.optim.optimizer import Group, Optimizer, Params, fitting


class Adafactor(Optimizer):
    """Adafactor (Shazeer and Stern, 2018), with PyTorch's formulas: of a matrix, only row and column means are kept.

    lr:            upper bound of the relative step, min(lr, 1 / sqrt(t)).
    beta2_decay:   the share of the new squares at step t is t ** beta2_decay.
    eps:           lower bound of the root of the second mean (None: that of the dtype), and of a parameter's size.
    d:             updates whose root mean square is above it are scaled down to it.
    weight_decay:  decoupled: p *= 1 - lr * weight_decay before each step.
    maximize:      follow the gradient upwards. foreach: accepted, it changes nothing.

    State per parameter, as in PyTorch: `step` (0-dim float32); `row_var`, `col_var` from two dimensions on (of the last
    two), else `variance`.
    """

    _counters = ("step",)

    def __init__(
        self,
        params: Params,
        lr: float | Tensor = 1e-2,
        beta2_decay: float = -0.8,
        eps: tuple[float | None, float] = (None, 1e-3),
        d: float = 1.0,
        weight_decay: float = 0.0,
        *,
        foreach: bool | None = None,
        maximize: bool = False,
    ) -> None:
        defaults = {
            "lr": lr,
            "beta2_decay": beta2_decay,
            "eps": eps,
            "d": d,
            "weight_decay": weight_decay,
            "foreach": foreach,
            "maximize": maximize,
        }
        super().__init__(params, defaults)

    def _check_group(self, group: Group) -> None:
        self._check_not_negative(group, "lr", "weight_decay")
        self._check_numbers(group, "beta2_decay", "d")
        if not group["beta2_decay"] <= 0:
            raise UsageError(f"Adafactor: beta2_decay must not be above 0, got {group['beta2_decay']}")
        if isinstance(group["eps"], list | tuple) and group["eps"][:1] in ([None], (None,)):
            group = {**group, "eps": [0, *group["eps"][1:]]}
        self._check_several(group, "eps", "two numbers (the first may be None)", 2)
        if not all(eps >= 0 for eps in group["eps"]):
            raise UsageError(f"Adafactor: eps must not be negative, got {group['eps']}")
        if not group["d"] >= 1:
            raise UsageError(f"Adafactor: d must be at least 1, got {group['d']}")
        refuse_complex("Adafactor", group)

    def _moment_shapes(self, group: Group, param: Tensor) -> dict[str, tuple[int, ...] | None]:
        shape = state_checks.shape_of(param)
        if shape is None:
            return {}
        if len(shape) < 2:
            return {"variance": shape}
        return {"row_var": (*shape[:-1], 1), "col_var": (*shape[:-2], 1, shape[-1])}

    def _update(self, group: Group) -> None:
        for p in group["params"]:
            if p._grad is None or not p.numel():
                continue
            state, grad = self.state[p], p._grad._array
            with fitting("Adafactor", [p], ["grad"], [[grad]]):
                if not state:
                    state.update(_first_variances(p, grad))
                tiny = group["eps"][0]
                tiny = float(dtypes.finfo(p.dtype).eps) if tiny is None else tiny
                names = [name for name in ("variance", "row_var", "col_var") if name in state]
                arrays = [p._array, grad, *(state[name]._array for name in names)]
                with in_float32(arrays) as wide:
                    _adafactor(group, tiny, float(state["step"]._array) + 1, *wide)
                state["step"]._array += 1
            p._bump()


def _first_variances(p: Tensor, grad: Array) -> dict[str, Tensor]:
    def zeros(like: Array) -> Tensor:
        return wrap(p._dev.xp.zeros_like(like), p._dev)

    state = {"step": Tensor._wrap(np.zeros((), np.float32))}
    if grad.ndim < 2:
        return {**state, "variance": zeros(grad)}
    return {**state, "row_var": zeros(grad[..., :1]), "col_var": zeros(grad[..., :1, :])}


def _mean_square(x: Array, axis: int | None = None) -> Any:
    return (x * x).mean(axis=axis, keepdims=axis is not None)


def _adafactor(group: Group, tiny: float, step: float, p: Array, grad: Array, *variances: Array) -> None:
    """One step of one parameter, in place. `variances`: all, or those of rows and columns."""
    t, lr, xp = p.dtype.type, float(group["lr"]), array_namespace(p)
    if not has_elements(p):
        return
    grad, least = -grad if group["maximize"] else grad, group["eps"][1]
    rate = max(least, math.sqrt(_mean_square(p))) * min(lr, 1 / math.sqrt(step))
    if group["weight_decay"]:
        p *= t(1 - lr * group["weight_decay"])
    share = t(step ** group["beta2_decay"])
    if grad.ndim < 2:
        (variance,) = variances
        variance += (grad * grad - variance) * share
        estimate = variance
    else:
        row, column = variances
        row += (_mean_square(grad, -1) - row) * share
        column += (_mean_square(grad, -2) - column) * share
        estimate = row * column / xp.maximum(row.mean(axis=-2, keepdims=True), t(tiny))
    update = grad / xp.sqrt(xp.maximum(estimate, t(tiny * tiny)))
    too_large = max(1.0, math.sqrt(_mean_square(update)) / group["d"])
    p -= update * t(rate / too_large)
