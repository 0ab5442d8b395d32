"""Two-dimensional convolution and pooling.

The three convolution ops (output, gradient of the input, gradient of the weight) are each other's rules, so
derivatives of any order exist.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from resilin.core.kernels import conv2d as conv_kernel
from resilin.core.kernels import pool as pool_kernel
from resilin.core.kernels.cuda import pool as pool_cuda
from resilin.core.kernels.cuda.sources import FLOATS
from resilin.core.ops.errstate import BY_KERNEL
from resilin.core.ops.registry import op, override


def _conjugated(*arrays: Any) -> tuple[Any, ...]:
    return tuple(array.conj() if array.dtype.kind == "c" else array for array in arrays)


_backward: Any = conv_kernel.backward

_PLAIN: tuple[Any, ...] = ((1, 1), (0, 0), (1, 1), 1)


def _samples(r: Any) -> list[tuple[Any, ...]]:
    return [
        (r(2, 3, 5, 4), r(2, 3, 3, 2), r(2), *_PLAIN),
        (r(1, 4, 5, 5), r(2, 2, 2, 2), None, (2, 1), (1, 0), (1, 2), 2),
    ]


@op(tensors=3, complex=True, single=BY_KERNEL, narrow=True, samples=_samples)
def conv2d(xp, x, w, bias=None, stride=(1, 1), padding=(0, 0), dilation=(1, 1), groups=1):
    """Cross-correlation of x (N, C, H, W) with w (O, C / groups, KH, KW)."""
    return conv_kernel.forward(x, w, bias, stride, padding, dilation, groups)


@conv2d.vjp_all
def _(xp, needs, g, _y, x, w, _bias, *geometry):
    dx = xp.conv2d_input(g, xp.conj(w), tuple(x.shape), *geometry) if needs[0] else None
    dw = xp.conv2d_weight(g, xp.conj(x), tuple(w.shape), *geometry) if needs[1] else None
    db = xp.sum(g, axis=(0, 2, 3)) if needs[2] else None
    return dx, dw, db


override(
    "conv2d",
    "cpu",
    lambda xp, x, w, bias, *geometry: conv_kernel.forward(x, w, bias, *geometry),
    lambda xp, needs, g, _y, x, w, _bias, *geometry: _backward(g, *_conjugated(x, w), *geometry, needs),
)


@op(
    complex=True,
    single=BY_KERNEL,
    narrow=True,
    samples=lambda r: [(r(2, 2, 3, 3), r(2, 3, 3, 2), (2, 3, 5, 4), *_PLAIN)],
)
def conv2d_input(xp, g, w, shape=(), stride=(1, 1), padding=(0, 0), dilation=(1, 1), groups=1):
    """The gradient of conv2d's input of `shape`; also the transposed convolution."""
    x = xp.broadcast_to(xp.empty((), g.dtype), shape)  # for its shape
    return conv_kernel.backward(g, x, w, stride, padding, dilation, groups, (True, False, False))[0]


@conv2d_input.vjp_all
def _(xp, needs, h, _y, g, w, shape, *geometry):
    dg = xp.conv2d(h, xp.conj(w), None, *geometry) if needs[0] else None
    dw = xp.conv2d_weight(xp.conj(g), h, tuple(w.shape), *geometry) if needs[1] else None
    return dg, dw


@op(
    complex=True,
    single=BY_KERNEL,
    narrow=True,
    samples=lambda r: [(r(2, 2, 3, 3), r(2, 3, 5, 4), (2, 3, 3, 2), *_PLAIN)],
)
def conv2d_weight(xp, g, x, shape=(), stride=(1, 1), padding=(0, 0), dilation=(1, 1), groups=1):
    """The gradient of conv2d's weight of `shape`."""
    w = xp.broadcast_to(xp.empty((), g.dtype), shape)  # for its shape
    return conv_kernel.backward(g, x, w, stride, padding, dilation, groups, (False, True, False))[1]


@conv2d_weight.vjp_all
def _(xp, needs, h, _y, g, x, shape, *geometry):
    dg = xp.conv2d(xp.conj(x), h, None, *geometry) if needs[0] else None
    dx = xp.conv2d_input(xp.conj(g), h, tuple(x.shape), *geometry) if needs[1] else None
    return dg, dx


@op(takes="iuf", samples=lambda r: [(r(2, 3, 4, 4), (2, 2), (2, 2), (0, 0), (1, 1), False)])
def max_pool2d(xp, x, kernel=(2, 2), stride=(2, 2), padding=(0, 0), dilation=(1, 1), ceil_mode=False):
    """The maximum of each window."""
    return pool_kernel.max2d_forward(x, kernel, stride, padding, dilation, ceil_mode)[0]


@max_pool2d.vjp
def _(xp, g, _y, x, *window):
    array = getattr(x, "_array", x)
    index = pool_kernel.max2d_forward(array, *window)[1]
    return xp.max_pool2d_scatter(g, index, tuple(x.shape))


@op(takes="iuf", samples=lambda r: [(r(1, 1, 2, 2), np.array([[[[0, 3], [9, 11]]]]), (1, 1, 3, 4))])
def max_pool2d_scatter(xp, g, index=None, shape=()):
    """`g` added at the flat positions `index` of images of `shape`."""
    return pool_kernel.max2d_backward(g, index, shape)


@max_pool2d_scatter.vjp
def _(xp, h, _y, _g, index=None, shape=()):
    flat = h.reshape((*shape[:2], shape[2] * shape[3]))
    picked = xp.take_along_axis(flat, index.reshape((*shape[:2], -1)), 2).reshape(index.shape)
    return xp.where(index < 0, xp.zeros_like(picked), picked)  # -1: a window of nothing but padding


def _max_forward(xp, x, *window):
    return pool_kernel.max2d_forward(x, *window)


override(
    "max_pool2d",
    "cpu",
    _max_forward,
    lambda xp, needs, g, _y, index, _x, *window: (pool_kernel.max2d_backward(g, index, _x.shape),),
    residual=True,
)


def _max_backward_on_device(xp, needs, g, _y, index, x, kernel, stride, padding, dilation, ceil_mode):
    if g.dtype.name not in FLOATS:
        return (pool_kernel.max2d_backward(g, index, x.shape),)
    return (pool_cuda.max2d_backward(xp, g, index, x.shape, kernel, stride, padding, dilation),)


override("max_pool2d", "cuda", _max_forward, _max_backward_on_device, residual=True)


_ROWS = np.array([[0, 2, 2], [1, 4, 4]])
_COLUMNS = np.array([[0, 3, 3], [0, 3, 3], [4, 6, 2]])


@op(takes="f", samples=lambda r: [(r(2, 3, 4, 6), _ROWS, _COLUMNS)])
def avg_pool2d(xp, x, rows=None, columns=None):
    """The mean of each window; `rows` and `columns` are windows as `kernels/pool.py` describes them."""
    return pool_kernel.avg2d_forward(x, rows, columns)


@avg_pool2d.vjp
def _(xp, g, _y, _x, rows=None, columns=None):
    return xp.avg_pool2d_spread(g, rows, columns, tuple(_x.shape[2:]))


@op(takes="f", samples=lambda r: [(r(2, 3, 2, 3), _ROWS, _COLUMNS, (4, 6))])
def avg_pool2d_spread(xp, g, rows=None, columns=None, size=()):
    """`g` divided by its windows' divisors and added to all their elements, in images of `size`."""
    return pool_kernel.avg2d_backward(g, rows, columns, size)


@avg_pool2d_spread.vjp
def _(xp, h, _y, _g, rows=None, columns=None, size=()):
    return xp.avg_pool2d(h, rows, columns)
