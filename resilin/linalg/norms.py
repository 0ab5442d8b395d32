"""Norms of vectors and matrices, condition numbers, ranks."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from resilin.core.api.manipulation import shaping
from resilin.core.api.mathematics import linear_algebra, reducing
from resilin.core.ops import linalg as ops
from resilin.core.state.size import check_dim
from resilin.core.tensor import Tensor, wrap
from resilin.linalg.decompose import eigvalsh, svdvals
from resilin.linalg.solve import inv_ex


def vector_norm(x: Tensor, ord: float = 2, dim: Any = None, keepdim: bool = False, *, dtype: Any = None) -> Tensor:
    """The norm over `dim` (all elements when None): sum(|x| ** ord) ** (1 / ord), real.

    `ord` infinity is the largest, -infinity the smallest absolute value, 0 the number of elements that are not 0.
    """
    x = x if dtype is None else x.to(dtype)
    if x._array.dtype.kind in "biu":
        raise RuntimeError(f"linalg.vector_norm: expected floating point or complex numbers, got {x.dtype}")
    dim = dim if dim is None or isinstance(dim, int) or len(dim) else None
    if isinstance(ord, str):
        raise TypeError(f"linalg.vector_norm: ord must be a number, got {ord!r}")
    return reducing.norm(x, float(ord), dim, keepdim)


def matrix_norm(
    A: Tensor, ord: Any = "fro", dim: Sequence[int] = (-2, -1), keepdim: bool = False, *, dtype: Any = None
) -> Tensor:
    """The norm of the matrices that the two dimensions `dim` hold.

    "fro" is the Euclidean norm of the elements, "nuc" the sum of the singular values, 2 and -2 the largest and the
    smallest of them, 1 and -1 the largest and smallest sum of a column's absolute values, inf and -inf of a row's.
    """
    A = A if dtype is None else A.to(dtype)
    ndim = A._array.ndim
    if len(dim) != 2:
        raise RuntimeError(f"linalg.matrix_norm: expected two dimensions in dim, got {tuple(dim)}")
    if ndim < 2:
        raise RuntimeError(f"linalg.matrix_norm: the input must have at least 2 dimensions, got {ndim}")
    if A._array.dtype.kind in "biu":
        raise RuntimeError(f"linalg.matrix_norm: expected floating point or complex numbers, got {A.dtype}")
    row, column = (check_dim(d, ndim) for d in dim)
    if row == column:
        raise RuntimeError(f"linalg.matrix_norm: expected two different dimensions in dim, got {tuple(dim)}")
    if ord == "fro":
        return reducing.norm(A, 2, (row, column), keepdim)
    if ord in ("nuc", 2, -2):
        found = _of_singular_values(ord, A, row, column)
    elif ord in (1, -1, math.inf, -math.inf):
        summed, left = (row, column) if abs(ord) == 1 else (column, row)
        sums = reducing.sum(A.abs(), summed, True)
        found = (_largest if ord > 0 else reducing.amin)(sums, left, True)
        return found if keepdim else found.squeeze((row, column))
    else:
        raise RuntimeError(f"linalg.matrix_norm: ord {ord!r} is not one of 'fro', 'nuc', 1, -1, 2, -2, inf, -inf")
    if not keepdim:
        return found
    for axis in sorted((row, column)):
        found = found.unsqueeze(axis)
    return found


def _of_singular_values(ord: Any, A: Tensor, row: int, column: int) -> Tensor:
    rest = [i for i in range(A._array.ndim) if i not in (row, column)]
    values = svdvals(A.permute(*rest, row, column))
    if ord == "nuc":
        return reducing.sum(values, -1)
    return (_largest if ord > 0 else reducing.amin)(values, -1)


def _largest(x: Tensor, dim: int, keepdim: bool = False) -> Tensor:
    """The largest over `dim` of what is not negative: 0 of none."""
    return (reducing.amax if x._array.shape[dim] else reducing.sum)(x, dim, keepdim)


def norm(input: Tensor, ord: Any = None, dim: Any = None, keepdim: bool = False, *, dtype: Any = None) -> Tensor:
    """`vector_norm` or `matrix_norm`: the former for one `dim`, the latter for two.

    Without `dim`: of all elements if `ord` is None too, else of a tensor that must have one or two dimensions.
    """
    dims = (dim,) if isinstance(dim, int) else dim
    if ord is None:
        return vector_norm(input, 2, dims, keepdim, dtype=dtype)
    if dims is None:
        if input._array.ndim not in (1, 2):
            raise RuntimeError(
                f"linalg.norm: with ord and without dim, expected 1D or 2D, got {input._array.ndim}D; give dim"
            )
        dims = tuple(range(input._array.ndim))
    if len(dims) not in (1, 2):
        raise RuntimeError(f"linalg.norm: expected one or two dimensions in dim, got {tuple(dims)}")
    if len(dims) == 2:
        return matrix_norm(input, ord, dims, keepdim, dtype=dtype)
    if isinstance(ord, str):
        raise RuntimeError(f"linalg.norm: order {ord!r} needs two dimensions, got {tuple(dims)}")
    return vector_norm(input, ord, dims, keepdim, dtype=dtype)


def cond(A: Tensor, p: Any = None) -> Tensor:
    """The condition number norm(A, p) * norm(inv(A), p), infinite for singular matrices; `p` None is 2.

    p = 2 and -2 also take matrices that are not square.
    """
    if p in (None, 2, -2):
        linear_algebra.need_matrices("linalg.cond", A)
        values = svdvals(A)
        if not values._array.shape[-1]:
            return A.new_zeros(A._array.shape[:-2], dtype=values.dtype)
        return values[..., -1] / values[..., 0] if p == -2 else values[..., 0] / values[..., -1]
    linear_algebra.need_matrices("linalg.cond", A, square=True)
    inverse, info = inv_ex(A)
    found = matrix_norm(A, p) * matrix_norm(inverse.masked_fill((info != 0)[..., None, None], 1), p)
    return found.masked_fill(info != 0, math.inf)


def tolerances(A: Tensor, atol: Any, rtol: Any) -> tuple[Any, Any]:
    """(atol, rtol) as numbers or arrays of the batch's shape; rtol is max(m, n) * eps unless either is given."""
    m, n = A._array.shape[-2:]
    if rtol is None:
        given = atol is not None and (atol > 0 if not isinstance(atol, Tensor) else bool((atol > 0).any()))
        rtol = 0.0 if given else max(m, n) * float(np.finfo(A._array.dtype).eps)
        if isinstance(atol, Tensor):
            rtol = np.where(atol._array > 0, 0.0, max(m, n) * float(np.finfo(A._array.dtype).eps))
    absolute = 0.0 if atol is None else atol
    return tuple(t._array if isinstance(t, Tensor) else t for t in (absolute, rtol))  # type: ignore[return-value]


def matrix_rank(A: Tensor, tol: Any = None, hermitian: bool = False, *, atol: Any = None, rtol: Any = None) -> Tensor:
    """How many singular values (with `hermitian` absolute eigenvalues) exceed max(atol, rtol * the largest); int64.

    rtol is max(m, n) * eps unless a tolerance is given; `tol` is the old name of atol. Tolerances may be tensors.
    """
    linear_algebra.need_matrices("linalg.matrix_rank", A, square=hermitian)
    absolute, relative = (tol, 0.0) if tol is not None else (atol, rtol)
    absolute, relative = tolerances(A, absolute, relative)
    A = A.detach()
    if A._array.size == 0:
        return wrap(A._dev.xp.zeros(A._array.shape[:-2], np.int64), A._dev)
    values = np.abs((eigvalsh(A) if hermitian else svdvals(A))._array)
    limit = np.maximum(np.max(values, -1) * relative, absolute)
    return wrap(A._dev.xp.asarray(np.count_nonzero(values > np.asarray(limit)[..., None], -1), np.int64), A._dev)


def pinv(A: Tensor, rcond: Any = None, hermitian: bool = False, *, atol: Any = None, rtol: Any = None) -> Tensor:
    """The Moore-Penrose inverse; singular values up to max(atol, rtol * the largest) count as 0.

    rtol is max(m, n) * eps unless a tolerance is given; `rcond` is its old name. With `hermitian` only the lower
    triangle is read, and eigenvalues do it.
    """
    linear_algebra.need_matrices("linalg.pinv", A, square=hermitian)
    absolute, relative = tolerances(A, atol, rcond if rcond is not None else rtol)
    spread = [np.asarray(t)[..., None] if np.ndim(t) else float(t) for t in (relative, absolute)]
    return ops.pinv.call(A, *spread, hermitian)  # type: ignore[no-any-return]


def diagonal(A: Tensor, *, offset: int = 0, dim1: int = -2, dim2: int = -1) -> Tensor:
    """A view of the diagonals of the last two dimensions."""
    return shaping.diagonal(A, offset, dim1, dim2)
