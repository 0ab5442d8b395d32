"""Two-dimensional convolution as im2col and one matrix product per group."""

# N samples, C input channels, H W input size, O output channels, P Q output size, KH KW kernel size, G groups

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.lib.stride_tricks import as_strided

from resilin.core.kernels.common import Array
from resilin.core.kernels.loader import kernel
from resilin.errors import UsageError

Pair = tuple[int, int]

_native_im2col = kernel("im2col")
_native_col2im = kernel("col2im")


@dataclass(frozen=True, slots=True)
class Geometry:
    """The window of a convolution or pooling: kernel size, stride, zero padding on both sides, dilation."""

    kernel: Pair
    stride: Pair
    padding: Pair
    dilation: Pair

    def out_size(self, H: int, W: int) -> Pair:
        """Number of window positions along both axes; UsageError when the window does not fit."""
        sizes = []
        for size, k, s, p, d in zip((H, W), self.kernel, self.stride, self.padding, self.dilation, strict=True):
            span = d * (k - 1) + 1
            if size + 2 * p < span:
                raise UsageError(f"conv2d: input of {size} plus padding {p} is smaller than the window of {span}")
            sizes.append((size + 2 * p - span) // s + 1)
        return sizes[0], sizes[1]


def forward(x: Array, w: Array, bias: Array | None, stride: Pair, padding: Pair, dilation: Pair, groups: int) -> Array:
    """Cross-correlation, as in PyTorch.

    Shape: x (N, C, H, W), w (O, C / groups, KH, KW), bias (O,); y (N, O, P, Q).
    """
    geometry = Geometry((w.shape[2], w.shape[3]), stride, padding, dilation)
    N, O = x.shape[0], w.shape[0]
    P, Q = geometry.out_size(x.shape[2], x.shape[3])
    cols = im2col(x, geometry).reshape(N, groups, -1, P * Q)
    y = np.matmul(w.reshape(groups, O // groups, -1), cols).reshape(N, O, P, Q)
    if bias is not None:
        y += bias[:, None, None]
    return y  # type: ignore[no-any-return]


def backward(
    g: Array,
    x: Array,
    w: Array,
    stride: Pair,
    padding: Pair,
    dilation: Pair,
    groups: int,
    need: tuple[bool, bool, bool] = (True, True, True),
) -> tuple[Array | None, Array | None, Array | None]:
    """Gradients (dx, dw, db); None for those not in `need`. Samples are summed in ascending order."""
    geometry = Geometry((w.shape[2], w.shape[3]), stride, padding, dilation)
    N, O, P, Q = g.shape
    g_NGOL = g.reshape(N, groups, O // groups, P * Q)
    w_GOK = w.reshape(groups, O // groups, -1)
    dx = dw = None
    if need[1]:
        cols = im2col(x, geometry).reshape(N, groups, -1, P * Q)
        dw = np.matmul(g_NGOL, cols.swapaxes(-1, -2)).sum(axis=0).reshape(w.shape)
    if need[0]:
        dx = col2im(np.matmul(w_GOK.swapaxes(-1, -2), g_NGOL), x.shape, geometry)
    return dx, dw, g.sum(axis=(0, 2, 3)) if need[2] else None


def im2col(x: Array, geometry: Geometry) -> Array:
    """The windows of x (N, C, H, W) as an array (N, C * KH * KW, P * Q)."""
    if (cols := _native_im2col(x, *_flat(geometry))) is not None:
        return cols  # type: ignore[no-any-return]
    return reference_im2col(x, geometry)


def col2im(cols: Array, shape: tuple[int, ...], geometry: Geometry) -> Array:
    """The adjoint of `im2col`: window elements added back to an image of `shape`, in ascending kernel position."""
    if (x := _native_col2im(cols, *shape, *_flat(geometry))) is not None:
        return x  # type: ignore[no-any-return]
    return reference_col2im(cols, shape, geometry)


def _flat(geometry: Geometry) -> tuple[int, ...]:
    return (*geometry.kernel, *geometry.stride, *geometry.padding, *geometry.dilation)


def reference_im2col(x: Array, geometry: Geometry) -> Array:
    """numpy form of `im2col`."""
    N, C, H, W = x.shape
    (KH, KW), (sh, sw), (ph, pw), (dh, dw) = geometry.kernel, geometry.stride, geometry.padding, geometry.dilation
    P, Q = geometry.out_size(H, W)
    padded = np.zeros((N, C, H + 2 * ph, W + 2 * pw), x.dtype)
    padded[:, :, ph : ph + H, pw : pw + W] = x
    a, b, c, d = padded.strides
    windows = as_strided(padded, (N, C, KH, KW, P, Q), (a, b, c * dh, d * dw, c * sh, d * sw), writeable=False)
    return windows.reshape(N, C * KH * KW, P * Q)


def reference_col2im(cols: Array, shape: tuple[int, ...], geometry: Geometry) -> Array:
    """numpy form of `col2im`."""
    N, C, H, W = shape
    (KH, KW), (sh, sw), (ph, pw), (dh, dw) = geometry.kernel, geometry.stride, geometry.padding, geometry.dilation
    P, Q = geometry.out_size(H, W)
    cols = cols.reshape(N, C, KH, KW, P, Q)
    padded = np.zeros((N, C, H + 2 * ph, W + 2 * pw), cols.dtype)
    for i in range(KH):
        for j in range(KW):
            rows = slice(i * dh, i * dh + (P - 1) * sh + 1, sh)
            padded[:, :, rows, slice(j * dw, j * dw + (Q - 1) * sw + 1, sw)] += cols[:, :, i, j]
    return np.ascontiguousarray(padded[:, :, ph : ph + H, pw : pw + W])
