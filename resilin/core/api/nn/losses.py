"""The losses of torch.nn.functional: arguments checked, reductions applied."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np

from resilin.core.api.manipulation import index_checks, shaping
from resilin.core.api.mathematics import arithmetic, one_pass, reducing
from resilin.core.api.mathematics.half_precision import opened, rounded_once
from resilin.core.api.nn.loss_reduction import check_reduction, old_reduction, reduced, same_shape
from resilin.core.api.nn.neural import linear, log_softmax, need_tensors, softplus
from resilin.core.batching.active import BATCHED
from resilin.core.kernels import index_range
from resilin.core.kernels.common import has_elements, is_array
from resilin.core.ops import index as index_ops
from resilin.core.ops import loss
from resilin.core.ops.errstate import quietly
from resilin.core.tensor import Tensor, wrap
from resilin.errors import UsageError


def cross_entropy(
    input: Tensor,
    target: Tensor,
    weight: Tensor | None = None,
    size_average: bool | None = None,
    ignore_index: int = -100,
    reduce: bool | None = None,
    reduction: str = "mean",
    label_smoothing: float = 0.0,
) -> Tensor:
    """Cross entropy of logits (N, C, ...) or (C,) against class numbers (N, ...) or probabilities (N, C, ...)."""
    reduction = old_reduction(size_average, reduce, reduction)
    check_reduction(reduction)
    need_tensors("cross_entropy", input=input, target=target)
    if not 0 <= label_smoothing <= 1:
        raise RuntimeError(f"cross_entropy: label_smoothing must be between 0 and 1, got {label_smoothing}")
    _need_class("cross_entropy", ignore_index)
    if target._array.shape == input._array.shape and target._array.dtype.kind in "fV":
        if ignore_index >= 0:
            raise RuntimeError(
                f"cross_entropy: ignore_index={ignore_index} is not supported for floating point target: give "
                "probabilities of 0 for what does not count"
            )
        return _soft_cross_entropy(input, target, weight, reduction, label_smoothing)
    input, weight, narrow = opened(input, weight)
    rows, classes, shape = _rows("cross_entropy", input, target)
    weights = _class_weights("cross_entropy", input, weight)
    count = _mean_over(rows, classes, weights, ignore_index) if reduction == "mean" else None
    try:
        losses = loss.cross_entropy.call(rows, classes, weights, ignore_index, label_smoothing, count)
    except UsageError as error:
        raise IndexError(str(error)) from None
    if count is not None:
        return narrow(losses)
    made: Tensor = narrow(_weighted(losses, classes, weights, ignore_index, reduction, shape))
    return made


def _mean_over(rows: Tensor, classes: Any, weights: Any, ignore: int) -> int | None:
    """How many losses there are to take the mean of, where the host's op does that itself; else None."""
    if weights is not None or type(rows._array) is not np.ndarray or type(classes) is not np.ndarray:
        return None
    return int(np.count_nonzero(classes != ignore)) or None


def _need_class(where: str, ignore_index: Any) -> None:
    if not hasattr(ignore_index, "__index__"):
        raise TypeError(f"{where}(): argument 'ignore_index' must be int, not {type(ignore_index).__name__}")


def _rows(where: str, input: Tensor, target: Tensor) -> tuple[Tensor, Any, tuple[int, ...]]:
    """Logits as (rows, classes), targets as one row of class numbers, and the shape of per-element losses."""
    x, t = input._array, target._array
    if x.ndim == 0:
        raise RuntimeError(f"{where}: expected input of shape (C,) or (N, C, ...), got a 0-d tensor")
    if t.dtype.kind not in "iu":
        raise RuntimeError(f"{where}: expected class numbers of an integer dtype, got {target.dtype}")
    if x.ndim == 1:
        if t.size != 1:
            raise ValueError(f"{where}: expected one target for input {tuple(x.shape)}, got {tuple(t.shape)}")
        return input.unsqueeze(0), t.reshape(1), ()
    expected = (x.shape[0], *x.shape[2:])
    if t.shape != expected:
        raise ValueError(
            f"{where}: expected target of shape {expected} for input {tuple(x.shape)}, got {tuple(t.shape)}"
        )
    t = index_checks.kept(t, input)
    if x.ndim == 2:
        return input, t, t.shape
    moved = shaping.contiguous(shaping.permute(input, 0, *range(2, x.ndim), 1))
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
    return index_checks.kept(weight._array, input)


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
    if not has_elements(classes):
        return total
    valid = classes != ignore
    if weights is None and hasattr(losses._dev.xp, "launch") and is_array(valid):
        # the device divides, and nothing waits; of nothing 0 / 0, and the losses' rule gives them no gradient
        return total / wrap(losses._dev.xp.astype(valid.sum(), total._array.dtype), losses._dev)
    if weights is None:
        if type(valid) is np.ndarray:
            count: Any = int(np.count_nonzero(valid))
        else:
            count = valid.sum()  # inside vmap one for each sample
            count = count if type(count) in BATCHED else int(count)
    else:
        count = float(weights[losses._dev.xp.where(valid, classes, 0)][valid].sum())
    if type(count) not in BATCHED and count == 0:  # the mean of nothing: not a number, whose gradient is 0
        return total * 0 + float("nan")
    return total / count


@rounded_once
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


def linear_cross_entropy(
    input: Tensor,
    linear_weight: Tensor,
    target: Tensor,
    *,
    linear_bias: Tensor | None = None,
    weight: Tensor | None = None,
    reduction: str = "mean",
    ignore_index: int | None = None,
    label_smoothing: float = 0.0,
    options: None = None,
) -> Tensor:
    """cross_entropy of input (N, in) or (in,) times linear_weight (C, ..., in), transposed, plus linear_bias (C, ...).

    options: refused; PyTorch's ways to save memory by chunks.
    """
    need_tensors("linear_cross_entropy", input=input, linear_weight=linear_weight, target=target)
    if options is not None:
        raise NotImplementedError("linear_cross_entropy: supported is options=None: the logits are held at once")
    x, w = input._array.shape, linear_weight._array.shape
    if len(x) not in (1, 2) or len(w) < 2 or x[-1] != w[-1] or (len(w) > 2 and len(x) == 1):
        raise RuntimeError(
            f"linear_cross_entropy: expected input (N, in) or (in,) and linear_weight (C, ..., in), got {x} and {w}"
        )
    if linear_bias is not None and linear_bias._array.shape != w[:-1]:
        raise RuntimeError(f"linear_cross_entropy: expected linear_bias {w[:-1]}, got {tuple(linear_bias.shape)}")
    shape = (*x[:-1], *w[:-1])
    if ignore_index is not None and target._array.shape == shape:
        raise RuntimeError("ignore_index cannot be specified when target contains probabilities")
    bias = None if linear_bias is None else shaping.reshape(linear_bias, -1)
    logits = shaping.reshape(linear(input, shaping.reshape(linear_weight, -1, w[-1]), bias), *shape)
    ignored = -100 if ignore_index is None else ignore_index
    return cross_entropy(
        logits, target, weight, ignore_index=ignored, reduction=reduction, label_smoothing=label_smoothing
    )


def _all_picked(rows: Tensor, classes: Any, reduction: str, shape: tuple[int, ...]) -> Tensor:
    """`nll_loss` of classes that all count, in one pass over them."""
    losses = index_ops.take_along_axis.call(rows, classes.reshape(-1, 1), 1) * -1.0
    if reduction == "none":
        return shaping.reshape(losses, *shape) if shape else losses.reshape(())
    total = reducing.sum(losses)
    return total if reduction == "sum" else total / classes.size


def nll_loss(
    input: Tensor,
    target: Tensor,
    weight: Tensor | None = None,
    size_average: bool | None = None,
    ignore_index: int = -100,
    reduce: bool | None = None,
    reduction: str = "mean",
) -> Tensor:
    """The negative of the log-probability of each target; input (N, C, ...) or (C,) holds log-probabilities."""
    reduction = old_reduction(size_average, reduce, reduction)
    check_reduction(reduction)
    _need_class("nll_loss", ignore_index)
    if (found := one_pass.nll_loss(input, target, weight, ignore_index, reduction)) is not None:
        return found
    input, weight, narrow = opened(input, weight)
    rows, classes, shape = _rows("nll_loss", input, target)
    count = rows._array.shape[1]
    if weight is None and not 0 <= ignore_index < count and index_range.within(classes, 0, count):
        return narrow(_all_picked(rows, classes, reduction, shape))
    valid = classes != ignore_index
    xp = rows._dev.xp
    safe = xp.where(valid, classes, 0)
    count = rows._array.shape[1]
    text = f"nll_loss: target out of bounds: expected classes in [0, {count}), got {{value}}"
    index_range.check(safe, 0, count, IndexError, text)
    weights = _class_weights("nll_loss", input, weight)
    factor = valid if weights is None else weights[safe] * valid
    picked = rows[xp.arange(len(safe)), safe]
    losses = picked * wrap((-1.0 * factor).astype(rows._array.dtype), rows._dev)
    made: Tensor = narrow(_weighted(losses, classes, weights, ignore_index, reduction, shape))
    return made


def _weighted_mean(losses: Tensor, input: Tensor, weight: Tensor | None, reduction: str) -> Tensor:
    """`losses` reduced; with a weight of the input's shape, "mean" divides by the sum of the weights."""
    if weight is None:
        return reduced(losses, reduction)
    if weight._array.shape != input._array.shape:
        raise ValueError(
            f"Weights and input must have the same size, got {tuple(weight.shape)} and {tuple(input.shape)}"
        )
    check_reduction(reduction)
    if reduction == "mean":
        made: Tensor = reducing.sum(losses * weight) / reducing.sum(weight)
        return made
    return reduced(losses * weight, reduction)


def mse_loss(
    input: Tensor,
    target: Tensor,
    size_average: bool | None = None,
    reduce: bool | None = None,
    reduction: str = "mean",
    weight: Tensor | None = None,
) -> Tensor:
    """(input - target) ** 2, reduced; `weight` (of the input's shape) multiplies it, "mean" divides by its sum."""
    reduction = old_reduction(size_average, reduce, reduction)
    same_shape("mse_loss", input, target)
    found = None if weight is not None else one_pass.loss_of_difference("square", input, target, reduction)
    if found is not None:
        return found
    x, t, weight, narrow = opened(input, target, weight)
    made: Tensor = narrow(_weighted_mean((x - t).square(), input, weight, reduction))
    return made


def l1_loss(
    input: Tensor,
    target: Tensor,
    size_average: bool | None = None,
    reduce: bool | None = None,
    reduction: str = "mean",
    weight: Tensor | None = None,
) -> Tensor:
    """|input - target|, reduced; `weight` (of the input's shape) multiplies it, "mean" divides by its sum."""
    reduction = old_reduction(size_average, reduce, reduction)
    same_shape("l1_loss", input, target)
    found = None if weight is not None else one_pass.loss_of_difference("absolute", input, target, reduction)
    if found is not None:
        return found
    x, t, weight, narrow = opened(input, target, weight)
    made: Tensor = narrow(_weighted_mean((x - t).abs(), input, weight, reduction))
    return made


def huber_loss(
    input: Tensor, target: Tensor, reduction: str = "mean", delta: float = 1.0, weight: Tensor | None = None
) -> Tensor:
    """0.5 * d ** 2 where |d| < delta, else delta * (|d| - 0.5 * delta), d = input - target; times weight, reduced."""
    same_shape("huber_loss", input, target)
    if not delta > 0:
        raise RuntimeError(f"huber_loss does not support non-positive values for delta, got {delta}")
    if weight is not None and weight._array.shape != input._array.shape:
        raise ValueError(
            f"Weights and input must have the same size, got {tuple(weight.shape)} and {tuple(input.shape)}"
        )
    short = one_pass.loss_of_difference
    found = None if weight is not None else short("smooth", input, target, reduction, delta, delta)
    if found is not None:
        return found
    x, t, weight, narrow = opened(input, target, weight)
    losses = loss.smooth_absolute.call(x - t, delta)
    losses = losses if delta == 1 else losses * delta
    made: Tensor = narrow(reduced(losses if weight is None else losses * weight, reduction))
    return made


def smooth_l1_loss(
    input: Tensor,
    target: Tensor,
    size_average: bool | None = None,
    reduce: bool | None = None,
    reduction: str = "mean",
    beta: float = 1.0,
) -> Tensor:
    """0.5 * d ** 2 / beta where |d| < beta, else |d| - 0.5 * beta, for d = input - target; reduced. `l1_loss` for 0."""
    reduction = old_reduction(size_average, reduce, reduction)
    same_shape("smooth_l1_loss", input, target)
    if beta < 0:
        raise RuntimeError(f"smooth_l1_loss does not support negative values for beta, got {beta}")
    kind = "smooth" if beta else "absolute"
    if (found := one_pass.loss_of_difference(kind, input, target, reduction, beta)) is not None:
        return found
    x, t, narrow = opened(input, target)
    losses = loss.smooth_absolute.call(x - t, beta) if beta else (x - t).abs()
    made: Tensor = narrow(reduced(losses, reduction))
    return made


def binary_cross_entropy_with_logits(
    input: Tensor,
    target: Tensor,
    weight: Tensor | None = None,
    size_average: bool | None = None,
    reduce: bool | None = None,
    reduction: str = "mean",
    pos_weight: Tensor | None = None,
) -> Tensor:
    """-(w_pos * t * log s + (1 - t) * log(1 - s)) for s = sigmoid(input), without overflow; reduced."""
    reduction = old_reduction(size_average, reduce, reduction)
    need_tensors("binary_cross_entropy_with_logits", input=input, target=target)
    if input._array.shape != target._array.shape:
        raise ValueError(f"Target size ({tuple(target.shape)}) must be the same as input size ({tuple(input.shape)})")
    found = None
    if weight is None and pos_weight is None:
        found = one_pass.loss_of_difference("logits", input, target, reduction)
    if found is not None:
        return found
    x, t, weight, pos_weight, narrow = opened(input, target, weight, pos_weight)
    if pos_weight is None:
        losses = loss.bce_with_logits.call(x, t)
    else:
        log_weight = (pos_weight - 1) * t + 1
        losses = (1 - t) * x + log_weight * softplus(-x)
    made: Tensor = narrow(reduced(losses if weight is None else losses * weight, reduction))
    return made


@quietly
def binary_cross_entropy(
    input: Tensor,
    target: Tensor,
    weight: Tensor | None = None,
    size_average: bool | None = None,
    reduce: bool | None = None,
    reduction: str = "mean",
) -> Tensor:
    """-(t * log(p) + (1 - t) * log(1 - p)) for probabilities p = input, logarithms at least -100; reduced."""
    reduction = old_reduction(size_average, reduce, reduction)
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
    input, target, weight, narrow = opened(input, target, weight)
    losses = loss.binary_cross_entropy.call(input, target)
    made: Tensor = narrow(reduced(losses if weight is None else losses * weight, reduction))
    return made


def kl_div(
    input: Tensor,
    target: Tensor,
    size_average: bool | None = None,
    reduce: bool | None = None,
    reduction: str = "mean",
    log_target: bool = False,
) -> Tensor:
    """target * (log target - input), reduced; "batchmean" divides the sum by the first length."""
    reduction = old_reduction(size_average, reduce, reduction)
    if reduction == "mean":
        warnings.warn(
            "kl_div: reduction 'mean' divides by the number of elements; the definition of the divergence divides by "
            "the batch size only, as 'batchmean' does",
            UserWarning,
            stacklevel=2,
        )
    return _divergence(input, target, reduction, log_target)


@rounded_once
def _divergence(input: Tensor, target: Tensor, reduction: str, log_target: bool) -> Tensor:
    if log_target:
        losses = target.exp() * (target - input)
    else:
        losses = arithmetic.xlogy(target, target) - target * input
    if reduction == "batchmean":
        total = reducing.sum(losses)
        return total / input._array.shape[0] if input._array.ndim else total
    return reduced(losses, reduction)
