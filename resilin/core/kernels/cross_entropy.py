"""Cross entropy of logits against class numbers, without building the log-probabilities."""

# N samples, C classes

from __future__ import annotations

import numpy as np

from resilin.core.kernels.common import Array, array_namespace, compute_dtype
from resilin.core.kernels.loader import kernel
from resilin.errors import UsageError

_native_cross_entropy_forward = kernel("cross_entropy_forward")
_native_cross_entropy_backward = kernel("cross_entropy_backward")


def forward(
    logits: Array, target: Array, weight: Array | None, ignore_index: int, label_smoothing: float
) -> tuple[Array, Array]:
    """Per-sample loss (N,), and log-sum-exp in two parts, (N, 2): the largest logit and what exceeds it.

    The sum of both would lose the digits of the second where logits are large.

    loss = (1 - s) * w[t] * -logp[t] + s / C * sum_c(w[c] * -logp[c]) with s = label_smoothing, t = target; 0 where
    t == ignore_index. Not divided by the weights: that is the reduction's business.

    Raises: UsageError when a target is neither a class nor ignore_index.
    """
    if target.dtype == np.int64:
        out = _native_cross_entropy_forward(logits, target, weight, ignore_index, label_smoothing)
        if isinstance(out, int):
            raise _out_of_range(target, out, logits.shape[1])
        if out is not None:
            return out  # type: ignore[no-any-return]
    return reference_forward(logits, target, weight, ignore_index, label_smoothing)


def backward(
    g: Array,
    logits: Array,
    target: Array,
    lse: Array,
    weight: Array | None,
    ignore_index: int,
    label_smoothing: float,
) -> Array:
    """Gradient of the logits (N, C) for the gradient g (N,) of the per-sample losses; `lse` is forward's."""
    if target.dtype == np.int64:
        out = _native_cross_entropy_backward(g, logits, target, lse, weight, ignore_index, label_smoothing)
        if out is not None:
            return out  # type: ignore[no-any-return]
    return reference_backward(g, logits, target, lse, weight, ignore_index, label_smoothing)


def _out_of_range(target: Array, row: int, classes: int) -> UsageError:
    return UsageError(
        f"cross_entropy: target[{row}] is {int(target[row])}; expected a class in [0, {classes}) or ignore_index"
    )


def _masked_target(target: Array, ignore_index: int, classes: int) -> tuple[Array, Array]:
    xp = array_namespace(target)
    valid_N = target != ignore_index
    safe_N = xp.where(valid_N, target, 0).astype(np.int64)
    wrong = xp.flatnonzero((safe_N < 0) | (safe_N >= classes))
    if wrong.size and valid_N.any():
        raise _out_of_range(target, int(wrong[0]), classes)
    return valid_N, safe_N


def reference_forward(
    logits: Array, target: Array, weight: Array | None, ignore_index: int, label_smoothing: float
) -> tuple[Array, Array]:
    """numpy form of `forward`, also for a device's arrays."""
    xp = array_namespace(logits)
    N, C = logits.shape
    valid_N, safe_N = _masked_target(target, ignore_index, C)
    z_NC = logits.astype(compute_dtype(logits.dtype), copy=False)
    if not z_NC.size:
        return xp.zeros(N, logits.dtype), xp.full((N, 2), -np.inf, z_NC.dtype)
    with np.errstate(invalid="ignore"):
        top_N = z_NC.max(axis=1)
        below_NC = z_NC - top_N[:, None]
        rest_N = xp.log(xp.exp(below_NC).sum(axis=1))
        loss_N = rest_N - below_NC[xp.arange(N), safe_N]
    if weight is not None:
        loss_N = loss_N * weight[safe_N]
    if label_smoothing:
        w_C = xp.ones(C, z_NC.dtype) if weight is None else weight
        smooth_N = ((rest_N[:, None] - below_NC) * w_C).sum(axis=1)
        loss_N = (1 - label_smoothing) * loss_N + label_smoothing / C * smooth_N
    return xp.where(valid_N, loss_N, 0).astype(logits.dtype), xp.stack([top_N, rest_N], 1)


def reference_backward(
    g: Array,
    logits: Array,
    target: Array,
    lse: Array,
    weight: Array | None,
    ignore_index: int,
    label_smoothing: float,
) -> Array:
    """numpy form of `backward`, also for a device's arrays."""
    xp = array_namespace(logits)
    N, C = logits.shape
    valid_N, safe_N = _masked_target(target, ignore_index, C)
    z_NC = logits.astype(compute_dtype(logits.dtype), copy=False)
    p_NC = xp.exp(z_NC - lse[:, :1] - lse[:, 1:])
    scale_N = xp.where(valid_N, g, 0).astype(z_NC.dtype, copy=False)
    hit_N = scale_N * (1 - label_smoothing)
    if weight is not None:
        hit_N = hit_N * weight[safe_N]
    total_N = hit_N
    if label_smoothing:
        w_C = xp.ones(C, z_NC.dtype) if weight is None else weight.astype(z_NC.dtype, copy=False)
        total_N = hit_N + scale_N * (label_smoothing / C) * w_C.sum()
    d_NC = p_NC * total_N[:, None]
    if N and C:
        d_NC[xp.arange(N), safe_N] -= hit_N
    if label_smoothing:
        d_NC -= (scale_N * (label_smoothing / C))[:, None] * w_C
    d_NC[~valid_N] = 0
    return d_NC.astype(logits.dtype, copy=False)  # type: ignore[no-any-return]
