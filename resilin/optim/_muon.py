"""Muon: momentum of a matrix, made nearly orthogonal."""

from __future__ import annotations

import math

import numpy as np

from resilin.core import dtype as dtypes
from resilin.core import shard_metadata
from resilin.core.argument_checks import whole
from resilin.core.kernels.common import Array, array_namespace
from resilin.core.tensor import Tensor, wrap
from resilin.errors import UsageError
from resilin.optim.numpy_updates import in_float32, refuse_complex
from resilin.optim.optimizer import Group, Optimizer, Params, fitting


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
        shard_metadata.refuse("Muon", zip(names, group["params"], strict=True), why)
        for number, p in enumerate(group["params"]):
            if p.ndim != 2:
                raise UsageError(
                    f"Muon: parameters must have 2 dimensions, parameter {number} has shape {list(p.shape)}; "
                    "give the others to AdamW"
                )
        refuse_complex("Muon", group)

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
                fitting("Muon", [p], ["grad", "momentum_buffer"], [[grad], [buffer]]),
                in_float32([p._array, grad, buffer]) as wide,
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
