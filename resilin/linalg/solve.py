"""Inverses and solutions of systems of linear equations."""

from __future__ import annotations

from typing import Any

import numpy as np

from resilin.core import dtype, return_types
from resilin.core.api.mathematics import linear_algebra, reducing
from resilin.core.api.mathematics.linear_algebra import need_matrices
from resilin.core.batching.active import ACTIVE, Unbatchable, batched_in
from resilin.core.kernels import factorize
from resilin.core.ops import index
from resilin.core.ops import linalg as ops
from resilin.core.ops.calling import tracked
from resilin.core.tensor import Tensor, wrap
from resilin.errors import LinAlgError
from resilin.linalg.decompose import svdvals, with_identity


def inv(A: Tensor) -> Tensor:
    """The inverses of square matrices. LinAlgError names the first singular one of the batch."""
    return linear_algebra.inverse(A)


def inv_ex(A: Tensor, *, check_errors: bool = False) -> return_types.linalg_inv_ex:
    """`inv` that reports instead of raising: `info` (int32) is 0 where it went well, else the number of the pivot that
    is zero; the inverse of such a matrix is filled with inf."""
    need_matrices("linalg.inv_ex", A, square=True)
    info = wrap(A._dev.xp.zeros(A._array.shape[:-2], np.int32), A._dev)
    try:
        return return_types.linalg_inv_ex((inv(A), info))
    except LinAlgError:
        if check_errors:
            raise
    info = wrap(factorize.zero_pivots(A._array), A._dev)
    found = inv(with_identity(A, info)).masked_fill((info != 0)[..., None, None], np.inf)
    return return_types.linalg_inv_ex((found, info))


def solve(A: Tensor, B: Tensor, *, left: bool = True) -> Tensor:
    """X with A @ X = B (`left=False`: X @ A = B) for square A; leading dimensions broadcast.

    B is a batch of vectors when it has one dimension, or one less than A and the shape of A's rows.
    LinAlgError names the first singular matrix of the batch.
    """
    return _solve("linalg.solve", A, B, left)


def _is_vectors(A: Tensor, B: Tensor) -> bool:
    a, b = A._array.shape, B._array.shape
    return len(b) == 1 or (len(a) - 1 == len(b) and b == a[:-1])


def _solve(where: str, A: Tensor, B: Tensor, left: bool) -> Tensor:
    vectors = _is_vectors(A, B)
    if vectors and not left:
        raise RuntimeError(f"{where}: left=False needs matrices on the right side, got the shape {tuple(B.shape)}")
    right = B.unsqueeze(-1) if vectors else B
    _check_systems(where, A, right, left)
    if left:
        found = ops.solve.call(A, right)
        return found.squeeze(-1) if vectors else found  # type: ignore[no-any-return]
    return ops.solve.call(A.mT, right.mT).mT  # type: ignore[no-any-return]


def _check_systems(where: str, A: Tensor, B: Tensor, left: bool) -> None:
    need_matrices(where, A, B, square=True)
    n, given = A._array.shape[-1], B._array.shape[-2 if left else -1]
    if n != given:
        raise RuntimeError(
            f"{where}: shapes {tuple(A.shape)} of A and {tuple(B.shape)} of B do not fit "
            f"{'A X = B' if left else 'X A = B'}"
        )


def solve_ex(A: Tensor, B: Tensor, *, left: bool = True, check_errors: bool = False) -> return_types.linalg_solve_ex:
    """`solve` that reports instead of raising, as `inv_ex` does."""
    info = wrap(A._dev.xp.zeros(A._array.shape[:-2], np.int32), A._dev)
    try:
        return return_types.linalg_solve_ex((_solve("linalg.solve_ex", A, B, left), info))
    except LinAlgError:
        if check_errors:
            raise
    info = wrap(factorize.zero_pivots(A._array), A._dev)
    found = _solve("linalg.solve_ex", with_identity(A, info), B, left)
    bad = (info != 0)[..., None] if _is_vectors(A, B) else (info != 0)[..., None, None]
    return return_types.linalg_solve_ex((found.masked_fill(bad, np.inf), info))


def solve_triangular(A: Tensor, B: Tensor, *, upper: bool, left: bool = True, unitriangular: bool = False) -> Tensor:
    """X with A @ X = B (`left=False`: X @ A = B), A read as an upper or lower triangle, with ones on its diagonal if
    `unitriangular`. A zero on the diagonal gives inf or NaN, no error."""
    _check_systems("linalg.solve_triangular", A, B, left)
    if left:
        return ops.solve_triangular.call(A, B, upper, unitriangular)  # type: ignore[no-any-return]
    return ops.solve_triangular.call(A.mT, B.mT, not upper, unitriangular).mT  # type: ignore[no-any-return]


def lu_solve(LU: Tensor, pivots: Tensor, B: Tensor, *, left: bool = True, adjoint: bool = False) -> Tensor:
    """X with A @ X = B for the A that `lu_factor` factorised; `adjoint`: with A^H, `left=False`: X @ A = B."""
    _check_systems("linalg.lu_solve", LU, B, left)
    if not left:
        return lu_solve(LU, pivots, B.mH, adjoint=not adjoint).mH
    n = LU._array.shape[-1]
    rows = factorize.permutation(pivots._array, n)
    shape = np.broadcast_shapes(LU._array.shape[:-2], B._array.shape[:-2])
    B = B.expand(*shape, *B._array.shape[-2:])
    if not adjoint:
        y = ops.solve_triangular.call(LU, _rows_of(B, rows), False, True)
        return ops.solve_triangular.call(LU, y, True, False)  # type: ignore[no-any-return]
    y = ops.solve_triangular.call(LU.mH, B, False, False)
    return _rows_of(ops.solve_triangular.call(LU.mH, y, True, True), np.argsort(rows, -1))


def _rows_of(B: Tensor, rows: Any) -> Tensor:
    places = np.broadcast_to(rows[..., None], B._array.shape)
    return index.take_along_axis.call(B, places, B._array.ndim - 2)  # type: ignore[no-any-return]


_DRIVERS = ("gels", "gelsy", "gelsd", "gelss")


def lstsq(A: Tensor, B: Tensor, rcond: float | None = None, *, driver: str | None = None) -> return_types.linalg_lstsq:
    """(solution, residuals, rank, singular_values) of the least squares problem min |A @ X - B|.

    All drivers compute the shortest solution, through singular values, of which those up to rcond (max(m, n) * eps by
    default) times the largest count as 0, or by Q R where none does; `driver` decides, as in PyTorch, which of the
    other results are filled:
    rank (not "gels"), singular_values ("gelsd", "gelss"), residuals (not "gelsy"; m > n and full rank; one per column).
    """
    driver = driver or "gelsy"
    if driver not in _DRIVERS:
        raise RuntimeError(f"linalg.lstsq: driver must be one of {', '.join(_DRIVERS)}, got {driver!r}")
    vectors = B._array.ndim == A._array.ndim - 1 and B._array.shape == A._array.shape[:-1]
    right = B.unsqueeze(-1) if vectors else B
    need_matrices("linalg.lstsq", A, right)
    m, n = A._array.shape[-2:]
    if right._array.shape[-2] != m:
        raise RuntimeError(f"linalg.lstsq: A has {m} rows, but B has {right._array.shape[-2]}")
    rtol = max(m, n) * float(np.finfo(A._array.dtype).eps) if rcond is None else float(rcond)
    known = _of_full_rank(A, right, rtol) if driver in ("gels", "gelsy") else None
    found = ops.lstsq.call(A, right, 0.0 if driver == "gels" else rtol) if known is None else known
    if driver in ("gels", "gelsy") and (known is not None or _has_full_rank(A, rtol)):
        values, rank = A.detach(), A.new_full(A._array.shape[:-2], min(m, n), dtype=dtype.int64)
    else:
        values = svdvals(A.detach())
        rank = (values > reducing.amax(values, -1, True) * rtol).sum(-1) if min(m, n) else values.sum(-1).long()
    residuals = values.new_empty(0)
    if m > n and driver != "gelsy" and ACTIVE and batched_in((A, B)):
        raise Unbatchable  # whether there are residuals depends on the numbers
    if m > n and driver != "gelsy" and bool((rank == n).all()):
        residuals = ((A @ found - right).abs() ** 2).sum(-2)
    return return_types.linalg_lstsq(
        (
            found.squeeze(-1) if vectors else found,
            residuals,
            A.new_empty(0, dtype=rank.dtype) if driver == "gels" else rank,
            values if driver in ("gelsd", "gelss") else values.new_empty(0),
        )
    )


def _of_full_rank(A: Tensor, right: Tensor, rtol: float) -> Tensor | None:
    """The op's result where it shows that A has full rank, and no gradient is wanted: one Q R says both."""
    if ACTIVE or tracked((A, right)) or not (isinstance(A._array, np.ndarray) and isinstance(right._array, np.ndarray)):
        return None
    found = factorize.least_squares(A._array, right._array, rtol)
    return None if found is None else wrap(found, A._dev)


def _has_full_rank(A: Tensor, rtol: float) -> bool:
    """Whether that is known without singular values."""
    return not ACTIVE and isinstance(A._array, np.ndarray) and factorize.full_rank(A._array, rtol)


def tensorinv(A: Tensor, ind: int = 2) -> Tensor:
    """The inverse of A as a matrix whose rows are its first `ind` dimensions: shape A.shape[ind:] + A.shape[:ind]."""
    if ind < 1:
        raise RuntimeError(f"linalg.tensorinv: ind must be at least 1, got {ind}")
    shape = A._array.shape
    rows, columns = int(np.prod(shape[:ind])), int(np.prod(shape[ind:]))
    if rows != columns:
        raise RuntimeError(
            f"linalg.tensorinv: the products of the dimensions before and from {ind} on must be equal, got {rows} and "
            f"{columns} for the shape {tuple(shape)}"
        )
    return inv(A.reshape(rows, columns)).reshape((*shape[ind:], *shape[:ind]))


def tensorsolve(A: Tensor, B: Tensor, dims: Any = None) -> Tensor:
    """X with tensordot(A, X, X.ndim) = B; the dimensions `dims` of A are first moved to its end."""
    if dims is not None:
        A = A.movedim(tuple(dims), tuple(range(A._array.ndim - len(dims), A._array.ndim)))
    shape = A._array.shape[B._array.ndim :]
    rows, columns = B._array.size, int(np.prod(shape))
    if rows != columns or A._array.size != rows * columns:
        raise RuntimeError(
            f"linalg.tensorsolve: A of shape {tuple(A.shape)} is not square for B of shape {tuple(B.shape)}"
        )
    return solve(A.reshape(rows, columns), B.reshape(-1)).reshape(shape)
