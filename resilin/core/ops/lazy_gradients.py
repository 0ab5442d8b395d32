"""Gradients that are not written out before they must be: of parts of a tensor, and products."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np

from resilin.core.kernels import gemm, pack
from resilin.core.kernels.common import Array, array_namespace


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
        xp = array_namespace(self.g)
        if axes is None:
            out = xp.zeros(self.shape, self.dtype)
        else:
            out = xp.zeros([self.shape[i] for i in np.argsort(axes)], self.dtype).transpose(axes)
        out[self.index] = self.g
        return out

    def add_to(self, out: Array) -> None:
        """Add to the elements of `out` that this is about."""
        if pack.is_half(out):
            out[self.index] = pack.add(out[self.index], self.g)
        elif isinstance(out, np.ndarray):
            out[self.index] += self.g
        else:  # of a device, whose library would write the sum twice
            part = out[self.index]
            part += self.g


class Product:
    """`a @ b`, two matrices of one dtype, not multiplied yet: its elements may belong into memory that exists already.

    What a weight's gradient usually is; it goes straight to where those are kept (`Tensor._grad_slot`).
    """

    __slots__ = ("a", "b", "dtype", "shape")

    def __init__(self, a: Array, b: Array) -> None:
        self.a, self.b, self.dtype, self.shape = a, b, a.dtype, (a.shape[0], b.shape[1])

    def whole(self) -> Array:
        """The array."""
        return gemm.matmul(self.a, self.b)

    def write(self, out: Array) -> None:
        """Write the elements to `out`."""
        gemm.matmul(self.a, self.b, out)

    def put(self, out: Array, factor: float, fresh: bool) -> bool:
        """As `gemm.matmul_put`."""
        return gemm.matmul_put(self.a, self.b, out, factor, fresh)


class Taker(Protocol):
    """Takes products in place of a leaf's `grad`."""

    def take(self, leaf: Any, product: Product) -> bool:
        """Whether it did; then `leaf.grad` stays None."""


def written_out(part: Any) -> Any:
    """A gradient as an array."""
    return part.whole() if isinstance(part, Region | Product) else part
