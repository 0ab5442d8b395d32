"""The losses of torch.nn.functional: arguments checked, reductions applied."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np

from resilin.core.api import reducing, shaping
from resilin.core.api.neural import log_softmax, need_tensors, softplus
from resilin.core.ops import loss
from resilin.core.tensor import Tensor, wrap
from resilin.errors import UsageError


def check_reduction(reduction: str) -> None:
    """ValueError unless `reduction` is "none", "mean" or "sum"."""
    if reduction not in ("none", "mean", "sum"):
        raise ValueError(f"{reduction} is not a valid value for reduction: expected 'none', 'mean' or 'sum'")


def _reduce(value: Tensor, reduction: str) -> Tensor:
    check_reduction(reduction)
    return value if reduction == "none" else reducing.mean(value) if reduction == "mean" else reducing.sum(value)


def cross_entropy(
    input: Tensor,
    target: Tensor,
    weight: Tensor | None = None,
    ignore_index: int = -100,
    reduction: str = "mean",
    label_smoothing: float = 0.0,
) -> Tensor:
    """Cross entropy of logits (N, C, ...) or (C,) against class numbers (N, ...) or probabilities (N, C, ...)."""
    check_reduction(reduction)
    need_tensors("cross_entropy", input=input, target=target)
    if not 0 <= label_smoothing <= 1:
        raise RuntimeError(f"cross_entropy: label_smoothing must be between 0 and 1, got {label_smoothing}")
    if target._array.shape == input._array.shape and target._array.dtype.kind in "fV":
        return _soft_cross_entropy(input, target, weight, reduction, label_smoothing)
    rows, classes, shape = _rows("cross_entropy", input, target)
    weights = _class_weights("cross_entropy", input, weight)
    try:
        losses = loss.cross_entropy.call(rows, classes, weights, ignore_index, label_smoothing)
    except UsageError as error:
        raise IndexError(str(error)) from None
    return _weighted(losses, classes, weights, ignore_index, reduction, shape)


def _rows(where: str, input: Tensor, target: Tensor) -> tuple[Tensor, Any, tuple[int, ...]]:
    """Logits as (rows, classes), targets as one row of class numbers, and the shape of per-element losses."""
    x, t = input._array, target._array
    if x.ndim == 0:
        raise RuntimeError(f"{where}: expected input of shape (C,) or (N, C, ...), got a 0-d tensor")
    if t.dtype.kind not in "iu":
        raise RuntimeError(f"{where}: expected class numbers of an integer dtype, got {target.dtype}")
    if x.ndim == 1:
        return input.unsqueeze(0), t.reshape(1), ()
    expected = (x.shape[0], *x.shape[2:])
    if t.shape != expected:
        raise ValueError(
            f"{where}: expected target of shape {expected} for input {tuple(x.shape)}, got {tuple(t.shape)}"
        )
    if x.ndim == 2:
        return input, t, t.shape
    moved = shaping.permute(input, 0, *range(2, x.ndim), 1)
    return shaping.reshape(moved, -1, x.shape[1]), t.reshape(-1), t.shape


def _class_weights(where: str, input: Tensor, weight: Tensor | None) -> Any:
    """The array of one weight per class, or None."""
    if weight is None:
        return None
    classes = input._array.shape[0 if input._array.ndim == 1 else 1]
    if weight._array.shape != (classes,):
        raise RuntimeError(
            f"{where}: weight tensor should be defined either for all {classes} classes or no classes but got weight "
            f"tensor of shape: {list(weight.shape)}"
        )
    return weight._array


def _weighted(
    losses: Tensor, classes: Any, weights: Any, ignore: int, reduction: str, shape: tuple[int, ...]
) -> Tensor:
    if reduction == "none":
        return (
            losses if losses._array.shape == shape else shaping.reshape(losses, *shape) if shape else losses.squeeze(0)
        )
    total = reducing.sum(losses)
    if reduction == "sum":
        return total
    valid = classes != ignore
    if weights is None:
        count = float(np.count_nonzero(valid))
    else:
        count = float(weights[np.where(valid, classes, 0)][valid].sum())
    return total / count


def _soft_cross_entropy(input: Tensor, target: Tensor, weight: Any, reduction: str, smoothing: float) -> Tensor:
    dim = 0 if input._array.ndim == 1 else 1
    classes = input._array.shape[dim]
    _class_weights("cross_entropy", input, weight)
    if smoothing:
        target = target * (1 - smoothing) + smoothing / classes
    logs = log_softmax(input, dim)
    if weight is not None:
        logs = logs * weight.reshape(-1, *(1,) * (input._array.ndim - dim - 1))
    losses = -reducing.sum(logs * target, dim)
    if reduction == "none":
        return losses
    total = reducing.sum(losses)
    return total if reduction == "sum" else total / max(input._array.size // classes, 1)


def nll_loss(
    input: Tensor, target: Tensor, weight: Tensor | None = None, ignore_index: int = -100, reduction: str = "mean"
) -> Tensor:
    """The negative of the log-probability of each target; input (N, C, ...) or (C,) holds log-probabilities."""
    check_reduction(reduction)
    rows, classes, shape = _rows("nll_loss", input, target)
    valid = classes != ignore_index
    safe = np.where(valid, classes, 0)
    if safe.size and not 0 <= int(safe.min()) <= int(safe.max()) < rows._array.shape[1]:
        raise IndexError(f"nll_loss: target out of bounds: expected classes in [0, {rows._array.shape[1]})")
    weights = _class_weights("nll_loss", input, weight)
    factor = valid if weights is None else weights[safe] * valid
    picked = rows[np.arange(len(safe)), safe]
    losses = picked * wrap((-1.0 * factor).astype(rows._array.dtype), rows._dev)
    return _weighted(losses, classes, weights, ignore_index, reduction, shape)


def _same_shape(where: str, input: Tensor, target: Tensor) -> None:
    """RuntimeError for shapes that do not broadcast; a warning, as in PyTorch, for shapes that do and differ."""
    need_tensors(where, input=input, target=target)
    if input._array.shape == target._array.shape:
        return
    try:
        np.broadcast_shapes(input._array.shape, target._array.shape)
    except ValueError:
        raise RuntimeError(
            f"{where}: the shapes {tuple(input.shape)} and {tuple(target.shape)} cannot be broadcast"
        ) from None
    warnings.warn(
        f"{where}: using a target of shape {tuple(target.shape)} that is different to the input's "
        f"{tuple(input.shape)}. This will likely lead to incorrect results due to broadcasting. "
        "Please ensure they have the same size.",
        UserWarning,
        stacklevel=3,
    )


def mse_loss(input: Tensor, target: Tensor, reduction: str = "mean") -> Tensor:
    """(input - target) ** 2, reduced."""
    _same_shape("mse_loss", input, target)
    return _reduce((input - target).square(), reduction)


def l1_loss(input: Tensor, target: Tensor, reduction: str = "mean") -> Tensor:
    """|input - target|, reduced."""
    _same_shape("l1_loss", input, target)
    return _reduce((input - target).abs(), reduction)


def smooth_l1_loss(input: Tensor, target: Tensor, reduction: str = "mean", beta: float = 1.0) -> Tensor:
    """0.5 * d ** 2 / beta where |d| < beta, else |d| - 0.5 * beta, for d = input - target; reduced. `l1_loss` for 0."""
    _same_shape("smooth_l1_loss", input, target)
    if beta < 0:
        raise RuntimeError(f"smooth_l1_loss does not support negative values for beta, got {beta}")
    if beta == 0:
        return _reduce((input - target).abs(), reduction)
    size = (input - target).abs()
    small = size.clamp(max=beta)
    return _reduce(small * small * (0.5 / beta) + (size - small), reduction)


def binary_cross_entropy_with_logits(
    input: Tensor,
    target: Tensor,
    weight: Tensor | None = None,
    reduction: str = "mean",
    pos_weight: Tensor | None = None,
) -> Tensor:
    """-(w_pos * t * log s + (1 - t) * log(1 - s)) for s = sigmoid(input), without overflow; reduced."""
    if input._array.shape != target._array.shape:
        raise ValueError(f"Target size ({tuple(target.shape)}) must be the same as input size ({tuple(input.shape)})")
    if pos_weight is None:
        losses = loss.bce_with_logits.call(input, target)
    else:
        log_weight = (pos_weight - 1) * target + 1
        losses = (1 - target) * input + log_weight * softplus(-input)
    return _reduce(losses if weight is None else losses * weight, reduction)


def binary_cross_entropy(
    input: Tensor, target: Tensor, weight: Tensor | None = None, reduction: str = "mean"
) -> Tensor:
    """-(t * log(p) + (1 - t) * log(1 - p)) for probabilities p = input, logarithms at least -100; reduced."""
    need_tensors("binary_cross_entropy", input=input, target=target)
    p = input._array
    if p.shape != target._array.shape:
        raise ValueError(
            f"Using a target size ({tuple(target.shape)}) that is different to the input size ({tuple(p.shape)}) is "
            "deprecated. Please ensure they have the same size."
        )
    if p.size and not (p.min() >= 0 and p.max() <= 1):
        raise RuntimeError(
            f"binary_cross_entropy: all elements of input should be between 0 and 1, got {p.min()} to {p.max()}; "
            "for logits use binary_cross_entropy_with_logits"
        )
    losses = -(target * input.log().clamp(min=-100) + (1 - target) * (1 - input).log().clamp(min=-100))
    return _reduce(losses if weight is None else losses * weight, reduction)


def kl_div(input: Tensor, target: Tensor, reduction: str = "mean", log_target: bool = False) -> Tensor:
    """target * (log target - input), reduced; "batchmean" divides the sum by the first length."""
    if log_target:
        losses = target.exp() * (target - input)
    else:
        safe = target.clamp(min=1e-38)
        losses = target * (safe.log() - input)
    if reduction == "batchmean":
        return reducing.sum(losses) / input._array.shape[0]
    return _reduce(losses, reduction)
