"""Euclidean distances between all rows of two matrices."""

# P rows of x1, R rows of x2, D columns

from __future__ import annotations

from resilin.core.ops.registry import op


@op(
    takes="f",
    samples=lambda r: [(r(3, 4), r(2, 4)), (r(2, 1, 3, 2), r(4, 2)), (r(3, 4), r(2, 4), True), (r(2, 3), r(0, 3))],
)
def euclidean_distances(xp, x1, x2, products=False):
    """|x1[..., i, :] - x2[..., j, :]| as (..., P, R); with `products` through x1 @ x2.T: fast, and less exact.

    The gradient of a distance 0 is 0.
    """
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
