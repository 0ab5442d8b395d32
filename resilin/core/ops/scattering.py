"""Scattering that multiplies or keeps extremes. Repeated places are taken in index order, so these are deterministic.

`own` says where the input's own element counts: everywhere, or only where nothing is scattered.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from resilin.core.kernels import places
from resilin.core.ops.registry import op

_HOST = "CuPy scatters maxima and minima of few dtypes, and no products"
_INDEX = np.array([[0, 1], [2, 2], [3, 0]])
_OWN = np.array([[0, 1, 1, 1], [1, 1, 0, 1], [1, 1, 1, 0]], bool)  # false only where something is scattered to


def _samples(r: Any) -> list[tuple[Any, ...]]:
    return [(r(3, 4), r(3, 2), _INDEX, 1, own) for own in (np.ones((3, 4), bool), _OWN)]


def _places(xp: Any, index: Any, axis: int) -> tuple[Any, ...]:
    places = list(xp.indices(index.shape, sparse=True))
    places[axis] = index
    return tuple(places)


@op(takes="biuf", host=_HOST, samples=lambda r: [(*s[:4], True, s[4]) for s in _samples(r)], order=1)
def scatter_extreme(xp, x, src, index=None, axis=0, largest=True, own=None):
    """At each place the largest (or smallest) of `x` there and of what `src` has for it; ties share the gradient."""
    pick = xp.maximum if largest else xp.minimum
    out = xp.where(own, x, xp.asarray(_bound(x.dtype, lowest=largest)))
    if isinstance(out, np.ndarray) and places.extreme_along(out, index, src, axis, largest):
        return out
    pick.at(out, _places(xp, index, axis), src)
    return out


def _bound(dtype: Any, lowest: bool) -> Any:
    """What any number of the dtype replaces."""
    if dtype.kind in "fV":
        return np.asarray(-np.inf if lowest else np.inf).astype(dtype)
    info = np.iinfo(dtype) if dtype.kind != "b" else None
    value = (info.min if lowest else info.max) if info else not lowest
    return np.asarray(value, dtype)


def _ties(xp, y, x, src, index, axis, own):
    mine = xp.astype(xp.logical_and(x == y, own), y.dtype)
    theirs = xp.astype(src == xp.take_along_axis(y, index, axis), y.dtype)
    return mine, theirs, mine + xp.scatter_add_zeros(theirs, tuple(x.shape), axis, index)


@scatter_extreme.vjp(0)
def _(xp, g, y, x, src, index=None, axis=0, largest=True, own=None):
    mine, _theirs, count = _ties(xp, y, x, src, index, axis, own)
    return g * mine / count


@scatter_extreme.vjp(1)
def _(xp, g, y, x, src, index=None, axis=0, largest=True, own=None):
    _mine, theirs, count = _ties(xp, y, x, src, index, axis, own)
    return xp.take_along_axis(g / count, index, axis) * theirs


@op(
    complex=True,
    host=_HOST,
    samples=lambda r: [(r(3, 4, low=0.5, high=2.0), r(3, 2, low=0.5, high=2.0), *s[2:]) for s in _samples(r)],
)
def scatter_product(xp, x, src, index=None, axis=0, own=None):
    """At each place the product of `x` there and of what `src` has for it."""
    out = xp.where(own, x, xp.ones((), x.dtype))
    xp.multiply.at(out, _places(xp, index, axis), src)
    return out


def _factors(xp, x, src, index, axis, own):
    """Of each place: the product of what is not 0 there, how many zeros it has, and their sum: 0, with a derivative."""
    no_x, no_src = xp.logical_and(x == 0, own), src == 0
    filled, filled_src = (xp.where(zero, xp.ones_like(v), v) for zero, v in ((no_x, x), (no_src, src)))
    left, left_src = (xp.where(zero, v, xp.zeros_like(v)) for zero, v in ((no_x, x), (no_src, src)))
    product = xp.scatter_product(filled, filled_src, index, axis, own)
    shape = tuple(x.shape)
    number = xp.astype(no_x, product.dtype)
    number = number + xp.scatter_add_zeros(xp.astype(no_src, product.dtype), shape, axis, index)
    return product, number, left + xp.scatter_add_zeros(left_src, shape, axis, index)


def _without(xp, value, y, product, number, zeros):
    """The product of all factors but `value`. At a 0: of those that are not 0 when it is the only 0, and times the
    other 0 when there are two."""
    zero = value == 0
    alone, pair = xp.astype(number == 1, product.dtype), xp.astype(number == 2, product.dtype)
    other = zeros - xp.where(zero, value, xp.zeros_like(value))
    return xp.where(zero, (alone + pair * other) * product, y / xp.where(zero, xp.ones_like(value), value))


@scatter_product.vjp(0)
def _(xp, g, y, x, src, index=None, axis=0, own=None):
    others = _without(xp, x, y, *_factors(xp, x, src, index, axis, own))
    return xp.where(own, g * xp.conj(others), xp.zeros_like(g))


@scatter_product.vjp(1)
def _(xp, g, y, x, src, index=None, axis=0, own=None):
    part, *rest = (xp.take_along_axis(v, index, axis) for v in (g, y, *_factors(xp, x, src, index, axis, own)))
    return part * xp.conj(_without(xp, src, *rest))
