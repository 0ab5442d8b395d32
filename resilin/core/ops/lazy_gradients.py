"""Gradients that are not written out before they must be: of parts of a tensor, and products."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np

from resilin.core.kernels import gemm, pack
from resilin.core.kernels.common import Array, array_namespace
from resilin.core.kernels.cuda import elementwise


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


class Regions:
    """Parts of one tensor of a device: laid in its array together, in one launch where they are all of it."""

    __slots__ = ("axes", "dtype", "parts", "shape")

    def __init__(self, first: Region, axes: Sequence[int] | None) -> None:
        self.parts, self.axes, self.shape, self.dtype = [first], axes, first.shape, first.dtype

    def whole(self) -> Array:
        """The array, its axes as `Region.whole` lays them."""
        first, *others = self.parts
        if self._are_all() and all(part.g.dtype == self.dtype for part in others):
            xp = array_namespace(first.g)
            axes = self.axes if self.axes is not None else range(len(self.shape))
            out = xp.empty([self.shape[i] for i in np.argsort(axes)], self.dtype).transpose(axes)
            into = [out[part.index] for part in self.parts]
            if not elementwise.copy(xp, [part.g for part in self.parts], into):
                for place, part in zip(into, self.parts, strict=True):
                    place[...] = part.g
            return out
        out = first.whole(self.axes)
        for part in others:
            part.add_to(out)
        return out

    def _are_all(self) -> bool:
        """Whether each element of the tensor is in one part: they follow one another along one axis."""
        spans = [_span(part.index, self.shape) for part in self.parts]
        if None in spans or len({axis for axis, _, _ in spans}) > 1:  # type: ignore[misc]
            return False
        ends = sorted((begin, end) for _, begin, end in spans)  # type: ignore[misc]
        starts = [0, *[end for _, end in ends]]
        return starts == [*[begin for begin, _ in ends], self.shape[spans[0][0]]]  # type: ignore[index]


def _span(index: Any, shape: tuple[int, ...]) -> tuple[int, int, int] | None:
    """(axis, begin, end) where a basic index takes a part along one axis and all of the others; else None."""
    items = index if isinstance(index, tuple) else (index,)
    chosen = [axis for axis, item in enumerate(items) if item != slice(None)]
    if len(chosen) != 1 or any(item is None or item is Ellipsis for item in items):
        return None
    axis = chosen[0]
    item = items[axis]
    if isinstance(item, int):
        begin = item % shape[axis]
        return axis, begin, begin + 1
    begin, end, step = item.indices(shape[axis])
    return (axis, begin, end) if step == 1 and end > begin else None


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
    return part.whole() if isinstance(part, Region | Regions | Product) else part
