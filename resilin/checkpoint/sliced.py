"""`Sliced`: the part of a logical tensor that this rank holds. What `zero`, `elastic` and checkpoints share."""

from __future__ import annotations

import math
import operator
from collections.abc import Sequence
from typing import Protocol, runtime_checkable

from resilin.core.autograd.grad_mode import no_grad
from resilin.core.dtype import dtype as DType
from resilin.core.tensor import Tensor
from resilin.errors import UsageError, UsageTypeError


@runtime_checkable
class Slices(Protocol):
    """Elements `[start, stop)`, in C order, of a logical tensor of `shape` and `dtype`.

    `Sliced` has them in memory. What a checkpoint hands to `load_sharded_state_dict` has them in files, and reads what
    `part` is asked for, and no more.
    """

    @property
    def shape(self) -> tuple[int, ...]:
        """Of the logical tensor."""

    @property
    def dtype(self) -> DType:
        """Of the elements."""

    @property
    def start(self) -> int:
        """The first element that is here."""

    @property
    def stop(self) -> int:
        """The first one that is not here any more."""

    def part(self, start: int, stop: int) -> Tensor:
        """Elements `[start, stop)`, flat, on the device they lie on. UsageError when some are not here."""


class Sliced:
    """A logical tensor of `shape` and `dtype`, of which this rank holds the elements from `start` on.

    shape:  lengths of the whole tensor's dimensions.
    dtype:  of the whole tensor, and of `tensor`.
    start:  the place of `tensor[0]` among the elements of the whole tensor in C order.
    tensor: the elements held, flat and contiguous; it may be empty. It is kept, not copied: who fills it fills this.

    The ranks of a group hold a Sliced at the same place of equal trees; together they cover the tensor. Elements that
    several ranks hold are equal on them. Raises UsageError for what does not fit, before anything is kept.
    """

    __slots__ = ("dtype", "shape", "start", "tensor")

    def __init__(self, shape: Sequence[int], dtype: DType, start: int, tensor: Tensor) -> None:
        if not isinstance(tensor, Tensor) or not isinstance(dtype, DType):
            raise UsageTypeError(
                f"Sliced: expected a dtype and a Tensor, got {type(dtype).__name__} and {type(tensor).__name__}"
            )
        try:
            lengths, start = tuple(map(operator.index, shape)), operator.index(start)
        except TypeError:
            raise UsageTypeError(
                f"Sliced: expected lengths and a start that are integers, got {shape!r} and {start!r}"
            ) from None
        if min(lengths, default=0) < 0:
            raise UsageError(f"Sliced: a shape has no negative lengths, got {list(lengths)}")
        if tensor.ndim != 1 or not tensor.is_contiguous():
            raise UsageError(
                f"Sliced: expected a flat contiguous tensor, got shape {list(tensor.shape)}; pass t.reshape(-1)[a:b]"
            )
        if tensor.dtype is not dtype:
            raise UsageError(f"Sliced: the whole tensor is {dtype}, its part {tensor.dtype}; both must be equal")
        whole = math.prod(lengths)
        if start < 0 or start + tensor.numel() > whole:
            raise UsageError(
                f"Sliced: elements [{start}, {start + tensor.numel()}) are not within the {whole} of a tensor of shape "
                f"{list(lengths)}"
            )
        self.shape, self.dtype, self.start, self.tensor = lengths, dtype, start, tensor

    @property
    def stop(self) -> int:
        """The first element after `start` that is not held here."""
        return self.start + self.tensor.numel()

    def numel(self) -> int:
        """Number of elements of the whole tensor."""
        return math.prod(self.shape)

    def part(self, start: int, stop: int) -> Tensor:
        """Elements `[start, stop)` of the whole tensor, flat; shares memory. UsageError when they are not all here."""
        check_range(self, start, stop)
        with no_grad():
            return self.tensor[start - self.start : stop - self.start]

    def __repr__(self) -> str:
        held = f"[{self.start}, {self.stop}) of {self.numel()}"
        return f"<Sliced shape={list(self.shape)} {self.dtype} elements {held} on {self.tensor.device}>"


def part(leaf: Tensor | Slices, start: int, stop: int) -> Tensor:
    """Elements `[start, stop)`, flat, in C order, of a leaf of a sharded state dict: a plain tensor or slices of one.

    Of a contiguous tensor and of Sliced it shares memory, else it is a copy. UsageError when some are not here.
    """
    if not isinstance(leaf, Tensor):
        return leaf.part(start, stop)
    return Sliced(leaf.shape, leaf.dtype, 0, leaf.detach().reshape(-1)).part(start, stop)


def check_range(slices: Slices, start: int, stop: int) -> None:
    """UsageError when `slices` has not all elements `[start, stop)`."""
    if not slices.start <= start <= stop <= slices.stop:
        raise UsageError(
            f"Sliced: elements [{start}, {stop}) of a tensor of shape {list(slices.shape)} were asked for, "
            f"[{slices.start}, {slices.stop}) are here"
        )
