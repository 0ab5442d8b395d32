"""Launches `rows.cu`: softmax, attention's probabilities, cross entropy and lookup of rows on a device's arrays.

The numpy references are `kernels/softmax.py`, `attention.py`, `cross_entropy.py` and `embedding.py`; `xp` is the
namespace of `backends/cupy.py`.
"""

# N rows, C classes, D elements of a row, T queries, S keys

from __future__ import annotations

import math
from typing import Any

import numpy as np

from resilin.core.kernels.common import compute_dtype
from resilin.core.kernels.cuda import sources

THREADS = 256  # THREADS of elements.cuh


def softmax(xp: Any, x: Any, of_log: bool) -> Any:
    """exp(x) / sum(exp(x)) over the last axis, or its logarithm."""
    x = xp.ascontiguousarray(x)
    y = xp.empty(x.shape, x.dtype)
    if x.size:
        _launch(xp, "softmax_forward", x, (x, y, np.int64(x.shape[-1]), np.int32(of_log)))
    return y


def softmax_backward(xp: Any, g: Any, y: Any, of_log: bool) -> Any:
    """The gradient of `softmax`, y its result."""
    g, y = xp.ascontiguousarray(g.astype(y.dtype, copy=False)), xp.ascontiguousarray(y)
    dx = xp.empty(y.shape, y.dtype)
    if y.size:
        _launch(xp, "softmax_backward", y, (g, y, dx, np.int64(y.shape[-1]), np.int32(of_log)))
    return dx


def attention_weights(xp: Any, scores: Any, scale: float, causal: bool) -> Any:
    """softmax(scores * scale) over S of (..., T, S); with `causal` query t sees keys 0 to t."""
    p = xp.empty(scores.shape, scores.dtype)
    if scores.size:
        _launch(xp, "attention_weights", scores, (scores, p, *_seen(scores, scale, causal)))
    return p


def attention_weights_backward(xp: Any, dp: Any, p: Any, scale: float, causal: bool) -> Any:
    """The gradient of the scores for dp, that of the probabilities p."""
    ds = xp.empty(p.shape, p.dtype)
    if p.size:
        _launch(xp, "attention_weights_backward", p, (dp, p, ds, *_seen(p, scale, causal)))
    return ds


def _seen(p: Any, scale: float, causal: bool) -> tuple[Any, ...]:
    scale_of = compute_dtype(p.dtype).type(scale)
    return np.int64(p.shape[-2]), np.int64(p.shape[-1]), scale_of, np.int32(causal)


def cross_entropy(
    xp: Any, logits: Any, target: Any, weight: Any, ignore_index: int, label_smoothing: float
) -> tuple[Any, Any]:
    """(loss_N, lse_N2) of `kernels.cross_entropy.forward`; a target that is no class is a fault (`xp.faults`)."""
    N, C = logits.shape
    acc = compute_dtype(logits.dtype)
    loss, lse = xp.empty(N, logits.dtype), xp.empty((N, 2), acc)
    text = f"cross_entropy: a target is {{value}}; expected a class in [0, {C}) or ignore_index"
    code = xp.faults.code(IndexError, text)
    given = (xp.ascontiguousarray(logits), _whole(xp, target), _weights(xp, weight, acc), loss, lse)
    numbers = (np.int64(C), np.int64(ignore_index), acc.type(label_smoothing))
    _launch(xp, "cross_entropy_forward", logits, (*given, xp.faults.word, code, *numbers), N)
    xp.faults.launched()
    return loss, lse


def cross_entropy_backward(
    xp: Any, g: Any, logits: Any, target: Any, lse: Any, weight: Any, ignore_index: int, label_smoothing: float
) -> Any:
    """The logits' gradient, as `kernels.cross_entropy.backward` gives it."""
    N, C = logits.shape
    acc = compute_dtype(logits.dtype)
    dz = xp.empty(logits.shape, logits.dtype)
    g = g.astype(logits.dtype, copy=False)
    step = g.strides[0] // g.itemsize
    given = (xp.ascontiguousarray(logits), _whole(xp, target), _weights(xp, weight, acc), lse, dz)
    numbers = (np.int64(C), np.int64(ignore_index), acc.type(label_smoothing))
    _launch(xp, "cross_entropy_backward", logits, (g, np.int64(step), *given, *numbers), N)
    return dz


def take_rows(xp: Any, table: Any, index: Any) -> Any:
    """The rows of `table` (length, D) at `index`; one out of range is a fault. None for elements of 16 bytes."""
    kind = sources.BITS.get(table.dtype.itemsize)
    if kind is None:
        return None
    length, D = table.shape
    out = xp.empty((*index.shape, D), table.dtype)
    if not out.size:
        return out
    text = f"embedding: index {{value}} is outside [0, {length}); the table has {length} rows"
    code = xp.faults.code(IndexError, text)
    numbers = (code, np.int64(index.size), np.int64(length), np.int64(D))
    args = (xp.ascontiguousarray(table), _whole(xp, index), out, xp.faults.word, *numbers)
    xp.launch("rows", f"take_rows<{kind}>", (math.ceil(out.size / THREADS),), (THREADS,), args)
    xp.faults.launched()
    return out


def _whole(xp: Any, numbers: Any) -> Any:
    return xp.ascontiguousarray(numbers.astype(np.int64, copy=False))


def _weights(xp: Any, weight: Any, dtype: Any) -> Any:
    """None, the kernel's null pointer, is passed as the integer 0."""
    return np.uintp(0) if weight is None else xp.ascontiguousarray(weight.astype(dtype, copy=False))


def _launch(xp: Any, kernel: str, x: Any, args: tuple[Any, ...], rows: int | None = None) -> None:
    rows = x.size // x.shape[-1] if rows is None else rows
    if rows:
        xp.launch("rows", f"{kernel}<{', '.join(sources.FLOATS[x.dtype.name])}>", (rows,), (THREADS,), args)
