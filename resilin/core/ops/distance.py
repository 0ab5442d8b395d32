"""Distances between all rows of two matrices."""

# P rows of x1, R rows of x2, D columns

from __future__ import annotations

import math
from typing import Any

import numpy as np

from resilin.core.kernels.contiguous import ascontiguousarray
from resilin.core.kernels.loader import kernel
from resilin.core.ops.registry import op

Array = np.ndarray[Any, Any]

_native_row_distances = kernel("row_distances")
_BLOCK = 128  # columns of a chain; native/linalg/distances.cpp has the same number, so both forms give the same bits

ORDERS = (1.0, 3.0, math.inf)  # that `row_distances` has


@op(
    takes="f",
    samples=lambda r: [(r(3, 4), r(2, 4)), (r(2, 1, 3, 2), r(4, 2)), (r(3, 4), r(2, 4), True), (r(2, 3), r(0, 3))],
)
def euclidean_distances(xp, x1, x2, products=False):
    """|x1[..., i, :] - x2[..., j, :]| as (..., P, R); with `products` through x1 @ x2.T: fast, and less exact.

    Without, squares are added in the order of `row_distances`. The gradient of a distance 0 is 0.
    """
    if not products and isinstance(x1, np.ndarray) and x1.shape[-1]:
        return np.sqrt(_sums(x1, x2, 2.0))
    if not products:
        return xp.sqrt(xp.sum(xp.square(x1[..., :, None, :] - x2[..., None, :, :]), axis=-1))
    a = xp.sum(x1 * x1, axis=-1)[..., :, None]
    b = xp.sum(x2 * x2, axis=-1)[..., None, :]
    return xp.sqrt(xp.maximum(a + b - 2 * xp.matmul(x1, x2.swapaxes(-1, -2)), 0))


def _weights(xp, g, y):
    """How far each difference of rows counts: g / y, 0 where rows are equal."""
    return xp.where(y == 0, xp.zeros_like(y), g / xp.where(y == 0, xp.ones_like(y), y))


@euclidean_distances.vjp(0)
def _(xp, g, y, x1, x2, products=False):
    w = _weights(xp, g, y)
    return x1 * xp.sum(w, axis=-1, keepdims=True) - xp.matmul(w, x2)


@euclidean_distances.vjp(1)
def _(xp, g, y, x1, x2, products=False):
    w = _weights(xp, g, y).swapaxes(-1, -2)
    return x2 * xp.sum(w, axis=-1, keepdims=True) - xp.matmul(w, x1)


@op(
    takes="f",
    samples=lambda r: [(r(3, 4), r(2, 4)), (r(2, 1, 3, 2), r(4, 2), 3.0), (r(3, 4), r(2, 4), math.inf)],
)
def row_distances(xp, x1, x2, p=1.0):
    """The p-norm of x1[..., i, :] - x2[..., j, :] as (..., P, R), for `p` in ORDERS; columns are never none.

    Of the host's floats, columns are added one after the other in blocks of 128, and the blocks' sums in turn.
    """
    if not isinstance(x1, np.ndarray):
        size = xp.absolute(_differences(x1, x2))
        return xp.max(size, axis=-1) if p == math.inf else xp.sum(size**p, axis=-1) ** (1 / p)
    y = _sums(x1, x2, p)
    return y ** y.dtype.type(1 / 3) if p == 3 else y


def _sums(x1: Array, x2: Array, p: float) -> Array:
    """The distances of a host's arrays, without the root."""
    lead = np.broadcast_shapes(x1.shape[:-2], x2.shape[:-2])
    a, b = (ascontiguousarray(_with_lead(x, lead)).reshape(math.prod(lead), *x.shape[-2:]) for x in (x1, x2))
    y = _native_row_distances(a, b, p)
    y = reference_row_distances(a, b, p) if y is None else y
    made: Array = y.reshape(*lead, *y.shape[-2:])
    return made


def _with_lead(x: Array, lead: tuple[int, ...]) -> Array:
    return x if x.shape[:-2] == lead else np.broadcast_to(x, (*lead, *x.shape[-2:]))


def reference_row_distances(x1: Array, x2: Array, p: float) -> Array:
    """numpy form of native code's part: the root is left out."""
    total: Any = None
    for first in range(0, x1.shape[-1], _BLOCK):
        block: Any = np.zeros((x1.shape[0], x1.shape[1], x2.shape[1]), x1.dtype)
        for k in range(first, min(first + _BLOCK, x1.shape[-1])):
            size = np.abs(x1[:, :, None, k] - x2[:, None, :, k])
            block = np.maximum(block, size) if p == math.inf else block + _power(size, int(p))
        if total is None:
            total = block
        else:
            total = np.maximum(total, block) if p == math.inf else total + block
    return total


def _power(size: Array, p: int) -> Array:
    return size if p == 1 else size * size if p == 2 else size * size * size


def _differences(x1: Any, x2: Any) -> Any:
    return x1[..., :, None, :] - x2[..., None, :, :]


def _shares(xp, g, y, x1, x2, p):
    """The gradient of each difference of two elements; of the largest ones, equals share it."""
    g, y, d = g[..., None], y[..., None], _differences(x1, x2)
    size, sign = xp.absolute(d), xp.sign(d)
    if p == math.inf:
        mine = xp.astype(xp.logical_or(size == y, xp.logical_and(size != size, y != y)), g.dtype)
        return g * sign * (mine / xp.sum(mine, -1, keepdims=True))
    if p == 1:
        return g * sign
    flat = xp.logical_or(size == 0, y == 0)
    ratio = xp.where(flat, xp.ones_like(d), size) / xp.where(y == 0, xp.ones_like(y), y)
    return xp.where(flat, xp.zeros_like(d), ratio ** (p - 1) * g * sign)


@row_distances.vjp(0)
def _(xp, g, y, x1, x2, p=1.0):
    return xp.sum(_shares(xp, g, y, x1, x2, p), axis=-2)


@row_distances.vjp(1)
def _(xp, g, y, x1, x2, p=1.0):
    return -xp.sum(_shares(xp, g, y, x1, x2, p), axis=-3)
