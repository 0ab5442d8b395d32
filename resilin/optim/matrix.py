"""Optimizers that see a parameter as a matrix: Adafactor (factors of the second mean) and Muon (orthogonal steps)."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from resilin.core import dtype as dtypes
from resilin.core import pieces
from resilin.core.kernels.common import Array, array_namespace
from resilin.core.ops.guarding import is_half, put_rounded, widened
from resilin.core.plain import whole
from resilin.core.tensor import Tensor, wrap
from resilin.errors import UsageError
from resilin.optim import kinds
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
        _refuse_complex("Adafactor", group)

    def _moment_shapes(self, group: Group, param: Tensor) -> dict[str, tuple[int, ...] | None]:
        shape = kinds.shape_of(param)
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
            with fitting("Adafactor", [p], grad=[grad]):
                if not state:
                    state.update(_first_variances(p, grad))
                tiny = group["eps"][0]
                tiny = float(dtypes.finfo(p.dtype).eps) if tiny is None else tiny
                names = [name for name in ("variance", "row_var", "col_var") if name in state]
                arrays = [p._array, grad, *(state[name]._array for name in names)]
                with _in_float32(arrays) as wide:
                    _adafactor(group, tiny, float(state["step"]._array) + 1, *wide)
                state["step"]._array += 1
            p._bump()


@contextlib.contextmanager
def _in_float32(arrays: Sequence[Array]) -> Iterator[Sequence[Array]]:
    """`arrays` (a parameter, its gradient, its states) to be written; 16-bit ones as float32, rounded at the end."""
    if not any(map(is_half, arrays)):
        yield arrays
        return
    wide = list(map(widened, arrays))
    yield wide
    for place, (array, result) in enumerate(zip(arrays, wide, strict=True)):
        if place != 1 and array is not result:
            put_rounded(array, result)


def _refuse_complex(where: str, group: Group) -> None:
    if any(p.is_complex() for p in group["params"]):
        raise NotImplementedError(f"{where}: complex parameters are not supported; real ones are")


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


class Muon(Optimizer):
    """Muon (Jordan, 2024): momentum, made nearly orthogonal by Newton-Schulz steps in bfloat16. Matrices only.

    weight_decay:     decoupled: p *= 1 - lr * weight_decay before each step.
    momentum:         decay of the running mean of gradients. nesterov: look ahead along it.
    ns_coefficients:  of the quintic polynomial; ns_steps: how often it is applied (below 100). eps: least norm.
    adjust_lr_fn:     "original" (or None): lr * sqrt(max(1, rows / columns)); "match_rms_adamw": lr * 0.2 *
                      sqrt(max(rows, columns)), so that rates of AdamW fit.

    Other parameters (biases, embeddings) go to another optimizer, AdamW say. State per parameter: `momentum_buffer`.
    """

    def __init__(
        self,
        params: Params,
        lr: float | Tensor = 1e-3,
        weight_decay: float = 0.1,
        momentum: float = 0.95,
        nesterov: bool = True,
        ns_coefficients: tuple[float, float, float] = (3.4445, -4.775, 2.0315),
        eps: float = 1e-7,
        ns_steps: int = 5,
        adjust_lr_fn: str | None = None,
    ) -> None:
        defaults = {
            "lr": lr,
            "weight_decay": weight_decay,
            "momentum": momentum,
            "nesterov": nesterov,
            "ns_coefficients": ns_coefficients,
            "eps": eps,
            "ns_steps": ns_steps,
            "adjust_lr_fn": adjust_lr_fn,
        }
        super().__init__(params, defaults)

    def _check_group(self, group: Group) -> None:
        self._check_not_negative(group, "lr", "weight_decay", "momentum")
        if group["adjust_lr_fn"] not in (None, "original", "match_rms_adamw"):
            known = "'original', 'match_rms_adamw' or None"
            raise UsageError(f"Muon: adjust_lr_fn must be {known}, got {group['adjust_lr_fn']!r}")
        self._check_several(group, "ns_coefficients", "three numbers", 3)
        self._check_numbers(group, "eps")
        if whole("Muon: ns_steps", group["ns_steps"]) >= 100:
            raise UsageError(f"Muon: ns_steps must be below 100, got {group['ns_steps']}")
        names = group.get("param_names") or range(len(group["params"]))
        why = "and its update needs the whole matrix; train with ZeroRedundancyOptimizer, which keeps tensors whole"
        pieces.refuse("Muon", zip(names, group["params"], strict=True), why)
        for number, p in enumerate(group["params"]):
            if p.ndim != 2:
                raise UsageError(
                    f"Muon: parameters must have 2 dimensions, parameter {number} has shape {list(p.shape)}; "
                    "give the others to AdamW"
                )
        _refuse_complex("Muon", group)

    def _moments(self, group: Group) -> tuple[str, ...]:
        return ("momentum_buffer",)

    def _update(self, group: Group) -> None:
        for p in group["params"]:
            if p._grad is None:
                continue
            state, grad = self.state[p], p._grad._array
            if "momentum_buffer" not in state:
                state["momentum_buffer"] = wrap(p._dev.xp.zeros_like(grad), p._dev)
            buffer = state["momentum_buffer"]._array
            with (
                fitting("Muon", [p], grad=[grad], momentum_buffer=[buffer]),
                _in_float32([p._array, grad, buffer]) as wide,
            ):
                _muon(group, *wide)
            p._bump()


def _muon(group: Group, p: Array, grad: Array, buffer: Array) -> None:
    """One step of one parameter, in place."""
    t, lr, momentum = p.dtype.type, float(group["lr"]), group["momentum"]
    buffer += (grad - buffer) * t(1 - momentum)
    update = grad + (buffer - grad) * t(momentum) if group["nesterov"] else buffer
    update = _orthogonal(update, group["ns_coefficients"], group["ns_steps"], group["eps"])
    rows, columns = p.shape
    if group["adjust_lr_fn"] == "match_rms_adamw":
        rate = lr * 0.2 * math.sqrt(max(rows, columns))
    else:
        rate = lr * math.sqrt(max(1, rows / max(1, columns)))
    p *= t(1 - lr * group["weight_decay"])
    p -= update.astype(p.dtype) * t(rate)


def _round(x: Array) -> Array:
    """To bfloat16 and back to float32, in which products are made."""
    rounded: Array = x.astype(dtypes.bfloat16.np).astype(np.float32)
    return rounded


def _orthogonal(x: Array, coefficients: tuple[float, float, float], steps: int, eps: float) -> Array:
    """A matrix with the singular vectors of `x` and singular values near 1; float32 with bfloat16's digits."""
    xp = array_namespace(x)
    matmul = xp.matmul
    a, b, c = (np.float32(value) for value in coefficients)
    tall = x.shape[0] > x.shape[1]
    y = xp.ascontiguousarray(_round(x.T if tall else x))
    norm = _round(xp.sqrt((y * y).sum()).reshape(1))
    y = _round(y / xp.maximum(norm, np.float32(eps)))
    for _ in range(steps):
        gram = _round(matmul(y, xp.ascontiguousarray(y.T)))
        polynomial = _round(b * gram + c * matmul(gram, gram))
        y = _round(a * y + matmul(polynomial, y))
    return y.T if tall else y
