"""torch.nn.functional.ctc_loss: lengths and targets in all forms that PyTorch takes, checked."""

# T time, N samples, C classes, S labels of the longest target

from __future__ import annotations

from typing import Any

import numpy as np

from resilin.core.api.manipulation import indexing
from resilin.core.api.mathematics import reducing
from resilin.core.api.nn.loss_reduction import check_reduction
from resilin.core.api.nn.neural import need_tensors
from resilin.core.ops import creation
from resilin.core.ops import ctc as ops
from resilin.core.tensor import Tensor, wrap


def ctc_loss(
    log_probs: Tensor,
    targets: Tensor,
    input_lengths: Any,
    target_lengths: Any,
    blank: int = 0,
    reduction: str = "mean",
    zero_infinity: bool = False,
) -> Tensor:
    """Minus the log of the probability of each target, summed over its alignments with log_probs (of log_softmax).

    Shape: log_probs (T, N, C) or (T, C); targets (N, S) padded, or all labels after one another (sum of the lengths,);
    input_lengths and target_lengths: tensors or sequences (N,), or () without N. The result is (N,) or () for "none".
    reduction: "mean" divides each loss by its target's length, then by N.
    zero_infinity: targets that fit into no alignment give 0, and the gradient 0, instead of infinity and NaN.
    Order: log-space sums in float64's or float32's own precision, time step by time step.
    """
    check_reduction(reduction)
    need_tensors("ctc_loss", log_probs=log_probs, targets=targets)
    x = log_probs._array
    if x.ndim not in (2, 3) or x.dtype.kind != "f" or x.dtype.itemsize < 4:
        raise RuntimeError(
            f"ctc_loss: expected log_probs (T, N, C) or (T, C) of float32 or float64, got {log_probs.dtype} "
            f"{tuple(x.shape)}"
        )
    batch = log_probs if x.ndim == 3 else log_probs.unsqueeze(1)
    T, N, C = batch._array.shape
    inputs = _lengths("input_lengths", input_lengths, N)
    sizes = _lengths("target_lengths", target_lengths, N)
    if inputs.size and (inputs.max() > T or inputs.min() < 0):
        raise RuntimeError(f"ctc_loss: expected input_lengths from 0 to {T}, got {inputs.tolist()}")
    if not 0 <= blank < C:
        raise RuntimeError(f"ctc_loss: blank must be in label range 0 to {C - 1}, got {blank}")
    rows = _rows(targets, sizes, C)
    losses = ops.ctc_loss.call(batch, rows, inputs, blank)
    if zero_infinity:
        losses = indexing.where(losses.detach().isinf(), 0.0, losses)
    if reduction == "none":
        return losses if x.ndim == 3 else losses.squeeze(0)
    if reduction == "sum":
        return reducing.sum(losses)
    return reducing.mean(losses / wrap(log_probs._dev.xp.asarray(np.maximum(sizes, 1).astype(x.dtype)), log_probs._dev))


def _lengths(name: str, given: Any, count: int) -> Any:
    """Lengths as an int64 array (N,)."""
    found = creation.to_array(given)
    if found.size and found.dtype.kind not in "iu":
        raise RuntimeError(f"ctc_loss: {name} must be integral, got {found.dtype}")
    if found.size != count:
        raise RuntimeError(f"ctc_loss: {name} must be of size batch_size {count}, got {found.size}")
    return found.reshape(-1).astype(np.int64)


def _rows(targets: Tensor, sizes: Any, classes: int) -> list[Any]:
    """The labels of each target, cut to its length; copies, as the tensor may be written to before backward."""
    t = np.array(targets._dev.backend.to_host(targets._array))
    if t.dtype.kind not in "iu":
        raise RuntimeError(f"ctc_loss: expected targets of an integer dtype, got {targets.dtype}")
    if sizes.size and sizes.min() < 0:
        raise RuntimeError(f"ctc_loss: expected target_lengths of at least 0, got {sizes.tolist()}")
    if t.ndim == 1:
        if t.size != sizes.sum():
            raise RuntimeError(f"ctc_loss: targets after one another need {sizes.sum()} labels, got {t.size}")
        ends = np.cumsum(sizes).tolist()
        rows = [t[end - size : end] for end, size in zip(ends, sizes.tolist(), strict=True)]
    elif t.ndim == 2 and len(t) == len(sizes) and t.shape[1] >= max(sizes, default=0):
        rows = [row[:size] for row, size in zip(t, sizes.tolist(), strict=True)]
    else:
        raise RuntimeError(
            f"ctc_loss: expected targets ({len(sizes)}, at least {max(sizes, default=0)}) or all labels after one "
            f"another, got {tuple(t.shape)}"
        )
    used = np.concatenate(rows) if rows else t[:0]
    if used.size and (used.min() < 0 or used.max() >= classes):
        raise RuntimeError(f"ctc_loss: expected labels from 0 to {classes - 1}, got {used.min()} to {used.max()}")
    return rows
