"""Shapes beyond the basics: blocks, rotations, embedded diagonals, views by strides, writes into views of a copy.

`__all__` are the functions of `resilin`; those of `METHODS` are methods of `Tensor`, too.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from resilin.core import dtype as dtypes
from resilin.core.api.conversion.through_host import through_host
from resilin.core.api.manipulation import joining, shaping
from resilin.core.api.mathematics import one_pass
from resilin.core.kernels.loader import short
from resilin.core.ops import creation, strided
from resilin.core.ops import index as index_ops
from resilin.core.ops import shape as shape_ops
from resilin.core.state.size import check_dim, whole
from resilin.core.tensor import Tensor, wrap

__all__ = [
    "adjoint",
    "as_strided",
    "as_strided_scatter",
    "atleast_1d",
    "atleast_2d",
    "atleast_3d",
    "block_diag",
    "broadcast_tensors",
    "cartesian_prod",
    "column_stack",
    "combinations",
    "diag_embed",
    "diagflat",
    "diagonal_scatter",
    "diff",
    "dsplit",
    "dstack",
    "fliplr",
    "flipud",
    "hsplit",
    "hstack",
    "meshgrid",
    "narrow_copy",
    "rot90",
    "row_stack",
    "select_scatter",
    "slice_scatter",
    "split_with_sizes",
    "unravel_index",
    "unsafe_chunk",
    "unsafe_split",
    "unsafe_split_with_sizes",
    "vsplit",
    "vstack",
]
_FUNCTIONS = (
    "adjoint",
    "atleast_1d",
    "atleast_2d",
    "atleast_3d",
    "block_diag",
    "broadcast_tensors",
    "cartesian_prod",
    "column_stack",
    "combinations",
    "dstack",
    "hstack",
    "meshgrid",
    "row_stack",
    "unravel_index",
    "vstack",
)
METHODS = [name for name in __all__ if name not in _FUNCTIONS]

unsafe_split, unsafe_chunk = joining.split, joining.chunk


def split_with_sizes(input: Tensor, split_sizes: Any, dim: int = 0) -> tuple[Tensor, ...]:
    """Views of consecutive parts of the given sizes along `dim`."""
    return joining.split(input, list(split_sizes), dim)


unsafe_split_with_sizes = split_with_sizes


def as_strided(input: Tensor, size: Any, stride: Any, storage_offset: int | None = None) -> Tensor:
    """A view of shape `size` whose neighbours lie `stride` elements apart, from element `storage_offset`.

    The memory is that of the tensor which `input` is a view of, or its own; its start is offset 0, and the default is
    where `input` starts. RuntimeError when the view would leave the memory, NotImplementedError when the memory is not
    one contiguous block, and where it would show elements that a view with a gradient of its own does not.
    """
    base = input if input._view is None else input._view.base
    if not base._array.flags.c_contiguous:
        raise NotImplementedError("as_strided: the memory is not one contiguous block; call contiguous() first")
    start = (input.data_ptr() - base.data_ptr()) // input._array.itemsize if input._array.size else 0
    offset = start if storage_offset is None else int(storage_offset)
    size, stride = tuple(map(int, size)), tuple(map(int, stride))
    if len(size) != len(stride):
        raise RuntimeError(f"mismatch in length of strides and shape: {list(size)} and {list(stride)}")
    if min(size, default=0) < 0 or min(stride, default=0) < 0 or offset < 0:
        raise RuntimeError(f"as_strided: negative size, stride or offset: {size}, {stride}, {offset}")
    last = offset + sum((n - 1) * s for n, s in zip(size, stride, strict=True))
    elements = base._array.nbytes // input._array.itemsize
    if 0 not in size and last >= elements:
        raise RuntimeError(
            f"as_strided: size {list(size)}, strides {list(stride)} and offset {offset} reach element {last} "
            f"of a memory of {elements} elements"
        )
    within = 0 in size or (offset >= start and last < start + input._array.size)
    if within and input._array.flags.c_contiguous:
        return strided.as_strided.call(input, size, stride, offset - start if 0 not in size else 0)
    if input.requires_grad and not base.requires_grad:
        raise NotImplementedError(
            "as_strided: this view has a gradient of its own, and what lies around or between its elements has none; "
            "call contiguous() first, or as_strided before requires_grad_()"
        )
    return strided.as_strided.call(_in_the_dtype_of(input, base), size, stride, offset)


def _in_the_dtype_of(input: Tensor, base: Tensor) -> Tensor:
    """The memory of `base` as elements of the dtype of `input`, which is a view of it."""
    kind, whole = input._array.dtype, base._array.dtype
    if kind == whole:
        return base
    if whole.kind == "c" and kind.itemsize * 2 == whole.itemsize and kind.kind == "f":
        return strided.view_as_real.call(base)
    flat = shaping.reshape(base, (-1,))
    if kind.kind == "c" and whole.kind == "f" and whole.itemsize * 2 == kind.itemsize:
        return strided.view_as_complex.call(shaping.reshape(flat, (-1, 2)))
    return strided.reinterpret.call(flat, kind)


def _written(input: Tensor, src: Tensor, name: str, view: Any) -> Tensor:
    """A copy of `input` with `src` written where `view` of it lies."""
    out = input.clone()
    target = view(out)
    if tuple(target.shape) != tuple(src.shape):
        raise RuntimeError(
            f"{name}: expected src to have the shape of the view, {tuple(target.shape)}, got {tuple(src.shape)}"
        )
    target.copy_(src)
    return out


def as_strided_scatter(input: Tensor, src: Tensor, size: Any, stride: Any, storage_offset: int | None = None) -> Tensor:
    """A copy of `input` with `src` in what `as_strided` of these arguments shows."""
    return _written(input, src, "as_strided_scatter", lambda x: as_strided(x, size, stride, storage_offset))


def diagonal_scatter(input: Tensor, src: Tensor, offset: int = 0, dim1: int = 0, dim2: int = 1) -> Tensor:
    """A copy of `input` with `src` as its diagonal of these dimensions."""
    return _written(input, src, "diagonal_scatter", lambda x: shaping.diagonal(x, offset, dim1, dim2))


def select_scatter(input: Tensor, src: Tensor, dim: int, index: int) -> Tensor:
    """A copy of `input` with `src` at one index of `dim`."""
    return _written(input, src, "select_scatter", lambda x: joining.select(x, dim, index))


def slice_scatter(
    input: Tensor, src: Tensor, dim: int = 0, start: int | None = None, end: int | None = None, step: int = 1
) -> Tensor:
    """A copy of `input` with `src` at the slice start:end:step of `dim`."""
    axis = check_dim(dim, input._array.ndim)
    return _written(input, src, "slice_scatter", lambda x: x[(slice(None),) * axis + (slice(start, end, step),)])


def diag_embed(input: Tensor, offset: int = 0, dim1: int = -2, dim2: int = -1) -> Tensor:
    """Matrices with the last dimension of `input` as a diagonal; they fill `dim1` and `dim2` of the result."""
    shape = input._array.shape
    first, second = check_dim(dim1, len(shape) + 1), check_dim(dim2, len(shape) + 1)
    if first == second:
        raise RuntimeError(f"diagonal dimensions cannot be identical {dim1}, {dim2}")
    side = shape[-1] + abs(offset)
    along = np.arange(shape[-1])
    where = (*(slice(None),) * (len(shape) - 1), along + max(-offset, 0), along + max(offset, 0))
    square = index_ops.index_add_zeros.call(input, (*shape[:-1], side, side), where, True)
    return shaping.movedim(square, (-2, -1), (first, second))


def diagflat(input: Tensor, offset: int = 0) -> Tensor:
    """A matrix with all elements of `input` as a diagonal."""
    return shaping.diag(shaping.ravel(input), offset)


@short("rot90", "input k dims")
def rot90(input: Tensor, k: int = 1, dims: Sequence[int] = (0, 1)) -> Tensor:
    """The plane of two dimensions turned by k * 90 degrees, from the first towards the second. A copy."""
    if input._array.ndim < 2:
        raise RuntimeError(f"rot90: expected total dims >= 2, but got total dims = {input._array.ndim}")
    if len(dims) != 2 or check_dim(dims[0], input._array.ndim) == check_dim(dims[1], input._array.ndim):
        raise RuntimeError(f"rot90: expected two different dims, got {tuple(dims)}")
    k = whole("k", k)
    a, b = dims
    if k % 4 == 0:
        return input.clone()
    if k % 4 == 2:
        return shaping.flip(input, (a, b))
    return shaping.flip(shaping.transpose(input, a, b), a if k % 4 == 1 else b)


def narrow_copy(input: Tensor, dim: int, start: int, length: int) -> Tensor:
    """`narrow`, copied."""
    return joining.narrow(input, dim, start, length).clone()


def adjoint(input: Tensor) -> Tensor:
    """The last two dimensions exchanged, conjugated."""
    return input.adjoint()


def _splitter(name: str, least: int, dim: int) -> Any:
    def cut(input: Tensor, indices_or_sections: Any) -> tuple[Tensor, ...]:
        ndim = input._array.ndim
        if ndim < least:
            raise RuntimeError(f"{name} requires a tensor with at least {least} dimension, but got {ndim}")
        axis = 0 if name == "hsplit" and ndim == 1 else dim
        length = input._array.shape[axis]
        if isinstance(indices_or_sections, int) and (indices_or_sections < 1 or length % indices_or_sections):
            raise RuntimeError(
                f"{name} attempted to split along dimension {axis}, but the size of the dimension {length} is not "
                f"divisible by the split_size {indices_or_sections}!"
            )
        return joining.tensor_split(input, indices_or_sections, axis)

    cut.__name__ = cut.__qualname__ = name
    cut.__doc__ = f"Views of parts along dimension {dim}: equal ones, or cut at the given indices."
    return cut


hsplit, vsplit, dsplit = _splitter("hsplit", 1, 1), _splitter("vsplit", 2, 0), _splitter("dsplit", 3, 2)


def _atleast(least: int, grow: Any) -> Any:
    def atleast(*tensors: Any) -> Any:
        given = tensors[0] if len(tensors) == 1 else tensors
        if isinstance(given, Tensor):
            return given if given._array.ndim >= least else grow(given)
        if not isinstance(given, list | tuple):
            raise TypeError(f"atleast_{least}d(): expected a Tensor or a list of Tensors, got {type(given).__name__}")
        return tuple(atleast(x) for x in given)

    atleast.__name__ = atleast.__qualname__ = f"atleast_{least}d"
    atleast.__doc__ = f"The tensor with {least} dimensions or more; a tuple of them when several are given."
    return atleast


def _boxed(x: Tensor) -> Tensor:
    """A tensor of up to two dimensions with three; a vector lies along the second."""
    shape = x._array.shape
    boxed: Tensor = x.reshape(*shape, 1) if len(shape) == 2 else x.reshape(1, -1, 1)
    return boxed


atleast_1d = _atleast(1, lambda x: x.reshape(1))
atleast_2d = _atleast(2, lambda x: x.reshape(1, -1))
atleast_3d = _atleast(3, _boxed)


def hstack(tensors: Sequence[Tensor]) -> Tensor:
    """Joined along the second dimension (the first for vectors)."""
    parts = _parts("hstack", atleast_1d, tensors)
    return joining.cat(parts, 0 if parts and parts[0]._array.ndim == 1 else 1)


def vstack(tensors: Sequence[Tensor]) -> Tensor:
    """Joined along the first dimension; vectors become rows."""
    return joining.cat(_parts("vstack", atleast_2d, tensors), 0)


def _parts(where: str, grow: Any, tensors: Sequence[Tensor]) -> list[Tensor]:
    """Each tensor with enough dimensions. RuntimeError for none."""
    if not len(tensors):
        raise RuntimeError(f"{where} expects a non-empty TensorList")
    return [grow(x) for x in tensors]


row_stack = vstack


def column_stack(tensors: Sequence[Tensor]) -> Tensor:
    """Vectors as the columns of a matrix; matrices joined along the second dimension."""
    return joining.cat([x.reshape(-1, 1) if x._array.ndim < 2 else x for x in tensors], 1)


def dstack(tensors: Sequence[Tensor]) -> Tensor:
    """Joined along the third dimension."""
    return joining.cat(_parts("dstack", atleast_3d, tensors), 2)


@short("block_diag", "*tensors")
def block_diag(*tensors: Tensor) -> Tensor:
    """A matrix with the given matrices (vectors are rows) along its diagonal, zeros elsewhere."""
    if not tensors:
        return wrap(np.zeros((1, 0), dtypes.default_np()))
    blocks = [atleast_2d(x) for x in tensors]
    for block in blocks:
        if block._array.ndim > 2:
            raise RuntimeError(f"block_diag: expected at most 2 dimensions, got shape {tuple(block.shape)}")
    width, before, rows = sum(x._array.shape[1] for x in blocks), 0, []
    for block in blocks:
        own = block._array.shape[1]
        rows.append(shape_ops.pad_constant.call(block, ((0, 0), (before, width - before - own)), 0.0))
        before += own
    return joining.cat(rows, 0)


def cartesian_prod(*tensors: Tensor) -> Tensor:
    """All choices of one element of each vector, one choice a row; a single vector as it is."""
    for x in tensors:
        if x._array.ndim != 1:
            raise RuntimeError(f"cartesian_prod: expected vectors, got shape {tuple(x.shape)}")
    if len(tensors) == 1:
        return tensors[0]
    grid = meshgrid(*tensors, indexing="ij")
    return joining.stack([shaping.ravel(x) for x in grid], 1)


def combinations(input: Tensor, r: int = 2, with_replacement: bool = False) -> Tensor:
    """All choices of `r` elements of a vector, in order, one choice a row."""
    if input._array.ndim != 1:
        raise RuntimeError(f"combinations: expected a vector, got shape {tuple(input.shape)}")
    if r < 0:
        raise RuntimeError(f"combinations: expected a non-negative number, but got {r}")
    if r == 0:
        return input.new_zeros(0)
    choose = itertools.combinations_with_replacement if with_replacement else itertools.combinations
    count = input._array.shape[0]
    rows, width = creation.shape_of((math.comb(count + r - 1 if with_replacement else count, r), r))
    flat = itertools.chain.from_iterable(choose(range(count), r))
    return index_ops.getitem.call(input, np.fromiter(flat, np.int64, rows * width).reshape(rows, width))


@through_host
def unravel_index(indices: Tensor, shape: Any) -> tuple[Tensor, ...]:
    """For each flat index of a tensor of `shape`, its coordinates: one int64 tensor per dimension."""
    size = (shape,) if isinstance(shape, int) else tuple(shape)
    if indices._array.dtype.kind not in "iu":
        raise ValueError(f"unravel_index: expected integer indices, got {indices.dtype}")
    array = indices._array.astype(np.int64)
    total = math.prod(size)
    if array.size and not (int(array.min()) >= -total and int(array.max()) < total):
        raise ValueError(f"unravel_index: indices are out of range for shape {size}")
    found = np.unravel_index(np.where(array < 0, array + total, array), size)
    return tuple(wrap(indices._dev.xp.asarray(part, np.int64), indices._dev) for part in found)


def meshgrid(*tensors: Any, indexing: str = "ij") -> tuple[Tensor, ...]:
    """Coordinate tensors of a grid, as views; with "xy" its first two dimensions are exchanged."""
    axes = tensors[0] if len(tensors) == 1 and isinstance(tensors[0], tuple | list) else tensors
    if indexing not in ("ij", "xy"):
        raise RuntimeError(f'meshgrid: indexing must be one of "xy" or "ij", but received: {indexing}')
    for x in axes:
        if x._array.ndim > 1:
            raise RuntimeError(f"meshgrid: expected 0D or 1D tensors, but got shape {tuple(x.shape)}")
    lengths = tuple(x._array.size for x in axes)
    shapes = [tuple(n if i == j else 1 for j, n in enumerate(lengths)) for i in range(len(axes))]
    reshape, stretch = shape_ops.reshape.call, shape_ops.broadcast_to.call
    grid = tuple([stretch(reshape(x, shape), lengths) for x, shape in zip(axes, shapes, strict=True)])
    return tuple(x.transpose(0, 1) for x in grid) if indexing == "xy" and len(axes) > 1 else grid


def broadcast_tensors(*tensors: Tensor) -> tuple[Tensor, ...]:
    """Views of all tensors in their common shape."""
    shape = shaping.broadcast_shapes(*(x._array.shape for x in tensors))
    return tuple(shaping.expand(x, shape) for x in tensors)


def fliplr(input: Tensor) -> Tensor:
    """The order along the second dimension reversed."""
    return shaping.flip(input, 1)


def flipud(input: Tensor) -> Tensor:
    """The order along the first dimension reversed."""
    return shaping.flip(input, 0)


def diff(
    input: Tensor, n: int = 1, dim: int = -1, prepend: Tensor | None = None, append: Tensor | None = None
) -> Tensor:
    """Differences of neighbours along `dim`, `n` times, after joining `prepend` and `append` to it; booleans: xor."""
    if not input._array.ndim:
        raise RuntimeError("diff expects input to be at least one-dimensional")
    if n < 0:
        raise RuntimeError(f"order must be non-negative but got {n}")
    axis = check_dim(dim, input._array.ndim)
    parts = [part for part in (prepend, input, append) if part is not None]
    if n and len(parts) > 1:
        input = joining.cat(parts, axis)
    for _ in range(min(n, input._array.shape[axis])):
        if (found := one_pass.differences(input, axis)) is not None:
            input = found
            continue
        length = input._array.shape[axis]
        later, earlier = joining.narrow(input, axis, 1, length - 1), joining.narrow(input, axis, 0, length - 1)
        input = later ^ earlier if input._array.dtype.kind == "b" else later - earlier
    return input if n else input.clone()
