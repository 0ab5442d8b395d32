"""Scaled dot-product attention as one op. Scores are computed once and overwritten by the probabilities."""

# B batch, H heads, T queries, S keys, D width

from __future__ import annotations

import numpy as np

from resilin.core.kernels import attention as kernel
from resilin.core.kernels.common import array_namespace
from resilin.core.ops.registry import op, override

_MASK = np.array([[True, False, True], [True, True, False]])


@op(
    takes="f",
    samples=lambda r: [
        (r(2, 1, 3, 4), r(2, 1, 3, 4), r(2, 1, 3, 4), None, True, 0.5),
        (r(2, 4), r(3, 4), r(3, 5), _MASK, False, 0.7),
    ],
)
def attention(xp, q, k, v, mask=None, causal=False, scale=1.0, dropout_mask=None):
    """softmax(q @ k.T * scale + mask) @ v; with `causal` query t sees keys 0 to t."""
    if isinstance(q, np.ndarray):
        return kernel.forward(q, k, v, mask, causal, scale, dropout_mask)[0]
    return xp.matmul(_weights(xp, q, k, mask, causal, scale, dropout_mask)[1], v)


def _added(shape, mask, causal, dtype):
    """What is added to the scores: 0 where a key takes part, -inf where not."""
    added = np.zeros(shape[-2:], dtype)
    if causal:
        added = np.where(np.tri(*shape[-2:], dtype=bool), added, -np.inf)
    if mask is not None:
        added = added + (np.where(mask, 0.0, -np.inf) if mask.dtype == np.bool_ else mask)
    return added.astype(dtype)


@attention.vjp_all
def _(xp, needs, g, _y, q, k, v, mask, causal, scale, dropout_mask):
    p, kept = _weights(xp, q, k, mask, causal, scale, dropout_mask)
    dv = xp.matmul(xp.swapaxes(kept, -1, -2), g)
    dp = xp.matmul(g, xp.swapaxes(v, -1, -2))
    if dropout_mask is not None:
        dp = dp * xp.constant(dropout_mask, g)
    ds = p * (dp - xp.sum(dp * p, axis=-1, keepdims=True)) * scale
    return xp.matmul(ds, k), xp.matmul(xp.swapaxes(ds, -1, -2), q), dv


def _backward(xp, needs, g, _y, saved, q, k, v, mask, causal, scale, dropout_mask):
    return kernel.backward(g, saved)


override("attention", "cpu", lambda xp, *args: kernel.forward(*args), _backward, residual=True)
