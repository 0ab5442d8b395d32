"""Two-dimensional convolution and pooling.

The three convolution ops (output, gradient of the input, gradient of the weight) are each other's rules, so
derivatives of any order exist.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from resilin.core.kernels import conv2d as conv_kernel
from resilin.core.kernels import pool as pool_kernel
from resilin.core.ops.registry import op, override

_backward: Any = conv_kernel.backward

_PLAIN: tuple[Any, ...] = ((1, 1), (0, 0), (1, 1), 1)


def _samples(r: Any) -> list[tuple[Any, ...]]:
    return [
        (r(2, 3, 5, 4), r(2, 3, 3, 2), r(2), *_PLAIN),
        (r(1, 4, 5, 5), r(2, 2, 2, 2), None, (2, 1), (1, 0), (1, 2), 2),
    ]


@op(tensors=3, samples=_samples)
def conv2d(xp, x, w, bias=None, stride=(1, 1), padding=(0, 0), dilation=(1, 1), groups=1):
    """Cross-correlation of x (N, C, H, W) with w (O, C / groups, KH, KW)."""
    return conv_kernel.forward(x, w, bias, stride, padding, dilation, groups)


@conv2d.vjp_all
def _(xp, needs, g, _y, x, w, _bias, *geometry):
    dx = xp.conv2d_input(g, w, tuple(x.shape), *geometry) if needs[0] else None
    dw = xp.conv2d_weight(g, x, tuple(w.shape), *geometry) if needs[1] else None
    db = xp.sum(g, axis=(0, 2, 3)) if needs[2] else None
    return dx, dw, db


override(
    "conv2d",
    "cpu",
    lambda xp, x, w, bias, *geometry: conv_kernel.forward(x, w, bias, *geometry),
    lambda xp, needs, g, _y, x, w, _bias, *geometry: _backward(g, x, w, *geometry, needs),
)


@op(samples=lambda r: [(r(2, 2, 3, 3), r(2, 3, 3, 2), (2, 3, 5, 4), *_PLAIN)])
def conv2d_input(xp, g, w, shape=(), stride=(1, 1), padding=(0, 0), dilation=(1, 1), groups=1):
    """The gradient of conv2d's input of `shape`; also the transposed convolution."""
    x = np.broadcast_to(np.zeros((), g.dtype), shape)
    return conv_kernel.backward(g, x, w, stride, padding, dilation, groups, (True, False, False))[0]


@conv2d_input.vjp_all
def _(xp, needs, h, _y, g, w, shape, *geometry):
    dg = xp.conv2d(h, w, None, *geometry) if needs[0] else None
    dw = xp.conv2d_weight(g, h, tuple(w.shape), *geometry) if needs[1] else None
    return dg, dw


@op(samples=lambda r: [(r(2, 2, 3, 3), r(2, 3, 5, 4), (2, 3, 3, 2), *_PLAIN)])
def conv2d_weight(xp, g, x, shape=(), stride=(1, 1), padding=(0, 0), dilation=(1, 1), groups=1):
    """The gradient of conv2d's weight of `shape`."""
    w = np.broadcast_to(np.zeros((), g.dtype), shape)
    return conv_kernel.backward(g, x, w, stride, padding, dilation, groups, (False, True, False))[1]


@conv2d_weight.vjp_all
def _(xp, needs, h, _y, g, x, shape, *geometry):
    dg = xp.conv2d(x, h, None, *geometry) if needs[0] else None
    dx = xp.conv2d_input(g, h, tuple(x.shape), *geometry) if needs[1] else None
    return dg, dx


@op(samples=lambda r: [(r(2, 3, 4, 4), (2, 2), (2, 2), (0, 0), (1, 1), False)])
def max_pool2d(xp, x, kernel=(2, 2), stride=(2, 2), padding=(0, 0), dilation=(1, 1), ceil_mode=False):
    """The maximum of each window."""
    return pool_kernel.max2d_forward(x, kernel, stride, padding, dilation, ceil_mode)[0]


@max_pool2d.vjp
def _(xp, g, _y, x, *window):
    array = getattr(x, "_array", x)
    index = pool_kernel.max2d_forward(array, *window)[1]
    return xp.max_pool2d_scatter(g, index, tuple(x.shape))


@op(samples=lambda r: [(r(1, 1, 2, 2), np.array([[[[0, 3], [9, 11]]]]), (1, 1, 3, 4))])
def max_pool2d_scatter(xp, g, index=None, shape=()):
    """`g` added at the flat positions `index` of images of `shape`."""
    return pool_kernel.max2d_backward(g, index, shape)


@max_pool2d_scatter.vjp
def _(xp, h, _y, _g, index=None, shape=()):
    flat = h.reshape((*shape[:2], shape[2] * shape[3]))
    picked = xp.take_along_axis(flat, index.reshape((*shape[:2], -1)), 2)
    return picked.reshape(index.shape)


def _max_forward(xp, x, *window):
    return pool_kernel.max2d_forward(x, *window)


override(
    "max_pool2d",
    "cpu",
    _max_forward,
    lambda xp, needs, g, _y, index, _x, *window: (pool_kernel.max2d_backward(g, index, _x.shape),),
    residual=True,
)


def _windows(size: int, kernel: int, stride: int, padding: int, ceil_mode: bool) -> list[tuple[int, int, int]]:
    """(start, stop, divisor's length) of each window along one axis, for padding that counts in the divisor."""
    found = []
    for i in range(pool_kernel.out_size(size, kernel, stride, padding, 1, ceil_mode)):
        start = i * stride - padding
        stop = min(start + kernel, size + padding)
        found.append((max(start, 0), min(stop, size), stop - start))
    return found


def _average_matrix(windows: Any, size: int, counted: bool, dtype: Any) -> Any:
    matrix = np.zeros((len(windows), size), dtype)
    for row, (start, stop, length) in enumerate(windows):
        matrix[row, start:stop] = 1 / (length if counted else stop - start)
    return matrix


def average_matrices(
    shape: Any, kernel: Any, stride: Any, padding: Any, ceil_mode: bool, counted: bool, dtype: Any
) -> Any:
    """Averages over windows are separable: y = rows @ x @ columns.T. Gives `rows` and `columns`."""
    return tuple(
        _average_matrix(
            _windows(shape[-2 + i], kernel[i], stride[i], padding[i], ceil_mode), shape[-2 + i], counted, dtype
        )
        for i in range(2)
    )


def adaptive_matrices(shape: Any, output: Any, dtype: Any) -> Any:
    """As `average_matrices`, for windows that divide the input into `output` parts."""
    found = []
    for i in range(2):
        size, count = shape[-2 + i], output[i]
        windows = [(j * size // count, -(-(j + 1) * size // count), 0) for j in range(count)]
        found.append(_average_matrix(windows, size, False, dtype))
    return tuple(found)


@op(samples=lambda r: [(r(2, 3, 4, 6), np.full((2, 4), 0.25), np.full((3, 6), 0.5))])
def separable(xp, x, rows=None, columns=None):
    """rows @ x @ columns.T for constant matrices, over the last two dimensions."""
    return xp.matmul(xp.matmul(rows, x), columns.T)


@separable.vjp
def _(xp, g, _y, _x, rows=None, columns=None):
    return xp.separable(g, rows.T, columns.T)
