"""Reductions over bags of embeddings, and the bilinear form."""

# N indices in all bags, B bags, D width

from __future__ import annotations

from typing import Any

import numpy as np

from resilin.core import dtype as dtypes
from resilin.core.api.conversion.through_host import through_host
from resilin.core.api.manipulation import indexing
from resilin.core.api.manipulation.joining import cat
from resilin.core.api.mathematics.half_precision import rounded_once
from resilin.core.api.nn import neural
from resilin.core.batching.active import batched_in
from resilin.core.kernels import embedding
from resilin.core.ops import creation, loss
from resilin.core.tensor import Tensor, wrap


@through_host
def embedding_bag(
    input: Tensor,
    weight: Tensor,
    offsets: Tensor | None = None,
    max_norm: float | None = None,
    norm_type: float = 2,
    scale_grad_by_freq: bool = False,
    mode: str = "mean",
    sparse: bool = False,
    per_sample_weights: Tensor | None = None,
    include_last_offset: bool = False,
    padding_idx: int | None = None,
) -> Tensor:
    """(B, D): the "sum", "mean" or "max" of the rows of `weight` (num, D) in each bag; zeros for an empty bag.

    input: (B, length), one bag a row, or (N,) with `offsets` (B,), where each bag begins; with include_last_offset
    `offsets` has one more, where the last bag ends. per_sample_weights (sum only): as input, factors of the rows.
    padding_idx: indices that are left out. Rows of a bag are added in order. max_norm, norm_type and
    scale_grad_by_freq as in `embedding`; sparse is refused. Of equal largest elements the first gets the gradient.
    """
    if mode not in ("sum", "mean", "max"):
        raise ValueError(f"embedding_bag: mode must be 'sum', 'mean' or 'max', got {mode!r}")
    neural.need_tensors("embedding_bag", input=input, weight=weight)
    if weight.dim() != 2:
        raise ValueError(f"embedding_bag: weight has to be 2-D, got shape {tuple(weight.shape)}")
    if per_sample_weights is not None and mode != "sum":
        raise NotImplementedError(f"embedding_bag: per_sample_weights needs mode='sum', got mode={mode!r}")
    if mode == "max" and (scale_grad_by_freq or sparse):
        raise ValueError("embedding_bag: mode='max' supports neither scale_grad_by_freq nor sparse")
    special = (per_sample_weights, padding_idx, max_norm, scale_grad_by_freq or None, sparse or None)
    if mode != "max" and not include_last_offset and all(value is None for value in special):
        summed = _summed(input, weight, offsets, mode == "mean")
        if summed is not None:
            return summed
    starts = _starts(input, offsets, include_last_offset)
    index, bag = input.reshape(-1), np.repeat(np.arange(len(starts) - 1), np.diff(starts))
    factors = _factors(input, weight, per_sample_weights)
    if padding_idx is not None:
        num = weight.shape[0]
        if not -num <= padding_idx < num:
            raise RuntimeError(f"embedding_bag: padding_idx must be within the table's {num} rows, got {padding_idx}")
        kept = np.flatnonzero(index._array != padding_idx % num)
        bag, places = bag[kept], wrap(kept, input._dev)
        index = index.index_select(0, places)
        factors = None if factors is None else factors.index_select(0, places)
    rows = neural.embedding(index, weight, None, max_norm, norm_type, scale_grad_by_freq, sparse)
    if mode == "max":
        return _largest(rows, bag, len(starts) - 1)
    return _added_up(rows, factors, bag, len(starts) - 1, mode)


def _summed(input: Tensor, weight: Tensor, offsets: Tensor | None, mean: bool) -> Tensor | None:
    """The usual bags in one operation; None for what is not usual, or wrong."""
    index, table = input._array, weight._array
    if table.dtype not in _PLAIN or batched_in((input, weight, offsets)) or index.ndim != (2 if offsets is None else 1):
        return None
    starts = np.arange(len(index)) * index.shape[1] if offsets is None else offsets._array
    if not all(isinstance(array, np.ndarray) for array in (index, table, starts)):
        return None
    index = index.reshape(-1)
    if not embedding.are_bags(index, starts, len(table)):
        return None
    return loss.embedding_bags.call(weight, index, starts, mean)


_PLAIN = tuple(kind.np for kind in (dtypes.float16, dtypes.bfloat16, dtypes.float32, dtypes.float64))


@rounded_once
def _added_up(rows: Tensor, factors: Tensor | None, bag: np.ndarray[Any, Any], bags: int, mode: str) -> Tensor:
    """The sum or mean of the rows of each bag."""
    if factors is not None:
        rows = rows * factors.unsqueeze(1)
    zeros = creation.zeros(bags, rows.shape[1], dtype=rows.dtype, device=rows.device)
    total = indexing.index_add(zeros, 0, wrap(bag, rows._dev), rows)
    if mode == "sum":
        return total
    counts = np.maximum(np.bincount(bag, minlength=bags), 1).astype(rows._array.dtype)
    mean: Tensor = total / wrap(counts[:, None], rows._dev)
    return mean


def _starts(input: Tensor, offsets: Tensor | None, include_last_offset: bool) -> np.ndarray[Any, Any]:
    """Where each bag begins, and where the last one ends."""
    if input.dim() == 2:
        if offsets is not None:
            raise ValueError("embedding_bag: input of shape (B, length) needs no offsets; leave them out")
        return np.arange(input.shape[0] + 1) * input.shape[1]
    if input.dim() != 1:
        raise ValueError(f"embedding_bag: expected input of one or two dimensions, got {tuple(input.shape)}")
    if offsets is None:
        raise ValueError("embedding_bag: input of shape (N,) needs offsets, where each bag begins")
    begins, total = offsets._array, input.shape[0]
    if begins.ndim != 1 or begins.dtype.kind not in "iu":
        raise ValueError(f"embedding_bag: expected offsets of shape (B,) and an integer dtype, got {offsets!r}")
    ends = begins if include_last_offset else np.append(begins, total)
    if not len(ends):
        raise ValueError("embedding_bag: with include_last_offset, offsets must have at least one element")
    if total and not len(begins):
        raise RuntimeError(f"embedding_bag: {total} indices need offsets that ascend from 0, got none")
    if (len(begins) and begins[0] != 0) or (np.diff(ends) < 0).any() or ends[-1] > total:
        raise RuntimeError(f"embedding_bag: offsets must ascend from 0 to at most {total}, got {begins.tolist()}")
    return np.append(ends[:-1], total)  # as in PyTorch: the last bag takes what is left


def _factors(input: Tensor, weight: Tensor, per_sample_weights: Tensor | None) -> Tensor | None:
    if per_sample_weights is None:
        return None
    if per_sample_weights.shape != input.shape:
        raise ValueError(
            f"embedding_bag: per_sample_weights must have the shape {tuple(input.shape)} of input, got "
            f"{tuple(per_sample_weights.shape)}"
        )
    if per_sample_weights.dtype != weight.dtype:
        raise RuntimeError(
            f"embedding_bag: per_sample_weights must have the dtype {weight.dtype} of weight, got "
            f"{per_sample_weights.dtype}"
        )
    factors: Tensor = per_sample_weights.reshape(-1)
    return factors


def _largest(rows: Tensor, bag: np.ndarray[Any, Any], bags: int) -> Tensor:
    """The largest element of each bag and column; NaN where there is one."""
    values = rows._array
    winners = np.full((bags, values.shape[1]), len(values))  # the row after the last one is zero, for empty bags
    if len(values):
        begins = np.flatnonzero(np.append(True, bag[1:] != bag[:-1]))
        filled = bag[begins]
        top = np.maximum.reduceat(values, begins, axis=0)
        spread = np.repeat(top, np.diff(np.append(begins, len(bag))), axis=0)
        numbers = np.where((values == spread) | (values != values), np.arange(len(values))[:, None], len(values))
        winners[filled] = np.minimum.reduceat(numbers, begins, axis=0)
    zero = creation.zeros(1, values.shape[1], dtype=rows.dtype, device=rows.device)
    return indexing.gather(cat([rows, zero], 0), 0, wrap(winners, rows._dev))


@rounded_once
def bilinear(input1: Tensor, input2: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """y[..., o] = sum over i, j of input1[..., i] * weight[o, i, j] * input2[..., j], plus bias[o]."""
    neural.need_tensors("bilinear", input1=input1, input2=input2, weight=weight)
    shapes = f"input1 {tuple(input1.shape)}, input2 {tuple(input2.shape)}, weight {tuple(weight.shape)}"
    if weight.dim() != 3 or 0 in (input1.dim(), input2.dim()) or input1.shape[:-1] != input2.shape[:-1]:
        raise RuntimeError(f"bilinear: expected (..., I), (..., J) and a weight (O, I, J), got {shapes}")
    out, wide1, wide2 = weight.shape
    if (input1.shape[-1], input2.shape[-1]) != (wide1, wide2):
        raise RuntimeError(f"bilinear: the last dimensions of the inputs must be those of the weight, got {shapes}")
    products = input1.unsqueeze(-1) * input2.unsqueeze(-2)
    rows = products.reshape(*input1.shape[:-1], wide1 * wide2)
    return neural.linear(rows, weight.reshape(out, wide1 * wide2), bias)
