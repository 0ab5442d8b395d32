"""A row of parameters of one dtype on one device, cut among the ranks, and what this rank holds of it."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

from resilin.core.tensor import Tensor, wrap
from resilin.errors import UsageError
from resilin.resharding.state_slices import Piece
from resilin.zero import partition

Array = Any  # of the backend of the parameters' device


class FlatParameter:
    """Parameters in order, and each rank's pieces of them.

    numbers: the parameters' numbers in the optimizer, as in its `state_dict()`.
    whole:   no parameter is cut.
    """

    def __init__(self, params: Sequence[Tensor], numbers: Sequence[int], world_size: int, whole: bool) -> None:
        self.params = list(params)
        self.numbers = list(numbers)
        self.whole = whole
        self.world_size = world_size
        self.numels = [param.numel() for param in params]
        self.total = sum(self.numels)
        self.share = partition.share(self.total, world_size)
        cut = partition.by_tensors if whole else partition.by_ranges
        self.shares: tuple[tuple[Piece, ...], ...] = cut(self.numels, world_size)
        self.starts = [0, *itertools.accumulate(self.numels)]  # where each parameter begins in the row
        self.dev = params[0]._dev
        self.dtype = params[0]._array.dtype
        for param, number in zip(params, numbers, strict=True):
            check_contiguous(param, number)

    def within(self, start: int, stop: int) -> list[tuple[Array, int, int]]:
        """Flat views of the parameters' elements [start, stop) of the row, each with its place [a, b) counted from
        `start`."""
        found, at = [], 0
        for piece in partition.pieces(self.numels, range(start, min(stop, self.total))):
            view = self.params[piece.param]._array.reshape(-1)[piece.start : piece.stop]
            found.append((view, at, at + piece.numel))
            at += piece.numel
        return found

    def empty(self, numel: int) -> Array:
        """A flat array for `numel` elements of this row, not initialised."""
        return self.dev.xp.empty(numel, self.dtype)

    def tensor(self, array: Array) -> Tensor:
        """A tensor over `array`, for collectives."""
        return wrap(array, self.dev)


class HeldParameters:
    """A piece that this rank holds, and the tensor over its memory that the inner optimizer updates.

    number: the parameter's number in the optimizer. A piece of a row that is cut is flat, else it has the parameter's
    shape.
    """

    __slots__ = ("_seen", "number", "param", "piece", "proxy", "whole")

    def __init__(self, param: Tensor, number: int, piece: Piece, whole: bool) -> None:
        self.param, self.number, self.piece, self.whole = param, number, piece, whole
        self._seen = param._array
        self.proxy = wrap(self.part(param._array), param._dev)

    @property
    def total(self) -> int:
        """Elements of the whole parameter."""
        return self.param.numel()

    def part(self, array: Array) -> Array:
        """The piece's elements of an array of the parameter's shape; a view where that is contiguous."""
        return array if self.whole else array.reshape(-1)[self.piece.start : self.piece.stop]

    def follow(self) -> None:
        """Point to the parameter's memory, which may be another since (`param.data = ...`)."""
        array = self.param._array
        if array is self._seen:
            return
        if array.shape != self._seen.shape or array.dtype != self._seen.dtype or self.param._dev is not self.proxy._dev:
            raise UsageError(
                f"ZeroRedundancyOptimizer: parameter {self.number} had shape {list(self._seen.shape)} and dtype "
                f"{self._seen.dtype.name} on {self.proxy._dev} when it was added, now {list(array.shape)}, "
                f"{array.dtype.name} on {self.param._dev}; convert models before their optimizer is made"
            )
        check_contiguous(self.param, self.number)
        self.proxy._array, self._seen = self.part(array), array

    def take_gradient(self, grad: Tensor | None, cut: bool = False) -> bool:
        """Give the proxy its part of the parameter's gradient `grad`, which is that part with `cut`; whether there is
        one."""
        if grad is None:
            return False
        if cut:
            self.proxy._grad = grad
            return True
        if grad._array.shape != self._seen.shape:
            raise UsageError(
                f"ZeroRedundancyOptimizer: the gradient of parameter {self.number} has shape "
                f"{list(grad._array.shape)}, the parameter {list(self._seen.shape)}"
            )
        self.proxy._grad = wrap(self.part(grad._array), grad._dev)
        return True


def check_contiguous(param: Tensor, number: int) -> None:
    """UsageError for a parameter whose memory is not one run: a piece of it would be no view."""
    if not param.is_contiguous():
        raise UsageError(
            f"ZeroRedundancyOptimizer: parameter {number} of shape {list(param.shape)} is not contiguous, so no flat "
            "range of it can be updated in place; make it a Parameter of tensor.contiguous()"
        )


def rows_of(params: Sequence[Tensor], numbers: Sequence[int], world_size: int, whole: bool) -> list[FlatParameter]:
    """One row for each dtype and device among `params`, in the order in which they come up."""
    kinds: dict[tuple[str, str], tuple[list[Tensor], list[int]]] = {}
    for param, number in zip(params, numbers, strict=True):
        members = kinds.setdefault((param._array.dtype.name, str(param._dev)), ([], []))
        members[0].append(param)
        members[1].append(number)
    return [FlatParameter(members, of, world_size, whole) for members, of in kinds.values()]
