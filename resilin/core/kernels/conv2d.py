"""Two-dimensional convolution as im2col and matrix products over many samples at once."""

# N samples, C input channels, H W input size, O output channels, P Q output size, KH KW kernel size, G groups

from __future__ import annotations

import math
from collections.abc import Iterator
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

    def __post_init__(self) -> None:
        for name, lengths, least in (
            ("kernel size", self.kernel, 1),
            ("stride", self.stride, 1),
            ("padding", self.padding, 0),
            ("dilation", self.dilation, 1),
        ):
            if min(lengths) < least:
                raise UsageError(f"conv2d: {name} must be at least {least}, got {lengths}")

    def out_size(self, H: int, W: int) -> Pair:
        """Number of window positions along both axes; UsageError when the window does not fit."""
        sizes = []
        for size, k, s, p, d in zip((H, W), self.kernel, self.stride, self.padding, self.dilation, strict=True):
            span = d * (k - 1) + 1
            if size + 2 * p < span:
                raise UsageError(f"conv2d: input of {size} plus padding {p} is smaller than the window of {span}")
            sizes.append((size + 2 * p - span) // s + 1)
        return sizes[0], sizes[1]


# Samples are taken in chunks whose columns fill about this much: larger ones leave the caches, smaller ones make the
# matrix products small. The chunks fix the order in which dw is summed.
_CHUNK_BYTES = 8 << 20


def forward(x: Array, w: Array, bias: Array | None, stride: Pair, padding: Pair, dilation: Pair, groups: int) -> Array:
    """Cross-correlation, as in PyTorch.

    Shape: x (N, C, H, W), w (O, C / groups, KH, KW), bias (O,); y (N, O, P, Q).
    """
    geometry = Geometry((w.shape[2], w.shape[3]), stride, padding, dilation)
    N, O = x.shape[0], w.shape[0]
    P, Q = geometry.out_size(x.shape[2], x.shape[3])
    w_GOK = w.reshape(groups, O // groups, -1)
    y_NOL = np.empty((N, O, P * Q), x.dtype)
    for chunk in _chunks(x, geometry):
        cols_GKM = im2col(x[chunk], geometry).reshape(groups, w_GOK.shape[2], -1)
        y_ONL = np.matmul(w_GOK, cols_GKM).reshape(O, -1, P * Q)
        if bias is None:
            y_NOL[chunk] = y_ONL.swapaxes(0, 1)
        else:
            np.add(y_ONL.swapaxes(0, 1), bias[:, None], out=y_NOL[chunk])
    return y_NOL.reshape(N, O, P, Q)


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
    """Gradients (dx, dw, db); None for those not in `need`.

    Order: dw and db are summed over chunks of samples whose size depends on the shapes alone, chunks ascending.
    """
    geometry = Geometry((w.shape[2], w.shape[3]), stride, padding, dilation)
    O = w.shape[0]
    w_GOK = w.reshape(groups, O // groups, -1)
    dx = np.empty(x.shape, x.dtype) if need[0] else None
    dw_GOK = np.zeros(w_GOK.shape, w.dtype) if need[1] else None
    db = np.zeros(O, g.dtype) if need[2] else None
    for chunk in _chunks(x, geometry):
        g_OM = np.ascontiguousarray(g[chunk].swapaxes(0, 1)).reshape(O, -1)
        g_GOM = g_OM.reshape(groups, O // groups, -1)
        if dw_GOK is not None:
            cols_GKM = im2col(x[chunk], geometry).reshape(groups, w_GOK.shape[2], -1)
            dw_GOK += np.matmul(g_GOM, cols_GKM.swapaxes(-1, -2))
        if db is not None:
            db += g_OM.sum(axis=1)
        if dx is not None:
            dx[chunk] = col2im(np.matmul(w_GOK.swapaxes(-1, -2), g_GOM), dx[chunk].shape, geometry)
    return dx, None if dw_GOK is None else dw_GOK.reshape(w.shape), db


def _chunks(x: Array, geometry: Geometry) -> Iterator[slice]:
    N, C, H, W = x.shape
    sample_bytes = C * math.prod(geometry.kernel) * math.prod(geometry.out_size(H, W)) * x.itemsize
    size = max(1, _CHUNK_BYTES // max(sample_bytes, 1))
    return (slice(start, start + size) for start in range(0, N, size))


def im2col(x: Array, geometry: Geometry) -> Array:
    """The windows of x (N, C, H, W) as a matrix (C * KH * KW, N * P * Q)."""
    cols: Array | None = _native_im2col(x, *_flat(geometry))
    return reference_im2col(x, geometry) if cols is None else cols


def col2im(cols: Array, shape: tuple[int, ...], geometry: Geometry) -> Array:
    """The adjoint of `im2col`: window elements added back to images of `shape`, in ascending kernel position."""
    x: Array | None = _native_col2im(cols, *shape, *_flat(geometry))
    return reference_col2im(cols, shape, geometry) if x is None else x


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
    windows = as_strided(padded, (C, KH, KW, N, P, Q), (b, c * dh, d * dw, a, c * sh, d * sw), writeable=False)
    return windows.reshape(C * KH * KW, N * P * Q)


def reference_col2im(cols: Array, shape: tuple[int, ...], geometry: Geometry) -> Array:
    """numpy form of `col2im`."""
    N, C, H, W = shape
    (KH, KW), (sh, sw), (ph, pw), (dh, dw) = geometry.kernel, geometry.stride, geometry.padding, geometry.dilation
    P, Q = geometry.out_size(H, W)
    cols = cols.reshape(C, KH, KW, N, P, Q)
    padded = np.zeros((N, C, H + 2 * ph, W + 2 * pw), cols.dtype)
    for i in range(KH):
        for j in range(KW):
            rows = slice(i * dh, i * dh + (P - 1) * sh + 1, sh)
            padded[:, :, rows, slice(j * dw, j * dw + (Q - 1) * sw + 1, sw)] += cols[:, i, j].swapaxes(0, 1)
    return np.ascontiguousarray(padded[:, :, ph : ph + H, pw : pw + W])
