"""What shape and dtype numpy's functions give: elementwise ones, reductions, scans.

A dtype is what the function itself gives for arrays of no or one element, so promotion is numpy's; only shapes are
counted here.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np

from resilin.core.backends.meta.array import FUNCTIONS, MetaArray, fresh, fresh_like

Rule = Callable[..., Any]


def rule(*names: Any) -> Callable[[Rule], Rule]:
    """Declare what numpy's functions, or methods of arrays, of these names give."""

    def declare(function: Rule) -> Rule:
        for name in names:
            FUNCTIONS[name] = function
            if isinstance(name, str) and hasattr(np, name):
                FUNCTIONS[getattr(np, name)] = function
        return function

    return declare


def shape_of(x: Any) -> tuple[int, ...]:
    """The shape of an array, a number or a nested sequence of such."""
    return x.shape if isinstance(x, MetaArray | np.ndarray) else np.shape(x)


def small(x: Any, lengths: Any = None) -> Any:
    """An array of numpy's with the dtype of `x` and one element (or `lengths`); what is no array as it is."""
    if not isinstance(x, MetaArray | np.ndarray):
        return x
    return np.ones((1,) * x.ndim if lengths is None else lengths, x.dtype)


def _silent(function: Rule, *args: Any, **options: Any) -> Any:
    with np.errstate(all="ignore"):
        return function(*args, **options)


@functools.cache
def elementwise(function: Any) -> Rule:
    """The rule of a function that goes element by element over arrays that are broadcast."""

    def apply(*args: Any, out: Any = None, where: Any = True, **options: Any) -> Any:
        given = [small(x, (0,)) if isinstance(x, MetaArray | np.ndarray) else x for x in args]
        found = _silent(function, *given, **options)
        arrays = [x for x in args if isinstance(x, MetaArray | np.ndarray)]
        shape = np.broadcast_shapes(*(x.shape for x in arrays))
        if out is not None:
            return out[0] if isinstance(out, tuple) else out
        like = next((x for x in arrays if isinstance(x, MetaArray) and x.shape == shape), None)
        if isinstance(found, tuple):
            return tuple(_laid_as(like, shape, part.dtype) for part in found)
        return _laid_as(like, shape, found.dtype)

    return apply


def _laid_as(like: MetaArray | None, shape: Any, dtype: Any) -> MetaArray:
    return fresh(shape, dtype) if like is None else fresh_like(like, dtype)


def axes_of(axis: Any, ndim: int) -> tuple[int, ...]:
    """Dimensions counted from the front; all for None."""
    if axis is None:
        return tuple(range(ndim))
    return tuple(np.lib.array_utils.normalize_axis_tuple(axis, ndim))


@functools.cache
def reduction(function: Any) -> Rule:
    """The rule of a function that takes dimensions away, or leaves them as 1 with `keepdims`."""

    def apply(x: Any, axis: Any = None, *args: Any, out: Any = None, **options: Any) -> Any:
        options.pop("where", None)
        found = np.asarray(_silent(function, small(x, [min(n, 1) for n in x.shape]), axis, *args, **options))
        gone = axes_of(axis, x.ndim)
        if not gone:
            return fresh(x.shape, found.dtype)
        kept = found.ndim == x.ndim
        return fresh([1 if i in gone else n for i, n in enumerate(x.shape) if kept or i not in gone], found.dtype)

    return apply


@functools.cache
def scan(function: Any) -> Rule:
    """The rule of a function along `axis` whose result has the input's shape; without an axis it flattens."""

    def apply(x: Any, axis: Any = None, *args: Any, out: Any = None, **options: Any) -> Any:
        found = _silent(function, small(x), axis, *args, **options)
        return fresh((x.size,) if axis is None and x.ndim != 1 else x.shape, found.dtype)

    return apply


@functools.cache
def alike(function: Any) -> Rule:
    """The rule of a function whose result has the first argument's shape and dtype."""
    return lambda x, *args, **options: fresh_like(x)


_REDUCTIONS = (
    "sum prod mean std var any all max min amax amin argmax argmin count_nonzero nansum nanmean nanmax nanmin "
)
_REDUCTIONS += "nanprod median nanmedian ptp average"
_ALIKE = "tril triu roll partition sort"
_ELEMENTWISE = (
    "where clip round around real_if_close nan_to_num sinc i0 angle isclose fix iscomplex isreal isneginf isposinf"
)


def declare_families() -> None:
    """Give every family's functions their rules."""
    for name in _REDUCTIONS.split():
        rule(name)(reduction(getattr(np, name)))
    for name in _ELEMENTWISE.split():
        if hasattr(np, name):
            rule(name)(elementwise(getattr(np, name)))
    for name in _ALIKE.split():
        rule(name)(alike(name))
    for name in ("cumsum", "cumprod", "nancumsum"):
        rule(name)(scan(getattr(np, name)))
    for name, value in vars(np).items():
        if isinstance(value, np.ufunc) and value.signature is None:
            rule(name)(elementwise(value))
            if value.nin == 2 and value.nout == 1:
                FUNCTIONS[value, "reduce"] = _reduce(value)
                FUNCTIONS[value, "accumulate"] = lambda x, axis=0, dtype=None, out=None, u=value: fresh(
                    x.shape, u.accumulate(small(x), axis, dtype).dtype
                )
                FUNCTIONS[value, "at"] = lambda *args: None


def _reduce(ufunc: Any) -> Rule:
    apply = reduction(ufunc.reduce)
    return lambda x, axis=0, *args, **options: apply(x, axis, *args, **options)


FUNCTIONS["elementwise"] = elementwise


@rule("argsort")
def argsort(x: Any, axis: Any = -1, kind: Any = None, order: Any = None, stable: Any = None) -> Any:
    """Indices in the shape of the input."""
    return fresh((x.size,) if axis is None else x.shape, np.int64)


@rule("searchsorted", "digitize")
def searchsorted(a: Any, v: Any, side: Any = "left", sorter: Any = None) -> Any:
    """An index for each element looked for."""
    return fresh(shape_of(v), np.int64)


@rule("bincount")
def bincount(x: Any, weights: Any = None, minlength: int = 0) -> Any:
    """As long as is asked for; without that the elements decide."""
    if not minlength:
        x.item()
    return fresh((minlength,), np.int64 if weights is None else weights.dtype)


declare_families()
