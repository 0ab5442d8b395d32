"""Windows as columns and back, channels as pixels and back: torch.nn.functional's rearrangements of images."""

from __future__ import annotations

import math
from typing import Any

from resilin.core.api.mathematics.half_precision import rounded_once
from resilin.core.api.mathematics.windows import batched, check_window, per_axis
from resilin.core.api.nn.neural import need_tensors, pad
from resilin.core.api.nn.pooling import avg_pool2d
from resilin.core.kernels.loader import short
from resilin.core.ops import shape as shape_ops
from resilin.core.ops import windows as ops
from resilin.core.tensor import Tensor


def unfold(input: Tensor, kernel_size: Any, dilation: Any = 1, padding: Any = 0, stride: Any = 1) -> Tensor:
    """The windows of images (N, C, H, W) or (C, H, W) as columns (N, C * KH * KW, L)."""
    need_tensors("unfold", input=input)
    x = batched("unfold", input, 2)
    window = _window("unfold", kernel_size, stride, padding, dilation)
    _count("unfold", x._array.shape[2:], window)
    out: Tensor = ops.unfold_windows.call(x, *window)
    return out if x is input else out.squeeze(0)


def fold(
    input: Tensor, output_size: Any, kernel_size: Any, dilation: Any = 1, padding: Any = 0, stride: Any = 1
) -> Tensor:
    """Columns (N, C * KH * KW, L) or (C * KH * KW, L) added to the places of their windows in images (N, C, H, W)."""
    need_tensors("fold", input=input)
    x = batched("fold", input, 1)
    window = _window("fold", kernel_size, stride, padding, dilation)
    size = per_axis("fold", "output_size", output_size, 2)
    rows, columns = x._array.shape[1:]
    elements, count = math.prod(window[0]), _count("fold", size, window)
    if rows % elements or columns != count:
        raise RuntimeError(
            f"fold: expected input (N, a multiple of {elements}, {count}) for output_size {size}, kernel_size "
            f"{window[0]}, stride {window[1]}, padding {window[2]} and dilation {window[3]}, got {tuple(input.shape)}"
        )
    out: Tensor = ops.fold_windows.call(x, (rows // elements, *size), *window)
    return out if x is input else out.squeeze(0)


def _window(where: str, *lengths: Any) -> list[Any]:
    names = ("kernel_size", "stride", "padding", "dilation")
    window = [per_axis(where, name, value, 2) for name, value in zip(names, lengths, strict=True)]
    check_window(where, *window)
    return window


def _count(where: str, size: Any, window: list[Any]) -> int:
    """Number of windows in images of `size`; RuntimeError without any."""
    steps = zip(size, *window, strict=True)
    counts = [(n + 2 * p - d * (k - 1) - 1) // s + 1 for n, k, s, p, d in steps]
    if min(counts) < 1:
        raise RuntimeError(f"{where}: windows {window[0]} with dilation {window[3]} do not fit images of {tuple(size)}")
    return math.prod(counts)


@short("pixel_shuffle", "input upscale_factor")
def pixel_shuffle(input: Tensor, upscale_factor: int) -> Tensor:
    """Images (..., C * r * r, H, W) as (..., C, H * r, W * r)."""
    r, shape = upscale_factor, tuple(input._array.shape)
    if len(shape) < 3 or r < 1 or shape[-3] % (r * r):
        raise RuntimeError(
            f"pixel_shuffle: expected (..., C, H, W) with C divisible by upscale_factor squared, got {shape} and {r}"
        )
    C, H, W = shape[-3] // (r * r), *shape[-2:]
    split, order = (math.prod(shape[:-3]), C, r, r, H, W), (0, 1, 4, 2, 5, 3)
    return shape_ops.rearrange.call(input, split, order, (*shape[:-3], C, H * r, W * r))


@short("pixel_unshuffle", "input downscale_factor")
def pixel_unshuffle(input: Tensor, downscale_factor: int) -> Tensor:
    """Images (..., C, H * r, W * r) as (..., C * r * r, H, W)."""
    r, shape = downscale_factor, tuple(input._array.shape)
    if len(shape) < 3 or r < 1 or shape[-2] % r or shape[-1] % r:
        raise RuntimeError(
            f"pixel_unshuffle: expected (..., C, H, W) with H and W divisible by downscale_factor, got {shape} and {r}"
        )
    C, H, W = shape[-3], shape[-2] // r, shape[-1] // r
    split, order = (math.prod(shape[:-3]), C, H, r, W, r), (0, 1, 3, 5, 2, 4)
    return shape_ops.rearrange.call(input, split, order, (*shape[:-3], C * r * r, H, W))


@short("channel_shuffle", "input groups")
def channel_shuffle(input: Tensor, groups: int) -> Tensor:
    """Channels (N, C, ...) cut into `groups`, and taken in turn from each."""
    shape = input._array.shape
    if len(shape) < 3 or groups < 1 or shape[1] % groups:
        raise RuntimeError(f"channel_shuffle: expected (N, C, ...) with C divisible by groups={groups}, got {shape}")
    split = (shape[0], groups, shape[1] // groups, math.prod(shape[2:]))
    return shape_ops.rearrange.call(input, split, (0, 2, 1, 3), shape)


@rounded_once
def local_response_norm(input: Tensor, size: int, alpha: float = 1e-4, beta: float = 0.75, k: float = 1.0) -> Tensor:
    """input / (k + alpha * mean of the squares of `size` neighbouring channels) ** beta; (N, C, ...)."""
    shape = tuple(input.shape)
    if len(shape) < 3:
        raise ValueError(f"local_response_norm: expected 3D or higher dimensionality input, got {shape}")
    if 0 in shape:
        return input
    squares = pad((input * input).reshape(shape[0], 1, shape[1], -1), (0, 0, size // 2, (size - 1) // 2))
    mean: Any = avg_pool2d(squares, (size, 1), 1)
    return input / (mean.reshape(shape) * alpha + k) ** beta


@rounded_once
def cross_map_lrn2d(input: Tensor, size: int, alpha: float, beta: float, k: float) -> Tensor:
    """input / (k + alpha / size * sum of squares near each channel) ** beta; images (N, C, H, W).

    With p = (size + 1) // 2, channel c sums channels c - p + 1 to c + p - 1, and channel 0 besides once c >= p: PyTorch
    takes channels out of a running sum as they leave the window, but never the first.
    """
    shape = tuple(input.shape)
    if len(shape) != 4:
        raise ValueError(f"CrossMapLRN2d: expected 4D input, got {len(shape)}D input instead")
    p, C = (size + 1) // 2, shape[1]
    sums: Tensor = (input * input).cumsum(1)
    near = sums[:, [min(c + p - 1, C - 1) for c in range(C)]]
    left = [c - p if c > p else 0 for c in range(C)]
    near = near - (sums[:, left] - sums[:, :1])
    return input / (near * (alpha / size) + k) ** beta
