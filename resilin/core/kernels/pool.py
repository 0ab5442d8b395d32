"""Max pooling over two dimensions, with the position of each maximum."""

# N samples, C channels, H W input size, P Q output size

from __future__ import annotations

import numpy as np
from numpy.lib.stride_tricks import as_strided

from resilin.core.kernels.common import Array
from resilin.core.kernels.loader import kernel
from resilin.errors import UsageError

Pair = tuple[int, int]

_native_max_pool2d_backward = kernel("max_pool2d_backward")
_native_max_pool2d_forward = kernel("max_pool2d_forward")


def out_size(size: int, kernel: int, stride: int, padding: int, dilation: int, ceil_mode: bool) -> int:
    """Number of window positions along one axis, by PyTorch's rule: no window starts in the right padding."""
    span = dilation * (kernel - 1) + 1
    reach = size + 2 * padding - span
    if reach < 0 or padding * 2 > kernel:
        raise UsageError(
            f"max_pool2d: window of {span} (kernel {kernel}, dilation {dilation}) does not fit input {size} with "
            f"padding {padding}; expected padding <= kernel / 2 and window <= input + 2 * padding"
        )
    count = (reach + (stride - 1 if ceil_mode else 0)) // stride + 1
    return count - 1 if ceil_mode and (count - 1) * stride >= size + padding else count


def max2d_forward(
    x: Array, kernel: Pair, stride: Pair, padding: Pair, dilation: Pair, ceil_mode: bool
) -> tuple[Array, Array]:
    """Maximum of each window and its flat position in the H * W image (int64); NaN wins, the first maximum counts.

    Shape: x (N, C, H, W); y and index (N, C, P, Q).
    """
    H, W = x.shape[2:]
    P = out_size(H, kernel[0], stride[0], padding[0], dilation[0], ceil_mode)
    Q = out_size(W, kernel[1], stride[1], padding[1], dilation[1], ceil_mode)
    out = _native_max_pool2d_forward(x, P, Q, *kernel, *stride, *padding, *dilation)
    if out is not None:
        return out  # type: ignore[no-any-return]
    return reference_max2d_forward(x, (P, Q), kernel, stride, padding, dilation)


def max2d_backward(g: Array, index: Array, x_shape: tuple[int, ...]) -> Array:
    """g added at the positions of the maxima, in ascending window order."""
    if (dx := _native_max_pool2d_backward(g, index, *x_shape)) is not None:
        return dx  # type: ignore[no-any-return]
    return reference_max2d_backward(g, index, x_shape)


def reference_max2d_forward(
    x: Array, size: Pair, kernel: Pair, stride: Pair, padding: Pair, dilation: Pair
) -> tuple[Array, Array]:
    """numpy form of `max2d_forward` for an output of `size`."""
    (N, C, H, W), (P, Q), (KH, KW), (ph, pw) = x.shape, size, kernel, padding
    tall = max((P - 1) * stride[0] + dilation[0] * (KH - 1) + 1, H + ph)
    wide = max((Q - 1) * stride[1] + dilation[1] * (KW - 1) + 1, W + pw)
    padded = np.full((N, C, tall, wide), -np.inf, x.dtype)
    padded[:, :, ph : ph + H, pw : pw + W] = x
    position = np.full((tall, wide), -1, np.int64)
    position[ph : ph + H, pw : pw + W] = np.arange(H * W).reshape(H, W)
    a, b, c, d = padded.strides
    steps = (c * stride[0], d * stride[1], c * dilation[0], d * dilation[1])
    windows = as_strided(padded, (N, C, P, Q, KH, KW), (a, b, *steps), writeable=False).reshape(N, C, P, Q, KH * KW)
    c, d = position.strides
    steps = (c * stride[0], d * stride[1], c * dilation[0], d * dilation[1])
    places = as_strided(position, (P, Q, KH, KW), steps, writeable=False).reshape(P, Q, KH * KW)
    # padding must never win, not even against -inf: rank it below every real element
    real = places >= 0
    first = np.argmax(real, axis=-1)
    pick = np.argmax(windows, axis=-1)
    pick = np.where(np.take_along_axis(np.broadcast_to(real, windows.shape), pick[..., None], -1)[..., 0], pick, first)
    y = np.take_along_axis(windows, pick[..., None], axis=-1)[..., 0]
    return y, np.take_along_axis(np.broadcast_to(places, windows.shape), pick[..., None], axis=-1)[..., 0]


def reference_max2d_backward(g: Array, index: Array, x_shape: tuple[int, ...]) -> Array:
    """numpy form of `max2d_backward`."""
    N, C, H, W = x_shape
    dx = np.zeros((N * C, H * W), g.dtype)
    planes = np.repeat(np.arange(N * C), index.size // max(N * C, 1))
    np.add.at(dx, (planes, index.reshape(-1)), g.reshape(-1))
    return dx.reshape(x_shape)
