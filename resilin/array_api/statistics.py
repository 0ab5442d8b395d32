"""Reductions and scans under the standard's signatures: `axis` and `keepdims`, biased variances by default."""

from __future__ import annotations

from typing import Any

from resilin.core import dtype as dtypes
from resilin.core.api.manipulation import joining, rearranging
from resilin.core.api.mathematics import reducing
from resilin.core.state.size import check_dim
from resilin.core.tensor import Tensor


def _sum_dtype(x: Tensor, dtype: Any) -> Any:
    """The dtype of a sum or product: unsigned integers stay unsigned, which PyTorch's would not."""
    return dtypes.uint64 if dtype is None and x.dtype.kind == 1 and not x.dtype.is_signed else dtype


def over(reduce: Any, x: Tensor, axis: Any, keepdims: bool, **kwargs: Any) -> Tensor:
    """`reduce(x, dim=axis, ...)`; an empty tuple means no dimension here, where PyTorch's functions take it for all."""
    if axis == ():
        x, axis, keepdims = x[..., None], -1, False
    out: Tensor = reduce(x, dim=axis, keepdim=keepdims, **kwargs)
    return out


def max(x: Tensor, /, *, axis: Any = None, keepdims: bool = False) -> Tensor:
    """The largest element over `axis`, NaN if there is one."""
    return over(reducing.amax, x, axis, keepdims)


def min(x: Tensor, /, *, axis: Any = None, keepdims: bool = False) -> Tensor:
    """The smallest element over `axis`, NaN if there is one."""
    return over(reducing.amin, x, axis, keepdims)


def sum(x: Tensor, /, *, axis: Any = None, dtype: Any = None, keepdims: bool = False) -> Tensor:
    """The sum over `axis`: of integers in 64 bits, unless `dtype` says otherwise."""
    return over(reducing.sum, x, axis, keepdims, dtype=_sum_dtype(x, dtype))


def prod(x: Tensor, /, *, axis: Any = None, dtype: Any = None, keepdims: bool = False) -> Tensor:
    """The product over `axis`: of integers in 64 bits, unless `dtype` says otherwise."""
    return over(reducing.prod, x, axis, keepdims, dtype=_sum_dtype(x, dtype))


def mean(x: Tensor, /, *, axis: Any = None, keepdims: bool = False) -> Tensor:
    """The arithmetic mean over `axis`."""
    return over(reducing.mean, x, axis, keepdims)


def var(x: Tensor, /, *, axis: Any = None, correction: float = 0.0, keepdims: bool = False) -> Tensor:
    """The variance over `axis`, dividing by n - correction."""
    return over(reducing.var, x, axis, keepdims, correction=correction)


def std(x: Tensor, /, *, axis: Any = None, correction: float = 0.0, keepdims: bool = False) -> Tensor:
    """The square root of `var`."""
    return over(reducing.std, x, axis, keepdims, correction=correction)


def all(x: Tensor, /, *, axis: Any = None, keepdims: bool = False) -> Tensor:
    """Whether all elements are true, over `axis`."""
    return over(reducing.all, x != 0, axis, keepdims)


def any(x: Tensor, /, *, axis: Any = None, keepdims: bool = False) -> Tensor:
    """Whether any element is true, over `axis`."""
    return over(reducing.any, x != 0, axis, keepdims)


def cumulative_sum(
    x: Tensor, /, *, axis: int | None = None, dtype: Any = None, include_initial: bool = False
) -> Tensor:
    """Running sums along `axis` (needed unless `x` is a vector); `include_initial` puts a 0 in front."""
    return _scan("cumulative_sum", reducing.cumsum, 0, x, axis, dtype, include_initial)


def cumulative_prod(
    x: Tensor, /, *, axis: int | None = None, dtype: Any = None, include_initial: bool = False
) -> Tensor:
    """Running products along `axis` (needed unless `x` is a vector); `include_initial` puts a 1 in front."""
    return _scan("cumulative_prod", reducing.cumprod, 1, x, axis, dtype, include_initial)


def _scan(where: str, run: Any, first: int, x: Tensor, axis: int | None, dtype: Any, initial: bool) -> Tensor:
    if axis is None:
        if x.ndim != 1:
            raise ValueError(f"{where}: give axis; the tensor has {x.ndim} dimensions")
        axis = 0
    axis = check_dim(axis, x.ndim)
    out: Tensor = run(x, axis, dtype=_sum_dtype(x, dtype))
    if not initial:
        return out
    shape = [1 if i == axis else n for i, n in enumerate(out.shape)]
    return joining.cat([out.new_full(shape, first), out], axis)


def diff(
    x: Tensor, /, *, axis: int = -1, n: int = 1, prepend: Tensor | None = None, append: Tensor | None = None
) -> Tensor:
    """Differences of neighbours along `axis`, `n` times, after joining `prepend` and `append` to it."""
    return rearranging.diff(x, n, axis, prepend=prepend, append=append)
