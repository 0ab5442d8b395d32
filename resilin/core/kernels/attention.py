"""Scaled dot-product attention: one native call for float32, and its numpy form."""

# B batch, H heads, T queries, S keys, D width, E value width

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from resilin.core.kernels.common import Array, compute_dtype
from resilin.core.kernels.gemm import matmul
from resilin.core.kernels.loader import kernel
from resilin.errors import UsageError

_native_attention = kernel("attention")
_native_attention_backward = kernel("attention_backward")


@dataclass(frozen=True, slots=True)
class Saved:
    """What `backward` needs: the inputs and the probabilities before dropout, 16-bit ones as float32."""

    q: Array
    k: Array
    v: Array
    p: Array
    causal: bool
    scale: float
    dropout_mask: Array | None


def forward(
    q: Array, k: Array, v: Array, mask: Array | None, causal: bool, scale: float, dropout_mask: Array | None
) -> tuple[Array, Saved]:
    """softmax(q @ k^T * scale + mask) @ v.

    Shape:  q (..., T, D), k (..., S, D), v (..., S, E) with equal leading dimensions; y (..., T, E).
    mask:   broadcasts to (..., T, S). Boolean: True takes part; float: added to the scores.
    causal: query t sees keys 0..t. A query that sees no key gives zeros. Hidden keys take no part in the softmax and
            its gradient, even where they are NaN or infinite.
    dropout_mask: (..., T, S), factors 0 or 1/(1-p) on the probabilities.
    """
    acc = compute_dtype(q.dtype)
    if acc != q.dtype:  # scores of 16-bit numbers soon leave their range
        wide = (q.astype(acc), k.astype(acc), v.astype(acc))
        drop = None if dropout_mask is None else dropout_mask.astype(acc)
        y, saved = forward(*wide, mask, causal, scale, drop)
        return y.astype(q.dtype), saved
    added = _additive(mask, acc)
    y, p = _like(q, v.shape[-1]), np.empty((*q.shape[:-1], k.shape[-2]), q.dtype)
    if _native_attention(q, k, v, added, causal, scale, dropout_mask, y, p):
        return y, Saved(q, k, v, p, causal, scale, dropout_mask)
    p = reference_masked_softmax(matmul(q, k.swapaxes(-1, -2)), added, causal, scale)
    matmul(p if dropout_mask is None else p * dropout_mask, v, out=y)
    return y, Saved(q, k, v, p, causal, scale, dropout_mask)


def backward(g: Array, saved: Saved) -> tuple[Array, Array, Array]:
    """Gradients (dq, dk, dv), of the dtype of `g`."""
    q, k, v, p = saved.q, saved.k, saved.v, saved.p
    if g.dtype != q.dtype:
        dq, dk, dv = backward(g.astype(q.dtype), saved)
        return dq.astype(g.dtype), dk.astype(g.dtype), dv.astype(g.dtype)
    dq, dk, dv = _like(q, q.shape[-1]), _like(k, k.shape[-1]), _like(v, v.shape[-1])
    ds, drop = np.empty(p.shape, p.dtype), saved.dropout_mask
    if _native_attention_backward(g, q, k, v, p, saved.causal, saved.scale, drop, dq, dk, dv, ds):
        return dq, dk, dv
    matmul(g, v.swapaxes(-1, -2), out=ds)
    if drop is not None:
        ds *= drop
    matmul((p if drop is None else p * drop).swapaxes(-1, -2), g, out=dv)
    ds = reference_softmax_backward(ds, p, saved.causal, saved.scale)
    matmul(ds, k, out=dq)
    matmul(ds.swapaxes(-1, -2), q, out=dk)
    return dq, dk, dv


def _like(x: Array, width: int) -> Array:
    """An empty array as `x` with rows of `width`, its axes in the same order in memory where rows are contiguous there:
    heads that were split from one tensor are joined again without a copy."""
    if x.strides[-1] != x.itemsize:
        return np.empty((*x.shape[:-1], width), x.dtype)
    return np.empty_like(x, shape=(*x.shape[:-1], width), subok=False)


def _additive(mask: Array | None, dtype: np.dtype[np.generic]) -> Array | None:
    if mask is None:
        return None
    if mask.dtype == np.bool_:
        return np.where(mask, dtype.type(0), dtype.type(-np.inf))
    if not np.issubdtype(mask.dtype, np.floating) and mask.dtype.kind != "V":
        raise UsageError(f"attention: mask must be bool or float, got {mask.dtype}")
    return mask.astype(dtype, copy=False)


def reference_masked_softmax(s: Array, added: Array | None, causal: bool, scale: float) -> Array:
    """softmax(s * scale + added) over the last axis; rows without any visible key are zero."""
    s = s * s.dtype.type(scale)
    if added is not None:
        s += added
    if causal:
        T, S = s.shape[-2:]
        s[..., ~np.tri(T, S, dtype=np.bool_)] = -np.inf
    if not s.size:
        return s
    top = s.max(axis=-1, keepdims=True)
    e = np.exp(s - np.where(np.isneginf(top), s.dtype.type(0), top))
    total = e.sum(axis=-1, keepdims=True)
    return e / np.where(total == 0, s.dtype.type(1), total)  # type: ignore[no-any-return]


def reference_softmax_backward(dp: Array, p: Array, causal: bool, scale: float) -> Array:
    """scale * p * (dp - sum(dp * p)) over the last axis; 0 for hidden keys, whatever `dp` holds there."""
    if causal:
        dp = np.where(np.tri(*dp.shape[-2:], dtype=np.bool_), dp, dp.dtype.type(0))
    return p * (dp - (dp * p).sum(axis=-1, keepdims=True)) * p.dtype.type(scale)  # type: ignore[no-any-return]
