"""Pooling of torch.nn.functional: arguments checked, all dimensions led to two.

One dimension is two of height 1. Three are two, and then depth over the flattened planes: the mean is a product of
means, and the first maximum in depth of the first maxima in the planes is the first of all.
"""

from __future__ import annotations

import functools
import math
from typing import Any

import numpy as np

from resilin.core.api.conversion.through_host import through_host
from resilin.core.api.manipulation import index_checks
from resilin.core.api.manipulation.indexing import scatter
from resilin.core.api.mathematics import reducing
from resilin.core.api.mathematics.half_precision import rounded_once
from resilin.core.api.mathematics.windows import Lengths, batched, check_pooling, need_room, per_axis
from resilin.core.kernels import adaptive_max, index_range
from resilin.core.kernels import pool as pool_kernel
from resilin.core.ops import conv
from resilin.core.ops import index as index_ops
from resilin.core.ops import shape as shape_ops
from resilin.core.ops.creation import zeros
from resilin.core.ops.random import rand
from resilin.core.tensor import Tensor, wrap


def max_pool1d(
    input: Tensor,
    kernel_size: Any,
    stride: Any = None,
    padding: Any = 0,
    dilation: Any = 1,
    ceil_mode: bool = False,
    return_indices: bool = False,
) -> Any:
    """The maximum of each window of (N, C, L) or (C, L); with `return_indices` also its position."""
    return _max_pool("max_pool1d", 1, input, kernel_size, stride, padding, dilation, ceil_mode, return_indices)


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
    return _max_pool("max_pool2d", 2, input, kernel_size, stride, padding, dilation, ceil_mode, return_indices)


def max_pool3d(
    input: Tensor,
    kernel_size: Any,
    stride: Any = None,
    padding: Any = 0,
    dilation: Any = 1,
    ceil_mode: bool = False,
    return_indices: bool = False,
) -> Any:
    """The maximum of each window of (N, C, D, H, W) or (C, D, H, W); with `return_indices` also its flat position."""
    return _max_pool("max_pool3d", 3, input, kernel_size, stride, padding, dilation, ceil_mode, return_indices)


def avg_pool1d(
    input: Tensor,
    kernel_size: Any,
    stride: Any = None,
    padding: Any = 0,
    ceil_mode: bool = False,
    count_include_pad: bool = True,
) -> Tensor:
    """The mean of each window of (N, C, L) or (C, L)."""
    return _avg_pool("avg_pool1d", 1, input, kernel_size, stride, padding, ceil_mode, count_include_pad, None)


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
    return _avg_pool(
        "avg_pool2d", 2, input, kernel_size, stride, padding, ceil_mode, count_include_pad, divisor_override
    )


def avg_pool3d(
    input: Tensor,
    kernel_size: Any,
    stride: Any = None,
    padding: Any = 0,
    ceil_mode: bool = False,
    count_include_pad: bool = True,
    divisor_override: int | None = None,
) -> Tensor:
    """The mean of each window of (N, C, D, H, W) or (C, D, H, W)."""
    return _avg_pool(
        "avg_pool3d", 3, input, kernel_size, stride, padding, ceil_mode, count_include_pad, divisor_override
    )


def adaptive_avg_pool1d(input: Tensor, output_size: Any) -> Tensor:
    """Means over windows that divide the sequence into `output_size` parts."""
    return _adaptive_avg("adaptive_avg_pool1d", 1, input, output_size)


def adaptive_avg_pool2d(input: Tensor, output_size: Any) -> Tensor:
    """Means over windows that divide the image into `output_size` parts; None keeps a length."""
    return _adaptive_avg("adaptive_avg_pool2d", 2, input, output_size)


def adaptive_avg_pool3d(input: Tensor, output_size: Any) -> Tensor:
    """Means over windows that divide the volume into `output_size` parts; None keeps a length."""
    return _adaptive_avg("adaptive_avg_pool3d", 3, input, output_size)


@through_host
def adaptive_max_pool1d(input: Tensor, output_size: Any, return_indices: bool = False) -> Any:
    """Maxima over windows that divide the sequence into `output_size` parts."""
    return _adaptive_max("adaptive_max_pool1d", 1, input, output_size, return_indices)


@through_host
def adaptive_max_pool2d(input: Tensor, output_size: Any, return_indices: bool = False) -> Any:
    """Maxima over windows that divide the image into `output_size` parts; None keeps a length."""
    return _adaptive_max("adaptive_max_pool2d", 2, input, output_size, return_indices)


@through_host
def adaptive_max_pool3d(input: Tensor, output_size: Any, return_indices: bool = False) -> Any:
    """Maxima over windows that divide the volume into `output_size` parts; None keeps a length."""
    return _adaptive_max("adaptive_max_pool3d", 3, input, output_size, return_indices)


def lp_pool1d(input: Tensor, norm_type: Any, kernel_size: Any, stride: Any = None, ceil_mode: bool = False) -> Tensor:
    """The p-norm of each window, p = `norm_type`; of the sum of powers, so a window at the end is scaled up."""
    return _lp_pool("avg_pool1d", 1, input, norm_type, kernel_size, stride, ceil_mode)


def lp_pool2d(input: Tensor, norm_type: Any, kernel_size: Any, stride: Any = None, ceil_mode: bool = False) -> Tensor:
    """The p-norm of each window of an image; see `lp_pool1d`."""
    return _lp_pool("avg_pool2d", 2, input, norm_type, kernel_size, stride, ceil_mode)


def lp_pool3d(input: Tensor, norm_type: Any, kernel_size: Any, stride: Any = None, ceil_mode: bool = False) -> Tensor:
    """The p-norm of each window of a volume; see `lp_pool1d`."""
    return _lp_pool("avg_pool3d", 3, input, norm_type, kernel_size, stride, ceil_mode)


def max_unpool1d(
    input: Tensor, indices: Tensor, kernel_size: Any, stride: Any = None, padding: Any = 0, output_size: Any = None
) -> Tensor:
    """`input` at the positions that `max_pool1d` gave as `indices`, zeros elsewhere."""
    return _unpool("max_unpool1d", 1, input, indices, kernel_size, stride, padding, output_size)


def max_unpool2d(
    input: Tensor, indices: Tensor, kernel_size: Any, stride: Any = None, padding: Any = 0, output_size: Any = None
) -> Tensor:
    """`input` at the positions that `max_pool2d` gave as `indices`, zeros elsewhere."""
    return _unpool("max_unpool2d", 2, input, indices, kernel_size, stride, padding, output_size)


def max_unpool3d(
    input: Tensor, indices: Tensor, kernel_size: Any, stride: Any = None, padding: Any = 0, output_size: Any = None
) -> Tensor:
    """`input` at the positions that `max_pool3d` gave as `indices`, zeros elsewhere."""
    return _unpool("max_unpool3d", 3, input, indices, kernel_size, stride, padding, output_size)


@through_host
def fractional_max_pool2d(
    input: Tensor,
    kernel_size: Any,
    output_size: Any = None,
    output_ratio: Any = None,
    return_indices: bool = False,
    _random_samples: Tensor | None = None,
) -> Any:
    """Maxima of windows that start at random distances; give `output_size` or `output_ratio` (between 0 and 1)."""
    return _fractional(
        "fractional_max_pool2d", 2, input, kernel_size, output_size, output_ratio, return_indices, _random_samples
    )


@through_host
def fractional_max_pool3d(
    input: Tensor,
    kernel_size: Any,
    output_size: Any = None,
    output_ratio: Any = None,
    return_indices: bool = False,
    _random_samples: Tensor | None = None,
) -> Any:
    """Maxima of windows of a volume that start at random distances; see `fractional_max_pool2d`."""
    return _fractional(
        "fractional_max_pool3d", 3, input, kernel_size, output_size, output_ratio, return_indices, _random_samples
    )


def _window(where: str, count: int, kernel: Any, stride: Any, *rest: Any) -> list[Lengths]:
    """Kernel, stride (default the kernel), and the lengths of `rest`, for each dimension."""
    lengths = [per_axis(where, "kernel_size", kernel, count)]
    none = stride is None or (isinstance(stride, tuple | list) and not stride)
    lengths.append(lengths[0] if none else per_axis(where, "stride", stride, count))
    names = ("padding", "dilation")
    return lengths + [per_axis(where, name, value, count) for name, value in zip(names, rest, strict=False)]


def _max_pool(
    where: str,
    count: int,
    input: Tensor,
    kernel_size: Any,
    stride: Any,
    padding: Any,
    dilation: Any,
    ceil: bool,
    indices: bool,
) -> Any:
    x = batched(where, input, count)
    window: list[Any] = _window(where, count, kernel_size, stride, padding, dilation)
    check_pooling(where, window[0], window[1], window[2], window[3], x._array.shape[2:], ceil)
    if count == 1:
        flat = [(fill, *lengths) for fill, lengths in zip((1, 1, 0, 1), window, strict=True)]
        out, index = _max_pool_planes(x.unsqueeze(-2), flat, ceil, indices)
        out, index = out.squeeze(-2), None if index is None else index.squeeze(-2)
    elif count == 2:
        out, index = _max_pool_planes(x, window, ceil, indices)
    else:
        out, index = _max_pool_volumes(x, window, ceil, indices)
    if index is not None:
        index = wrap(_in_image(x._dev.xp, index._array, window, x._array.shape[2:]), x._dev)
    if x is not input:
        out, index = out.squeeze(0), None if index is None else index.squeeze(0)
    return (out, index) if indices else out


def _in_image(xp: Any, index: Any, window: list[Any], sizes: tuple[int, ...]) -> Any:
    """`index` with PyTorch's place for windows of nothing but padding (-1): where their first step past it leads.

    That may be the next line, but in the image. Only dilated windows miss it.
    """
    _, strides, paddings, dilations = window
    if not index.size or not any(p and d > 1 for p, d in zip(paddings, dilations, strict=True)):
        return index
    place: Any = np.zeros((), np.int64)
    for n, stride, padding, dilation, size in zip(index.shape[2:], strides, paddings, dilations, sizes, strict=True):
        start = np.arange(n) * stride - padding
        place = place[..., None] * size + np.where(start < 0, start % dilation, start)
    return xp.where(index < 0, xp.asarray(np.minimum(place, math.prod(sizes) - 1)), index)


def _max_pool_planes(x: Tensor, window: list[Any], ceil: bool, indices: bool) -> tuple[Tensor, Tensor | None]:
    kernel, stride, padding, dilation = window
    out = conv.max_pool2d.call(x, kernel, stride, padding, dilation, ceil)
    if not indices:
        return out, None
    return out, wrap(pool_kernel.max2d_forward(x._array, kernel, stride, padding, dilation, ceil)[1], x._dev)


def _max_pool_volumes(x: Tensor, window: list[Lengths], ceil: bool, indices: bool) -> tuple[Tensor, Tensor | None]:
    N, C, D, H, W = x._array.shape
    planes, at = _max_pool_planes(x.reshape(N, C * D, H, W), [lengths[1:] for lengths in window], ceil, indices)
    P, Q = planes._array.shape[2:]
    along = [(lengths[0], fill) for fill, lengths in zip((1, 1, 0, 1), window, strict=True)]
    out, depth = _max_pool_planes(planes.reshape(N, C, D, P * Q), along, ceil, indices)
    shape = (N, C, out._array.shape[2], P, Q)
    if at is None or depth is None:
        return out.reshape(shape), None
    slices = depth._array // (P * Q)  # the window's first maximum lies in this slice
    xp = x._dev.xp
    within = xp.take_along_axis(at._array.reshape(N, C, D, P * Q), slices, 2)
    flat = xp.where((within < 0) | (slices < 0), -1, within + slices * (H * W))  # -1: nothing but padding
    return out.reshape(shape), wrap(flat.reshape(shape), x._dev)


@functools.lru_cache(128)
def _each_alone(count: int) -> Any:
    """Windows of one element each; the same array for all that ask for them."""
    each = np.arange(count)
    return np.stack([each, each + 1, np.ones_like(each)], 1)


@rounded_once
def _average(x: Tensor, windows: list[Any]) -> Tensor:
    """Means over windows along each spatial dimension, as `kernels/pool.py` describes them."""
    if len(windows) == 1:
        out: Tensor = conv.avg_pool2d.call(x.unsqueeze(-2), np.array([[0, 1, 1]]), windows[0])
        return out.squeeze(-2)
    if len(windows) == 2:
        return conv.avg_pool2d.call(x, *windows)
    N, C, D, H, W = x._array.shape
    planes = conv.avg_pool2d.call(x.reshape(N, C * D, H, W), *windows[1:])
    P, Q = planes._array.shape[2:]
    out = conv.avg_pool2d.call(planes.reshape(N, C, D, P * Q), windows[0], _each_alone(P * Q))
    return out.reshape(N, C, len(windows[0]), P, Q)


@functools.lru_cache(128)
def _average_windows(
    where: str, sizes: Lengths, kernel: Lengths, strides: Lengths, pads: Lengths, ceil: bool, counted: bool
) -> tuple[Any, ...]:
    """The windows along each dimension; the same arrays for all that ask for them."""
    check_pooling(where, kernel, strides, pads, (1,) * len(sizes), sizes, ceil)
    along = zip(sizes, kernel, strides, pads, strict=True)
    return tuple([pool_kernel.average_windows(*lengths, ceil, counted) for lengths in along])


def _avg_pool(
    where: str,
    count: int,
    input: Tensor,
    kernel_size: Any,
    stride: Any,
    padding: Any,
    ceil: bool,
    counted: bool,
    divisor: int | None,
) -> Tensor:
    x = batched(where, input, count)
    kernel, strides, pads = _window(where, count, kernel_size, stride, padding)
    windows: Any = _average_windows(where, x._array.shape[2:], kernel, strides, pads, bool(ceil), bool(counted))
    if divisor is not None:
        if not hasattr(divisor, "__index__"):
            raise TypeError(f"{where}(): argument 'divisor_override' must be int, not {type(divisor).__name__}")
        if divisor == 0:
            raise RuntimeError(f"{where}: divisor must be not zero")
        windows = [window.copy() for window in windows]
        for number, window in enumerate(windows):
            window[:, 2] = 1 if number else divisor
    out = _average(x, windows)
    return out if x is input else out.squeeze(0)


def _wanted(where: str, x: Tensor, count: int, output_size: Any) -> list[int]:
    same = output_size is None or hasattr(output_size, "__index__")
    sizes = (output_size,) * count if same else tuple(output_size)
    if len(sizes) != count:
        raise RuntimeError(f"{where}: expected output_size of one or {count} integers, got {output_size!r}")
    wanted = [x._array.shape[2 + i] if n is None else n for i, n in enumerate(sizes)]
    if min(wanted) < 0:
        raise RuntimeError(f"{where}: output_size must not be negative, got {tuple(wanted)}")
    need_room(x, wanted)
    if 0 in x._array.shape[1:]:
        raise RuntimeError(f"{where}: expected non-zero sizes besides the batch, got {tuple(x.shape)}")
    return wanted


def _adaptive_avg(where: str, count: int, input: Tensor, output_size: Any) -> Tensor:
    x = batched(where, input, count)
    wanted = _wanted(where, x, count, output_size)
    if all(n == 1 for n in wanted) and x._array.size:  # one window: the mean, which has a kernel of its own
        out = reducing.mean(x, tuple(range(2, x._array.ndim)), True)
    else:
        out = _average(x, list(map(pool_kernel.adaptive_windows, x._array.shape[2:], wanted)))
    return out if x is input else out.squeeze(0)


def _adaptive_max(where: str, count: int, input: Tensor, output_size: Any, indices: bool) -> Any:
    x = batched(where, input, count)
    wanted = _wanted(where, x, count, output_size)
    windows = list(map(pool_kernel.adaptive_windows, x._array.shape[2:], wanted))
    index = adaptive_max.positions_of_windows(x._array, windows)
    return _at_maxima(x, input, index, indices)


def _picked(x: Tensor, input: Tensor, places: list[Any], indices: bool) -> Any:
    """The maxima of the windows at `places`; `x` is `input` or a batch of it alone."""
    return _at_maxima(x, input, adaptive_max.positions(x._array, places), indices)


def _at_maxima(x: Tensor, input: Tensor, index: Any, indices: bool) -> Any:
    N, C, *sizes = x._array.shape
    flat = shape_ops.reshape.call(x, (N, C, math.prod(sizes)))
    places = index_checks.kept(index.reshape(N, C, math.prod(index.shape[2:])), x)
    out = shape_ops.reshape.call(index_ops.take_along_axis.call(flat, places, 2), index.shape)
    out = out if x is input else out.squeeze(0)
    if not indices:
        return out
    at = wrap(index, x._dev)
    return out, at if x is input else at.squeeze(0)


@rounded_once
def _lp_pool(where: str, count: int, input: Tensor, p: Any, kernel_size: Any, stride: Any, ceil: bool) -> Tensor:
    kernel = per_axis(where, "kernel_size", kernel_size, count)
    mean: Any = _avg_pool(where, count, input**p, kernel, stride, 0, ceil, True, None)
    return (mean.sign() * mean.abs().relu() * math.prod(kernel)) ** (1.0 / p)


def _unpool(
    where: str,
    count: int,
    input: Tensor,
    indices: Tensor,
    kernel_size: Any,
    stride: Any,
    padding: Any,
    output_size: Any,
) -> Tensor:
    x = batched(where, input, count)
    if indices._array.dtype != np.int64 or indices._array.shape != input._array.shape:
        raise RuntimeError(
            f"{where}: expected int64 indices of the input's shape {tuple(input.shape)}, got {indices.dtype} of "
            f"{tuple(indices.shape)}"
        )
    window = _window(where, count, kernel_size, stride, padding)
    steps = list(zip(x._array.shape[2:], *window, strict=True))
    usual = [(n - 1) * s + k - 2 * p for n, k, s, p in steps]
    size = usual if output_size is None else list(output_size)[-count:]
    if len(size) != count or any(not abs(n - u) < s for n, u, s in zip(size, usual, window[1], strict=True)):
        raise ValueError(f"{where}: output_size must be within a stride {window[1]} of {usual}, got {output_size}")
    total, lead = math.prod(size), x._array.shape[:2]
    array = indices._array
    text = f"{where}: indices must lie in 0 to {total - 1} for the output {tuple(size)}, found {{value}}"
    index_range.check(array, 0, total, RuntimeError, text)
    flat: Any = x.flatten(2)
    empty = zeros(*lead, total, dtype=input.dtype, device=input.device)
    out = scatter(empty, 2, indices.reshape(*lead, flat._array.shape[2]), flat).reshape(*lead, *size)
    return out if x is input else out.squeeze(0)


def _drawn(where: str, x: Tensor, count: int, samples: Tensor | None) -> Any:
    """Random numbers (N, C, count), or the first N of those that are given."""
    N, C = x._array.shape[:2]
    if samples is None:
        return rand(N, C, count, dtype=x.dtype, device="cpu")._array
    given = samples._array
    if given.ndim != 3 or given.shape[0] < N or given.shape[1:] != (C, count) or given.dtype != x._array.dtype:
        raise RuntimeError(
            f"{where}: expected _random_samples of {x.dtype} and shape ({N}, {C}, {count}), got {samples.dtype} and "
            f"{tuple(given.shape)}"
        )
    return given[:N]


def _fractional(
    where: str,
    count: int,
    input: Tensor,
    kernel_size: Any,
    output_size: Any,
    output_ratio: Any,
    indices: bool,
    samples: Tensor | None,
) -> Any:
    if (output_size is None) == (output_ratio is None):
        raise ValueError(f"{where}: give either output_size or output_ratio, got {output_size!r} and {output_ratio!r}")
    x = batched(where, input, count)
    sizes = x._array.shape[2:]
    kernel = per_axis(where, "kernel_size", kernel_size, count)
    if output_size is None:
        ratios = (output_ratio,) * count if isinstance(output_ratio, float) else output_ratio
        output_size = [int(n * r) for n, r in zip(sizes, ratios, strict=True)]
    wanted = per_axis(where, "output_size", output_size, count)
    for n, k, m in zip(sizes, kernel, wanted, strict=True):
        if m < 1 or m + k - 1 > n:
            raise RuntimeError(f"{where}: {m} windows of {k} do not fit a dimension of {n} in {tuple(input.shape)}")
    drawn = _drawn(where, x, count, samples)
    # PyTorch's order of the numbers: width before height, but depth, height, width
    order = (1, 0) if count == 2 else (0, 1, 2)
    starts = [
        adaptive_max.fractional_starts(drawn[..., o], n, k, m)
        for o, n, k, m in zip(order, sizes, kernel, wanted, strict=True)
    ]
    return _picked(x, input, [adaptive_max.places(s, s + k) for s, k in zip(starts, kernel, strict=True)], indices)
