"""Differentiable sums over the ranks of a process group."""

from __future__ import annotations

from typing import Any

from resilin._base import ranks
from resilin.core.api.manipulation.joining import cat
from resilin.core.autograd.function import Function
from resilin.core.tensor import Tensor


def total(tensor: Tensor, group: Any = None) -> Tensor:
    """The elementwise sum of `tensor` over all ranks, on every rank. Gradients are summed likewise.

    Shape: equal on every rank. Order: that of dist.all_reduce, so all ranks get equal bits.
    Raises: as dist.all_reduce.
    """
    summed: Tensor = _Total.apply(tensor, group)
    return summed


def rows(tensor: Tensor, group: Any = None) -> Tensor:
    """The vectors `tensor` of all ranks, as the rows of a matrix. One collective, and one more for gradients.

    Each rank fills its own row and zeros are added to it, so every number arrives as it is.
    """
    rank, size = ranks.place(group)
    before, after = tensor.new_zeros(rank * len(tensor)), tensor.new_zeros((size - rank - 1) * len(tensor))
    whole: Tensor = total(cat([before, tensor, after]), group).reshape(size, len(tensor))
    return whole


class _Total(Function):
    @staticmethod
    def forward(ctx: Any, tensor: Tensor, group: Any) -> Tensor:
        ctx.group = group
        summed: Tensor = tensor.clone()
        ranks.sum_in_place(summed, group)
        return summed

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        return total(grad, ctx.group), None
