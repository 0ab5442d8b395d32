"""Arrays in C order. Where another dimension than the last is the fastest, numpy's own copy misses the cache."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np

from resilin.core.kernels.common import Array
from resilin.core.kernels.loader import kernel

_native_contiguous_copy = kernel("contiguous_copy")
_native_triangle = kernel("triangle")
_native_arranged = kernel("arranged")
_FILLED = -1


def ascontiguousarray(x: Any) -> Array:
    """`x` in C order, of the same shape: `np.ascontiguousarray` makes one dimension of none."""
    if isinstance(x, np.ndarray) and not x.flags.c_contiguous:
        y: Array | None = _native_contiguous_copy(x)
        if y is not None:
            return y
    return np.asarray(x, order="C")


def apart(source: Any, target: Any) -> Any:
    """`source`, or a copy of it where numpy would write `target` of one dimension over what it has yet to read.

    Of several dimensions numpy copies by itself, and of one where both run the same way with equal strides it turns.
    """
    if type(source) is not np.ndarray or not source.ndim or target.ndim != 1:
        return source
    if source.strides[-1] == target.strides[0] or not np.may_share_memory(source, target):
        return source
    return source.copy()


def turned_copy(x: Array) -> Array | None:
    """A copy of an array some dimensions of which are read from their ends; None for what numpy copies as well."""
    return _native_contiguous_copy(x)  # type: ignore[no-any-return]


def triangle(x: Any, diagonal: int, upper: bool) -> Array | None:
    """The part of matrices on one side of a diagonal and zeros; None for what has no kernel."""
    return _native_triangle(x, diagonal, upper) if isinstance(x, np.ndarray) else None


# Each dimension of the result shows runs of places of the source: rows (dimension, first place, step, count).


def _arranged(x: Array, runs: Array, fill: Array | None = None) -> Array | None:
    found: Array | None = _native_arranged(x, runs, fill)
    return found


def _table(shape: tuple[int, ...], runs: dict[int, list[tuple[int, int, int]]]) -> Array:
    whole = [(0, 1, n) for n in shape]
    rows = [(d, *run) for d, all_of_it in enumerate(whole) for run in runs.get(d, [all_of_it])]
    return np.array(rows, np.int64).reshape(-1, 4)


@functools.lru_cache(256)
def _rolled(shape: tuple[int, ...], shifts: tuple[int, ...], axes: tuple[int, ...]) -> Array:
    by = dict.fromkeys(axes, 0)
    for shift, axis in zip(shifts, axes, strict=True):
        by[axis] = (by[axis] + shift) % shape[axis]
    return _table(shape, {d: [(shape[d] - n, 1, n), (0, 1, shape[d] - n)] for d, n in by.items()})


def rolled(x: Array, shifts: tuple[int, ...], axes: tuple[int, ...]) -> Array | None:
    """Elements moved along dimensions counted from the front, in one pass; None for what has no kernel."""
    return _arranged(x, _rolled(x.shape, shifts, axes))


@functools.lru_cache(256)
def _padded(shape: tuple[int, ...], widths: tuple[tuple[int, int], ...]) -> Array:
    runs = {}
    for d, (n, (before, after)) in enumerate(zip(shape, widths, strict=True)):
        first, last = max(-before, 0), n - max(-after, 0)
        runs[d] = [(_FILLED, 0, max(before, 0)), (first, 1, max(last - first, 0)), (_FILLED, 0, max(after, 0))]
    return _table(shape, runs)


def padded(x: Any, widths: tuple[tuple[int, int], ...], value: Any) -> Array | None:
    """`x` with `value` (zeros for None) around it, negative widths cut; None for what has no kernel."""
    if not isinstance(x, np.ndarray) or not x.ndim:
        return None
    fill = None if value is None else np.full((), value, x.dtype)
    return _arranged(x, _padded(x.shape, widths), fill)


@functools.lru_cache(256)
def _repeated(shape: tuple[int, ...], reps: tuple[int, ...]) -> Array:
    return _table(shape, {d: [(0, 1, n)] * times for d, (n, times) in enumerate(zip(shape, reps, strict=True))})


def repeated(x: Array, reps: tuple[int, ...]) -> Array | None:
    """`x` as often as `reps` say along its dimensions; None for what has no kernel, or is many short copies."""
    if not x.ndim or len(reps) < x.ndim or sum(reps) > 64:
        return None
    seen = x.reshape((1,) * (len(reps) - x.ndim) + x.shape)
    return _arranged(seen, _repeated(seen.shape, reps))
