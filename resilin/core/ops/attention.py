"""Scaled dot-product attention as one op. Scores are computed once and overwritten by the probabilities."""

# B batch, H heads, T queries, S keys, D width

from __future__ import annotations

import numpy as np

from resilin.core.kernels import attention as kernel
from resilin.core.kernels.common import array_namespace
from resilin.core.kernels.cuda import elementwise
from resilin.core.kernels.cuda import rows as rows_cuda
from resilin.core.ops.errstate import widened
from resilin.core.ops.registry import OPS, op, override

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


def _added(ns, shape, mask, causal):
    """What is added to the scores, float64: 0 where a key takes part, -inf where not. `ns` has the mask's functions."""
    added = ns.zeros(shape[-2:], np.float64)
    if causal:
        added = ns.where(ns.tri(*shape[-2:], dtype=bool), added, -np.inf)
    if mask is not None:
        added = added + (ns.where(mask, 0.0, -np.inf) if mask.dtype == np.bool_ else mask)
    return added.astype(np.float64)


def _weights(xp, q, k, mask, causal, scale, dropout_mask):
    """The probabilities, and those that dropout keeps."""
    scores = xp.matmul(q, xp.swapaxes(k, -1, -2)) * scale
    added = _added(array_namespace(getattr(q, "_array", q)), scores.shape, mask, causal)
    some = (added > -np.inf).any(-1, keepdims=True)
    # a query without keys gives zeros: its row is made finite first, as 0 * NaN would stay NaN
    added = array_namespace(added).where(some, added, 0.0)
    p = xp.softmax(scores + xp.constant(added, q), scores.ndim - 1) * xp.constant(some, q)
    return p, p if dropout_mask is None else p * xp.constant(dropout_mask, q)


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


def _on_device(xp, q, k, v, mask, causal, scale, dropout_mask):
    """The result, and the probabilities and what they were made of, float32 for 16 bits and in one piece; with a mask
    by the declared steps, which keep none."""
    if mask is not None:
        return OPS["attention"].generic.forward(xp, q, k, v, mask, causal, scale, dropout_mask), None
    dtype = q.dtype
    q, k, v = elementwise.contiguous(xp, [widened(q), widened(k), widened(v)])
    p = rows_cuda.attention_weights(xp, xp.matmul(q, k.swapaxes(-1, -2)), scale, causal)
    kept = p if dropout_mask is None else p * xp.constant(dropout_mask, p)
    return xp.matmul(kept, v).astype(dtype, copy=False), (p, q, k, v)


def _backward_on_device(xp, needs, g, y, made, q, k, v, mask, causal, scale, dropout_mask):
    dtype = g.dtype
    g = widened(g)
    if made is None:
        given = widened(q), widened(k), widened(v)
        return OPS["attention"].generic.vjp(xp, needs, g, y, *given, mask, causal, scale, dropout_mask)
    p, q, k, v = made
    g = xp.ascontiguousarray(g)
    dp, kept = xp.matmul(g, v.swapaxes(-1, -2)), p
    if dropout_mask is not None:
        drop = xp.constant(dropout_mask, p)
        dp, kept = dp * drop, p * drop
    ds = rows_cuda.attention_weights_backward(xp, xp.ascontiguousarray(dp), p, scale, causal)
    grads = xp.matmul(ds, k), xp.matmul(ds.swapaxes(-1, -2), q), xp.matmul(kept.swapaxes(-1, -2), g)
    return tuple([grad.astype(dtype, copy=False) for grad in grads])


override("attention", "cuda", _on_device, _backward_on_device, residual=True)
override("attention", "cpu", lambda xp, *args: kernel.forward(*args), _backward, residual=True)
