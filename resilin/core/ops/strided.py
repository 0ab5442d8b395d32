"""Views by strides: any layout over an array's memory, and complex numbers as pairs of reals."""

from __future__ import annotations

from typing import Any

import numpy as np

from resilin.core.ops.registry import Op, op

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
    once = tuple(n if step else min(n, 1) for n, step in zip(size, stride, strict=True))
    y = xp.as_strided(flat, once, tuple(s * x.itemsize for s in stride))
    return y if once == tuple(size) else xp.broadcast_to(y, size)  # which numpy locks: writes would meet


@as_strided.vjp
def _(xp, g, _y, _x, size=(), stride=(), offset=0):
    where = places(size, stride, offset).reshape(-1)
    count = 1
    for length in _x.shape:
        count *= length
    return xp.index_add_zeros(g.reshape((-1,)), (count,), where).reshape(_x.shape)


def _packed(xp: Any, x: Any) -> Any:
    """The array, copied unless its last dimension has no gaps; callers that need a view ask before."""
    return x if x.strides[-1:] in ((), (x.itemsize,)) else xp.ascontiguousarray(x)


def _reinterpret(xp: Any, x: Any, dtype: Any = None) -> Any:
    """A view of the same bytes as elements of another dtype; the last dimension shrinks or grows with their size."""
    return (x if dtype.itemsize == x.itemsize else _packed(xp, x)).view(dtype)


reinterpret = Op("reinterpret", _reinterpret, {"tensors": 1, "view": True, "differentiable": False})


@op(
    view=True,
    complex=True,
    takes="c",
    samples=lambda r: [(r(3, 4, complex=True),), (r(complex=True),)],
)
def view_as_real(xp, x):
    """A view of complex numbers as pairs (real part, imaginary part) in a new last dimension."""
    x = xp.asarray(x)
    if isinstance(x, np.ndarray) and x.ndim and x.flags.c_contiguous:
        return x.view(x.real.dtype).reshape(*x.shape, 2)
    parts = x.real
    return xp.as_strided(parts, (*x.shape, 2), (*x.strides, parts.itemsize))


@view_as_real.vjp
def _(xp, g, _y, _x):
    return xp.make_complex(g[..., 0], g[..., 1])


@op(
    view=True,
    dtypes="full",
    takes="f",
    samples=lambda r: [(r(3, 4, 2),), (r(2),)],
)
def view_as_complex(xp, x):
    """A view of pairs in a last dimension of length 2 without gaps as complex numbers."""
    x = _packed(xp, x) if x.itemsize > 2 else x.astype("float32")
    return x.view("complex64" if x.itemsize == 4 else "complex128")[..., 0]


@view_as_complex.vjp
def _(xp, g, _y, _x):
    return xp.view_as_real(g)
