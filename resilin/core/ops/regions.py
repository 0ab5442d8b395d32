"""Gradients of parts of a tensor, not written out before they must be."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from resilin.core.kernels.common import Array


class Region:
    """`g` at the basic index `index` of an array of `shape`, zeros elsewhere.

    What several parts of one tensor (`chunk`, `split`, `unbind`, `x[i]`) give is summed in one array, in which each
    writes its own elements only; as whole arrays they would cost zeros and an addition of the tensor's size each.
    """

    __slots__ = ("dtype", "g", "index", "shape")

    def __init__(self, g: Array, index: Any, shape: tuple[int, ...]) -> None:
        self.g, self.index, self.shape, self.dtype = g, index, shape, g.dtype

    def whole(self, axes: Sequence[int] | None = None) -> Array:
        """The array. `axes`: of a contiguous one, its axes moved so, as by `transpose`."""
        if axes is None:
            out = np.zeros(self.shape, self.dtype)
        else:
            out = np.zeros([self.shape[i] for i in np.argsort(axes)], self.dtype).transpose(axes)
        out[self.index] = self.g
        return out

    def add_to(self, out: Array) -> None:
        """Add to the elements of `out` that this is about."""
        out[self.index] += self.g


def written_out(part: Any) -> Any:
    """A gradient as an array."""
    return part.whole() if isinstance(part, Region) else part
