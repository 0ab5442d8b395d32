"""Normalization of torch.nn.functional: over the last dimensions, groups, the batch, and each sample's channels."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from resilin.core import dtype as dtypes
from resilin.core import ranks
from resilin.core.api.manipulation.joining import cat
from resilin.core.api.mathematics import one_pass, reducing
from resilin.core.api.mathematics.half_precision import rounded_once
from resilin.core.api.nn.neural import need_numbers, need_tensors, widened
from resilin.core.batching.active import batched_in
from resilin.core.kernels.cuda import elementwise
from resilin.core.ops import norm
from resilin.core.ops.errstate import SILENT, is_half, put_rounded, restore, silence
from resilin.core.ops.errstate import widened as widened_array
from resilin.core.state.size import whole
from resilin.core.state.write_log import before_write
from resilin.core.tensor import Tensor


def _need_size(where: str, size: int, **values: Tensor | None) -> None:
    """RuntimeError unless every vector that is given has `size` elements."""
    for name, value in values.items():
        if value is not None and (value._array.ndim != 1 or value._array.size != size):
            raise RuntimeError(f"{where}: {name} should contain {size} elements, got shape {tuple(value.shape)}")


def sizes_of(normalized_shape: Any) -> tuple[int, ...]:
    """`normalized_shape`, one integer or several, as a tuple."""
    return (normalized_shape,) if hasattr(normalized_shape, "__index__") else tuple(normalized_shape)


def layer_norm(
    input: Tensor, normalized_shape: Any, weight: Tensor | None = None, bias: Tensor | None = None, eps: float = 1e-5
) -> Tensor:
    """(input - mean) / sqrt(var + eps) * weight + bias over the trailing `normalized_shape`."""
    shape = sizes_of(normalized_shape)
    need_tensors("layer_norm", input=input)
    need_numbers("layer_norm", eps=eps)
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


def group_norm(
    input: Tensor, num_groups: int, weight: Tensor | None = None, bias: Tensor | None = None, eps: float = 1e-5
) -> Tensor:
    """`num_groups` groups of channels of each sample (N, C, ...) normalized, then scaled and shifted per channel."""
    need_tensors("group_norm", input=input)
    need_numbers("group_norm", eps=eps)
    shape, num_groups = input._array.shape, whole("num_groups", num_groups)
    if len(shape) < 2 or num_groups < 1 or shape[1] % num_groups:
        raise RuntimeError(
            f"group_norm: expected input (N, C, ...) with C divisible by num_groups={num_groups}, got {tuple(shape)}"
        )
    _need_size("group_norm", shape[1], weight=weight, bias=bias)
    if shape[0] * math.prod(shape[1:]) == num_groups:
        raise ValueError(f"Expected more than 1 value per channel when training, got input size {list(shape)}")
    if weight is None and bias is None:
        return _in_groups(input, num_groups, eps)
    return _scaled_groups(input, num_groups, weight, bias, eps)


def _in_groups(input: Tensor, num_groups: int, eps: float) -> Tensor:
    shape = input._array.shape
    size = math.prod(shape[1:]) // num_groups
    groups = input.reshape(shape[0], num_groups, size)
    return norm.layer_norm.call(groups, None, None, eps, size).reshape(shape)


@rounded_once
def _scaled_groups(input: Tensor, num_groups: int, weight: Tensor | None, bias: Tensor | None, eps: float) -> Tensor:
    made: Tensor = norm.scale_channels.call(_in_groups(input, num_groups, eps), weight, bias)
    return made


def rms_norm(input: Tensor, normalized_shape: Any, weight: Tensor | None = None, eps: float | None = None) -> Tensor:
    """input / sqrt(mean(input ** 2) + eps) * weight over the trailing `normalized_shape`, in the input's dtype.

    16-bit floats are squared, scaled and weighed as float32. eps None: that of the dtype in which that is done.
    """
    need_tensors("rms_norm", input=input)
    shape = sizes_of(normalized_shape)
    if not shape or tuple(input._array.shape[-len(shape) :]) != shape:
        raise RuntimeError(
            f"Given normalized_shape={list(shape)}, expected input with shape [*, {', '.join(map(str, shape))}], "
            f"but got input of size {list(input._array.shape)}"
        )
    if weight is not None and weight._array.shape != shape:
        raise RuntimeError(
            f"Expected weight to be of same shape as normalized_shape, but got weight of shape {list(weight.shape)} "
            f"and normalized_shape = {list(shape)}"
        )
    if eps is None:
        eps = dtypes.finfo(dtypes.float32 if is_half(input._array) else input.dtype).eps
    need_numbers("rms_norm", eps=eps)
    if (found := one_pass.rms_norm(input, weight, math.prod(shape), eps)) is not None:
        return found
    wide = widened(input)
    out = wide * (reducing.mean(wide.square(), tuple(range(-len(shape), 0)), True) + eps).rsqrt()
    return (out if weight is None else out * weight).to(input.dtype)


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
    need_tensors("batch_norm", input=input)
    need_numbers("batch_norm", eps=eps)
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
    if training and not eps > 0:
        raise ValueError(f"batch_norm eps must be positive during training, but got {eps}")
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
    if running_mean is None and running_var is None:
        return out
    unbiased = count / (count - 1)
    if not _moved_on_device(running_mean, running_var, stats, momentum, unbiased):
        _move((running_mean, stats[0]), (running_var, stats[1] * unbiased), momentum=momentum)
    return out


def _moved_on_device(mean: Tensor | None, var: Tensor | None, stats: list[Any], momentum: float, factor: float) -> bool:
    """Whether one launch moved both running statistics; `factor` makes the variance unbiased."""
    if mean is None or var is None or not hasattr(mean._dev.xp, "launch") or batched_in((mean, var, *stats)):
        return False
    arrays = [mean._array, stats[0], var._array, stats[1]]
    if len({(array.dtype, array.flags.c_contiguous) for array in arrays}) > 1 or is_half(arrays[0]):
        return False
    before_write(mean)
    before_write(var)
    values = [*arrays, 1 - momentum, momentum, factor]
    done = elementwise.apply(mean._dev.xp, "running_statistics", (), _running, values, out=[mean._array, var._array])
    if done is None:
        return False
    mean._bump()
    var._bump()
    return True


def count_batch(tracked: Tensor) -> None:
    """Add 1 to a counter of batches; in place on a device, where `add_` makes a new number and copies it."""
    xp = tracked._dev.xp
    if not hasattr(xp, "launch") or batched_in((tracked,)):
        tracked.add_(1)
        return
    before_write(tracked)
    xp.add(tracked._array, 1, out=tracked._array)
    tracked._bump()


def _running(mean: Any, new_mean: Any, var: Any, new_var: Any, keep: Any, take: Any, factor: Any) -> tuple[Any, Any]:
    return mean * keep + take * new_mean, var * keep + take * (new_var * factor)


elementwise.ALL.append(lambda: [("running_statistics", _running, 7)])


def _move(*pairs: tuple[Tensor | None, Any], momentum: float) -> None:
    """Move running statistics by the share `momentum` towards new ones."""
    quiet = silence(SILENT)
    try:
        _move_each(pairs, momentum)
    finally:
        restore(quiet)


def _move_each(pairs: tuple[tuple[Tensor | None, Any], ...], momentum: float) -> None:
    for running, value in pairs:
        if running is not None and batched_in((running, value)):
            running.copy_(running * (1 - momentum) + value * momentum)
        elif running is not None:
            before_write(running)
            if is_half(running._array):
                moved = widened_array(running._array) * (1 - momentum) + widened_array(value) * momentum
                put_rounded(running._array, moved)
            else:
                running._array *= 1 - momentum
                running._array += momentum * value
            running._bump()


def _batch_norm_fixed(input: Any, mean: Any, var: Any, weight: Any, bias: Any, eps: float) -> Tensor:
    if mean is None or var is None:
        raise RuntimeError("batch_norm: running_mean and running_var must be given when training is False")
    made: Tensor = norm.batch_norm_fixed.call(input, mean, var, weight, bias, eps)
    return made


def instance_norm(
    input: Tensor,
    running_mean: Tensor | None = None,
    running_var: Tensor | None = None,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    use_input_stats: bool = True,
    momentum: float = 0.1,
    eps: float = 1e-5,
) -> Tensor:
    """Each channel of each sample (N, C, ...) normalized over its positions, or with the running statistics.

    use_input_stats: the sample's own statistics; running ones are moved by `momentum` towards their mean over the
    samples (the variance unbiased).
    Raises: ValueError for a single position per channel with use_input_stats.
    """
    need_tensors("instance_norm", input=input)
    need_numbers("instance_norm", eps=eps)
    shape = input._array.shape
    if len(shape) < 3:
        raise RuntimeError(f"instance_norm: expected input (N, C, ...) with positions, got shape {tuple(shape)}")
    N, C = shape[:2]
    _need_size("instance_norm", C, running_mean=running_mean, running_var=running_var, weight=weight, bias=bias)
    if not use_input_stats:
        return _batch_norm_fixed(input, running_mean, running_var, weight, bias, eps)
    count = math.prod(shape[2:])
    if count == 1:
        raise ValueError(f"Expected more than 1 spatial element when training, got input size {tuple(shape)}")
    if not input._array.size:
        return batch_norm(input, None, None, weight, bias, True, momentum, eps)
    stats: list[Any] = []
    each = [None if value is None else value.repeat(N) for value in (weight, bias)]
    out: Tensor = norm.batch_norm.call(input.reshape(1, N * C, *shape[2:]), *each, eps, stats)
    if running_mean is not None or running_var is not None:
        mean_C, var_C = (value.reshape(N, C).mean(0) for value in stats)
        _move((running_mean, mean_C), (running_var, var_C * (count / (count - 1))), momentum=momentum)
    return out.reshape(shape)


def normalize_over_ranks(
    input: Tensor,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    weight: Tensor | None,
    bias: Tensor | None,
    momentum: float,
    eps: float,
    *,
    group: Any,
) -> Tensor:
    """`batch_norm` in training with the mean and variance of all ranks' batches together.

    Every rank's count, mean and sum of squares around its mean are put together as in T. Chan, G. Golub, R. LeVeque,
    "Updating formulae and a pairwise algorithm for computing sample variances": one collective forward, one backward.
    Raises: ValueError on all ranks when there is one value per channel in all.
    """
    need_tensors("SyncBatchNorm", input=input)
    C = input._array.shape[1]
    _need_size("SyncBatchNorm", C, running_mean=running_mean, running_var=running_var, weight=weight, bias=bias)
    axes = (0, *range(2, input._array.ndim))
    along = (1, -1, *(1,) * (input._array.ndim - 2))
    wide = widened(input)
    here = input._array.size // max(C, 1)
    own_mean = wide.sum(axes) / max(here, 1)
    own_squares = (wide - own_mean.reshape(along)).square().sum(axes)
    rows = ranks.rows(cat([wide.new_full((1,), here), own_mean, own_squares]), group)
    counts, means, squares = rows[:, :1].detach(), rows[:, 1 : C + 1], rows[:, C + 1 :]
    count = float(counts.sum())
    if count <= 1:
        raise ValueError(f"Expected more than 1 value per channel when training, got input size {tuple(input.shape)}")
    mean = (counts * means).sum(0) / count
    var = (squares + counts * (means - mean).square()).sum(0) / count
    centred = wide - mean.reshape(along)
    _move((running_mean, mean._array), (running_var, var._array * (count / (count - 1))), momentum=momentum)
    scale = (var + eps).rsqrt()
    out = centred * (scale if weight is None else scale * weight).reshape(along)
    out = out if bias is None else out + bias.reshape(along)
    return out.to(input.dtype)
