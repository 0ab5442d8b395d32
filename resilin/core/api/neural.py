"""The functions of torch.nn.functional: arguments checked and normalised, reductions applied."""

from __future__ import annotations

import math
import warnings
from typing import Any

import numpy as np

from resilin.core.api import reducing, shaping
from resilin.core.autograd.grad_mode import mode
from resilin.core.device import different_devices
from resilin.core.kernels import pool as pool_kernel
from resilin.core.ops import activation, attention, conv, loss, norm, random
from resilin.core.ops import matmul as products
from resilin.core.ops import shape as shape_ops
from resilin.core.tensor import Tensor, check_dim, wrap
from resilin.errors import UsageError

sigmoid, silu, erf = activation.sigmoid.call, activation.silu.call, activation.erf.call
dropout = random.dropout


def _dim(where: str, input: Tensor, dim: int | None) -> int:
    ndim = input._array.ndim
    if dim is None:
        dim = 0 if ndim in (0, 1, 3) else 1
    return check_dim(dim, ndim)


def _need_floating(where: str, input: Tensor) -> None:
    if input._array.dtype.kind not in "fV":
        raise RuntimeError(f"{where}: expected a floating point tensor, got {input.dtype}; give dtype=")


def _need_tensors(where: str, **values: Any) -> None:
    for name, value in values.items():
        if not isinstance(value, Tensor):
            raise TypeError(f"{where}(): argument {name!r} must be a Tensor, got {type(value).__name__}")


def _need_size(where: str, size: int, **values: Tensor | None) -> None:
    """RuntimeError unless every vector that is given has `size` elements."""
    for name, value in values.items():
        if value is not None and (value._array.ndim != 1 or value._array.size != size):
            raise RuntimeError(f"{where}: {name} should contain {size} elements, got shape {tuple(value.shape)}")


def softmax(input: Tensor, dim: int | None = None, dtype: Any = None) -> Tensor:
    """exp(input) / sum(exp(input)) along `dim`."""
    x = input if dtype is None else input.to(dtype)
    _need_floating("softmax", x)
    return activation.softmax.call(x, _dim("softmax", x, dim)) if x._array.ndim else x * 0 + 1


def log_softmax(input: Tensor, dim: int | None = None, dtype: Any = None) -> Tensor:
    """log(softmax(input)) along `dim`."""
    x = input if dtype is None else input.to(dtype)
    _need_floating("log_softmax", x)
    return activation.log_softmax.call(x, _dim("log_softmax", x, dim)) if x._array.ndim else x * 0


def relu(input: Tensor, inplace: bool = False) -> Tensor:
    """max(input, 0)."""
    return input.relu_() if inplace else activation.relu.call(input)


def gelu(input: Tensor, approximate: str = "none") -> Tensor:
    """input * Phi(input), exact or with `approximate="tanh"`."""
    return activation.gelu.call(input, approximate)


def softplus(input: Tensor, beta: float = 1.0, threshold: float = 20.0) -> Tensor:
    """log(1 + exp(beta * input)) / beta."""
    return activation.softplus.call(input, beta, threshold)


def leaky_relu(input: Tensor, negative_slope: float = 0.01, inplace: bool = False) -> Tensor:
    """input where positive, else negative_slope * input."""
    out = input.maximum(input * 0) + negative_slope * input.minimum(input * 0)
    return input.copy_(out) if inplace else out


def linear(input: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """input @ weight.T + bias for weight (out, in)."""
    _need_tensors("linear", input=input, weight=weight)
    x, w = input._array, weight._array
    if x.shape[-1:] != w.shape[-1:]:
        raise RuntimeError(
            f"linear: input of shape {tuple(x.shape)} and weight of shape {tuple(w.shape)} cannot be multiplied: "
            "the last dimensions must be equal"
        )
    if x.dtype is not w.dtype and x.dtype != w.dtype:
        raise RuntimeError(f"linear: input and weight must have the same dtype, got {input.dtype} and {weight.dtype}")
    if bias is not None and bias._array.shape not in (w.shape[:-1], (1,), ()):
        raise RuntimeError(f"linear: bias of shape {tuple(bias.shape)} does not fit weight of shape {tuple(w.shape)}")
    return products.linear.call(input, weight, bias)


def _pair(value: Any) -> tuple[int, int]:
    return (value, value) if isinstance(value, int) else tuple(value) if len(value) == 2 else (value[0], value[0])


def _check_window(where: str, kernel: Any, stride: Any, padding: Any, dilation: Any = (1, 1)) -> None:
    """RuntimeError for lengths that no window has."""
    for name, lengths in (("kernel size", kernel), ("stride", stride), ("dilation", dilation)):
        if min(lengths) < 1:
            raise RuntimeError(f"{where}: {name} should be greater than zero, but got {lengths}")
    if min(padding) < 0:
        raise RuntimeError(f"{where}: negative padding is not supported, got {padding}")


def _check_pooling(where: str, kernel: Any, stride: Any, padding: Any, dilation: Any, size: Any, ceil: bool) -> None:
    """`_check_window`, and that the window fits images of this `size`."""
    _check_window(where, kernel, stride, padding, dilation)
    for k, s, p, d, n in zip(kernel, stride, padding, dilation, size, strict=True):
        span = d * (k - 1) + 1
        if 2 * p > span:
            raise RuntimeError(
                f"{where}: pad should be at most half of effective kernel size, but got pad={p}, kernel_size={k} and "
                f"dilation={d}"
            )
        if n + 2 * p < span and not (ceil and n + 2 * p + s > span):
            raise RuntimeError(f"{where}: a window of {span} does not fit an input of {n} with padding {p}")


def conv2d(
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: Any = 1,
    padding: Any = 0,
    dilation: Any = 1,
    groups: int = 1,
) -> Tensor:
    """Cross-correlation of input (N, C, H, W) or (C, H, W) with weight (O, C / groups, KH, KW).

    `padding` is a number, a pair, "same" or "valid".
    """
    _need_tensors("conv2d", input=input, weight=weight)
    if input._array.ndim == 3:
        return conv2d(input.unsqueeze(0), weight, bias, stride, padding, dilation, groups).squeeze(0)
    x, w = input._array, weight._array
    if x.ndim != 4 or w.ndim != 4:
        raise RuntimeError(f"conv2d: expected 3D or 4D input and 4D weight, got {tuple(x.shape)} and {tuple(w.shape)}")
    if groups < 1:
        raise RuntimeError(f"conv2d: groups must be at least 1, got {groups}")
    if x.shape[1] != w.shape[1] * groups or w.shape[0] % groups:
        raise RuntimeError(
            f"conv2d: weight {tuple(w.shape)} with groups={groups} expects input with {w.shape[1] * groups} channels, "
            f"got {x.shape[1]}"
        )
    if x.dtype != w.dtype:
        raise RuntimeError(f"conv2d: input and weight must have the same dtype, got {input.dtype} and {weight.dtype}")
    if bias is not None and bias._array.shape != w.shape[:1]:
        raise RuntimeError(
            f"Given weight of size {list(w.shape)}, expected bias to be 1-dimensional with {w.shape[0]} elements, "
            f"but got bias of size {list(bias.shape)} instead"
        )
    stride, dilation = _pair(stride), _pair(dilation)
    if padding == "valid":
        padding = 0
    elif padding == "same":
        if stride != (1, 1):
            raise RuntimeError(f"conv2d: padding='same' is not supported for strided convolutions, got stride {stride}")
        total = [d * (k - 1) for d, k in zip(dilation, w.shape[2:], strict=True)]
        if any(t % 2 for t in total):
            input = pad(input, (total[1] // 2, total[1] - total[1] // 2, total[0] // 2, total[0] - total[0] // 2))
            padding = 0
        else:
            padding = (total[0] // 2, total[1] // 2)
    padding = _pair(padding)
    _check_window("conv2d", w.shape[2:], stride, padding, dilation)
    return conv.conv2d.call(input, weight, bias, stride, padding, dilation, groups)


def _images(where: str, input: Tensor) -> Tensor:
    if input._array.ndim not in (3, 4):
        raise RuntimeError(f"{where}: expected 3D or 4D input, got {tuple(input.shape)}")
    return input if input._array.ndim == 4 else input.unsqueeze(0)


def max_pool2d(
    input: Tensor,
    kernel_size: Any,
    stride: Any = None,
    padding: Any = 0,
    dilation: Any = 1,
    ceil_mode: bool = False,
    return_indices: bool = False,
) -> Any:
    """The maximum of each window; with `return_indices` also its position in the image."""
    x = _images("max_pool2d", input)
    kernel = _pair(kernel_size)
    window = (kernel, kernel if stride in (None, []) else _pair(stride), _pair(padding), _pair(dilation), ceil_mode)
    _check_pooling("max_pool2d", *window[:4], x._array.shape[2:], ceil_mode)
    out = conv.max_pool2d.call(x, *window)
    out = out if x is input else out.squeeze(0)
    if not return_indices:
        return out
    index = wrap(pool_kernel.max2d_forward(x._array, *window)[1], x._dev)
    return out, index if x is input else index.squeeze(0)


def avg_pool2d(
    input: Tensor,
    kernel_size: Any,
    stride: Any = None,
    padding: Any = 0,
    ceil_mode: bool = False,
    count_include_pad: bool = True,
    divisor_override: int | None = None,
) -> Tensor:
    """The mean of each window."""
    x = _images("avg_pool2d", input)
    kernel = _pair(kernel_size)
    strides = kernel if stride in (None, []) else _pair(stride)
    _check_pooling("avg_pool2d", kernel, strides, _pair(padding), (1, 1), x._array.shape[2:], ceil_mode)
    rows, columns = conv.average_matrices(
        x._array.shape, kernel, strides, _pair(padding), ceil_mode, count_include_pad, x._array.dtype
    )
    if divisor_override is not None:
        rows, columns = (rows > 0).astype(rows.dtype) / divisor_override, (columns > 0).astype(rows.dtype)
    out: Tensor = conv.separable.call(x, rows, columns)
    return out if x is input else out.squeeze(0)


def adaptive_avg_pool2d(input: Tensor, output_size: Any) -> Tensor:
    """Means over windows that divide the image into `output_size` parts; None keeps a length."""
    x = _images("adaptive_avg_pool2d", input)
    sizes = (output_size, output_size) if isinstance(output_size, int) or output_size is None else output_size
    wanted = [x._array.shape[2 + i] if n is None else n for i, n in enumerate(sizes)]
    if min(wanted) < 0:
        raise RuntimeError(f"adaptive_avg_pool2d: output_size must not be negative, got {tuple(wanted)}")
    out: Tensor = conv.separable.call(x, *conv.adaptive_matrices(x._array.shape, wanted, x._array.dtype))
    return out if x is input else out.squeeze(0)


def layer_norm(
    input: Tensor, normalized_shape: Any, weight: Tensor | None = None, bias: Tensor | None = None, eps: float = 1e-5
) -> Tensor:
    """(input - mean) / sqrt(var + eps) * weight + bias over the trailing `normalized_shape`."""
    shape = (normalized_shape,) if isinstance(normalized_shape, int) else tuple(normalized_shape)
    _need_tensors("layer_norm", input=input)
    if not shape:
        raise RuntimeError("layer_norm: expected normalized_shape to have at least one dimension")
    for name, given in (("weight", weight), ("bias", bias)):
        if given is not None and given._array.shape != shape:
            raise RuntimeError(
                f"Expected {name} to be of same shape as normalized_shape, but got {name} of shape "
                f"{list(given.shape)} and normalized_shape = {list(shape)}"
            )
    if tuple(input._array.shape[-len(shape) :]) != shape:
        raise RuntimeError(
            f"Given normalized_shape={list(shape)}, expected input with shape [*, {', '.join(map(str, shape))}], "
            f"but got input of size {list(input._array.shape)}"
        )
    return norm.layer_norm.call(input, weight, bias, eps, math.prod(shape))


def batch_norm(
    input: Tensor,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    training: bool = False,
    momentum: float = 0.1,
    eps: float = 1e-5,
) -> Tensor:
    """Each channel normalized with the batch's statistics (training; running ones are moved by `momentum`, the
    variance unbiased) or with the running ones."""
    _need_tensors("batch_norm", input=input)
    if input._array.ndim < 2:
        raise RuntimeError(f"batch_norm: expected input of at least 2 dimensions, got {tuple(input.shape)}")
    _need_size(
        "batch_norm",
        input._array.shape[1],
        running_mean=running_mean,
        running_var=running_var,
        weight=weight,
        bias=bias,
    )
    if not training:
        return _batch_norm_fixed(input, running_mean, running_var, weight, bias, eps)
    count = input._array.size // max(input._array.shape[1], 1)
    if count == 0:  # nothing to normalize and no statistics: the graph stays, the running ones too
        channels = np.zeros(input._array.shape[1], input._array.dtype)
        return _batch_norm_fixed(input, Tensor._wrap(channels), Tensor._wrap(channels + 1), weight, bias, eps)
    if count == 1:
        raise ValueError(f"Expected more than 1 value per channel when training, got input size {tuple(input.shape)}")
    stats: list[Any] = []
    out: Tensor = norm.batch_norm.call(input, weight, bias, eps, stats)
    for running, value in zip((running_mean, running_var), (stats[0], stats[1] * (count / (count - 1))), strict=True):
        if running is not None:
            running._array *= 1 - momentum
            running._array += momentum * value
            running._bump()
    return out


def _batch_norm_fixed(input: Any, mean: Any, var: Any, weight: Any, bias: Any, eps: float) -> Tensor:
    if mean is None or var is None:
        raise RuntimeError("batch_norm: running_mean and running_var must be given when training is False")
    along = (1, -1, *(1,) * (input._array.ndim - 2))
    scale = (var + eps).rsqrt()
    if weight is not None:
        scale = scale * weight
    shift = -mean * scale if bias is None else bias - mean * scale
    return input * scale.reshape(along) + shift.reshape(along)


def embedding(input: Tensor, weight: Tensor, padding_idx: int | None = None) -> Tensor:
    """The rows of `weight` (num, D) at `input`; row `padding_idx` gets no gradient. IndexError out of range."""
    _need_tensors("embedding", input=input, weight=weight)
    index = input._array
    if index.dtype.kind not in "iu":
        raise RuntimeError(f"embedding: expected indices of an integer dtype, got {input.dtype}")
    if input._dev is not weight._dev:
        raise different_devices("embedding", weight._dev, input._dev)
    num = weight._array.shape[0]
    if index.size and (int(index.max()) >= num or int(index.min()) < 0):
        raise IndexError(f"embedding: index out of range: the table has {num} rows, got {index.min()} to {index.max()}")
    if padding_idx is not None and not -num <= padding_idx < num:
        raise RuntimeError(f"embedding: padding_idx must be within the table's {num} rows, got {padding_idx}")
    if padding_idx is not None and padding_idx < 0:
        padding_idx += num
    return loss.embedding.call(weight, index, padding_idx)


def scaled_dot_product_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Tensor:
    """softmax(query @ key.T * scale + mask) @ value over the last two dimensions; `scale` None is 1 / sqrt(width)."""
    if is_causal and attn_mask is not None:
        raise RuntimeError("scaled_dot_product_attention: give attn_mask or is_causal=True, not both")
    if enable_gqa:
        repeats = query._array.shape[-3] // key._array.shape[-3]
        key, value = key.repeat_interleave(repeats, -3), value.repeat_interleave(repeats, -3)
    q, k = query._array, key._array
    if q.shape[-1] != k.shape[-1] or value._array.shape[-2] != k.shape[-2]:
        raise RuntimeError(
            f"scaled_dot_product_attention: query {tuple(q.shape)}, key {tuple(k.shape)} and value "
            f"{tuple(value.shape)} do not fit: query and key need equal widths, key and value equal lengths"
        )
    if attn_mask is not None:
        _check_mask(attn_mask, q, (*q.shape[:-1], k.shape[-2]))
    factor = 1 / math.sqrt(q.shape[-1]) if scale is None else scale
    dropped = random.draw_mask((*q.shape[:-1], k.shape[-2]), dropout_p) if dropout_p > 0 else None
    lead = q.shape[:-2] == k.shape[:-2] == value._array.shape[:-2]
    if lead and not (attn_mask is not None and attn_mask.requires_grad and mode.grad):
        mask = None if attn_mask is None else attn_mask._array
        return attention.attention.call(query, key, value, mask, is_causal, factor, dropped)
    return _plain_attention(query, key, value, attn_mask, is_causal, factor, dropped)


def _check_mask(mask: Tensor, q: Any, scores: tuple[int, ...]) -> None:
    m = mask._array
    if m.dtype.kind not in "bfV":
        raise RuntimeError(f"scaled_dot_product_attention: expected attn_mask of dtype bool or float, got {mask.dtype}")
    try:
        fits = np.broadcast_shapes(m.shape[-2:], scores[-2:]) == scores[-2:]
        np.broadcast_shapes(m.shape, scores)
    except ValueError:
        fits = False
    if not fits:
        raise RuntimeError(
            f"scaled_dot_product_attention: attn_mask of shape {tuple(m.shape)} does not broadcast to the scores' "
            f"shape {scores}"
        )


def _plain_attention(query: Any, key: Any, value: Any, mask: Any, causal: bool, scale: float, dropped: Any) -> Tensor:
    scores = query @ key.transpose(-2, -1) * scale
    if causal:
        T, S = scores._array.shape[-2:]
        mask = wrap(np.tri(T, S, dtype=bool), query._dev)
    if mask is not None:
        scores = scores.masked_fill(mask.logical_not(), -math.inf) if mask._array.dtype.kind == "b" else scores + mask
    p = softmax(scores, -1)
    if dropped is not None:
        p = random.apply_mask.call(p, dropped.astype(p._array.dtype, copy=False))
    return p @ value


def pad(input: Tensor, pad: Any, mode: str = "constant", value: float | None = None) -> Tensor:
    """`value` (0) around the input: `pad` gives (before, after) from the last dimension backwards; negative cuts."""
    if mode != "constant":
        raise ValueError(f"pad: mode must be 'constant', got {mode!r}")
    pairs = [(pad[i], pad[i + 1]) for i in range(0, len(pad), 2)]
    widths = tuple((0, 0) for _ in range(input._array.ndim - len(pairs))) + tuple(reversed(pairs))
    return shape_ops.pad_constant.call(input, widths, 0.0 if value is None else value)


def one_hot(tensor: Tensor, num_classes: int = -1) -> Tensor:
    """A new last dimension with 1 at the class number, else 0; int64."""
    array = tensor._array
    if array.dtype.kind not in "iu":
        raise RuntimeError(f"one_hot is only applicable to index tensors of an integer dtype, got {tensor.dtype}")
    if not array.size and num_classes <= 0:
        raise RuntimeError("one_hot: give num_classes for an empty tensor")
    if array.size and int(array.min()) < 0:
        raise RuntimeError(f"Class values must be non-negative, got {int(array.min())}")
    classes = int(array.max()) + 1 if num_classes < 0 else num_classes
    if array.size and int(array.max()) >= classes:
        raise RuntimeError(f"Class values must be smaller than num_classes={classes}, got {int(array.max())}")
    return wrap((tensor._array[..., None] == np.arange(classes)).astype(np.int64), tensor._dev)


def normalize(input: Tensor, p: float = 2.0, dim: int = 1, eps: float = 1e-12) -> Tensor:
    """input divided by its p-norm along `dim` (at least eps)."""
    return input / reducing.norm(input, p, dim, True).clamp(min=eps)


# Losses


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
    _need_tensors("cross_entropy", input=input, target=target)
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
    _need_tensors(where, input=input, target=target)
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
    """0.5 * d ** 2 / beta where |d| < beta, else |d| - 0.5 * beta, for d = input - target; reduced."""
    _same_shape("smooth_l1_loss", input, target)
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
    _need_tensors("binary_cross_entropy", input=input, target=target)
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
