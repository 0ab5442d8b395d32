"""Indexing: basic and advanced, gather and scatter, choice. Repeated places are summed in index order, so these are
deterministic."""

from __future__ import annotations

from typing import Any

import numpy as np

from resilin.core.kernels import index_range
from resilin.core.kernels import places as kernel
from resilin.core.kernels.common import is_array
from resilin.core.kernels.loader import kernel as loaded
from resilin.core.ops.errstate import widened
from resilin.core.ops.lazy_gradients import Region
from resilin.core.ops.registry import op

_ROWS = np.array([2, 0, 2, 1])
take_indexed = loaded("take_indexed")  # x[index] for an index of one array of places


def split(index: Any) -> tuple[Any, Any]:
    """`index` as two, one after the other: (integers and slices, arrays), the first None when one is enough.

    Beside an array, PyTorch selects at an integer first; numpy would broadcast it with the arrays, and so put the
    dimensions elsewhere: of zeros(4, 5, 6)[0, :, [0, 1]] it makes (2, 5) instead of (5, 2).
    """
    if not isinstance(index, tuple) or not any(type(i) is int for i in index) or goes_as_it_is(index):
        return None, index
    first: list[Any] = []
    then: list[Any] = []
    for part in index:
        if type(part) is int:
            first.append(part)
        elif _basic(part):
            first.append(part)
            then.append(Ellipsis if part is Ellipsis else slice(None))
        else:
            array = part if is_array(part) else np.asarray(part)
            first += [slice(None)] * (array.ndim if array.dtype == np.bool_ else 1)  # True alone adds a dimension
            then.append(part)
    return tuple(first), tuple(then)


def check_range(x: Any, index: Any) -> None:
    """IndexError for arrays of indices out of range. numpy finds them itself, where other libraries wrap around."""
    if isinstance(x, np.ndarray):
        return
    parts = index if isinstance(index, tuple) else (index,)
    axis = 0
    for number, part in enumerate(parts):
        if part is Ellipsis:
            axis = x.ndim - sum(map(_dimensions, parts[number + 1 :]))
        elif is_array(part) and part.dtype.kind in "iu":
            length = x.shape[axis]
            text = f"index {{value}} is out of bounds for dimension {axis} with size {length}"
            index_range.check(part, -length, length, IndexError, text)
        axis += 0 if part is Ellipsis else _dimensions(part)


def check_host(index: Any) -> None:
    """RuntimeError for arrays of a device, which cannot index what is on the CPU."""
    for part in index if isinstance(index, tuple) else (index,):
        if is_array(part) and not isinstance(part, np.ndarray):
            raise RuntimeError("indices should be on the device of the indexed tensor (cpu): move them with .cpu()")


def _dimensions(part: Any) -> int:
    """How many dimensions of the indexed array a part of an index is for."""
    if part is None or isinstance(part, bool):
        return 0
    return int(part.ndim) if is_array(part) and part.dtype.kind == "b" else 1


_BASIC = frozenset((int, slice, type(None), type(Ellipsis)))


def dimensions_of_result(ndim: int, parts: tuple[Any, ...]) -> int:
    """How many dimensions an array of `ndim` has after indexing with integers and arrays."""
    arrays = [part for part in parts if is_array(part)]
    picked = max((1 if part.dtype.kind == "b" else part.ndim for part in arrays), default=0)
    return int(picked) + ndim - sum(map(_dimensions, parts))


def goes_as_it_is(index: Any) -> bool:
    """Whether `index` is of integers, slices, None and ... only, so that it needs no preparation."""
    return type(index) in _BASIC or (type(index) is tuple and _BASIC.issuperset(map(type, index)))


def _basic(part: Any) -> bool:
    return type(part) in _BASIC


@op(
    view=True,
    complex=True,
    samples=lambda r: [(r(3, 4), 1), (r(3, 4), (slice(None), slice(1, 4, 2))), (r(3, 4), _ROWS), (r(3), (None, 0))],
    kernel=loaded("indexed"),
)
def getitem(xp, x, index=None):
    """x[index]; a view for integers and slices, a copy for arrays."""
    if (y := take_indexed(x, index)) is not None:
        return y
    check_range(x, index)
    y = x[index]
    if isinstance(y, np.generic):  # numpy copies a single element unless an ellipsis asks for a 0-d view
        y = x[(*index, Ellipsis) if isinstance(index, tuple) else (index, Ellipsis)]
    return y


@getitem.vjp
def _(xp, g, _y, _x, index=None):
    if goes_as_it_is(index) and (isinstance(g, np.ndarray) or hasattr(xp, "launch")):
        return Region(g, index, _x.shape)
    return xp.index_add_zeros(widened(g), _x.shape, index)  # elements that meet at one place are added in float32


@op(complex=True, samples=lambda r: [(r(4), (3, 4), 1), (r(4, 2), (3, 2), _ROWS), (r(4), (3, 4), 1, True)])
def index_add_zeros(xp, g, shape=(), index=None, once=False):
    """Zeros of `shape` with `g` added at `index`; itself there, -0.0 too, if that names no place but `once`."""
    if not once:
        return xp.index_add_zeros(g, shape, index)
    out = xp.zeros(shape, g.dtype)
    xp.write_at(out, index, g)
    return out


@index_add_zeros.vjp
def _(xp, h, _y, _g, shape=(), index=None, once=False):
    return h[index]


@op(complex=True, narrow=True, samples=lambda r: [(r(3, 4), r(4), 1), (r(3, 4), r(), (slice(None), 2))])
def index_put(xp, x, value, index=None):
    """`x` with `value` at `index`."""
    check_range(x, index)
    out = xp.array(x, copy=True)
    xp.write_at(out, index, value)
    return out


@index_put.vjp(0)
def _(xp, g, _y, _x, _value, index=None):
    return xp.index_put(g, xp.zeros_like(g[index]), index)


@index_put.vjp(1)
def _(xp, g, _y, _x, _value, index=None):
    return g[index]


@op(
    complex=True,
    single=True,
    samples=lambda r: [(r(3, 4), np.array([[0, 1], [2, 2], [3, 0]]), 1)],
    kernel=loaded("take_along"),
)
def take_along_axis(xp, x, index=None, axis=0):
    """Elements picked along `axis`, one index per element of the result."""
    return xp.take_along_axis(x, index, axis)


@take_along_axis.vjp
def _(xp, g, _y, _x, index=None, axis=0):
    return xp.scatter_add_zeros(g, _x.shape, axis, index)


@op(complex=True, samples=lambda r: [(r(3, 2), (3, 4), 1, np.array([[0, 1], [2, 2], [3, 0]]))])
def scatter_add_zeros(xp, g, shape=(), axis=0, index=None):
    """Zeros of `shape` with `g` added at `index` along `axis`."""
    return xp.scatter_add_zeros(g, shape, axis, index)


@scatter_add_zeros.vjp
def _(xp, h, _y, _g, shape=(), axis=0, index=None):
    return xp.take_along_axis(h, index, axis)


@op(complex=True, samples=lambda r: [(r(3, 4), r(3, 2), 1, np.array([[0, 1], [2, 2], [3, 0]]))])
def scatter_add_to(xp, x, g, axis=0, index=None):
    """`x` with `g` added at `index` along `axis`: to what is there, in the order of the index."""
    if isinstance(x, np.ndarray) and x.dtype == g.dtype:
        return kernel.add_along_to(np.array(x, order="C"), g, axis, index)
    return x + xp.scatter_add_zeros(g, tuple(x.shape), axis, index)


@scatter_add_to.vjp(0)
def _(xp, g, _y, _x, _g, axis=0, index=None):
    return g


@scatter_add_to.vjp(1)
def _(xp, h, _y, _x, _g, axis=0, index=None):
    return xp.take_along_axis(h, index, axis)


@op(
    complex=True,
    samples=lambda r: [
        (r(4, 2), r(3, 2), np.array([1, 3, 1])),
        (r(4, 2), r(4, 2), _ROWS),
        (r(3, 4), r(3), (np.array([0, 2, 0]), np.array([1, 1, 1]))),
    ],
)
def index_add_to(xp, x, g, index=None):
    """`x` with `g` added at `index`: to what is there, repeated places in order."""
    if isinstance(x, np.ndarray) and x.dtype == g.dtype:
        return kernel.add_slices_to(np.array(x, order="C"), g, index)
    return x + xp.index_add_zeros(g, tuple(x.shape), index)


@index_add_to.vjp(0)
def _(xp, g, _y, _x, _g, index=None):
    return g


@index_add_to.vjp(1)
def _(xp, h, _y, _x, _g, index=None):
    return h[index]


@op(
    complex=True,
    narrow=True,
    samples=lambda r: [(r(3, 4), r(3, 2), np.array([[0, 1], [2, 1], [3, 0]]), 1), (r(4), r(2), np.array([1, 3]), 0)],
)
def scatter(xp, x, value, index=None, axis=0):
    """`x` with `value` written at `index` along `axis`."""
    out = xp.array(x, copy=True)
    if not kernel.put_along(out, index, value, axis):
        places = list(xp.indices(index.shape, sparse=True))
        places[axis] = index
        xp.write_at(out, tuple(places), value)
    return out


@scatter.vjp(0)
def _(xp, g, _y, _x, _value, index=None, axis=0):
    return xp.scatter(g, xp.zeros_like(xp.take_along_axis(g, index, axis)), index, axis)


@scatter.vjp(1)
def _(xp, g, _y, _x, _value, index=None, axis=0):
    return xp.take_along_axis(g, index, axis)


_EYE = np.eye(3, 4, dtype=bool)


@op(
    complex=True,
    narrow=True,
    samples=lambda r: [(r(3, 4), r(3, 4), _EYE), (r(4), r(), _EYE)],
    kernel=loaded("choose_else"),
)
def where_else(xp, a, b, condition=None):
    """`a` where `condition` holds, else `b`. Either may be a number."""
    return xp.where(condition, a, b)


@where_else.vjp(0)
def _(xp, g, _y, _a, _b, condition=None):
    return xp.where(condition, g, xp.zeros_like(g))


@where_else.vjp(1)
def _(xp, g, _y, _a, _b, condition=None):
    return xp.where(condition, xp.zeros_like(g), g)
