"""Weighted sums of elements along one dimension: what every separable interpolation is, and its gradient."""

from __future__ import annotations

from typing import Any

import numpy as np

from resilin.core.kernels.loader import kernel
from resilin.core.ops.registry import op, override

_ROWS, _COLUMNS = np.array([0, 0, 1, 3, 3, 3]), np.array([1, 2, 0, 2, 2, 1])
_kernel = kernel("resample")
_WEIGHTS = np.array([0.25, 0.75, 1.5, -0.5, 2.0, 0.125])


@op(
    takes="biufc",
    complex=True,
    samples=lambda r: [
        (r(2, 3, 3), _ROWS, _COLUMNS, _WEIGHTS, 4, 2),
        (r(2, 3), np.array([0, 1, 2]), np.array([1, 1, 0]), None, 3, 0),
    ],
)
def resample(xp, x, rows=None, columns=None, weights=None, size=0, axis=0):
    """Zeros of length `size` along `axis` with weights[k] * x[columns[k]] added at rows[k], in the order of k.

    `rows` ascend. Without `weights` all are 1. 16-bit floats are summed in float32.
    """
    wide = x.astype(np.float32) if x.dtype.itemsize == 2 else x
    out = None
    for places, chosen in _levels(rows, size):
        part = xp.take(wide, xp.asarray(columns[chosen]), axis=axis)
        if weights is not None:
            kept = weights[chosen].astype(wide.real.dtype).reshape((-1,) + (1,) * (x.ndim - 1 - axis))
            part *= xp.asarray(kept)
        if out is None:
            out = part if len(places) == size else xp.zeros((*x.shape[:axis], size, *x.shape[axis + 1 :]), wide.dtype)
        if len(places) < size:
            out[(*(slice(None),) * axis, xp.asarray(places))] += part
        elif out is not part:
            out += part
    return out if wide is x else out.astype(x.dtype)


@resample.vjp
def _(xp, g, _y, _x, rows=None, columns=None, weights=None, size=0, axis=0):
    order = np.argsort(columns, kind="stable")
    turned = None if weights is None else weights[order]
    return xp.resample(g, columns[order], rows[order], turned, _x.shape[axis], axis)


def _native(x: Any, rows: Any, columns: Any, weights: Any, size: int, axis: int) -> Any:
    """`resample` by native code; None for what it is not for."""
    if not isinstance(x, np.ndarray) or x.dtype != np.float32:
        return None
    return _kernel(x, rows, columns, None if weights is None else weights.astype(np.float32, copy=False), size, axis)


def _forward(xp, x, rows, columns, weights, size, axis):
    y = _native(x, rows, columns, weights, size, axis)
    return resample.generic.forward(xp, x, rows, columns, weights, size, axis) if y is None else y


def _backward(xp, needs, g, _y, _x, rows, columns, weights, size, axis):
    order = np.argsort(columns, kind="stable")
    turned = None if weights is None else weights[order]
    return (_forward(xp, g, columns[order], rows[order], turned, _x.shape[axis], axis),)


override("resample", "cpu", _forward, _backward)


def _levels(rows: Any, size: int) -> list[tuple[Any, Any]]:
    """The first term of every row, the second of those that have one, and so on: (rows, numbers of terms)."""
    counts = np.bincount(rows, minlength=size)
    starts = np.cumsum(counts) - counts
    levels = []
    for level in range(int(counts.max(initial=0))):
        places = np.flatnonzero(counts > level)
        levels.append((places, starts[places] + level))
    return levels
