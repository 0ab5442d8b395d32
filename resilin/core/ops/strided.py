"""Views by strides: any layout over an array's memory, and complex numbers as pairs of reals."""

from __future__ import annotations

from typing import Any

import numpy as np

from resilin.core.ops.registry import op

_SLIDING = ((3, 2), (2, 1), 1)


def places(size: Any, stride: Any, offset: int) -> Any:
    """For each element of such a view, its position in the memory."""
    found = np.full(tuple(size), offset, np.int64)
    for axis, (length, step) in enumerate(zip(size, stride, strict=True)):
        found += (np.arange(length) * step).reshape(-1, *(1,) * (len(size) - 1 - axis))
    return found


@op(view=True, complex=True, samples=lambda r: [(r(3, 4), *_SLIDING), (r(6), (4, 3), (1, 1), 0)])
def as_strided(xp, x, size=(), stride=(), offset=0):
    """A view of shape `size` over the memory of a contiguous `x`; strides and offset count elements."""
    flat = x.reshape(-1)[offset:]
    return xp.as_strided(flat, size, tuple(s * x.itemsize for s in stride))


@as_strided.vjp
def _(xp, g, _y, _x, size=(), stride=(), offset=0):
    where = places(size, stride, offset).reshape(-1)
    count = 1
    for length in _x.shape:
        count *= length
    return xp.index_add_zeros(g.reshape((-1,)), (count,), where).reshape(_x.shape)
