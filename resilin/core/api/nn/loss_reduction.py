"""How losses are reduced: the argument `reduction`, the two older ones, and what all losses check of their operands."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np

from resilin.core.api.mathematics import reducing
from resilin.core.api.nn.neural import need_tensors
from resilin.core.tensor import Tensor


def check_reduction(reduction: str) -> None:
    """ValueError unless `reduction` is "none", "mean" or "sum"."""
    if reduction not in ("none", "mean", "sum"):
        raise ValueError(f"{reduction} is not a valid value for reduction: expected 'none', 'mean' or 'sum'")


def old_reduction(size_average: bool | None, reduce: bool | None, reduction: str) -> str:
    """`reduction`, or with a warning what PyTorch's older arguments `size_average` and `reduce` ask for."""
    if size_average is None and reduce is None:
        return reduction
    meant = "none" if reduce is False else "sum" if size_average is False else "mean"
    warnings.warn(
        f"size_average and reduce args will be deprecated, please use reduction='{meant}' instead.",
        UserWarning,
        stacklevel=4,
    )
    return meant


def reduced(value: Tensor, reduction: str) -> Tensor:
    """Per-element losses, or their mean or sum."""
    check_reduction(reduction)
    return value if reduction == "none" else reducing.mean(value) if reduction == "mean" else reducing.sum(value)


def same_shape(where: str, input: Tensor, target: Tensor) -> None:
    """RuntimeError for shapes that do not broadcast; a warning, as in PyTorch, for shapes that do and differ."""
    need_broadcast(where, input=input, target=target)
    if input._array.shape != target._array.shape:
        warnings.warn(
            f"{where}: using a target of shape {tuple(target.shape)} that is different to the input's "
            f"{tuple(input.shape)}. This will likely lead to incorrect results due to broadcasting. "
            "Please ensure they have the same size.",
            UserWarning,
            stacklevel=3,
        )


def need_broadcast(where: str, **tensors: Any) -> None:
    """TypeError unless all are Tensors, RuntimeError unless their shapes broadcast."""
    need_tensors(where, **tensors)
    shapes = [tuple(value._array.shape) for value in tensors.values()]
    try:
        np.broadcast_shapes(*shapes)
    except ValueError:
        given = " and ".join(map(str, shapes))
        raise RuntimeError(f"{where}: the shapes {given} of {', '.join(tensors)} cannot be broadcast") from None
