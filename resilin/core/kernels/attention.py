"""Scaled dot-product attention: matrix products on BLAS, scale + mask + softmax fused and in place."""

# B batch, H heads, T queries, S keys, D width, E value width

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from resilin.core.kernels.common import Array, compute_dtype
from resilin.core.kernels.gemm import matmul
from resilin.core.kernels.loader import kernel
from resilin.errors import UsageError

_BLOCK = 64  # queries: smaller blocks skip more hidden keys, but BLAS is slow on small products

_native_attention = kernel("attention")
_native_attention_backward = kernel("attention_backward")
_native_masked_softmax_ = kernel("masked_softmax_")
_native_masked_softmax_backward_ = kernel("masked_softmax_backward_")


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
    blocks = _blocks(q.shape[-2], k.shape[-2], causal)
    p = _row_products(q, k, blocks)
    if not _native_masked_softmax_(p, added, causal, scale):
        p = reference_masked_softmax(p, added, causal, scale)
    kept = p if dropout_mask is None else p * dropout_mask
    for a, b, seen in blocks:
        matmul(kept[..., a:b, :seen], v[..., :seen, :], out=y[..., a:b, :])
    return y, Saved(q, k, v, p, causal, scale, dropout_mask)


def backward(g: Array, saved: Saved) -> tuple[Array, Array, Array]:
    """Gradients (dq, dk, dv), of the dtype of `g`."""
    q, k, v, p = saved.q, saved.k, saved.v, saved.p
    if g.dtype != q.dtype:
        dq, dk, dv = backward(g.astype(q.dtype), saved)
        return dq.astype(g.dtype), dk.astype(g.dtype), dv.astype(g.dtype)
    dq, dk, dv = _like(q, q.shape[-1]), _like(k, k.shape[-1]), _like(v, v.shape[-1])
    ds = np.empty(p.shape, p.dtype)
    if _native_attention_backward(g, q, k, v, p, saved.causal, saved.scale, saved.dropout_mask, dq, dk, dv, ds):
        return dq, dk, dv
    blocks = _blocks(q.shape[-2], k.shape[-2], saved.causal)
    ds = _row_products(g, v, blocks)
    kept = p
    if saved.dropout_mask is not None:
        kept = p * saved.dropout_mask
        ds *= saved.dropout_mask
    _transposed_products(kept, g, blocks, dv)
    if not _native_masked_softmax_backward_(ds, p, saved.causal, saved.scale):
        ds = reference_softmax_backward(ds, p, saved.causal, saved.scale)
    for a, b, seen in blocks:
        matmul(ds[..., a:b, :seen], k[..., :seen, :], out=dq[..., a:b, :])
    _transposed_products(ds, q, blocks, dk)
    return dq, dk, dv


def _like(x: Array, width: int) -> Array:
    """An empty array as `x` with rows of `width`, its axes in the same order in memory where rows are contiguous there:
    heads that were split from one tensor are joined again without a copy."""
    if x.strides[-1] != x.itemsize:
        return np.empty((*x.shape[:-1], width), x.dtype)
    return np.empty_like(x, shape=(*x.shape[:-1], width), subok=False)


def _blocks(T: int, S: int, causal: bool) -> list[tuple[int, int, int]]:
    """(first query, last query + 1, keys they can see): with a causal mask, products with hidden keys are left out."""
    if not causal or T != S or T < 2 * _BLOCK:
        return [(0, T, S)]
    return [(a, min(T, a + _BLOCK), min(T, a + _BLOCK)) for a in range(0, T, _BLOCK)]


def _row_products(x: Array, y: Array, blocks: list[tuple[int, int, int]]) -> Array:
    """x @ y.T, with zeros where a block of queries cannot see."""
    out = np.empty((*x.shape[:-1], y.shape[-2]), x.dtype)
    for a, b, seen in blocks:
        matmul(x[..., a:b, :], y[..., :seen, :].swapaxes(-1, -2), out=out[..., a:b, :seen])
        out[..., a:b, seen:] = 0
    return out


def _transposed_products(weights: Array, x: Array, blocks: list[tuple[int, int, int]], out: Array) -> None:
    """out = weights.T @ x, for each block of keys over the queries that can see it."""
    if len(blocks) == 1:
        matmul(weights.swapaxes(-1, -2), x, out=out)
        return
    for a, b, _ in blocks:
        matmul(weights[..., a:, a:b].swapaxes(-1, -2), x[..., a:, :], out=out[..., a:b, :])


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
    acc = compute_dtype(p.dtype)
    if causal:
        dp = np.where(np.tri(*dp.shape[-2:], dtype=np.bool_), dp, dp.dtype.type(0))
    dp_, p_ = dp.astype(acc, copy=False), p.astype(acc, copy=False)
    ds = p_ * (dp_ - (dp_ * p_).sum(axis=-1, keepdims=True)) * acc.type(scale)
    return ds.astype(p.dtype, copy=False)  # type: ignore[no-any-return]
