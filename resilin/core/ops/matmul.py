"""Matrix products. Gradients multiply transposed views, so nothing is copied."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from resilin.core.kernels import reduce_rows as kernel
from resilin.core.kernels.cuda import products
from resilin.core.ops.errstate import BY_KERNEL
from resilin.core.ops.lazy_gradients import Product
from resilin.core.ops.registry import OPS, op, override


def _t(xp, x):
    """The last two dimensions exchanged; conjugated."""
    return xp.conj(x.swapaxes(-1, -2))


def _rows(x):
    """A matrix of all rows. Its shape is written out, as -1 could not be inferred where there is nothing."""
    return x if x.ndim == 2 else x.reshape((math.prod(x.shape[:-1]), x.shape[-1]))


def _shapes(r: Any) -> list[tuple[Any, ...]]:
    return [
        (r(3, 4), r(4, 2)),
        (r(2, 3, 4), r(4, 2)),
        (r(2, 1, 3, 4), r(5, 4, 2)),
        (r(4), r(4)),
        (r(4), r(2, 4, 3)),
        (r(3, 4), r(4)),
    ]


_ROUNDED: Any = {"single": BY_KERNEL, "narrow": True}  # products of 16-bit floats are summed in float32


@op(complex=True, samples=_shapes, **_ROUNDED)
def matmul(xp, a, b):
    """The matrix product; leading dimensions broadcast, one-dimensional arguments are vectors."""
    return xp.matmul(a, b)


@matmul.vjp(0)
def _(xp, g, _y, _a, b):
    if b.ndim == 1:
        return g * xp.conj(b) if _a.ndim == 1 else xp.expand_dims(g, -1) * xp.conj(b)
    if _a.ndim == 1:
        return xp.matmul(xp.conj(b), xp.expand_dims(g, -1))[..., 0]
    return xp.matmul(g, _t(xp, b))


@matmul.vjp(1)
def _(xp, g, _y, a, _b):
    if a.ndim == 1:
        return xp.conj(a) * g if _b.ndim == 1 else xp.expand_dims(xp.conj(a), -1) * xp.expand_dims(g, -2)
    if _b.ndim == 1:
        return xp.matmul(_t(xp, a), xp.expand_dims(g, -1))[..., 0]
    if _b.ndim == 2 and a.ndim > 2:  # one product over all rows instead of a sum of many
        return xp.matmul(_t(xp, _rows(a)), _rows(g))
    return xp.matmul(_t(xp, a), g)


@op(
    tensors=3,
    **_ROUNDED,
    complex=True,
    samples=lambda r: [(r(3, 4), r(2, 4), r(2)), (r(2, 3, 4), r(5, 4), None), (r(4), r(2, 4), r(2))],
)
def linear(xp, x, w, b=None):
    """x @ w.T + b for `w` of shape (out, in)."""
    rows = _rows(x) if x.ndim > 2 else x  # one product over all rows: a large one is faster than many small ones
    y = xp.matmul(rows, w.T) if b is None else xp.matmul_add(rows, w.T, b)
    return y.reshape(*x.shape[:-1], w.shape[0]) if x.ndim > 2 else y


@linear.vjp_all
def _(xp, needs, g, _y, x, w, _b):
    rows = _rows(g)
    dx = None
    if needs[0]:
        dx = xp.matmul(rows, w if type(w) is np.ndarray and w.dtype.kind != "c" else xp.conj(w))
        dx = dx if x.ndim == 2 else dx.reshape(x.shape)
    dw = _weight_gradient(xp, rows, _rows(x)) if needs[1] else None
    db = xp.sum_rows(rows) if needs[2] else None
    return dx, dw, db


def _linear_on_device(xp, x, w, b):
    rows = x if x.ndim == 2 else _rows(x)
    y = products.linear(xp, rows, w, b)
    return OPS["linear"].generic.forward(xp, x, w, b) if y is None else y.reshape(*x.shape[:-1], w.shape[0])


def _linear_back_on_device(xp, needs, g, _y, x, w, _b):
    rows = _rows(g)
    both = products.weight_gradients(xp, rows, _rows(x)) if needs[1] and needs[2] else None
    if both is None:
        return OPS["linear"].generic.vjp(xp, needs, g, _y, x, w, _b)
    return xp.matmul(rows, w).reshape(x.shape) if needs[0] else None, *both


override("linear", "cuda", _linear_on_device, _linear_back_on_device)


def _weight_gradient(xp: Any, g: Any, x: Any) -> Any:
    if isinstance(g, np.ndarray) and isinstance(x, np.ndarray) and g.dtype == x.dtype and g.dtype.char in "fd":
        return Product(g.T, x)
    return xp.matmul(xp.swapaxes(g, 0, 1), xp.conj(x))


@op(takes="iufc", complex=True, samples=lambda r: [(r(3, 4),)])
def sum_rows(xp, x):
    """The sum over the first dimension of a matrix, in a fixed order."""
    if not isinstance(x, np.ndarray):
        return xp.sum(x, axis=0)
    return xp.add.reduce(x, 0) if x.dtype.kind == "c" else kernel.sum_rows(x)


@sum_rows.vjp
def _(xp, g, _y, _x):
    return xp.broadcast_to(g, _x.shape)
