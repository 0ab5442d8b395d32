"""Weighted sums of elements that lie anywhere: what sampling on a grid is, and its gradients."""

# N batch, C channels, L elements, P points, K places of each point

from __future__ import annotations

from typing import Any

import numpy as np

from resilin.core.kernels.common import array_namespace
from resilin.core.kernels.loader import kernel
from resilin.core.ops.registry import op, override

_native_forward, _native_backward = kernel("points_forward"), kernel("points_backward")
_native_grid = kernel("grid_points")
_PADDING = ("zeros", "border", "reflection")
_PLACES = np.array([[[0, 4, 2], [1, -1, 1]], [[3, 4, -1], [0, 2, 1]]])


@op(
    takes="f",
    tensors=2,
    samples=lambda r: [(r(2, 3, 5), r(2, 2, 3), _PLACES), (r(1, 1, 5), r(1, 1, 3), _PLACES[:1, :1])],
)
def weighted_points(xp, x, weights, places=None):
    """The sum over k, ascending, of weights[k, n, p] * x[n, c, places[k, n, p]]: (N, C, P). At place -1, x is 0.

    x: (N, C, L), weights and places (of int64): (K, N, P). The gradient of x is added for one k after the other, for
    each the points ascending; that of the weights is a sum over channels, ascending.
    """
    out = None
    for k, picked in enumerate(_picked(xp, x, places)):
        part = picked * weights[k][:, None]
        out = part if out is None else out + part
    return out


def _padded(xp, x):
    """`x` with one element more, a zero, which stands for everything outside."""
    return xp.concat([x, xp.zeros_like(x[..., :1])], 2)


def _spread(places: Any, shape: Any) -> list[Any]:
    """For each k the places of every channel: (N, C, P); those outside are L."""
    N, C, L = shape
    ns = array_namespace(places)
    return [ns.broadcast_to(ns.where(at < 0, L, at)[:, None], (N, C, at.shape[-1])) for at in places]


def _picked(xp, x, places):
    padded = _padded(xp, x)
    return [xp.take_along_axis(padded, at, 2) for at in _spread(places, x.shape)]


@weighted_points.vjp(0)
def _(xp, g, _y, _x, weights, places=None):
    N, C, L = _x.shape
    total = None
    for k, at in enumerate(_spread(places, _x.shape)):
        part = xp.scatter_add_zeros(g * weights[k][:, None], (N, C, L + 1), 2, at)
        total = part if total is None else total + part
    return total[..., :L]


@weighted_points.vjp(1)
def _(xp, g, _y, x, _weights, places=None):
    return xp.stack([xp.sum(g * picked, axis=1) for picked in _picked(xp, x, places)], 0)


def grid_places(
    grid: Any, lengths: tuple[int, ...], nearest: bool, padding: str, corners: bool
) -> tuple[Any, Any] | None:
    """(places, weights) of `weighted_points`, K first, for the coordinates of `grid` (N, P, dimensions), the last of
    which is that of the first dimension; None for what native code does not compute."""
    if not isinstance(grid, np.ndarray):
        return None
    return _native_grid(grid, list(lengths), nearest, _PADDING.index(padding), corners)


def _forward(xp, x, weights, places):
    y = _native_forward(x, weights, places) if isinstance(places, np.ndarray) else None
    return weighted_points.generic.forward(xp, x, weights, places) if y is None else y


def _backward(xp, needs, g, y, x, weights, places):
    found = _native_backward(g, x, weights, places, *needs) if isinstance(places, np.ndarray) else None
    return weighted_points.generic.vjp(xp, needs, g, y, x, weights, places) if found is None else found


override("weighted_points", "cpu", _forward, _backward)
