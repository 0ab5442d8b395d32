"""Two-dimensional convolution: native kernels, and im2col and matrix products.

The native kernels work tile by tile (some output rows, or a few small samples): most read one copy of a tile at offsets
(native/convolution/conv_direct.hpp), others make its columns; the numpy forms are over many samples at once. Where
every channel is convolved by itself there is nothing to multiply: native kernels of their own do that.
"""

# N samples, C input channels, H W input size, O output channels, P Q output size, KH KW kernel size, G groups

from __future__ import annotations

import functools
import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from resilin.core.kernels import pack
from resilin.core.kernels.common import Array, array_namespace, compute_dtype
from resilin.core.kernels.cuda import windows
from resilin.core.kernels.loader import kernel
from resilin.errors import UsageError

Pair = tuple[int, int]

_native_forward = kernel("conv2d_forward")
_native_input_gradient = kernel("conv2d_input_gradient")
_native_weight_gradient = kernel("conv2d_weight_gradient")
_depthwise_forward = kernel("depthwise_forward")
_depthwise_input_gradient = kernel("depthwise_input_gradient")
_depthwise_weight_gradient = kernel("depthwise_weight_gradient")


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

    @property
    def lengths(self) -> tuple[int, ...]:
        """Stride, padding and dilation of both axes, as the native kernels take them."""
        return (*self.stride, *self.padding, *self.dilation)

    def out_size(self, H: int, W: int) -> Pair:
        """Number of window positions along both axes; UsageError when the window does not fit."""
        sizes = []
        for size, k, s, p, d in zip((H, W), self.kernel, self.stride, self.padding, self.dilation, strict=True):
            span = d * (k - 1) + 1
            if size + 2 * p < span:
                raise UsageError(f"conv2d: input of {size} plus padding {p} is smaller than the window of {span}")
            sizes.append((size + 2 * p - span) // s + 1)
        return sizes[0], sizes[1]


@functools.lru_cache(256)
def _fitting(H: int, W: int, kernel: Pair, stride: Pair, padding: Pair, dilation: Pair) -> Geometry:
    """The window, which fits images of this size."""
    geometry = Geometry(kernel, stride, padding, dilation)
    geometry.out_size(H, W)
    return geometry


def forward(x: Array, w: Array, bias: Array | None, stride: Pair, padding: Pair, dilation: Pair, groups: int) -> Array:
    """Cross-correlation, as in PyTorch.

    Shape: x (N, C, H, W), w (O, C / groups, KH, KW), bias (O,); y (N, O, P, Q).
    Order of the native sums: the bias, then blocks of channels, each a chain by channel and place of the kernel.
    16-bit floats of one dtype are summed in float32 and rounded once; bfloat16 by 32 channels, in these by place of
    the kernel, the even channels plus the odd ones, and with subnormal numbers as zero, as in products of matrices.
    """
    if pack.is_half(x) or pack.is_half(w) or pack.is_half(bias):
        return _forward_of_halves(x, w, bias, stride, padding, dilation, groups)
    geometry = _fitting(*x.shape[2:], (w.shape[2], w.shape[3]), stride, padding, dilation)
    y: Array | None = None
    if isinstance(x, np.ndarray):
        y = _depthwise_forward(x, w, bias, geometry.lengths) if groups == x.shape[1] > 1 else None
        y = _native_forward(x, w, bias, geometry.lengths, groups) if y is None else y
    return reference_forward(x, w, bias, geometry, groups) if y is None else y


def _forward_of_halves(
    x: Array, w: Array, bias: Array | None, stride: Pair, padding: Pair, dilation: Pair, groups: int
) -> Array:
    dtypes = {array.dtype for array in (x, w, bias) if array is not None}
    if dtypes == _BFLOAT16:
        geometry = Geometry((w.shape[2], w.shape[3]), stride, padding, dilation)
        geometry.out_size(x.shape[2], x.shape[3])
        y = _native_forward(_bits(x), _bits(w), None if bias is None else _bits(bias), geometry.lengths, groups)
        if y is not None:
            return y.view(pack.BFLOAT16)  # type: ignore[no-any-return]
    wide = pack.widened(x), pack.widened(w), pack.widened(bias)
    y = forward(wide[0], wide[1], wide[2], stride, padding, dilation, groups)
    return pack.astype(y, x.dtype) if len(dtypes) == 1 else y


_BFLOAT16 = {pack.BFLOAT16}


def _bits(x: Array) -> Array:
    """An array of bfloat16 as native kernels take it."""
    return x.view(np.uint16)


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

    Order: dx as `forward`, over the output's channels and the places of the kernel that reach an element, or by place
    of the kernel where it has few positions or few places in common; dw and db in runs of samples that depend on the
    shapes alone, the runs ascending; dw of channels by themselves sample by sample, in float64. 16-bit floats are
    summed in float32 and rounded once.
    """
    if pack.is_half(g) or pack.is_half(x) or pack.is_half(w):
        return _backward_of_halves(g, x, w, stride, padding, dilation, groups, need)
    return _gradients(g, x, w, stride, padding, dilation, groups, need)


def _gradients(
    g: Array,
    x: Array,
    w: Array,
    stride: Pair,
    padding: Pair,
    dilation: Pair,
    groups: int,
    need: tuple[bool, bool, bool],
) -> tuple[Array | None, Array | None, Array | None]:
    geometry = Geometry((w.shape[2], w.shape[3]), stride, padding, dilation)
    dx = dw = db = found = None
    native = isinstance(g, np.ndarray)
    if need[0]:
        dx = _input_gradient(g, w, x.shape, geometry, groups) if native else None
        if dx is None:
            dx = reference_input_gradient(g, w, x.shape, geometry, groups)
    if need[1] or need[2]:
        if native:
            found = _weight_gradient(g, x, geometry, groups, need[1], need[2])
        dw, db = reference_weight_gradient(g, x, w.shape, geometry, groups, need[1:]) if found is None else found
    return dx, dw, db


def _backward_of_halves(
    g: Array,
    x: Array,
    w: Array,
    stride: Pair,
    padding: Pair,
    dilation: Pair,
    groups: int,
    need: tuple[bool, bool, bool],
) -> tuple[Array | None, Array | None, Array | None]:
    dx = None
    if need[0] and {g.dtype, w.dtype} == _BFLOAT16:
        geometry = Geometry((w.shape[2], w.shape[3]), stride, padding, dilation)
        dx = _native_input_gradient(_bits(g), _bits(w), *x.shape[2:], geometry.lengths, groups)
    found: Any = None
    if (need[1] or need[2]) and {g.dtype, x.dtype} == _BFLOAT16:
        found = _native_weight_gradient(
            _bits(g), _bits(x), w.shape[2], w.shape[3], (*stride, *padding, *dilation), groups, need[1], need[2]
        )
    sums = () if found is None else tuple(None if part is None else part.view(pack.BFLOAT16) for part in found)
    rest = (need[0] and dx is None, need[1] and not sums, need[2] and not sums)
    found = (None, None, None)
    if any(rest):  # what is not needed is there for its shape only
        wide = pack.widened(g), pack.widened(x) if rest[1] or rest[2] else x, pack.widened(w) if rest[0] else w
        found = _gradients(*wide, stride, padding, dilation, groups, rest)
    rounded = [part if part is None or part.dtype != np.float32 else pack.astype(part, g.dtype) for part in found]
    return (rounded[0] if dx is None else dx.view(pack.BFLOAT16), *(sums or rounded[1:]))


def _input_gradient(g: Array, w: Array, shape: tuple[int, ...], geometry: Geometry, groups: int) -> Array | None:
    dx: Array | None = None
    if groups == shape[1] > 1:
        dx = _depthwise_input_gradient(g, w, *shape[1:], geometry.lengths)
    return _native_input_gradient(g, w, *shape[2:], geometry.lengths, groups) if dx is None else dx


def _weight_gradient(g: Array, x: Array, geometry: Geometry, groups: int, weight: bool, bias: bool) -> Any:
    """(dw, db), either None unless asked for; None without a kernel."""
    dw = None
    if weight and groups == x.shape[1] > 1:
        dw = _depthwise_weight_gradient(g, x, *geometry.kernel, geometry.lengths)
    if dw is not None and not bias:
        return dw, None
    found = _native_weight_gradient(g, x, *geometry.kernel, geometry.lengths, groups, weight and dw is None, bias)
    return found if dw is None or found is None else (dw, found[1])


# Samples are taken in chunks whose columns fill about this much: larger ones leave the caches, smaller ones make the
# matrix products small. The chunks fix the order in which dw is summed.
_CHUNK_BYTES = 8 << 20
_DEVICE_CHUNK_BYTES = 256 << 20  # where a launch costs more than what leaves a cache


def reference_forward(x: Array, w: Array, bias: Array | None, geometry: Geometry, groups: int) -> Array:
    """numpy form of `forward`, also for a device's arrays."""
    xp = array_namespace(x)
    N, O = x.shape[0], w.shape[0]
    P, Q = geometry.out_size(x.shape[2], x.shape[3])
    w_GOK = w.reshape(groups, O // groups, -1)
    y_NOL: Array = xp.empty((N, O, P * Q), x.dtype)
    for chunk in _chunks(x.shape, x.itemsize, geometry, xp):
        cols_GKM = im2col(x[chunk], geometry).reshape(groups, w_GOK.shape[2], -1)
        if _by_sample(xp, groups):
            xp.matmul(w_GOK[0], _samples(cols_GKM[0], len(y_NOL[chunk]), P * Q), out=y_NOL[chunk])
        else:
            y_NOL[chunk] = xp.matmul(w_GOK, cols_GKM).reshape(O, -1, P * Q).swapaxes(0, 1)
    if bias is not None:
        y_NOL += bias[:, None]
    return y_NOL.reshape(N, O, P, Q)


def reference_input_gradient(g: Array, w: Array, shape: tuple[int, ...], geometry: Geometry, groups: int) -> Array:
    """numpy form of the gradient of x, which has `shape`; also for a device's arrays."""
    xp = array_namespace(g)
    w_GKO = w.reshape(groups, w.shape[0] // groups, -1).swapaxes(-1, -2)
    chunks = list(_chunks(shape, g.itemsize, geometry, xp))
    if len(chunks) == 1:
        return col2im(_columns_gradient(xp, w_GKO, g), shape, geometry)
    dx: Array = xp.empty(shape, g.dtype)
    for chunk in chunks:
        dx[chunk] = col2im(_columns_gradient(xp, w_GKO, g[chunk]), dx[chunk].shape, geometry)
    return dx


def _columns_gradient(xp: Any, w_GKO: Array, g: Array) -> Array:
    groups, K, O = w_GKO.shape
    if not _by_sample(xp, groups):
        made: Array = xp.matmul(w_GKO, _channels_first(g, groups))
        return made
    L = math.prod(g.shape[2:])
    cols: Array = xp.empty((K, len(g) * L), g.dtype)
    xp.matmul(w_GKO[0], g.reshape(len(g), O, L), out=_samples(cols, len(g), L))
    return cols


def _by_sample(xp: Any, groups: int) -> bool:
    """Whether products are made for each sample, in one launch: they need no copy with other axes first."""
    return groups == 1 and hasattr(xp, "launch")


def _samples(cols: Array, N: int, L: int) -> Array:
    """Columns (K, N * L) as matrices (N, K, L)."""
    return cols.reshape(len(cols), N, L).swapaxes(0, 1)


def reference_weight_gradient(
    g: Array, x: Array, shape: tuple[int, ...], geometry: Geometry, groups: int, need: tuple[bool, ...] = (True, True)
) -> tuple[Array | None, Array | None]:
    """numpy form of the gradients of w, which has `shape`, and of the bias; also for a device's arrays."""
    xp = array_namespace(g)
    O, K = shape[0], math.prod(shape[1:])
    acc = compute_dtype(g.dtype)
    dw: Any = None
    db: Any = None
    for chunk in _chunks(x.shape, x.itemsize, geometry, xp):
        g_GOM = _channels_first(g[chunk], groups)
        if need[1]:
            part = g_GOM.reshape(O, -1).sum(axis=1, dtype=acc)
            db = part if db is None else db + part
        if need[0]:
            cols_GKM = im2col(x[chunk], geometry).reshape(groups, K, -1)
            part = xp.matmul(g_GOM, cols_GKM.swapaxes(-1, -2)).astype(acc, copy=False)
            dw = part if dw is None else dw + part
    if need[0]:
        dw = (xp.zeros(shape, acc) if dw is None else dw.reshape(shape)).astype(g.dtype, copy=False)
    if need[1]:
        db = (xp.zeros(O, acc) if db is None else db).astype(g.dtype, copy=False)
    return dw, db


def _channels_first(g: Array, groups: int) -> Array:
    """Images (N, O, P, Q) as matrices (groups, O / groups, N * P * Q)."""
    channels: Array = array_namespace(g).ascontiguousarray(g.swapaxes(0, 1))
    return channels.reshape(groups, g.shape[1] // groups, -1)


def _chunks(shape: tuple[int, ...], itemsize: int, geometry: Geometry, xp: Any) -> Iterator[slice]:
    N, C, H, W = shape
    sample_bytes = C * math.prod(geometry.kernel) * math.prod(geometry.out_size(H, W)) * itemsize
    most = _DEVICE_CHUNK_BYTES if hasattr(xp, "launch") else _CHUNK_BYTES
    size = max(1, most // max(sample_bytes, 1))
    return (slice(start, start + size) for start in range(0, N, size))


def im2col(x: Array, geometry: Geometry) -> Array:
    """The windows of x (N, C, H, W) as a matrix (C * KH * KW, N * P * Q)."""
    N, C, H, W = x.shape
    (KH, KW), (sh, sw), (ph, pw), (dh, dw) = geometry.kernel, geometry.stride, geometry.padding, geometry.dilation
    P, Q = geometry.out_size(H, W)
    xp = array_namespace(x)
    if hasattr(xp, "launch"):
        made: Array | None = windows.im2col(xp, x, geometry.kernel, (P, Q), geometry.lengths)
        if made is not None:
            return made
    padded = xp.zeros((N, C, H + 2 * ph, W + 2 * pw), x.dtype)
    padded[:, :, ph : ph + H, pw : pw + W] = x
    a, b, c, d = padded.strides
    found = xp.as_strided(padded, (C, KH, KW, N, P, Q), (b, c * dh, d * dw, a, c * sh, d * sw))
    return found.reshape(C * KH * KW, N * P * Q)  # type: ignore[no-any-return]


def col2im(cols: Array, shape: tuple[int, ...], geometry: Geometry) -> Array:
    """The adjoint of `im2col`: window elements added back to images of `shape`, in ascending kernel position."""
    N, C, H, W = shape
    (KH, KW), (sh, sw), (ph, pw), (dh, dw) = geometry.kernel, geometry.stride, geometry.padding, geometry.dilation
    P, Q = geometry.out_size(H, W)
    xp = array_namespace(cols)
    if hasattr(xp, "launch"):
        made: Array | None = windows.col2im(xp, cols, shape, geometry.kernel, (P, Q), geometry.lengths)
        if made is not None:
            return made
    cols = cols.reshape(C, KH, KW, N, P, Q)
    padded = xp.zeros((N, C, H + 2 * ph, W + 2 * pw), cols.dtype)
    for i in range(KH):
        for j in range(KW):
            rows = slice(i * dh, i * dh + (P - 1) * sh + 1, sh)
            padded[:, :, rows, slice(j * dw, j * dw + (Q - 1) * sw + 1, sw)] += cols[:, i, j].swapaxes(0, 1)
    return xp.ascontiguousarray(padded[:, :, ph : ph + H, pw : pw + W])  # type: ignore[no-any-return]
