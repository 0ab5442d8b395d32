"""Searching, sorting and sets under the standard's signatures."""

from __future__ import annotations

from typing import Any, Literal, NamedTuple

from resilin.array_api.types import promoted
from resilin.core.api.manipulation import indexing, scattering, shaping, sorting, uniques
from resilin.core.api.mathematics import reducing
from resilin.core.tensor import Tensor


class UniqueAll(NamedTuple):
    """What `unique_all` gives."""

    values: Tensor
    indices: Tensor
    inverse_indices: Tensor
    counts: Tensor


class UniqueCounts(NamedTuple):
    """What `unique_counts` gives."""

    values: Tensor
    counts: Tensor


class UniqueInverse(NamedTuple):
    """What `unique_inverse` gives."""

    values: Tensor
    inverse_indices: Tensor


def argmax(x: Tensor, /, *, axis: int | None = None, keepdims: bool = False) -> Tensor:
    """Index of the largest element (the first of equals); of the flattened tensor when `axis` is None."""
    return reducing.argmax(x, axis, keepdims)


def argmin(x: Tensor, /, *, axis: int | None = None, keepdims: bool = False) -> Tensor:
    """Index of the smallest element (the first of equals); of the flattened tensor when `axis` is None."""
    return reducing.argmin(x, axis, keepdims)


def count_nonzero(x: Tensor, /, *, axis: Any = None, keepdims: bool = False) -> Tensor:
    """How many elements differ from 0, over `axis`."""
    return reducing.sum(x != 0, axis, keepdims)


def nonzero(x: Tensor, /) -> tuple[Tensor, ...]:
    """The indices of elements that differ from 0, one tensor per dimension."""
    if not x.ndim:
        raise ValueError("nonzero: a tensor without dimensions has no indices; use x != 0")
    found: tuple[Tensor, ...] = indexing.nonzero(x, as_tuple=True)
    return found


def searchsorted(
    x1: Tensor, x2: Tensor, /, *, side: Literal["left", "right"] = "left", sorter: Tensor | None = None
) -> Tensor:
    """Where each of `x2` would be put in `x1`, ascending (or put in order by `sorter`); before or after equals."""
    x1, x2 = promoted(x1, x2)
    return scattering.searchsorted(x1, x2, side=side, sorter=sorter)


def where(condition: Tensor, x1: Any, x2: Any, /) -> Tensor:
    """`x1` where `condition` holds, else `x2`."""
    chosen: Tensor = indexing.where(condition, x1, x2)
    return chosen


def sort(x: Tensor, /, *, axis: int = -1, descending: bool = False, stable: bool = True) -> Tensor:
    """Sorted along `axis`."""
    return sorting.sort(x, axis, descending, stable=stable).values


def argsort(x: Tensor, /, *, axis: int = -1, descending: bool = False, stable: bool = True) -> Tensor:
    """The indices that sort along `axis`; equal elements keep their order."""
    return sorting.argsort(x, axis, descending, stable=stable)


def unique_all(x: Tensor, /) -> UniqueAll:
    """Distinct elements, ascending; where each is first, which of them every element is, how often each occurs."""
    found = uniques.distinct(shaping.ravel(x))
    return UniqueAll(found.values, found.first, shaping.reshape(found.inverse, x.shape), found.counts)


def unique_counts(x: Tensor, /) -> UniqueCounts:
    """Distinct elements, ascending, and how often each occurs. NaNs are distinct from one another."""
    found = unique_all(x)
    return UniqueCounts(found.values, found.counts)


def unique_inverse(x: Tensor, /) -> UniqueInverse:
    """Distinct elements, ascending, and which of them every element is. NaNs are distinct from one another."""
    found = unique_all(x)
    return UniqueInverse(found.values, found.inverse_indices)


def unique_values(x: Tensor, /) -> Tensor:
    """Distinct elements, ascending. NaNs are distinct from one another."""
    return unique_all(x).values
