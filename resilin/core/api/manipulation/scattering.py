"""Scattering with reductions, writing by flat places and masks, searching sorted values, sums of products.

`__all__` are the functions of `resilin`; those of `METHODS` are methods of `Tensor`, those of `IN_PLACE` also in place.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from resilin.core.api.conversion.through_host import through_host
from resilin.core.api.manipulation import index_checks, indexing, shaping, sorting
from resilin.core.api.mathematics import arithmetic, products
from resilin.core.api.mathematics.half_precision import rounded_once
from resilin.core.kernels import index_range, pack
from resilin.core.kernels.common import has_elements, is_readable
from resilin.core.kernels.loader import kernel, short
from resilin.core.ops import index as index_ops
from resilin.core.ops import scattering as ops
from resilin.core.ops.calling import as_array
from resilin.core.state.size import check_dim
from resilin.core.tensor import Tensor, wrap

_native_search = kernel("search_sorted")

__all__ = [
    "addbmm",
    "addmv",
    "addr",
    "bucketize",
    "index_reduce",
    "masked_scatter",
    "msort",
    "put",
    "scatter_reduce",
    "searchsorted",
]
METHODS = [name for name in __all__ if name not in ("bucketize", "searchsorted")]
IN_PLACE = ["addbmm", "addmv", "addr", "index_reduce", "masked_scatter", "put", "scatter_reduce"]


@short("scatter_reduce", "input dim index src reduce")
@rounded_once
def scatter_reduce(
    input: Tensor, dim: int, index: Tensor, src: Tensor, reduce: str, *, include_self: bool = True
) -> Tensor:
    """`input` with `src` reduced into it at `index` along `dim`: "sum", "prod", "mean", "amax" or "amin".

    Without `include_self`, what is at a place before does not count where something is scattered to. Repeated places
    are reduced in index order.
    """
    if reduce not in ("sum", "prod", "mean", "amax", "amin"):
        raise RuntimeError(f"reduce argument must be either sum, prod, mean, amax or amin, got {reduce}")
    axis = check_dim(dim, input._array.ndim)
    if not input._array.ndim:
        flat = [value.reshape(-1) for value in (input, index, src)]
        return scatter_reduce(flat[0], 0, flat[1], flat[2], reduce, include_self=include_self).reshape(())
    where, part = index_checks.scattered("scatter_reduce", input, axis, index, src)
    xp = input._dev.xp
    counts, own = 0, xp.ones(input._array.shape, bool)
    if reduce == "mean" or not include_self:
        counts = xp.scatter_add_zeros(xp.ones(where.shape, np.int64), input._array.shape, axis, where)
        own = own if include_self else counts == 0
    if reduce == "prod":
        return ops.scatter_product.call(input, part, where, axis, own)
    if reduce in ("amax", "amin"):
        return ops.scatter_extreme.call(input, part, where, axis, reduce == "amax", own)
    total = input if include_self else indexing.where(wrap(own, input._dev), input, 0)
    total = indexing.added_along(total, part, axis, where)
    if reduce == "mean":
        number = wrap(input._dev.xp.maximum(counts + own, 1), input._dev)
        total = arithmetic.div(total, number, rounding_mode=None if input._array.dtype.kind in "fVc" else "floor")
    return total if total._array.dtype == input._array.dtype else total.to(input.dtype)


@rounded_once
def index_reduce(
    input: Tensor, dim: int, index: Tensor, source: Tensor, reduce: str, *, include_self: bool = True
) -> Tensor:
    """`input` with the slices of `source` reduced into those at `index` of `dim`: "prod", "mean", "amax" or "amin"."""
    if reduce not in ("prod", "mean", "amax", "amin"):
        raise RuntimeError(f"index_reduce(): Expected reduce to be one of prod, mean, amax or amin but got {reduce}.")
    axis = check_dim(dim, input._array.ndim)
    if not input._array.ndim:
        flat = input.reshape(1), 0, index, source.reshape(-1), reduce
        return index_reduce(*flat, include_self=include_self).reshape(())
    index_checks.slices_at("index_reduce", input, axis, index, source)
    lengths = [1] * source._array.ndim
    lengths[axis] = -1
    spread = index.reshape(*lengths).expand(source._array.shape)
    return scatter_reduce(input, axis, spread, source, reduce, include_self=include_self)


def put(input: Tensor, index: Tensor, source: Tensor, accumulate: bool = False) -> Tensor:
    """`input` with `source` written (or added) at places of the flattened tensor; negative ones count from its end."""
    size = input._array.size
    index_checks.same_dtype("put_", input, source)
    where = index_checks.index_array("put_", index).reshape(-1)
    if source._array.size != where.size:
        raise RuntimeError(f"put_(): source has {source._array.size} elements, index {where.size}: expected as many")
    text = f"put_(): index {{value}} is out of range for {size} elements"
    index_range.check(where, -size, size, IndexError, text)
    flat = indexing.index_put(
        input.reshape(-1), (wrap(where % size if size else where),), source.reshape(-1), accumulate
    )
    return flat.reshape(input._array.shape)


@short("masked_scatter", "input mask source")
@through_host
def masked_scatter(input: Tensor, mask: Tensor, source: Tensor) -> Tensor:
    """`input` with the elements of `source`, in order, where `mask` is true."""
    if mask._array.dtype.kind != "b":
        raise RuntimeError(f"masked_scatter_ only supports boolean masks, but got mask with dtype {mask.dtype}")
    if source._array.dtype != input._array.dtype:
        raise RuntimeError(
            f"masked_scatter: expected self and source to have same dtypes: {input.dtype}, {source.dtype}"
        )
    shape = shaping.broadcast_shapes(input._array.shape, mask._array.shape)
    if not has_elements(input._array):
        return input.expand(shape).clone()
    where = np.flatnonzero(np.broadcast_to(mask._array, shape))
    if where.size > source._array.size:
        raise RuntimeError(
            f"masked_scatter: source has fewer elements than mask has ones: {source._array.size} < {where.size}"
        )
    flat = input.expand(shape).reshape(-1)
    return index_ops.index_put.call(flat, source.reshape(-1)[: where.size], (where,)).reshape(shape)


def msort(input: Tensor) -> Tensor:
    """The elements sorted along the first dimension."""
    return sorting.sort(input, 0).values


@through_host
def searchsorted(
    sorted_sequence: Tensor,
    input: Any,
    *,
    out_int32: bool = False,
    right: bool = False,
    side: str | None = None,
    sorter: Tensor | None = None,
) -> Tensor:
    """Where each element would be inserted to keep the lines (last dimension) of `sorted_sequence` sorted.

    No value is before a NaN, nor NaN before any, as in PyTorch, whose way of halving decides where lines have them.
    `sorter` holds the indices that sort an unsorted sequence. A vector serves all of `input`; otherwise the other
    dimensions of both must agree.
    """
    if side not in (None, "left", "right") or (side == "left" and right):
        raise RuntimeError(
            f"searchsorted(): side can only be 'left' or 'right' and must agree with right={right}: {side}"
        )
    lines = sorted_sequence._array
    values = input._array if isinstance(input, Tensor) else np.asarray(input)
    if not lines.ndim:
        raise RuntimeError("searchsorted(): boundaries tensor should have positive dimension, but got 0 dimension")
    if sorter is not None:
        if sorter._array.shape != lines.shape:
            raise RuntimeError(f"searchsorted(): sorter {tuple(sorter.shape)} must have the shape {tuple(lines.shape)}")
        order = sorter._array
        if is_readable(order) and not (order.min() >= 0 and order.max() < lines.shape[-1]):
            raise RuntimeError(f"searchsorted(): sorter index out of range: it has {order.min()} to {order.max()}")
        lines = np.take_along_axis(lines, order, -1)
    way: Any = "right" if right or side == "right" else "left"
    if isinstance(lines, np.ndarray) and isinstance(values, np.ndarray):
        quick = _native_search(*(np.ascontiguousarray(pack.widened(part)) for part in (lines, values)), way == "right")
    else:
        quick = None
    if quick is not None:
        found = quick.reshape(values.shape)
    elif lines.ndim == 1:
        found = as_array(_places(lines, values, way))
    elif lines.shape[:-1] != values.shape[:-1]:
        raise RuntimeError(
            "searchsorted(): boundaries tensor should be 1 dimension or the first N-1 dimensions of boundaries tensor "
            f"and input value tensor must match, but we got {list(lines.shape)} and {list(values.shape)}"
        )
    elif not has_elements(lines):
        found = _places(lines, values, way)
    else:
        count = np.prod(lines.shape[:-1], dtype=int)  # reshape cannot tell -1 for what is empty
        rows = zip(lines.reshape(count, lines.shape[-1]), values.reshape(count, values.shape[-1]), strict=True)
        found = np.array([_places(line, row, way) for line, row in rows], np.int64).reshape(values.shape)
    return wrap(found.astype(np.int32 if out_int32 else np.int64, copy=False), sorted_sequence._dev)


def _places(line: Any, values: Any, way: Any) -> Any:
    """`np.searchsorted`; where NaN ends a sorted line, halved by comparisons as in PyTorch: no value is before NaN.

    What of the elements before the NaN is found then depends on the places where the line is halved.
    """
    if line.dtype.kind not in "fV" or not line.size or line[-1] == line[-1]:
        return np.searchsorted(line, values, way)
    line, values = pack.widened(line), np.asarray(pack.widened(values))
    start, end = np.zeros(values.shape, np.int64), np.full(values.shape, line.size)
    for _ in range(line.size.bit_length()):
        middle = (start + end) // 2
        element = line[np.minimum(middle, line.size - 1)]
        behind = np.logical_not(element > values if way == "right" else element >= values)
        start, end = np.where(behind & (start < end), middle + 1, start), np.where(behind, end, middle)
    return start


@through_host
def bucketize(input: Any, boundaries: Tensor, *, out_int32: bool = False, right: bool = False) -> Tensor:
    """The bucket between sorted `boundaries` of each element; with `right`, a boundary opens its bucket."""
    if boundaries._array.ndim != 1:
        raise RuntimeError(f"bucketize(): boundaries tensor must be 1 dimension, but got dim({boundaries._array.ndim})")
    return searchsorted(boundaries, input, out_int32=out_int32, right=right)


@rounded_once
def addbmm(input: Tensor, batch1: Tensor, batch2: Tensor, *, beta: float = 1, alpha: float = 1) -> Tensor:
    """beta * input + alpha * the sum of the products of two batches of matrices."""
    found = products.bmm(batch1, batch2)
    return products.scaled_sum("addbmm", input, beta, found.sum(0, dtype=found.dtype), alpha)


@rounded_once
def addmv(input: Tensor, mat: Tensor, vec: Tensor, *, beta: float = 1, alpha: float = 1) -> Tensor:
    """beta * input + alpha * (mat @ vec)."""
    return products.scaled_sum("addmv", input, beta, products.mv(mat, vec), alpha)


@rounded_once
def addr(input: Tensor, vec1: Tensor, vec2: Tensor, *, beta: float = 1, alpha: float = 1) -> Tensor:
    """beta * input + alpha * the outer product of two vectors."""
    if vec1._array.dtype.kind in "fVc" and alpha not in (0, 1):  # first, as in PyTorch: it may keep the range
        vec1, alpha = vec1 * alpha, 1
    return products.scaled_sum("addr", input, beta, products.outer(vec1, vec2), alpha)
