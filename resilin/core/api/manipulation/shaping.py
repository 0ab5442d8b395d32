"""Shapes with PyTorch's arguments."""

from __future__ import annotations

import math
import operator
from collections.abc import Sequence
from typing import Any

import numpy as np

from resilin.core import dtype as dtypes
from resilin.core.kernels.loader import short
from resilin.core.ops import index as index_ops
from resilin.core.ops import shape as ops
from resilin.core.ops import strided
from resilin.core.ops.creation import shape_of
from resilin.core.state.memory_format import orders
from resilin.core.state.size import Size, check_dim, given_size, lengths_of
from resilin.core.tensor import Tensor, wrap


def _sized(where: str, array: Any, shape: tuple[Any, ...]) -> tuple[int, ...]:
    """`shape` with -1 replaced. RuntimeError when the number of elements does not fit."""
    size, known, least = array.size, 1, 0
    if len(shape) == 1 and isinstance(shape[0], tuple | list):
        shape = tuple(shape[0])
    for n in shape:
        if type(n) is not int or n < 0:
            break
        known *= n
    else:
        if known == size:  # most calls
            return shape
    lengths = lengths_of(where, shape)
    known = 1
    for n in lengths:
        if n != -1:
            known *= n
        if n < least:
            least = n
    if known == size and least == 0:
        return tuple(lengths)
    if least == -1 and lengths.count(-1) == 1 and known and size % known == 0:
        lengths[lengths.index(-1)] = size // known
        return tuple(lengths)
    raise RuntimeError(f"{where}: shape '{lengths}' is invalid for input of size {size}")


def reshape(input: Tensor, *sizes: Any, shape: Any = None) -> Tensor:
    """The elements in C order under another shape; a view where the strides allow, else a copy. -1 is inferred."""
    return ops.reshape.call(input, _sized("reshape", input._array, given_size("reshape", sizes, shape, "shape")))


def view(input: Tensor, *sizes: Any, size: Any = None, dtype: Any = None) -> Tensor:
    """The same memory under another shape, or (given one dtype) read as elements of that dtype.

    RuntimeError when the strides do not allow it.
    """
    if dtype is not None or (len(sizes) == 1 and isinstance(sizes[0], dtypes.dtype)):
        return _reinterpreted(input, dtypes.to_numpy(sizes[0] if dtype is None else dtype))
    array = input._array
    target = _sized("view", array, given_size("view", sizes, size))
    out: Tensor = ops.reshape.call(input, target)
    if array.size and (out._vc is None or out._vc is not input._vc):
        raise RuntimeError(
            "view size is not compatible with input tensor's size and stride: use .reshape(...) instead, which may copy"
        )
    return out


def _reinterpreted(input: Tensor, target: Any) -> Tensor:
    """A view of the same bytes as elements of another dtype; the last dimension shrinks or grows with their size."""
    array = input._array
    if array.dtype == target:
        return ops.reshape.call(input, array.shape)
    old, new = array.dtype.itemsize, target.itemsize
    if old != new:
        last = array.shape[-1] if array.ndim else None
        if last is None or (array.size and last > 1 and array.strides[-1] != old) or last * old % new:
            raise RuntimeError(
                f"view: {input.dtype} of {old} bytes can be seen as elements of {new} bytes only in a last dimension "
                f"without gaps whose bytes they fill, got shape {tuple(array.shape)} and strides {input.stride()}"
            )
    return strided.reinterpret.call(input, target)


def view_as(input: Tensor, other: Tensor) -> Tensor:
    """`view` under the other's shape."""
    return view(input, other._array.shape)


def reshape_as(input: Tensor, other: Tensor) -> Tensor:
    """`reshape` to the other's shape."""
    return reshape(input, other._array.shape)


def flatten(input: Tensor, start_dim: int = 0, end_dim: int = -1) -> Tensor:
    """Dimensions `start_dim` to `end_dim` joined into one."""
    shape = input._array.shape
    first, last = check_dim(start_dim, len(shape)), check_dim(end_dim, len(shape))
    if first > last:
        raise RuntimeError("flatten() has invalid args: start_dim cannot come after end_dim")
    if first == last and shape:
        return input
    return ops.reshape.call(input, (*shape[:first], math.prod(shape[first : last + 1]), *shape[last + 1 :]))


def unflatten(input: Tensor, dim: int, sizes: Sequence[int]) -> Tensor:
    """Dimension `dim` split into `sizes`."""
    shape = input._array.shape
    axis = check_dim(dim, len(shape))
    known = -math.prod(sizes)
    lengths = [shape[axis] // known if n == -1 else n for n in sizes]
    return reshape(input, (*shape[:axis], *lengths, *shape[axis + 1 :]))


def ravel(input: Tensor) -> Tensor:
    """All elements in one dimension."""
    return ops.reshape.call(input, (input._array.size,))


def transpose(input: Tensor, dim0: int, dim1: int) -> Tensor:
    """A view with two dimensions exchanged."""
    ndim = input._array.ndim
    first, second = check_dim(dim0, ndim), check_dim(dim1, ndim)
    return ops.swapaxes.call(input, first, second) if ndim else input


def permute(input: Tensor, *order: Any, dims: Any = None) -> Tensor:
    """A view with the dimensions in the order `dims`."""
    given = given_size("permute", order, dims, "dims")
    chosen: Any = given[0] if len(given) == 1 and isinstance(given[0], tuple | list) else given
    ndim = input._array.ndim
    found = tuple([check_dim(d, ndim) for d in chosen])
    if sorted(found) != list(range(ndim)):
        raise RuntimeError(f"permute: dims {tuple(chosen)} do not name each of the {ndim} dimensions once")
    return ops.permute_dims.call(input, found)


def movedim(input: Tensor, source: Any, destination: Any) -> Tensor:
    """A view with dimensions moved."""
    ndim = input._array.ndim
    sources = [check_dim(d, ndim) for d in ([source] if isinstance(source, int) else source)]
    targets = [check_dim(d, ndim) for d in ([destination] if isinstance(destination, int) else destination)]
    if len(sources) != len(targets) or len(set(sources)) < len(sources) or len(set(targets)) < len(targets):
        raise RuntimeError(f"movedim: source {source} and destination {destination} must name as many dims, each once")
    rest = iter(d for d in range(ndim) if d not in sources)
    places = dict(zip(targets, sources, strict=True))
    return ops.permute_dims.call(input, tuple(places[i] if i in places else next(rest) for i in range(ndim)))


moveaxis, swapdims = movedim, transpose


def swapaxes(input: Tensor, axis0: int, axis1: int) -> Tensor:
    """A view with two dimensions exchanged."""
    return transpose(input, axis0, axis1)


def t(input: Tensor) -> Tensor:
    """The transpose of a matrix; vectors as they are."""
    if input._array.ndim > 2:
        raise RuntimeError(f"t() expects a tensor with <= 2 dimensions, but self is {input._array.ndim}D")
    return ops.swapaxes.call(input, 0, 1) if input._array.ndim == 2 else input


def unsqueeze(input: Tensor, dim: int) -> Tensor:
    """A view with a new dimension of length 1 at `dim`."""
    return ops.expand_dims.call(input, check_dim(dim, input._array.ndim + 1))


def squeeze(input: Tensor, dim: Any = None, *dims: int) -> Tensor:
    """A view without the dimensions of length 1, or without `dim` (one or several) where it has length 1."""
    shape = input._array.shape
    dim = (dim, *dims) if dims else dim
    chosen = range(len(shape)) if dim is None else dim if isinstance(dim, tuple | list) else [dim]
    found = tuple(sorted({check_dim(d, len(shape)) for d in chosen}))
    found = tuple(d for d in found if d < len(shape) and shape[d] == 1)
    return ops.squeeze.call(input, found)


def expand(input: Tensor, *sizes: Any, size: Any = None, implicit: bool = False) -> Tensor:
    """A view with dimensions of length 1 stretched; -1 keeps a length."""
    sizes = given_size("expand", sizes, size)
    target = lengths_of("expand", sizes)
    shape = input._array.shape
    extra = len(target) - len(shape)
    fits = extra >= 0
    if fits:
        for i, length in enumerate(shape, extra):
            if target[i] == -1:
                target[i] = length
            elif target[i] != length != 1:
                fits = False
    if not fits or (target and min(target) < 0):
        raise RuntimeError(f"expand: a tensor of shape {tuple(shape)} cannot be expanded to {tuple(sizes)}")
    return ops.broadcast_to.call(input, tuple(target))


def expand_as(input: Tensor, other: Tensor) -> Tensor:
    """`expand` to the other's shape."""
    return expand(input, other._array.shape)


def broadcast_to(input: Tensor, *sizes: Any, size: Any = None) -> Tensor:
    """`expand` to `size`."""
    return expand(input, *sizes, size=size)


@short("tile", "input *sizes")
def repeat(input: Tensor, *sizes: Any, repeats: Any = None) -> Tensor:
    """The tensor repeated along each dimension (a copy)."""
    reps = shape_of(given_size("repeat", sizes, repeats, "repeats"))
    if len(reps) < input._array.ndim:
        raise RuntimeError("Number of dimensions of repeat dims can not be smaller than number of dimensions of tensor")
    return ops.tile.call(input, reps)


def tile(input: Tensor, *sizes: Any, dims: Any = None) -> Tensor:
    """`repeat` that fills missing dimensions with 1."""
    reps = shape_of(given_size("tile", sizes, dims, "dims"))
    return ops.tile.call(input, (1,) * (input._array.ndim - len(reps)) + reps)


@short("repeat_interleave", "input repeats dim")
def repeat_interleave(
    input: Tensor, repeats: Any = None, dim: int | None = None, *, output_size: int | None = None
) -> Tensor:
    """Each element repeated in place along `dim` (of the flattened tensor when None).

    With one argument, a vector of counts, the index of each as often as it says. `output_size` need not be given.
    """
    if repeats is None:
        input, repeats = wrap(input._dev.xp.arange(input._array.size), input._dev), input
    if dim is None:
        input, dim = ravel(input), 0
    axis = check_dim(dim, input._array.ndim)
    counts = repeats._array if isinstance(repeats, Tensor) else repeats
    length = input._array.shape[axis]
    if isinstance(repeats, Tensor) and (counts.dtype.kind not in "iu" or counts.size not in (1, length)):
        raise RuntimeError(
            f"repeats must be integers of the same size as input along dim, but got {repeats.dtype} of shape "
            f"{tuple(counts.shape)} for a dimension of length {length}"
        )
    if np.any(np.asarray(counts) < 0):
        raise RuntimeError(f"Repeats must be non-negative, got {repeats}")
    return index_ops.getitem.call(
        input, (slice(None),) * axis + (np.repeat(np.arange(input._array.shape[axis]), counts),)
    )


@short("flip", "input *axes")
def flip(input: Tensor, *axes: Any, dims: Any = None) -> Tensor:
    """The order along `dims` reversed (a copy)."""
    given = axes if dims is None else (dims,)
    if not given:
        raise TypeError("flip() missing 1 required positional argument: 'dims'")
    chosen: Any = given[0] if len(given) == 1 and isinstance(given[0], tuple | list) else given
    found = tuple(check_dim(d, input._array.ndim) for d in chosen)
    if len(set(found)) != len(found):
        raise RuntimeError(f"flip: dim {tuple(chosen)} names a dimension twice")
    return ops.flip.call(input, found) if input._array.ndim else input.clone()


@short("roll", "input shifts dims")
def roll(input: Tensor, shifts: Any, dims: Any = None) -> Tensor:
    """Elements moved by `shifts` along `dims`; those that leave come back at the start."""
    shifts = tuple(shifts) if isinstance(shifts, tuple | list) else operator.index(shifts)
    given = () if dims is None else tuple(dims) if isinstance(dims, tuple | list) else (operator.index(dims),)
    if given or not isinstance(shifts, int):
        count = 1 if isinstance(shifts, int) else len(shifts)
        if count != len(given):
            raise RuntimeError(f"shifts and dimensions must align. shifts: {count}, dims:{len(given)}")
        for d in given:
            check_dim(d, input._array.ndim)
        if not input._array.ndim:
            raise IndexError(f"roll(): a tensor without dimensions has none to roll along, got dims {given}")
    if not given:
        return ops.roll.call(input, shifts, None)
    return ops.roll.call(input, (shifts,) if isinstance(shifts, int) else shifts, given)


def diagonal(input: Tensor, offset: int = 0, dim1: int = 0, dim2: int = 1) -> Tensor:
    """A view of the diagonal of two dimensions, as the last dimension."""
    ndim = input._array.ndim
    return ops.diagonal.call(input, offset, check_dim(dim1, ndim), check_dim(dim2, ndim))


@short("diag", "input diagonal")
def diag(input: Tensor, diagonal: int = 0) -> Tensor:
    """The diagonal of a matrix, or a matrix with this diagonal."""
    if input._array.ndim == 2:
        return ops.copy.call(ops.diagonal.call(input, diagonal, 0, 1))
    if input._array.ndim != 1:
        raise RuntimeError(f"diag(): Supports 1D or 2D tensors. Got {input._array.ndim}D")
    size = input._array.shape[0] + abs(diagonal)
    places = np.arange(input._array.shape[0])
    where = (places + max(-diagonal, 0), places + max(diagonal, 0))
    return index_ops.index_add_zeros.call(input, (size, size), where, True)


def _need_matrix(where: str, input: Tensor) -> None:
    if input._array.ndim < 2:
        raise RuntimeError(f"{where}: input tensor must have at least 2 dimensions, got {input._array.ndim}")


def tril(input: Tensor, diagonal: int = 0) -> Tensor:
    """The part on and below a diagonal of the last two dimensions."""
    _need_matrix("tril", input)
    return ops.tril.call(input, diagonal)


def triu(input: Tensor, diagonal: int = 0) -> Tensor:
    """The part on and above a diagonal of the last two dimensions."""
    _need_matrix("triu", input)
    return ops.triu.call(input, diagonal)


def clone(input: Tensor, *, memory_format: Any = None) -> Tensor:
    """A copy in C order, or in the order of `memory_format`, recorded."""
    order = orders("clone", input._array.ndim, memory_format)
    return ops.copy.call(input) if order is None else ops.laid_out.call(input, *order)


def contiguous(input: Tensor, memory_format: Any = None) -> Tensor:
    """Itself when the elements lie in C order (or in that of `memory_format`), else a copy."""
    order = orders("contiguous", input._array.ndim, memory_format)
    if order is not None:
        lies_so = input._array.transpose(order[0]).flags.c_contiguous
        return input if lies_so else ops.laid_out.call(input, *order)
    return input if input._array.flags.c_contiguous else ops.ascontiguous.call(input)


def broadcast_shapes(*shapes: Any) -> Size:
    """The common shape. RuntimeError when there is none."""
    try:
        return Size(np.broadcast_shapes(*shapes))
    except ValueError as error:
        if "mismatch" not in str(error):
            raise RuntimeError(f"broadcast_shapes: {error}") from None
        given = " and ".join(str(shape) for shape in shapes)
        raise RuntimeError(
            f"broadcast_shapes: the shapes {given} cannot be broadcast: counted from the right, lengths must be equal "
            "or 1"
        ) from None
