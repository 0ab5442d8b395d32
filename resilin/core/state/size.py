"""The shape of a tensor, and how its dimensions are counted."""

from __future__ import annotations

import operator
from typing import Any

from resilin._base import place_finder


class Size(tuple[int, ...]):
    """The shape of a tensor: a tuple with `numel()`. Its slices, sums with tuples and multiples are shapes, too."""

    __slots__ = ()

    def numel(self) -> int:
        """Product of the lengths."""
        count = 1
        for length in self:
            count *= length
        return count

    def __getitem__(self, index: Any) -> Any:
        found = tuple.__getitem__(self, index)
        return Size(found) if type(index) is slice else found

    def __add__(self, other: Any) -> Any:
        return Size(tuple.__add__(self, other))

    def __radd__(self, other: Any) -> Any:
        return Size(other + tuple(self)) if isinstance(other, tuple) else NotImplemented

    def __mul__(self, times: Any) -> Any:
        return Size(tuple.__mul__(self, times))

    __rmul__ = __mul__

    def __repr__(self) -> str:
        return f"{place_finder.shown_root}.Size({list(self)})"


def check_dim(dim: int, ndim: int) -> int:
    """`dim` counted from the front. A 0-d tensor has dimension 0 and -1. IndexError when it is out of range, TypeError
    when it is neither an int nor a tensor of one integer."""
    if type(dim) is not int:
        dim = whole("dim", dim)
    size = ndim or 1
    if not -size <= dim < size:
        raise IndexError(f"Dimension out of range (expected to be in range of [{-size}, {size - 1}], but got {dim})")
    return dim + size if dim < 0 else dim


def whole(name: str, value: Any) -> int:
    """The argument `name`: an int, or a tensor of one integer. TypeError for anything else."""
    try:
        return operator.index(value)
    except TypeError:
        raise TypeError(f"argument {name!r} must be int, not {type(value).__name__}") from None


def contiguous_strides(size: Any) -> tuple[int, ...]:
    """Steps in elements of a contiguous tensor in C order."""
    strides, step = [], 1
    for length in reversed(tuple(size)):
        strides.append(step)
        step *= max(int(length), 1)
    return tuple(reversed(strides))


def strides_of(array: Any) -> tuple[int, ...]:
    """Steps in elements; those of a contiguous array where there are no elements, for which numpy has no steps."""
    if not array.size:
        return contiguous_strides(array.shape)
    return tuple(step // array.dtype.itemsize for step in array.strides)


def lengths_of(where: str, size: tuple[Any, ...]) -> list[int]:
    """The lengths that `f(2, 3)`, `f((2, 3))` or `f([2, 3])` names. TypeError when one is no integer."""
    if len(size) == 1 and isinstance(size[0], (tuple, list)):
        size = tuple(size[0])
    return [n if type(n) is int else _length(where, n) for n in size]


def given_size(where: str, sizes: tuple[Any, ...], named: Any, name: str = "size") -> tuple[Any, ...]:
    """What `f(2, 3)`, `f((2, 3))` or `f(size=(2, 3))` gives, as the first two do. TypeError for none and for both."""
    if sizes and named is None:
        return sizes
    if sizes:
        raise TypeError(f"{where}() got multiple values for argument {name!r}")
    if named is None:
        raise TypeError(f"{where}() missing 1 required positional argument: {name!r}; of no dimension it is ()")
    return (named,)


def _length(where: str, given: Any) -> int:
    if isinstance(given, bool) or not hasattr(given, "__index__"):
        raise TypeError(f"{where}(): argument 'size' must be ints, got {given!r} of type {type(given).__name__}")
    return operator.index(given)
