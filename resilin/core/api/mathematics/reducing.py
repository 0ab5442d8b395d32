"""Reductions and scans with PyTorch's arguments (`dim`, `keepdim`)."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from resilin.core import dtype as dtypes
from resilin.core import return_types
from resilin.core.api.mathematics import one_pass
from resilin.core.ops import decompositions, elementwise
from resilin.core.ops import index as index_ops
from resilin.core.ops import reduce as ops
from resilin.core.ops import shape as shape_ops
from resilin.core.state.size import check_dim
from resilin.core.tensor import Tensor, wrap

_INT64 = np.dtype(np.int64)


def axes(dim: Any, ndim: int, keepdim: Any = False) -> Any:
    """`dim` (None, an int or several) counted from the front; None for an empty tuple of a reduction.

    TypeError for a `keepdim` that is no flag.
    """
    if not isinstance(keepdim, bool | np.bool_):
        raise TypeError(f"argument 'keepdim' must be bool, not {type(keepdim).__name__}")
    if dim is None:
        return None
    if not isinstance(dim, (tuple, list)):
        front = check_dim(dim, ndim)
        return front if ndim else None
    if len(dim) == 0:
        return None
    found = tuple(check_dim(d, ndim) for d in dim)
    if len(set(found)) != len(found):
        raise RuntimeError(f"dim {tuple(dim)} names a dimension twice")
    return found if ndim else None


def _axis(dim: Any, ndim: int, keepdim: Any) -> Any:
    """`axes` of a function that takes one dimension only."""
    return axes(dim if dim is None else check_dim(dim, ndim), ndim, keepdim)


def _numpy_names(dim: Any, keepdim: bool, names: dict[str, Any]) -> tuple[Any, bool]:
    """PyTorch takes numpy's `axis` and `keepdims`, too; TypeError for anything else (numpy's `out` may be None)."""
    dim, keepdim = names.pop("axis", dim), names.pop("keepdims", keepdim)
    if names.pop("out", None) is not None or names:
        raise TypeError(f"a reduction got unexpected arguments {sorted(names) or ['out']}")
    return dim, keepdim


def sum(input: Tensor, dim: Any = None, keepdim: bool = False, *, dtype: Any = None, **numpy_names: Any) -> Tensor:
    """The sum over `dim` (all when None). Booleans and integers are summed as int64."""
    if numpy_names:
        dim, keepdim = _numpy_names(dim, keepdim, numpy_names)
    array = input._array
    wanted = _summed(array.dtype) if dtype is None else dtypes.to_numpy(dtype)
    counted = array.dtype.char == "?" and wanted.kind in "iu" and type(array) is np.ndarray
    if array.dtype is not wanted and not counted:
        input = shape_ops.astype.call(input, wanted)
    total = ops.sum.call(
        input, None if dim is None and type(keepdim) is bool else axes(dim, array.ndim, keepdim), keepdim
    )
    return total if total._array.dtype == wanted else shape_ops.astype.call(total, wanted)


def _summed(dtype: Any) -> Any:
    """The dtype of sums and products of `dtype`."""
    return _INT64 if dtype.kind in "biu" else dtype


def _as_summed(input: Tensor, dtype: Any) -> Tensor:
    """`input` in the dtype of its sums and products, or in the one that is asked for."""
    given = input._array.dtype
    wanted = _summed(given) if dtype is None else dtypes.to_numpy(dtype)
    return input if given is wanted else shape_ops.astype.call(input, wanted)


def _floating(where: str, input: Tensor, dtype: Any) -> Tensor:
    if dtype is not None:
        return shape_ops.astype.call(input, dtypes.to_numpy(dtype))
    if input._array.dtype.kind in "biu":
        raise RuntimeError(f"{where}(): the input must be floating point or complex, got {input.dtype}; give dtype=")
    return input


def mean(input: Tensor, dim: Any = None, keepdim: bool = False, *, dtype: Any = None, **numpy_names: Any) -> Tensor:
    """The arithmetic mean over `dim` (all when None)."""
    if numpy_names:
        dim, keepdim = _numpy_names(dim, keepdim, numpy_names)
    input = _floating("mean", input, dtype)
    return ops.mean.call(input, axes(dim, input._array.ndim, keepdim), keepdim)


def prod(input: Tensor, dim: Any = None, keepdim: bool = False, *, dtype: Any = None) -> Tensor:
    """The product over `dim` (all when None)."""
    input = _as_summed(input, dtype)
    return ops.prod.call(input, axes(dim, input._array.ndim, keepdim), keepdim)


def _extreme(name: str, found: Any, reduce: Any, arg: Any, pairwise: Any) -> Any:
    def extreme(input: Tensor, dim: Any = None, keepdim: bool = False, **numpy_names: Any) -> Any:
        if set(numpy_names) == {"other"} and dim is None:
            dim = numpy_names.pop("other")
            if not isinstance(dim, Tensor):
                raise TypeError(f"{name}(): expected a Tensor as other, got {type(dim).__name__}")
        if numpy_names:
            dim, keepdim = _numpy_names(dim, keepdim, numpy_names)
        if isinstance(keepdim, Tensor):
            raise TypeError(f"{name}(): expected one tensor and a dim, or two tensors; got a third argument")
        if isinstance(dim, Tensor):
            return pairwise(input, dim)
        if input._array.size == 0 and dim is None:
            raise RuntimeError(f"{name}(): expected a non-empty tensor, or give dim")
        if dim is None:
            return reduce(input, None, False)
        axis = check_dim(dim, input._array.ndim)
        if input._array.ndim == 0:
            return found((input.clone(), wrap(input._dev.xp.zeros((), np.int64), input._dev)))
        where = arg(input, axis, True)
        values = index_ops.take_along_axis.call(input, where._array, axis)
        if keepdim:
            return found((values, where))
        shape = where._array.shape
        shape = (*shape[:axis], *shape[axis + 1 :])
        return found((shape_ops.reshape.call(values, shape), wrap(where._array.reshape(shape), where._dev)))

    extreme.__name__ = name
    extreme.__doc__ = (
        f"The {name} of all elements; with `dim` a pair (values, indices); with a second tensor the elementwise {name}."
    )
    return extreme


max = _extreme("max", return_types.max, ops.amax.call, ops.argmax.call, elementwise.maximum.call)
min = _extreme("min", return_types.min, ops.amin.call, ops.argmin.call, elementwise.minimum.call)


def amax(input: Tensor, dim: Any = None, keepdim: bool = False, **numpy_names: Any) -> Tensor:
    """The largest elements over `dim`; ties share the gradient."""
    if numpy_names:
        dim, keepdim = _numpy_names(dim, keepdim, numpy_names)
    return ops.amax.call(input, axes(dim, input._array.ndim, keepdim), keepdim)


def amin(input: Tensor, dim: Any = None, keepdim: bool = False, **numpy_names: Any) -> Tensor:
    """The smallest elements over `dim`; ties share the gradient."""
    if numpy_names:
        dim, keepdim = _numpy_names(dim, keepdim, numpy_names)
    return ops.amin.call(input, axes(dim, input._array.ndim, keepdim), keepdim)


def argmax(input: Tensor, dim: int | None = None, keepdim: bool = False, **numpy_names: Any) -> Tensor:
    """Index of the largest element (the first of equals); of the flattened tensor when `dim` is None."""
    if numpy_names:
        dim, keepdim = _numpy_names(dim, keepdim, numpy_names)
    return ops.argmax.call(input, _axis(dim, input._array.ndim, keepdim), keepdim)


def argmin(input: Tensor, dim: int | None = None, keepdim: bool = False, **numpy_names: Any) -> Tensor:
    """Index of the smallest element (the first of equals); of the flattened tensor when `dim` is None."""
    if numpy_names:
        dim, keepdim = _numpy_names(dim, keepdim, numpy_names)
    return ops.argmin.call(input, _axis(dim, input._array.ndim, keepdim), keepdim)


def any(input: Tensor, dim: Any = None, keepdim: bool = False, **numpy_names: Any) -> Tensor:
    """Whether any element is true, over `dim`; over () each by itself."""
    if numpy_names:
        dim, keepdim = _numpy_names(dim, keepdim, numpy_names)
    if isinstance(dim, tuple | list) and not dim:
        dim, keepdim, input = -1, False, input.unsqueeze(-1)
    return _flags(ops.any.call(input, axes(dim, input._array.ndim, keepdim), keepdim), input)


def all(input: Tensor, dim: Any = None, keepdim: bool = False, **numpy_names: Any) -> Tensor:
    """Whether all elements are true, over `dim`; over () each by itself."""
    if numpy_names:
        dim, keepdim = _numpy_names(dim, keepdim, numpy_names)
    if isinstance(dim, tuple | list) and not dim:
        dim, keepdim, input = -1, False, input.unsqueeze(-1)
    return _flags(ops.all.call(input, axes(dim, input._array.ndim, keepdim), keepdim), input)


def _flags(found: Tensor, input: Tensor) -> Tensor:
    """What `any` and `all` give: bool, but uint8 of uint8, as in PyTorch."""
    return shape_ops.astype.call(found, np.dtype(np.uint8)) if input._array.dtype.char == "B" else found


def count_nonzero(input: Tensor, dim: Any = None) -> Tensor:
    """How many elements differ from 0, over `dim`."""
    return ops.count_nonzero.call(input, axes(dim, input._array.ndim), False)


def _spread(
    call: Any, input: Tensor, dim: Any, unbiased: bool | None, keepdim: bool, correction: float | None
) -> Tensor:
    if isinstance(dim, bool):
        dim, unbiased = None, dim
    if unbiased is not None:
        correction = int(unbiased)
    floats = _floating(call.__name__, input, None)
    return call(floats, axes(dim, input._array.ndim, keepdim), 1 if correction is None else correction, keepdim)


def var(
    input: Tensor,
    dim: Any = None,
    unbiased: bool | None = None,
    keepdim: bool = False,
    *,
    correction: float | None = 1,
) -> Tensor:
    """The variance over `dim`, dividing by n - correction; `var(x, False)` is the biased one."""
    return _spread(ops.var.call, input, dim, unbiased, keepdim, correction)


def std(
    input: Tensor,
    dim: Any = None,
    unbiased: bool | None = None,
    keepdim: bool = False,
    *,
    correction: float | None = 1,
) -> Tensor:
    """The square root of `var`; its gradient is 0 where all elements are equal."""
    return _spread(ops.std.call, input, dim, unbiased, keepdim, correction)


def _mean_far_from_zero(input: Tensor, dim: Any, keepdim: bool) -> Tensor:
    """The mean, with what the first, rounded one leaves; as exact as the spread beside it."""
    rough = mean(input, dim, True)
    fine = rough + mean(input - rough, dim, True).masked_fill(rough.isfinite().logical_not(), 0)
    return sum(fine, dim, keepdim)  # of one element each: leaves out the dimensions


def var_mean(
    input: Tensor,
    dim: Any = None,
    unbiased: bool | None = None,
    keepdim: bool = False,
    *,
    correction: float | None = 1,
) -> Any:
    """`var` and `mean` over `dim`."""
    spread = var(input, dim, unbiased, keepdim, correction=correction)
    return spread, _mean_far_from_zero(input, None if isinstance(dim, bool) else dim, keepdim)


def std_mean(
    input: Tensor,
    dim: Any = None,
    unbiased: bool | None = None,
    keepdim: bool = False,
    *,
    correction: float | None = 1,
) -> Any:
    """`std` and `mean` over `dim`."""
    spread = std(input, dim, unbiased, keepdim, correction=correction)
    return spread, _mean_far_from_zero(input, None if isinstance(dim, bool) else dim, keepdim)


def nansum(input: Tensor, dim: Any = None, keepdim: bool = False, *, dtype: Any = None) -> Tensor:
    """The sum over `dim`, NaN counted as 0."""
    total = None if dtype is not None else one_pass.known_sum(input, axes(dim, input._array.ndim, keepdim), keepdim)
    if total is not None:
        return total
    known = one_pass.without_nan(input)
    return sum(input.masked_fill(input.isnan(), 0) if known is None else known, dim, keepdim, dtype=dtype)


def nanmean(input: Tensor, dim: Any = None, keepdim: bool = False, *, dtype: Any = None) -> Tensor:
    """The mean over `dim` of the elements that are not NaN."""
    input = _floating("nanmean", input, dtype)
    return nansum(input, dim, keepdim) / sum(input.isnan().logical_not().to(input.dtype), dim, keepdim)


def logsumexp(input: Tensor, dim: Any, keepdim: bool = False) -> Tensor:
    """log(sum(exp(input))) over `dim`, without overflow; integers and booleans as the default dtype."""
    if input._array.dtype.kind in "biu":
        input = shape_ops.astype.call(input, dtypes.default_np())
    return ops.logsumexp.call(input, axes(dim, input._array.ndim, keepdim), keepdim)


def norm(input: Tensor, p: Any = "fro", dim: Any = None, keepdim: bool = False, *, dtype: Any = None) -> Tensor:
    """The p-norm of the elements over `dim`; "fro" and 2 are the Euclidean norm."""
    input = _floating("norm", input, dtype)
    axis = axes(dim, input._array.ndim, keepdim)
    if p == "nuc":
        return _nuclear(input, axis, keepdim)
    if isinstance(p, str) and p != "fro":
        raise RuntimeError(f"norm: order {p!r} is not supported; expected a number, 'fro' or 'nuc'")
    if p != 0 and _of_one(input._array.shape, axis):  # neither overflows nor vanishes, whatever the order
        return sum(input.abs(), dim, keepdim)
    if p in ("fro", 2, None):
        return ops.norm2.call(input, axis, keepdim)
    if p == 1 and (total := one_pass.size_sum(input, axis, keepdim)) is not None:
        return total
    size = input.abs()
    if p == math.inf:
        return amax(size, dim, keepdim)
    if p == -math.inf:
        return amin(size, dim, keepdim)
    if p == 0:
        steps = size.sign().masked_fill(size.isnan(), 1.0)  # 0 or 1, and part of the graph: with the gradient 0
        return sum(steps, dim, keepdim)
    if p == 1:
        return sum(size, dim, keepdim)
    return ops.norm_of.call(size, axis, keepdim, float(p))


def _of_one(shape: tuple[int, ...], axis: Any) -> bool:
    """Whether one element each is reduced over `axis`."""
    if axis is None or not shape:
        return math.prod(shape) == 1
    return math.prod([shape[d] for d in (axis if isinstance(axis, tuple) else (axis,))]) == 1


def _nuclear(input: Tensor, axis: Any, keepdim: bool) -> Tensor:
    """The sum of the singular values of the matrices in the two dimensions `axis`."""
    ndim = input._array.ndim
    plane = (0, 1) if axis is None and ndim == 2 else axis
    if not isinstance(plane, tuple) or len(plane) != 2:
        raise RuntimeError(f"norm: the nuclear norm needs a matrix or two dimensions, got {ndim} and dim={axis}")
    rest = tuple(d for d in range(ndim) if d not in plane)
    total = ops.sum.call(decompositions.svdvals.call(shape_ops.permute_dims.call(input, (*rest, *plane))), -1, False)
    return shape_ops.expand_dims.call(total, tuple(sorted(plane))) if keepdim else total


def cumsum(input: Tensor, dim: int, *, dtype: Any = None) -> Tensor:
    """Running sums along `dim`."""
    input = _as_summed(input, dtype)
    return ops.cumsum.call(input, check_dim(dim, input._array.ndim))


def cumprod(input: Tensor, dim: int, *, dtype: Any = None) -> Tensor:
    """Running products along `dim`."""
    input = _as_summed(input, dtype)
    return ops.cumprod.call(input, check_dim(dim, input._array.ndim))
