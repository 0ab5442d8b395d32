"""The inverse of Flatten, as a module."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from resilin.core.tensor import Tensor
from resilin.nn.modules.module import Module

if TYPE_CHECKING:  # what the table of places adds; written by scripts/type_stubs.py
    from resilin.nn import Flatten as Flatten


class Unflatten(Module):
    """Split dimension `dim` into `unflattened_size`, of which one length may be -1."""

    def __init__(self, dim: int, unflattened_size: Sequence[int]) -> None:
        super().__init__()
        if not isinstance(dim, int):
            raise TypeError(f"Unflatten: dim must be an int (dimensions have no names here), got {type(dim).__name__}")
        if not isinstance(unflattened_size, tuple | list):
            raise TypeError(
                f"unflattened_size must be a tuple of ints, but found type {type(unflattened_size).__name__}"
            )
        for number, length in enumerate(unflattened_size):
            if not isinstance(length, int):
                raise TypeError(
                    f"unflattened_size must be a tuple of ints, but found element of type {type(length).__name__} "
                    f"at pos {number}"
                )
        self.dim = dim
        self.unflattened_size = unflattened_size

    def forward(self, input: Tensor) -> Tensor:
        """See the class."""
        split: Tensor = input.unflatten(self.dim, tuple(self.unflattened_size))
        return split

    def extra_repr(self) -> str:
        """As in PyTorch."""
        return f"dim={self.dim}, unflattened_size={self.unflattened_size}"
