"""Indexing, gathering, scattering and choosing with PyTorch's arguments."""

from __future__ import annotations

import builtins
import functools
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np

from resilin.core import dtype as dtypes
from resilin.core import nested_data
from resilin.core.api.conversion.through_host import through_host
from resilin.core.api.manipulation import index_checks, joining, shaping
from resilin.core.api.mathematics import arithmetic
from resilin.core.api.mathematics.half_precision import opened, rounded_once
from resilin.core.autograd.grad_mode import mode
from resilin.core.batching.active import BATCHED
from resilin.core.device import CPU, different_devices
from resilin.core.kernels import index_range, places, sort
from resilin.core.kernels.common import array_namespace, is_array
from resilin.core.kernels.loader import guarded, kernel, short
from resilin.core.ops import creation
from resilin.core.ops import index as ops
from resilin.core.ops import shape as shape_ops
from resilin.core.ops.calling import as_array, common, weak
from resilin.core.state.size import check_dim
from resilin.core.tensor import Tensor, wrap


def to_index(index: Any) -> Any:
    """An index for the array: tensors become integer or boolean arrays. IndexError for what cannot index."""
    kind = type(index)
    if kind is int or kind is slice:
        return index
    if isinstance(index, list) and _means_a_tuple(index):
        warnings.warn(
            "a list that holds sequences, tensors, slices, None or ... is read as a tuple, one entry a dimension, as "
            "PyTorch reads it: write x[tuple(index)], or x[resilin.tensor(index)] for one array of indices",
            UserWarning,
            stacklevel=3,
        )
        index = tuple(index)
    return tuple([_part_of_index(i) for i in index]) if isinstance(index, tuple) else _part_of_index(index)


def _means_a_tuple(index: list[Any]) -> bool:
    """PyTorch's rule for lists: what would be an index of its own in them says so, unless they are long."""
    kinds = (list, tuple, range, np.ndarray, Tensor, slice)
    return len(index) < 32 and any(isinstance(i, kinds) or i is None or i is Ellipsis for i in index)


def _part_of_index(index: Any) -> Any:
    if isinstance(index, Tensor):
        array = index._array
        if array.dtype.kind not in "iub":
            raise IndexError(f"tensors used as indices must be integer or bool tensors, got {index.dtype}")
        if array.dtype.char == "B":
            return _byte_mask(array)
        return int(array) if array.ndim == 0 and array.dtype.kind in "iu" and type(array) not in BATCHED else array
    if isinstance(index, list | tuple | range):
        found = nested_data.array_of(index, None, Tensor)
        return found if found.size else found.astype(np.int64)
    if isinstance(index, bool) or is_array(index):
        return _byte_mask(index) if is_array(index) and index.dtype.char == "B" else index
    if isinstance(index, np.integer):
        return int(index)
    if type(index) in (int, slice) or index is None or index is Ellipsis:
        return index
    raise IndexError(
        "only integers, slices, ellipsis, None and integer or bool tensors can index, got " + type(index).__name__
    )


def _byte_mask(array: Any) -> Any:
    """Bytes are a mask, as in PyTorch."""
    warnings.warn("a uint8 tensor as an index is a mask, as in PyTorch: use a bool tensor", UserWarning, stacklevel=4)
    return array.astype(np.bool_)


def getitem(self: Tensor, index: Any) -> Tensor:
    """self[index]: a view for integers and slices, a copy for tensors of indices."""
    if ops.goes_as_it_is(index):
        first, then = None, index
    else:
        first, then = ops.split(to_index(index))
        if self._dev is CPU:
            ops.check_host(then)
        then = _kept(then, self)
    try:
        return ops.getitem.call(self if first is None else ops.getitem.call(self, first), then)
    except IndexError as error:
        reason = str(error).rpartition("): ")[2]
        raise IndexError(f"index {index!r} on a tensor of shape {tuple(self.shape)}: {reason}") from None
    except RuntimeError as error:
        if "slice step cannot be zero" in str(error):
            raise ValueError("slice step cannot be zero") from None
        raise


def _kept(index: Any, *readers: Any) -> Any:
    """`places.kept` of each array of an index."""
    if isinstance(index, tuple):
        return tuple([index_checks.kept(part, *readers) for part in index])
    return index_checks.kept(index, *readers)


def kept_index(index: Any, *readers: Any) -> Any:
    """`to_index`, with arrays that gradients of `readers` can look at again later."""
    return _kept(to_index(index), *readers)


def _also_of_scalars(function: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """`function(input, dim, index, ...)`; 0-d tensors beside a vector or a 0-d input are vectors of one element."""

    @functools.wraps(function)
    def call(input: Tensor, dim: int, index: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        ndim = input._array.ndim
        if ndim > 1 or (ndim and not any([_is_scalar(value) for value in (index, *args, *kwargs.values())])):
            return function(input, dim, index, *args, **kwargs)
        vectors = [_vector(value) for value in (input, index, *args)]
        named = {name: _vector(value) for name, value in kwargs.items()}
        result = function(vectors[0], dim, *vectors[1:], **named)
        return result if input._array.ndim else result.reshape(())

    return guarded(function, call, "without_scalars")


def _is_scalar(value: Any) -> bool:
    return isinstance(value, Tensor) and not value._array.ndim


def _vector(value: Any) -> Any:
    return value.reshape(1) if _is_scalar(value) else value


@short("gather_elements", "input dim index")
def gather(input: Tensor, dim: int, index: Tensor, *, sparse_grad: bool = False) -> Tensor:
    """Elements picked along `dim`: out[i][j] = input[index[i][j]][j] for dim 0."""
    axis = check_dim(dim, input._array.ndim)
    if not input._array.ndim or not index._array.ndim:  # numbers stand for vectors of one element
        return gather(_vector(input), dim, index.reshape(-1)).reshape(index.shape)
    array = index_checks.kept(index_checks.index_array("gather", index, input._array.shape[axis]), input)
    if array.ndim != input._array.ndim and not array.size:  # nothing is picked, whatever the dimensions
        return input.reshape(-1)[:0].reshape(array.shape)
    if array.ndim != input._array.ndim:
        raise RuntimeError(f"gather(): index has {array.ndim} dimensions, input has {input._array.ndim}")
    if array.shape != input._array.shape and any(
        n > m for d, (n, m) in enumerate(zip(array.shape, input._array.shape, strict=True)) if d != axis
    ):
        raise RuntimeError(
            f"Size does not match: expected index {list(array.shape)} to be no larger than self "
            f"{list(input._array.shape)} apart from dimension {axis}"
        )
    return ops.take_along_axis.call(input, array, axis)


@short("take_along_dim", "input indices dim")
def take_along_dim(input: Tensor, indices: Tensor, dim: int | None = None) -> Tensor:
    """`gather` with broadcasting; of the flattened tensor when `dim` is None.

    Along a `dim`, negative indices count from its end.
    """
    if dim is None:
        flat = shape_ops.reshape.call(input, (input._array.size,))
        return gather(flat, 0, indices.reshape(-1))
    axis, shape, wanted = check_dim(dim, input._array.ndim), list(input._array.shape), list(indices._array.shape)
    if len(shape) != len(wanted):
        raise RuntimeError(
            f"take_along_dim(): input and indices should have the same number of dimensions, but got {len(shape)} "
            f"dimensions for input, and {len(wanted)} dimensions for indices"
        )
    own, along = shape[axis : axis + 1], wanted[axis : axis + 1]
    shape[axis : axis + 1] = wanted[axis : axis + 1] = [1] * len(own)
    common = list(shaping.broadcast_shapes(shape, wanted))
    if own and indices._array.dtype.kind == "i":
        indices = where(indices < 0, indices + own[0], indices)
    spread = [[*common[:axis], *part, *common[axis + 1 :]] for part in (own, along)]
    return gather(input.expand(spread[0]), dim, indices.expand(spread[1]))


@short("scatter_add", "input dim index src")
@_also_of_scalars
@rounded_once
def scatter_add(input: Tensor, dim: int, index: Tensor, src: Tensor) -> Tensor:
    """`input` with `src` added at `index` along `dim`, one after the other in index order."""
    axis = check_dim(dim, input._array.ndim)
    array, part = index_checks.scattered("scatter_add", input, axis, index, src)
    return added_along(input, part, axis, array)


def added_along(input: Tensor, part: Tensor, axis: int, array: Any) -> Tensor:
    """`input` with `part` added at places along `axis`: the element first, then what is added, in order."""
    if input._dev is CPU:  # elsewhere by the op that backends list where they have no deterministic form of it
        return ops.scatter_add_to.call(input, part, axis, array)
    return input + ops.scatter_add_zeros.call(part, tuple(input._array.shape), axis, array)


def _added_at(input: Tensor, part: Tensor, index: Any) -> Tensor:
    """`input` with `part` added at `index`, as by `added_along`."""
    if input._dev is CPU:
        return ops.index_add_to.call(input, part, index)
    return input + ops.index_add_zeros.call(part, tuple(input._array.shape), index)


@short("scatter", "input dim index src")
@_also_of_scalars
def scatter(
    input: Tensor, dim: int, index: Tensor, src: Any = None, *, value: Any = None, reduce: str | None = None
) -> Tensor:
    """`input` with `src` (a tensor or a number) written at `index` along `dim`.

    reduce: "add" or "multiply" the elements with what is there instead, repeated places in index order. "multiply" has
    no gradient: RuntimeError when one is wanted, as in PyTorch.
    """
    axis = check_dim(dim, input._array.ndim)
    array, source = index_checks.scattered("scatter", input, axis, index, value if src is None else src)
    if reduce is not None:
        return _scatter_reduced(input, axis, array, source, reduce)
    return ops.scatter.call(input, source, array, axis)


def _scatter_reduced(input: Tensor, axis: int, array: Any, source: Any, reduce: str) -> Tensor:
    if reduce not in ("add", "multiply"):
        raise RuntimeError(f"scatter: reduce argument must be either add or multiply, got {reduce!r}")
    if not isinstance(source, Tensor):
        source = wrap(input._dev.xp.full(array.shape, source, input._array.dtype), input._dev)
    if reduce == "add":
        whole, part, narrow = opened(input, source)
        total: Tensor = narrow(added_along(whole, part, axis, array))
        return total
    if mode.grad and (input.requires_grad or source.requires_grad):
        raise RuntimeError("scatter: reduce='multiply' has no gradient; use no_grad() or detach()")
    input, source, narrow = opened(input, source)
    factors = np.ones_like(input._array)
    spots: list[Any] = list(np.indices(array.shape, sparse=True))
    spots[axis] = array
    np.multiply.at(factors, tuple(spots), source._array)
    made: Tensor = narrow(input * wrap(factors, input._dev))
    return made


@short("index_select", "input dim index")
@_also_of_scalars
def index_select(input: Tensor, dim: int, index: Tensor) -> Tensor:
    """Slices of `dim` at `index`, copied."""
    axis = check_dim(dim, input._array.ndim)
    array = index_checks.kept(index_checks.vector_of_indices("index_select", index, input._array.shape[axis]), input)
    return ops.getitem.call(input, (slice(None),) * axis + (array,) if axis else array)


@short("index_add", "input dim index source")
@_also_of_scalars
@rounded_once
def index_add(input: Tensor, dim: int, index: Tensor, source: Tensor, *, alpha: float = 1) -> Tensor:
    """`input` with slices of `source` added at `index` along `dim`, in index order."""
    axis = check_dim(dim, input._array.ndim)
    array = index_checks.slices_at("index_add", input, axis, index, source)
    index_of_slices = (slice(None),) * axis + (array,) if axis else array
    kind = input._array.dtype
    if kind.kind in "biu" and not isinstance(alpha, Tensor):  # rounded towards 0, as in PyTorch
        alpha = bool(alpha) if kind.kind == "b" else int(dtypes.number_for("index_add", alpha, kind))
    if isinstance(alpha, int | float):
        return _added_at(input, source if alpha == 1 else source * alpha, index_of_slices)
    added = ops.index_add_zeros.call(source, tuple(input._array.shape), index_of_slices)
    return arithmetic.add(input, added, alpha=alpha)


@short("masked_select", "input mask")
def masked_select(input: Tensor, mask: Tensor) -> Tensor:
    """The elements where `mask` is true, in one dimension."""
    if mask._array.dtype.kind != "b":
        raise RuntimeError(f"masked_select: expected BoolTensor for mask, got {mask.dtype}")
    a, m = shaping.broadcast_shapes(input._array.shape, mask._array.shape), mask._array
    return ops.getitem.call(input.expand(a), input._dev.xp.broadcast_to(m, a))


def masked_fill(input: Tensor, mask: Tensor, value: Any) -> Tensor:
    """`value` where `mask` is true, else `input`."""
    if mask._array.dtype.kind != "b":
        raise RuntimeError(f"masked_fill only supports boolean masks, but got mask with dtype {mask.dtype}")
    if isinstance(value, Tensor) and value._array.ndim:
        raise RuntimeError(
            "masked_fill only supports a 0-dimensional value tensor, but got tensor with "
            f"{value._array.ndim} dimension(s)."
        )
    kind = input._array.dtype
    if (
        type(value) is float and kind.kind == "f" and abs(value) <= dtypes.HELD_BY_FLOATS and input._dev is CPU
    ):  # most calls
        return ops.where_else.call(wrap(np.array(value, kind), CPU), input, index_checks.kept(mask._array, input))
    value = value if isinstance(value, Tensor) else nested_data.number_of("masked_fill", value)
    if isinstance(value, Tensor):  # one number, which does not widen what it is written into
        number = value if value._array.dtype == kind else shape_ops.astype.call(value, kind)
    else:
        number = wrap(input._dev.xp.asarray(dtypes.number_for("masked_fill", value, kind), kind), input._dev)
    return ops.where_else.call(number, input, index_checks.kept(mask._array, input, number))


def where(condition: Tensor, input: Any = None, other: Any = None) -> Any:
    """`input` where `condition` holds, else `other`; with a condition only, the indices where it holds."""
    if input is None and other is None:
        return nonzero(condition, as_tuple=True)
    if type(condition) is type(input) is type(other) is Tensor:  # most calls
        cond, kind = condition._array, input._array.dtype
        if cond.dtype.char == "?" and kind is other._array.dtype and condition._dev is input._dev is other._dev:
            return ops.where_else.call(input, other, index_checks.kept(cond, input, other))
    elif type(condition) is type(input) is Tensor and type(other) is float:  # many more
        cond, kind = condition._array, input._array.dtype
        held = cond.dtype.char == "?" and kind.kind == "f" and abs(other) <= dtypes.HELD_BY_FLOATS
        if held and condition._dev is input._dev is CPU:
            return ops.where_else.call(input, wrap(np.array(other, kind), CPU), index_checks.kept(cond, input))
    cond = index_checks.kept(condition._array, input, other) if isinstance(condition, Tensor) else condition
    if isinstance(condition, Tensor) and cond.dtype not in (np.bool_, np.uint8):
        raise RuntimeError(f"where expected condition to be a boolean tensor, but got one of dtype {condition.dtype}")
    if not (isinstance(condition, Tensor | bool) or is_array(condition)):
        raise TypeError(f"where(): expected a Tensor as condition, got {type(condition).__name__}")
    a, b = (value.item() if isinstance(value, np.generic) else value for value in (input, other))
    for value in (a, b):
        if not isinstance(value, Tensor | int | float | builtins.complex | np.generic):
            raise TypeError(f"where(): expected a Tensor or a number, got {type(value).__name__}")
    dev = next((v._dev for v in (condition, a, b) if isinstance(v, Tensor)), None)
    if dev is None:
        raise TypeError(f"where(): expected a Tensor as condition, got {type(condition).__name__}")
    if isinstance(a, Tensor) and isinstance(b, Tensor):
        if a._array.dtype is b._array.dtype and a._dev is b._dev is dev:
            return ops.where_else.call(a, b, cond)
        target = dtypes.promote_np(a._array.dtype, b._array.dtype)
    elif isinstance(a, Tensor) or isinstance(b, Tensor):
        known, number = (a, b) if isinstance(a, Tensor) else (b, a)
        target = known._array.dtype
        if isinstance(number, float) and target.kind in "iub":
            target = dtypes.default_np()
        elif isinstance(number, builtins.complex) and target.kind != "c":
            target = dtypes.complex_of(dtypes.default_np() if target.kind in "iub" else target)
        elif isinstance(number, int) and not isinstance(number, bool) and target.kind == "b":
            target = np.dtype(np.int64)
    else:
        target = dtypes.of_number(max(a, b, key=_kind_of_number))
    if target.kind not in "fV":  # floats have an infinity for what is too large
        a, b = (v if isinstance(v, Tensor) else dtypes.number_for("where", v, target) for v in (a, b))
    with np.errstate(over="ignore"):
        a, b = (
            (x if x._array.dtype == target else shape_ops.astype.call(x, target))
            if isinstance(x, Tensor)
            else wrap(dev.xp.asarray(x, target), dev)
            for x in (a, b)
        )
    if a._dev is not dev or b._dev is not dev:
        raise different_devices("where", dev, a._dev if a._dev is not dev else b._dev)
    return ops.where_else.call(a, b, cond)


def _kind_of_number(value: Any) -> int:
    """Its place among bool, int, float and complex."""
    return sum(isinstance(value, kind) for kind in (int | float | builtins.complex, float | builtins.complex)) + (
        isinstance(value, builtins.complex) - isinstance(value, bool)
    )


@short("nonzero", "input")
def nonzero(input: Tensor, *, as_tuple: bool = False) -> Any:
    """The indices of elements that differ from 0: one row each, or one tensor per dimension."""
    array = input._dev.backend.to_host(input._array)  # how many there are decides a shape
    xp = input._dev.xp
    found = np.nonzero(np.atleast_1d(array))
    if as_tuple:
        return tuple(wrap(xp.asarray(part), input._dev) for part in found)
    return wrap(xp.asarray(np.stack(found, axis=-1)[:, : array.ndim]), input._dev)


def nonzero_static(input: Tensor, *, size: int, fill_value: int = -1) -> Tensor:
    """`nonzero` with exactly `size` rows: cut, or filled with `fill_value`."""
    if size < 0:
        raise RuntimeError(f"nonzero_static: 'size' must be an non-negative integer, got {size}")
    found: Tensor = nonzero(input)[:size]
    rows = found.new_full((size - found._array.shape[0], input._array.ndim), fill_value)
    return joining.cat([found, rows], 0) if rows._array.shape[0] else found


@through_host
def bincount(input: Tensor, weights: Tensor | None = None, minlength: int = 0) -> Tensor:
    """How often each non-negative integer occurs, or the sum of its weights: added in float64, float32 of float32."""
    array = index_checks.index_array("bincount", input)
    if weights is None and minlength >= 0 and isinstance(array, np.ndarray):
        quick = sort.counted(array, minlength)
        if quick is not None:
            return wrap(quick, input._dev)
    if array.ndim != 1 or (array.size and int(array.min()) < 0):
        raise RuntimeError("bincount only supports 1-d non-negative integral inputs.")
    if minlength < 0:
        raise RuntimeError(f"bincount: minlength should be >= 0, got {minlength}")
    if weights is not None and weights._array.shape != array.shape:
        raise RuntimeError(
            f"bincount: weights should be 1-d and have the same length as input, got {tuple(weights.shape)} for "
            f"{tuple(array.shape)}"
        )
    found = input._dev.xp.bincount(array, None if weights is None else weights._array, minlength)
    narrow = weights is not None and weights._array.dtype == np.float32
    return wrap(found.astype(np.float32) if narrow else found, input._dev)


@short("windows", "input dimension size step")
def unfold(input: Tensor, dimension: int, size: int, step: int) -> Tensor:
    """All windows of `size` elements along `dimension`, `step` apart, as a new last dimension. A copy."""
    axis = check_dim(dimension, input._array.ndim)
    length = input._array.shape[axis] if input._array.ndim else 1
    if not 0 <= size <= length:
        raise RuntimeError(f"maximum size for tensor at dimension {axis} is {length} but size is {size}")
    if step < 1:
        raise RuntimeError(f"step is {step} but must be > 0")
    starts = np.arange(0, length - size + 1, step)[:, None] + np.arange(size)
    if not input._array.ndim:
        return input.reshape(1)[:size].clone()
    windows = ops.getitem.call(input, (*(slice(None),) * axis, starts) if axis else starts)
    return shape_ops.moveaxis.call(windows, axis + 1, -1)


@short("index_fill", "input dim index value")
def index_fill(input: Tensor, dim: int, index: Tensor, value: Any) -> Tensor:
    """`input` with `value` in the slices of `dim` at `index`; negative indices count from the end."""
    axis = check_dim(dim, input._array.ndim)
    if not input._array.ndim:
        return index_fill(_vector(input), dim, index, value).reshape(())
    kind = input._array.dtype
    length = input._array.shape[axis]
    where_ = (slice(None),) * axis + (index_checks.vector_of_indices("index_fill", index, length, -length),)
    if not isinstance(value, Tensor):
        number = dtypes.number_for("index_fill", nested_data.number_of("index_fill", value), kind)
        value = wrap(input._dev.xp.asarray(number, kind), input._dev)
    if value._array.ndim or (value.is_complex() and kind.kind != "c"):
        raise RuntimeError(
            f"index_fill(): {input.dtype} takes a number or a tensor without dimensions of such numbers, got "
            f"{value.dtype} of shape {tuple(value.shape)}"
        )
    if value._array.dtype != kind:  # what is written does not widen what it is written into
        value = shape_ops.astype.call(value, kind)
    where_ = _kept(where_, input, value)
    if value.requires_grad and type(where_[-1]) not in BATCHED:  # a place counts once, however often it is named
        where_ = (*where_[:-1], array_namespace(where_[-1]).unique(where_[-1] % length))
    return ops.index_put.call(input, value, where_)


@short("index_copy", "input dim index source")
@_also_of_scalars
def index_copy(input: Tensor, dim: int, index: Tensor, source: Tensor) -> Tensor:
    """`input` with the slices of `source` in the slices of `dim` at `index`."""
    axis = check_dim(dim, input._array.ndim)
    array = index_checks.slices_at("index_copy", input, axis, index, source, IndexError)
    return ops.index_put.call(input, source, (slice(None),) * axis + (array,))


@short("index_put", "input indices values accumulate", lists=True)
def index_put(input: Tensor, indices: Any, values: Tensor, accumulate: bool = False) -> Tensor:
    """`input` with `values` written (or added, repeated places in order) at a tuple of index tensors."""
    if not values._array.ndim and len(indices) == 1 and getattr(indices[0], "dtype", None) is dtypes.bool_:
        values = values.to(input.dtype)  # one number at a mask: as masked_fill takes it, in PyTorch, too
    index_checks.same_dtype("index_put", input, values)
    where_ = _kept(tuple(to_index(i) for i in indices), input, values)
    ndim = ops.dimensions_of_result(input._array.ndim, where_)
    if values._array.ndim > ndim:  # `input[indices] = values` leaves out leading dimensions of 1, this does not
        raise RuntimeError(
            f"index_put(): shape mismatch: values of shape {list(values.shape)} have more dimensions than the elements "
            f"at the indices of {list(input.shape)}"
        )
    if not accumulate:
        return ops.index_put.call(input, values, where_)
    spread, whole, narrow = opened(values.expand(input._array[where_].shape), input)
    made: Tensor = narrow(_added_at(whole, spread, where_))
    return made


@short("take_flat", "input index")
def take(input: Tensor, index: Tensor) -> Tensor:
    """Elements of the flattened tensor; negative indices count from its end."""
    size = input._array.size
    array = index_checks.index_array("take", index)
    text = f"take(): index {{value}} is out of range for {size} elements"
    index_range.check(array, -size, size, IndexError, text)
    known = isinstance(array, np.ndarray) and array.size
    if not known or places.range_of(array)[0] < 0:
        array = array_namespace(array).where(array < 0, array + size, array)
    else:
        array = index_checks.kept(array, input)
    return ops.getitem.call(shape_ops.reshape.call(input, (size,)), array)


@through_host
def isin(elements: Any, test_elements: Any, *, assume_unique: bool = False, invert: bool = False) -> Tensor:
    """Whether each element is one of `test_elements`; one of the two may be a number. NaN is in nothing."""
    known = elements if isinstance(elements, Tensor) else test_elements
    if not isinstance(known, Tensor):
        raise TypeError("isin(): expected a Tensor of elements, of test elements, or both; got two numbers")
    if isinstance(elements, Tensor) and isinstance(test_elements, Tensor):
        given, tests = common(elements._array, test_elements._array)
    elif known is elements:
        given, tests, _ = weak(known._array, test_elements, "isin")
    else:
        tests, given, _ = weak(known._array, elements, "isin")
    if known._array.dtype.kind in "fV":  # a number is looked for as the dtype holds it
        with np.errstate(over="ignore"):
            given, tests = (x if is_array(x) else np.asarray(x, known._array.dtype) for x in (given, tests))
    return wrap(as_array(np.isin(given, tests, assume_unique=False, invert=invert)), known._dev)


def argwhere(input: Tensor) -> Tensor:
    """The indices of elements that differ from 0, one row each."""
    return nonzero(input)


_native_triangle = kernel("triangle")


def _triangle(lower: bool, row: int, col: int, offset: int, dtype: Any, device: Any) -> Tensor:
    if row < 0 or col < 0:
        raise RuntimeError(f"tril_indices, triu_indices: row and col must be non-negative, got {row} and {col}")
    known = _native_triangle(lower, row, col, offset)
    if known is not None:
        return creation.tensor(known, dtype=dtypes.int64 if dtype is None else dtype, device=device)
    rows = np.arange(row)
    edges = np.clip(rows + offset + lower, 0, col)  # where the triangle ends in each row, or begins
    counts = edges if lower else col - edges
    found = np.empty((2, int(counts.sum())), np.int64)
    found[0] = np.repeat(rows, counts)
    before = np.cumsum(counts) - counts  # the number of places in earlier rows
    np.subtract(np.arange(found.shape[1]), np.repeat(before if lower else before - edges, counts), out=found[1])
    return creation.tensor(found, dtype=dtypes.int64 if dtype is None else dtype, device=device)


def tril_indices(row: int, col: int, offset: int = 0, *, dtype: Any = None, device: Any = None) -> Tensor:
    """Rows and columns of the lower triangle of a row x col matrix, int64 unless `dtype` is given."""
    return _triangle(True, row, col, offset, dtype, device)


def triu_indices(row: int, col: int, offset: int = 0, *, dtype: Any = None, device: Any = None) -> Tensor:
    """Rows and columns of the upper triangle of a row x col matrix, int64 unless `dtype` is given."""
    return _triangle(False, row, col, offset, dtype, device)
