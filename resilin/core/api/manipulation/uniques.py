"""Distinct elements, or distinct slices along a dimension.

`__all__` are the functions of `resilin`, and methods of `Tensor`.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from resilin.core.api.conversion.through_host import through_host
from resilin.core.kernels import sort
from resilin.core.state.size import check_dim
from resilin.core.tensor import Tensor, wrap

__all__ = ["unique", "unique_consecutive"]


class Distinct(NamedTuple):
    """Distinct elements, ascending; where each is first; which of them every element is; how often each occurs."""

    values: Tensor
    first: Tensor
    inverse: Tensor
    counts: Tensor


def distinct(input: Tensor, dim: int | None = None) -> Distinct:
    """The distinct elements of the flattened tensor, or its distinct slices along `dim` in lexicographic order.

    NaNs are distinct from one another. `inverse` has the input's shape, or is a vector as long as `dim`.
    """
    array = input._dev.backend.to_host(input._array)
    axis = None if dim is None else check_dim(dim, array.ndim)
    values, first, inverse, counts = (
        sort.distinct(array.reshape(-1), True, True, True) if axis is None else sort.distinct_slices(array, axis)
    )
    inverse = inverse.reshape(input._array.shape if axis is None else array.shape[axis])
    return Distinct(*(_tensor(part, input) for part in (values, first, inverse, counts)))


def _tensor(array: Any, like: Tensor) -> Tensor:
    return wrap(like._dev.backend.from_host(array, like._dev.index or 0), like._dev)


@through_host
def unique(
    input: Tensor,
    sorted: bool = True,
    return_inverse: bool = False,
    return_counts: bool = False,
    dim: int | None = None,
) -> Any:
    """The distinct elements in order (always, whatever `sorted` says), or the distinct slices along `dim`.

    Optionally also which of them each element (or slice) is, and how often each occurs. NaNs are distinct from one
    another.
    """
    if not isinstance(sorted, bool):
        raise TypeError(f"unique(): argument 'sorted' must be bool, not {type(sorted).__name__}; give dim by name")
    if dim is not None:
        _check_slices("unique", input, dim)
        found = distinct(input, dim)
        return _asked_for(found.values, found.inverse, found.counts, return_inverse, return_counts)
    array = input._dev.backend.to_host(input._array)
    values, _, inverse, counts = sort.distinct(array.reshape(-1), False, return_inverse, return_counts)
    made = _tensor(values, input)
    if not (return_inverse or return_counts):
        return made
    which = _tensor(inverse.reshape(array.shape), input) if return_inverse else made
    return _asked_for(made, which, _tensor(counts, input) if return_counts else made, return_inverse, return_counts)


def _check_slices(where: str, input: Tensor, dim: int) -> None:
    """RuntimeError when a dimension other than an empty `dim` is empty: its slices hold nothing to compare."""
    shape = input._array.shape
    if not shape:
        raise IndexError(f"{where}: dimension specified as {dim} but tensor has no dimensions")
    axis = check_dim(dim, len(shape))
    if 0 in shape and shape[axis] != 0:
        raise RuntimeError(
            f"{where}: there are {shape.count(0)} zero sized dimensions in shape {tuple(shape)}, and they aren't "
            "selected, so unique cannot be applied"
        )


def _asked_for(values: Tensor, inverse: Tensor, counts: Tensor, with_inverse: bool, with_counts: bool) -> Any:
    out = (values, *((inverse,) if with_inverse else ()), *((counts,) if with_counts else ()))
    return out[0] if len(out) == 1 else out


@through_host
def unique_consecutive(
    input: Tensor, return_inverse: bool = False, return_counts: bool = False, dim: int | None = None
) -> Any:
    """Without repetitions of what comes right before, of elements or of slices along `dim`; see `unique`."""
    if dim is not None:
        _check_slices("unique_consecutive", input, dim)
    array = input._dev.backend.to_host(input._array)
    array = array.reshape(-1) if dim is None or not array.ndim else array
    axis = 0 if dim is None else check_dim(dim, array.ndim)
    length = array.shape[axis]
    new = np.ones(length, bool)
    if array.ndim == 1:
        np.not_equal(array[1:], array[:-1], out=new[1:])
    else:
        lines = np.moveaxis(array, axis, 0).reshape(length, array.size // length if length else 0)
        new[1:] = (lines[1:] != lines[:-1]).any(1)
    starts = np.flatnonzero(new)
    values = _tensor(np.take(array, starts, axis), input)
    if not (return_inverse or return_counts):
        return values
    inverse = (np.cumsum(new) - 1).reshape(input._array.shape if dim is None else (length,))
    counts = np.diff(np.append(starts, length))
    return _asked_for(values, _tensor(inverse, input), _tensor(counts, input), return_inverse, return_counts)
