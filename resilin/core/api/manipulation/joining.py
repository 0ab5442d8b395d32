"""Joining tensors, and parts of them, with PyTorch's arguments."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Sequence
from typing import Any

from resilin.core import dtype as dtypes
from resilin.core.autograd.grad_mode import mode
from resilin.core.autograd.tape import edge_of, mark_view
from resilin.core.batching.active import BATCHED
from resilin.core.kernels.loader import kernel, short
from resilin.core.ops import index as index_ops
from resilin.core.ops import shape as ops
from resilin.core.state.size import check_dim
from resilin.core.tensor import Tensor

_lengths_along = kernel("lengths_along")  # of plain tensors, what `cat` finds out about them
_parts = kernel("parts")  # of a plain tensor that nothing follows, views along a dimension, all at once


@short("concatenate", "tensors dim", sequence=True)
def cat(tensors: Sequence[Tensor], dim: int = 0) -> Tensor:
    """Tensors joined along an existing dimension, in their common dtype; other lengths must agree.

    Tensors of shape (0,) go with every shape; nothing of them but the dtype counts.
    """
    if (usual := _lengths_along(tensors, dim)) is not None:
        return ops.concat.call(tensors, *usual)
    if isinstance(tensors, Tensor):
        raise TypeError("cat(): argument 'tensors' must be a tuple or list of Tensors, not a Tensor")
    given = list(tensors)
    if not given:
        raise ValueError("cat(): expected a non-empty list of Tensors")
    shapes = [x._array.shape for x in given]
    if (0,) in shapes:
        given = _without_nothing(given)
        shapes = [x._array.shape for x in given]
    ndim = len(shapes[0])
    if ndim == 0:
        raise RuntimeError("zero-dimensional tensors cannot be concatenated; use stack()")
    axis = check_dim(dim, ndim)
    for shape in shapes:
        if len(shape) != ndim:
            raise RuntimeError(f"Tensors must have same number of dimensions: got {ndim} and {len(shape)}")
    return ops.concat.call(given, axis, tuple([shape[axis] for shape in shapes]))


def _without_nothing(tensors: list[Tensor]) -> list[Tensor]:
    """Those of `tensors` that do not have the shape (0,), or one of these, in the dtype that is common to all."""
    kept = [x for x in tensors if x._array.shape != (0,)] or tensors[:1]
    if len(kept) == len(tensors):
        return kept
    kind = functools.reduce(dtypes.promote_np, [x._array.dtype for x in tensors])
    return [x if x._array.dtype == kind else ops.astype.call(x, kind) for x in kept]


concat = concatenate = cat


@short("stack", "tensors dim", sequence=True)
def stack(tensors: Sequence[Tensor], dim: int = 0) -> Tensor:
    """Tensors of one shape joined along a new dimension."""
    tensors = list(tensors)
    if not tensors:
        raise RuntimeError("stack expects a non-empty list of Tensors")
    return ops.stack.call(tensors, check_dim(dim, tensors[0]._array.ndim + 1))


def split(
    tensor: Tensor, split_size_or_sections: Any = None, dim: int = 0, *, split_size: Any = None
) -> tuple[Tensor, ...]:
    """Views of consecutive parts along `dim`: of one size (the last may be smaller) or of the given sizes."""
    if not tensor._array.ndim:
        raise RuntimeError("split expects at least a 1-dimensional tensor, got one of 0 dimensions")
    axis = check_dim(dim, tensor._array.ndim)
    length = tensor._array.shape[axis]
    split_size_or_sections = split_size if split_size_or_sections is None else split_size_or_sections
    if isinstance(split_size_or_sections, int):
        size = split_size_or_sections
        if size < 0 or (size == 0 and length):
            raise RuntimeError(
                f"split: the size of parts must be positive (0 only for an empty dimension), got {size} for a "
                f"dimension of length {length}"
            )
        sizes = [min(size, length - start) for start in range(0, length, size)] if length else [0]
    else:
        sizes = list(split_size_or_sections)
        if sum(sizes) != length or min(sizes, default=0) < 0:
            raise RuntimeError(f"split sizes {sizes} do not sum to {length}, the length of dimension {dim}")
    if (found := _parts(tensor, axis, sizes, False, index_ops.getitem)) is not None:
        return found
    ends = itertools.accumulate(sizes)
    if type(tensor) in BATCHED:
        return tuple([narrow(tensor, axis, end - size, size) for end, size in zip(ends, sizes, strict=True)])
    if not (mode.grad and tensor.requires_grad):
        before, call = (slice(None),) * axis, index_ops.getitem.call
        return tuple([call(tensor, (*before, slice(end - n, end))) for end, n in zip(ends, sizes, strict=True)])
    edge_of(tensor)  # a stale view is recorded anew before its node is read
    parts = ops.split_parts.call(tensor, axis, tuple(sizes))
    end = 0
    for part, size in zip(parts, sizes, strict=True):
        mark_view(part, tensor, index_ops.getitem, ((slice(None),) * axis + (slice(end, end + size),),))
        end += size
    return parts


def tensor_split(
    input: Tensor, indices_or_sections: Any = None, dim: int = 0, *, indices: Any = None, sections: Any = None
) -> tuple[Tensor, ...]:
    """Views of parts along `dim`: as many as `sections`, of nearly equal size, or cut at `indices`."""
    where: Any = next((v for v in (indices_or_sections, indices, sections) if v is not None), None)
    length = input._array.shape[check_dim(dim, input._array.ndim)] if input._array.ndim else None
    if length is None:
        raise RuntimeError("tensor_split expected at least a 1-dimensional tensor, but got a tensor with 0 dims")
    where = where.tolist() if isinstance(where, Tensor) else where
    if not isinstance(where, int):
        edges = [0, *(max(min(i if i >= 0 else i + length, length), 0) for i in where), length]
        return tuple(narrow(input, dim, a, max(b - a, 0)) for a, b in itertools.pairwise(edges))
    if where < 1:
        raise RuntimeError(f"number of sections must be larger than 0, got {where}")
    return split(input, [length // where + (i < length % where) for i in range(where)], dim)


def chunk(input: Tensor, chunks: int, dim: int = 0) -> tuple[Tensor, ...]:
    """At most `chunks` views of equal size along `dim` (the last may be smaller); of an empty one, as many."""
    if chunks < 1:
        raise RuntimeError(f"chunk expects `chunks` to be greater than 0, got: {chunks}")
    if not input._array.ndim:
        raise RuntimeError("chunk expects at least a 1-dimensional tensor, got a number")
    length = input._array.shape[check_dim(dim, input._array.ndim)]
    if not length:
        return split(input, [0] * chunks, dim)
    return split(input, max(1, -(-length // chunks)), dim)


def narrow(input: Tensor, dim: int, start: int, length: int) -> Tensor:
    """A view of `length` elements from `start` along `dim`; a negative start counts from the end."""
    axis = check_dim(dim, input._array.ndim)
    start, length = int(start), int(length)
    size = input._array.shape[axis] if input._array.ndim else 0
    if length < 0:
        raise RuntimeError(f"narrow(): length must be non-negative, got {length}")
    if not -size <= start <= size:
        raise IndexError(f"start out of range (expected to be in range of [{-size}, {size}], but got {start})")
    start += size if start < 0 else 0
    if start + length > size:
        raise RuntimeError(f"start ({start}) + length ({length}) exceeds dimension size ({size}).")
    return index_ops.getitem.call(input, (slice(None),) * axis + (slice(start, start + length),))


def select(input: Tensor, dim: int, index: int) -> Tensor:
    """A view at one index of `dim`."""
    axis = check_dim(dim, input._array.ndim)
    return input[(slice(None),) * axis + (index,)]


def unbind(input: Tensor, dim: int = 0) -> tuple[Tensor, ...]:
    """Views of all slices along `dim`."""
    if not input._array.ndim:
        raise IndexError("unbind(): expected a tensor of one dimension or more, got one of 0; it has no slices")
    axis = check_dim(dim, input._array.ndim)
    length, before = input._array.shape[axis], (slice(None),) * axis
    if (found := _parts(input, axis, [1] * length, True, index_ops.getitem)) is not None:
        return found
    if not (mode.grad and input.requires_grad) and type(input) not in BATCHED:
        call = index_ops.getitem.call
        return tuple([call(input, (*before, place)) for place in range(length)])
    return tuple(ops.squeeze.call(part, (axis,)) for part in split(input, 1, axis)) if length else ()
