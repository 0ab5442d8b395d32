"""What shape and dtype numpy's functions give that make, join, cut and index arrays."""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from resilin.core.backends.meta.array import FUNCTIONS, MetaArray, fresh, fresh_like, is_basic
from resilin.core.backends.meta.rules import Rule, axes_of, rule, shape_of, small

# Making arrays


@rule("zeros", "ones", "empty")
def new(shape: Any, dtype: Any = np.float64, order: Any = "C", device: Any = None) -> MetaArray:
    """A new array."""
    return fresh(shape, np.float64 if dtype is None else dtype)


@rule("zeros_like", "ones_like", "empty_like")
def new_like(x: Any, dtype: Any = None, order: Any = "K", subok: bool = True, shape: Any = None) -> MetaArray:
    """A new array like another."""
    if shape is None and isinstance(x, MetaArray):
        return fresh_like(x, dtype)
    return fresh(shape_of(x) if shape is None else shape, np.asarray(x).dtype if dtype is None else dtype)


@rule("full_like")
def full_like(x: Any, fill_value: Any, dtype: Any = None, **options: Any) -> MetaArray:
    """A new array like another."""
    made: MetaArray = new_like(x, dtype, **options)
    return made


@rule("full")
def full(shape: Any, fill_value: Any, dtype: Any = None, order: Any = "C") -> MetaArray:
    """A new array."""
    return fresh(shape, np.asarray(small(fill_value, ())).dtype if dtype is None else dtype)


@rule("arange")
def arange(start: Any, stop: Any = None, step: Any = 1, dtype: Any = None) -> MetaArray:
    """As many as there are steps."""
    start, stop = (0, start) if stop is None else (start, stop)
    kind = np.arange(start, start, step).dtype if dtype is None else dtype
    return fresh((max(math.ceil((stop - start) / step), 0),), kind)


@rule("linspace")
def linspace(start: Any, stop: Any, num: int = 50, **options: Any) -> MetaArray:
    """`num` places."""
    return fresh((num,), options.get("dtype") or np.float64)


@rule("eye", "tri")
def eye(N: int, M: int | None = None, k: int = 0, dtype: Any = np.float64, order: Any = "C") -> MetaArray:
    """A matrix."""
    return fresh((N, N if M is None else M), dtype)


@rule("indices")
def indices(dimensions: Any, dtype: Any = np.int64, sparse: bool = False) -> Any:
    """Index arrays of a grid."""
    shape = tuple(dimensions)
    if not sparse:
        return fresh((len(shape), *shape), dtype)
    return tuple(fresh([n if j == i else 1 for j in range(len(shape))], dtype) for i, n in enumerate(shape))


@rule("asarray", "asanyarray")
def asarray(x: Any, dtype: Any = None, order: Any = None, copy: Any = None, device: Any = None) -> Any:
    """An array of this device; itself where it is one of the dtype."""
    if isinstance(x, MetaArray):
        return x if dtype is None or np.dtype(dtype) == x.dtype else fresh(x.shape, dtype)
    if isinstance(x, list | tuple) and any(isinstance(part, MetaArray) for part in x):
        return stack(x, dtype=dtype)
    found = np.asarray(x, dtype)
    return fresh(found.shape, found.dtype)


@rule("array")
def array(x: Any, dtype: Any = None, copy: Any = True, order: Any = "K", ndmin: int = 0) -> MetaArray:
    """A new array."""
    if isinstance(x, MetaArray):
        return fresh_like(x, dtype)
    if isinstance(x, list | tuple) and any(isinstance(part, MetaArray) for part in x):
        joined: MetaArray = stack(x)
        return joined
    return fresh(np.shape(x), np.asarray(x).dtype if dtype is None else dtype)


@rule("ascontiguousarray")
def ascontiguousarray(x: Any, dtype: Any = None) -> Any:
    """Itself where it lies in C order."""
    if x.flags.c_contiguous and dtype in (None, x.dtype):
        return x
    return fresh(x.shape, x.dtype if dtype is None else dtype)


# Rearranging


@rule("reshape")
def reshape(x: Any, shape: Any, order: Any = "C", copy: Any = None) -> Any:
    """Another shape."""
    return x.reshape(shape)


@rule("ravel")
def ravel(x: Any, order: Any = "C") -> Any:
    """One dimension."""
    return x.reshape(-1)


@rule("copy")
def copy(x: Any, order: Any = "K", subok: bool = False) -> Any:
    """Memory of its own."""
    return x.copy()


def _view(name: str, function: Rule) -> None:
    rule(name)(lambda x, *args, **options: x.seen(function(x.laid, *args, **options)))


_VIEWS = (
    *("transpose", "permute_dims", "swapaxes", "moveaxis", "rollaxis", "expand_dims", "squeeze"),
    *("flip", "flipud", "fliplr", "rot90"),
)
for _name in _VIEWS:
    _view(_name, getattr(np, _name))
for _name in ["real", "imag"]:
    rule(_name)(functools.partial(lambda name, x: getattr(x, name), _name))
_view("as_strided", np.lib.stride_tricks.as_strided)
FUNCTIONS[np.lib.stride_tricks.as_strided] = FUNCTIONS["as_strided"]
FUNCTIONS[np.lib.stride_tricks.sliding_window_view] = lambda x, *args, **options: x.seen(
    np.lib.stride_tricks.sliding_window_view(x.laid, *args, **options)
)
_view("diagonal", np.diagonal)


@rule("broadcast_to")
def broadcast_to(x: Any, shape: Any, subok: bool = False) -> Any:
    """Stretched, a view."""
    x = asarray(x)
    return x.seen(np.broadcast_to(x.laid, shape))


@rule("broadcast_arrays")
def broadcast_arrays(*arrays: Any) -> Any:
    """All stretched to one shape."""
    shape = np.broadcast_shapes(*map(shape_of, arrays))
    return tuple(broadcast_to(x, shape) for x in arrays)


@rule("concatenate", "concat")
def concatenate(arrays: Sequence[Any], axis: Any = 0, out: Any = None, dtype: Any = None, casting: Any = None) -> Any:
    """Joined along a dimension."""
    kind = np.concatenate([np.empty(0, x.dtype) for x in arrays]).dtype if dtype is None else dtype
    if axis is None:
        return fresh((sum(x.size for x in arrays),), kind)
    shapes = [x.shape for x in arrays]
    (at,) = axes_of(axis, len(shapes[0]))
    if any(len(s) != len(shapes[0]) or s[:at] + s[at + 1 :] != shapes[0][:at] + shapes[0][at + 1 :] for s in shapes):
        raise ValueError("all the input array dimensions except for the concatenation axis must match exactly")
    return fresh((*shapes[0][:at], sum(s[at] for s in shapes), *shapes[0][at + 1 :]), kind)


@rule("stack")
def stack(arrays: Sequence[Any], axis: int = 0, out: Any = None, dtype: Any = None, casting: Any = None) -> Any:
    """Joined along a new dimension."""
    first = shape_of(arrays[0])
    if any(shape_of(x) != first for x in arrays):
        raise ValueError("all input arrays must have the same shape")
    kind = np.concatenate([np.empty(0, asarray(x).dtype) for x in arrays]).dtype if dtype is None else dtype
    at = axis % (len(first) + 1)
    return fresh((*first[:at], len(arrays), *first[at:]), kind)


@rule("split", "array_split")
def split(x: Any, parts: Any, axis: int = 0) -> Any:
    """Views of parts."""
    return [x.seen(part) for part in np.array_split(x.laid, parts, axis)]


@rule("tile")
def tile(x: Any, reps: Any) -> Any:
    """Repeated along dimensions."""
    reps = (reps,) if isinstance(reps, int) else tuple(reps)
    most = max(x.ndim, len(reps))
    shape, times = (1,) * (most - x.ndim) + x.shape, (1,) * (most - len(reps)) + reps
    return fresh([n * r for n, r in zip(shape, times, strict=True)], x.dtype)


@rule("repeat")
def repeat(x: Any, repeats: Any, axis: Any = None) -> Any:
    """Each element repeated as often as a number says."""
    x = asarray(x)
    total = repeats if isinstance(repeats, int | np.integer) else None
    if isinstance(repeats, np.ndarray | list | tuple):
        counts = np.asarray(repeats)
        total = None if counts.size != 1 else int(counts.reshape(()))
        if total is None:
            lengths = (int(counts.sum()),) if axis is None else _replaced(x.shape, axis, int(counts.sum()))
            return fresh(lengths, x.dtype)
    if total is None:
        repeats.item()
    many: Any = total
    return fresh((x.size * many,) if axis is None else _replaced(x.shape, axis, x.shape[axis] * many), x.dtype)


def _replaced(shape: tuple[int, ...], axis: int, length: int) -> tuple[int, ...]:
    at = axis % len(shape)
    return (*shape[:at], length, *shape[at + 1 :])


@rule("take")
def take(x: Any, index: Any, axis: Any = None, out: Any = None, mode: Any = None) -> Any:
    """Slices at indices."""
    if axis is None:
        return fresh(shape_of(index), x.dtype)
    at = axis % x.ndim
    return fresh((*x.shape[:at], *shape_of(index), *x.shape[at + 1 :]), x.dtype)


@rule("take_along_axis")
def take_along_axis(x: Any, index: Any, axis: int = -1) -> Any:
    """An element for each index."""
    at = axis % x.ndim
    lead = [
        n if i == at else min(m, n) if m != n and 1 not in (m, n) else max(m, n) if n and m else 0
        for i, (n, m) in enumerate(zip(index.shape, x.shape, strict=True))
    ]
    return fresh(lead, x.dtype)


@rule("indexed")
def indexed(x: MetaArray, index: Any) -> MetaArray:
    """x[index] with arrays of indices among its parts. A mask's elements decide on the shape: NoElements."""
    parts = list(index) if isinstance(index, tuple) else [index]
    parts = [np.asarray(part) if isinstance(part, list | bool) else part for part in parts]
    for part in parts:
        if isinstance(part, MetaArray) and part.dtype.kind == "b":
            part.item()
    spread = [
        p
        for part in parts
        for p in (part.nonzero() if isinstance(part, np.ndarray) and part.dtype == bool else (part,))
    ]
    used = sum(part is not None and part is not Ellipsis for part in spread)
    if Ellipsis not in [part for part in spread if is_basic(part)]:
        spread.append(Ellipsis)
    at = next(i for i, part in enumerate(spread) if part is Ellipsis)
    spread[at : at + 1] = [slice(None)] * (x.ndim - used)
    return _gathered(x, spread)


def _gathered(x: MetaArray, parts: list[Any]) -> MetaArray:
    """The shape of x[parts] where each part is for one dimension, or new."""
    lengths: list[int] = []
    places: list[int] = []  # of the arrays among the parts, an integer counting as one
    picked: list[tuple[int, ...]] = []
    first, axis = 0, 0
    for number, part in enumerate(parts):
        if part is None:
            lengths.append(1)
            continue
        if isinstance(part, slice):
            lengths.append(len(range(*part.indices(x.shape[axis]))))
        else:
            if not places:
                first = len(lengths)
            places.append(number)
            picked.append(shape_of(part))
        axis += 1
    together = places[-1] - places[0] + 1 == len(places)
    at = first if together else 0
    return fresh((*lengths[:at], *np.broadcast_shapes(*picked), *lengths[at:]), x.dtype)


@rule("pad")
def pad(x: Any, widths: Any, mode: Any = "constant", **options: Any) -> Any:
    """Longer by what is put around it."""
    pairs = np.broadcast_to(np.asarray(widths), (x.ndim, 2)).tolist()
    return fresh([n + a + b for n, (a, b) in zip(x.shape, pairs, strict=True)], x.dtype)


@rule("diff")
def diff(x: Any, n: int = 1, axis: int = -1, **options: Any) -> Any:
    """Shorter by `n`."""
    kind = x.dtype if x.dtype.kind != "b" else np.dtype(bool)
    return fresh(_replaced(x.shape, axis, max(x.shape[axis] - n, 0)), kind)


@rule("isin")
def isin(elements: Any, tests: Any, **options: Any) -> Any:
    """An answer for each element."""
    return fresh(shape_of(elements), np.bool_)


@rule("array_equal", "array_equiv", "allclose", "flatnonzero", "argwhere", "unique", "extract", "histogram")
def of_elements(*args: Any, **options: Any) -> Any:
    """Raise NoElements: it is the elements that decide."""
    next(x for x in args if isinstance(x, MetaArray)).item()


@rule("unravel_index")
def unravel_index(places: Any, shape: Any, order: Any = "C") -> Any:
    """An array of indices for each dimension."""
    return tuple(fresh(shape_of(places), np.int64) for _ in shape)


FUNCTIONS[np.may_share_memory] = FUNCTIONS[np.shares_memory] = lambda a, b, **options: (
    isinstance(a, MetaArray) and isinstance(b, MetaArray) and np.may_share_memory(a.laid, b.laid)
)
