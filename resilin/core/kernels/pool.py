"""Pooling over two dimensions: the maximum of each window with its position, or the mean.

Averages take the windows of each axis as an int64 array of (start, stop, divisor) per output: the elements from start
up to stop are summed, and the sum is divided by the product of both axes' divisors.
"""

# N samples, C channels, H W input size, P Q output size

from __future__ import annotations

import functools
from typing import Any

import numpy as np

from resilin.core.kernels.common import Array, array_namespace, compute_dtype, has_elements
from resilin.core.kernels.cuda import pool as pool_cuda
from resilin.core.kernels.loader import kernel
from resilin.errors import UsageError

Pair = tuple[int, int]

_native_avg_pool2d_backward = kernel("avg_pool2d_backward")
_native_avg_pool2d_forward = kernel("avg_pool2d_forward")
_native_max_pool2d_backward = kernel("max_pool2d_backward")
_native_max_pool2d_forward = kernel("max_pool2d_forward")


def out_size(size: int, kernel: int, stride: int, padding: int, dilation: int, ceil_mode: bool) -> int:
    """Number of window positions along one axis, by PyTorch's rule: no window starts in the right padding.

    With `ceil_mode` the last window may reach beyond the padding, by less than a stride.
    """
    span = dilation * (kernel - 1) + 1
    count = (size + 2 * padding - span + (stride - 1 if ceil_mode else 0)) // stride + 1
    if count < 1 or padding * 2 > span:
        raise UsageError(
            f"pooling: window of {span} (kernel {kernel}, dilation {dilation}) does not fit input {size} with "
            f"padding {padding}; expected padding <= window / 2 and window <= input + 2 * padding"
        )
    return count - 1 if ceil_mode and (count - 1) * stride >= size + padding else count


def max2d_forward(
    x: Array, kernel: Pair, stride: Pair, padding: Pair, dilation: Pair, ceil_mode: bool
) -> tuple[Array, Array]:
    """Maximum of each window and its flat position in the H * W image (int64); NaN wins, the first maximum counts.

    A window of nothing but padding gives -inf and position -1.
    Shape: x (N, C, H, W); y and index (N, C, P, Q).
    """
    H, W = x.shape[2:]
    P = out_size(H, kernel[0], stride[0], padding[0], dilation[0], ceil_mode)
    Q = out_size(W, kernel[1], stride[1], padding[1], dilation[1], ceil_mode)
    if isinstance(x, np.ndarray):
        out = _native_max_pool2d_forward(x, P, Q, *kernel, *stride, *padding, *dilation)
        if out is not None:
            return out  # type: ignore[no-any-return]
    if not has_elements(x):
        xp = array_namespace(x)
        return xp.empty((*x.shape[:2], P, Q), x.dtype), xp.empty((*x.shape[:2], P, Q), np.int64)
    xp = array_namespace(x)
    if hasattr(xp, "launch"):
        pooled: Any = pool_cuda.max2d_forward(xp, x, (P, Q), kernel, stride, padding, dilation)
        if pooled is not None:
            return pooled  # type: ignore[no-any-return]
    return reference_max2d_forward(x, (P, Q), kernel, stride, padding, dilation)


def max2d_backward(g: Array, index: Array, x_shape: tuple[int, ...]) -> Array:
    """g added at the positions of the maxima, in ascending window order."""
    if isinstance(g, np.ndarray) and (dx := _native_max_pool2d_backward(g, index, *x_shape)) is not None:
        return dx  # type: ignore[no-any-return]
    return reference_max2d_backward(g, index, x_shape)


def _fixed(windows: Array) -> Array:
    windows.flags.writeable = False  # all that ask for the same get this one
    return windows


@functools.lru_cache(256)
def average_windows(size: int, kernel: int, stride: int, padding: int, ceil_mode: bool, counted: bool) -> Array:
    """Windows of `kernel` elements every `stride` along an axis of `size`; `counted`: padding counts in divisors."""
    starts = np.arange(out_size(size, kernel, stride, padding, 1, ceil_mode)) * stride - padding
    ends = np.minimum(starts + kernel, size + padding)
    inside = np.maximum(starts, 0), np.minimum(ends, size)
    return _fixed(np.stack([*inside, ends - starts if counted else inside[1] - inside[0]], 1))


@functools.lru_cache(256)
def adaptive_windows(size: int, count: int) -> Array:
    """Windows that divide an axis of `size` into `count` parts, as equal as can be; they may overlap."""
    places = np.arange(count)
    starts, ends = places * size // max(count, 1), -(-(places + 1) * size // max(count, 1))
    return _fixed(np.stack([starts, ends, ends - starts], 1))


def avg2d_forward(x: Array, rows: Array, columns: Array) -> Array:
    """The mean of each window, shape (N, C, P, Q): columns are summed from top to bottom, their sums from the left."""
    y: Array | None = _native_avg_pool2d_forward(x, rows, columns) if isinstance(x, np.ndarray) else None
    return reference_avg2d_forward(x, rows, columns) if y is None else y


def avg2d_backward(g: Array, rows: Array, columns: Array, size: Pair) -> Array:
    """Gradient of images of `size` (H, W): each element's windows are added from the left, then from the top."""
    dx: Array | None = None
    if isinstance(g, np.ndarray):
        dx = _native_avg_pool2d_backward(g, rows, columns, *size)
    return reference_avg2d_backward(g, rows, columns, size) if dx is None else dx


def _divisors(xp: Any, rows: Array, columns: Array, dtype: np.dtype[Any]) -> Array:
    divisors: Array = xp.asarray((rows[:, 2, None] * columns[:, 2]).astype(dtype))
    return divisors


def reference_avg2d_forward(x: Array, rows: Array, columns: Array) -> Array:
    """numpy form of `avg2d_forward`, also for a device's arrays; the windows are the host's."""
    xp = array_namespace(x)
    N, C, _, W = x.shape
    dtype = compute_dtype(x.dtype)
    tall, y = xp.empty((N, C, len(rows), W), dtype), xp.empty((N, C, len(rows), len(columns)), dtype)
    for p, (start, stop, _) in enumerate(rows):
        tall[:, :, p] = x[:, :, start:stop].sum(2, dtype)
    for q, (start, stop, _) in enumerate(columns):
        y[:, :, :, q] = tall[:, :, :, start:stop].sum(3, dtype)
    y /= _divisors(xp, rows, columns, dtype)
    return y.astype(x.dtype, copy=False)  # type: ignore[no-any-return]


def reference_avg2d_backward(g: Array, rows: Array, columns: Array, size: Pair) -> Array:
    """numpy form of `avg2d_backward`, also for a device's arrays; the windows are the host's."""
    xp = array_namespace(g)
    N, C, P, _ = g.shape
    dtype = compute_dtype(g.dtype)
    shares = g.astype(dtype, copy=False) / _divisors(xp, rows, columns, dtype)
    wide, dx = xp.zeros((N, C, P, size[1]), dtype), xp.zeros((N, C, *size), dtype)
    for q, (start, stop, _) in enumerate(columns):
        wide[:, :, :, start:stop] += shares[:, :, :, q : q + 1]
    for p, (start, stop, _) in enumerate(rows):
        dx[:, :, start:stop] += wide[:, :, p : p + 1]
    return dx.astype(g.dtype, copy=False)  # type: ignore[no-any-return]


def reference_max2d_forward(
    x: Array, size: Pair, kernel: Pair, stride: Pair, padding: Pair, dilation: Pair
) -> tuple[Array, Array]:
    """numpy form of `max2d_forward` for an output of `size`, also for a device's arrays."""
    xp = array_namespace(x)
    (N, C, H, W), (P, Q), (KH, KW), (ph, pw) = x.shape, size, kernel, padding
    tall = max((P - 1) * stride[0] + dilation[0] * (KH - 1) + 1, H + ph)
    wide = max((Q - 1) * stride[1] + dilation[1] * (KW - 1) + 1, W + pw)
    lowest = np.iinfo(x.dtype).min if x.dtype.kind in "iu" else 0 if x.dtype.kind == "b" else -np.inf
    padded = xp.full((N, C, tall, wide), lowest, x.dtype)
    padded[:, :, ph : ph + H, pw : pw + W] = x
    position = xp.full((tall, wide), -1, np.int64)
    position[ph : ph + H, pw : pw + W] = xp.arange(H * W).reshape(H, W)
    a, b, c, d = padded.strides
    steps = (c * stride[0], d * stride[1], c * dilation[0], d * dilation[1])
    windows = xp.as_strided(padded, (N, C, P, Q, KH, KW), (a, b, *steps)).reshape(N, C, P, Q, KH * KW)
    c, d = position.strides
    steps = (c * stride[0], d * stride[1], c * dilation[0], d * dilation[1])
    places = xp.as_strided(position, (P, Q, KH, KW), steps).reshape(P, Q, KH * KW)
    # padding must never win, not even against -inf: rank it below every real element
    real = places >= 0
    first = xp.argmax(real, axis=-1)
    pick = xp.argmax(windows, axis=-1)
    pick = xp.where(xp.take_along_axis(xp.broadcast_to(real, windows.shape), pick[..., None], -1)[..., 0], pick, first)
    y = xp.take_along_axis(windows, pick[..., None], axis=-1)[..., 0]
    return y, xp.take_along_axis(xp.broadcast_to(places, windows.shape), pick[..., None], axis=-1)[..., 0]


def reference_max2d_backward(g: Array, index: Array, x_shape: tuple[int, ...]) -> Array:
    """numpy form of `max2d_backward`, also for a device's arrays."""
    xp = array_namespace(g)
    N, C, H, W = x_shape
    planes, flat = xp.repeat(xp.arange(N * C), index.size // max(N * C, 1)), index.reshape(-1)
    real = flat >= 0  # of the others nothing is added to the first place: no mask, which a device would wait for
    places = xp.where(real, planes * (H * W) + flat, 0)
    values = xp.where(real, g.reshape(-1), xp.zeros((), g.dtype))
    dx: Array = xp.index_add_zeros(values, (N * C * H * W,), places)
    return dx.reshape(x_shape)
