"""Windows of images as columns, and columns added back: each is the other's gradient."""

from __future__ import annotations

from typing import Any

from resilin.core.kernels import conv2d as kernel
from resilin.core.ops.registry import op

_WINDOW: tuple[Any, ...] = ((2, 3), (2, 1), (1, 0), (1, 1))


@op(complex=True, samples=lambda r: [(r(2, 2, 4, 4), *_WINDOW)])
def unfold_windows(xp, x, kernel_size=(1, 1), stride=(1, 1), padding=(0, 0), dilation=(1, 1)):
    """The windows of x (N, C, H, W) as columns (N, C * KH * KW, L)."""
    geometry = kernel.Geometry(kernel_size, stride, padding, dilation)
    columns = kernel.im2col(x, geometry)
    P, Q = geometry.out_size(*x.shape[2:])
    return xp.ascontiguousarray(columns.reshape(len(columns), x.shape[0], P * Q).swapaxes(0, 1))


@unfold_windows.vjp
def _(xp, g, _y, _x, *window):
    return xp.fold_windows(g, tuple(_x.shape[1:]), *window)


@op(complex=True, samples=lambda r: [(r(2, 12, 6), (2, 4, 4), *_WINDOW)])
def fold_windows(xp, g, shape=(), kernel_size=(1, 1), stride=(1, 1), padding=(0, 0), dilation=(1, 1)):
    """Columns `g` (N, C * KH * KW, L) added in images (N, *shape), in ascending kernel position."""
    geometry = kernel.Geometry(kernel_size, stride, padding, dilation)
    return kernel.col2im(g.swapaxes(0, 1), (g.shape[0], *shape), geometry)


@fold_windows.vjp
def _(xp, h, _y, _g, shape=(), *window):
    return xp.unfold_windows(h, *window)
