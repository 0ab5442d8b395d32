"""The shape of a tensor, and how its dimensions are counted."""

from __future__ import annotations


class Size(tuple[int, ...]):
    """The shape of a tensor: a tuple with `numel()`."""

    __slots__ = ()

    def numel(self) -> int:
        """Product of the lengths."""
        count = 1
        for length in self:
            count *= length
        return count

    def __repr__(self) -> str:
        return f"resilin.Size({list(self)})"


def check_dim(dim: int, ndim: int) -> int:
    """`dim` counted from the front. IndexError when it is out of range; a 0-d tensor has dimension 0 and -1."""
    size = ndim or 1
    if not -size <= dim < size:
        raise IndexError(f"Dimension out of range (expected to be in range of [{-size}, {size - 1}], but got {dim})")
    return dim + size if dim < 0 else dim
