"""Factorisations and eigenvalues."""

from __future__ import annotations

from typing import Any

import numpy as np

from resilin.core import return_types
from resilin.core.api.mathematics import linear_algebra
from resilin.core.api.mathematics.linear_algebra import need_matrices
from resilin.core.kernels import factorize
from resilin.core.kernels.common import has_elements
from resilin.core.ops import decompositions as ops
from resilin.core.ops import index
from resilin.core.tensor import Tensor, wrap
from resilin.errors import LinAlgError


def cholesky(A: Tensor, *, upper: bool = False) -> Tensor:
    """Lower L with A = L @ L^H (`upper`: U with U^H @ U); LinAlgError unless all are positive definite."""
    return linear_algebra.cholesky(A, upper)


def cholesky_ex(A: Tensor, *, upper: bool = False, check_errors: bool = False) -> return_types.linalg_cholesky_ex:
    """`cholesky` that reports instead of raising: `info` (int32, one per matrix) is 0 where it went well, else the
    order of the first leading minor that is not positive definite; the factor of such a matrix is NaN."""
    need_matrices("linalg.cholesky_ex", A, square=True)
    try:
        return return_types.linalg_cholesky_ex((cholesky(A, upper=upper), _no_info(A)))
    except LinAlgError:
        if check_errors:
            raise
    lower = A.mH if upper else A
    info = wrap(factorize.minors(lower._array), A._dev)
    factor = cholesky(with_identity(A, info), upper=upper).masked_fill(_of(info), float("nan"))
    return return_types.linalg_cholesky_ex((factor, info))


def _no_info(A: Tensor) -> Tensor:
    return wrap(A._dev.xp.zeros(A._array.shape[:-2], np.int32), A._dev)


def _of(info: Tensor) -> Tensor:
    """Which matrices failed, for masked_fill."""
    return (info != 0)[..., None, None]


def with_identity(A: Tensor, info: Tensor) -> Tensor:
    """`A` with the identity in place of the matrices that `info` calls bad."""
    eye = wrap(A._dev.xp.eye(A._array.shape[-1], dtype=A._array.dtype), A._dev)
    return index.where_else.call(eye, A, np.broadcast_to(_of(info)._array, A._array.shape))  # type: ignore[no-any-return]


def qr(A: Tensor, mode: str = "reduced") -> return_types.linalg_qr:
    """A = Q R: "reduced" with Q (m, k), k the smaller size, "complete" with square Q, "r" with an empty Q."""
    need_matrices("linalg.qr", A)
    if mode not in ("reduced", "complete", "r"):
        raise RuntimeError(f"linalg.qr: mode must be 'reduced', 'complete' or 'r', got {mode!r}")
    q, r = ops.qr.call(A, mode == "complete")
    return return_types.linalg_qr((A.new_empty(0) if mode == "r" else q, r))


def lu_factor_ex(A: Tensor, *, pivot: bool = True, check_errors: bool = False) -> return_types.linalg_lu_factor_ex:
    """`lu_factor` and `info` (int32): the number of the first pivot that is zero, 0 where none is."""
    need_matrices("linalg.lu_factor", A)
    packed, pivots, info = ops.lu_packed.call(A, pivot)
    if check_errors and info._array.any():
        raise factorize.singular("linalg.lu_factor", A._array)
    return return_types.linalg_lu_factor_ex((packed, pivots, info))


def lu_factor(A: Tensor, *, pivot: bool = True) -> return_types.linalg_lu_factor:
    """L and U of A = P L U in one matrix (L's ones left out) and the row exchanges, from 1 (int32), as LAPACK's.

    LinAlgError for a zero pivot, which `lu_solve` would divide by; `lu_factor_ex` gives such factors.
    """
    return return_types.linalg_lu_factor(lu_factor_ex(A, pivot=pivot, check_errors=True)[:2])


def lu(A: Tensor, *, pivot: bool = True) -> return_types.linalg_lu:
    """A = P @ L @ U: a permutation, unit lower and upper triangles. Without `pivot` P is empty."""
    packed, pivots, _ = lu_factor_ex(A, pivot=pivot)
    return return_types.linalg_lu(lu_unpack(packed, pivots, unpack_pivots=pivot))


def lu_unpack(
    LU_data: Tensor, LU_pivots: Tensor, unpack_data: bool = True, unpack_pivots: bool = True
) -> return_types.lu_unpack:
    """P, L, U with A = P @ L @ U of what `lu_factor` packed; empty tensors for what is not asked for."""
    need_matrices("lu_unpack", LU_data)
    dtype, xp = LU_data._array.dtype, LU_data._dev.xp
    m, n = LU_data._array.shape[-2:]
    k = min(m, n)
    permutation = lower = upper = LU_data.new_empty(0)
    if unpack_data:
        lower = LU_data[..., :k].tril(-1) + wrap(xp.eye(m, k, dtype=dtype), LU_data._dev)
        upper = LU_data[..., :k, :].triu()
    if unpack_pivots:
        permutation = wrap(_exchanged(xp, LU_pivots._array, m, dtype), LU_data._dev)
    return return_types.lu_unpack((permutation, lower, upper))


def _exchanged(xp: Any, pivots: Any, m: int, dtype: Any) -> Any:
    """The matrices of LAPACK's exchanges of rows."""
    if not has_elements(pivots):
        return xp.empty((*pivots.shape[:-1], m, m), dtype)
    rows = factorize.permutation(xp.to_host(pivots), m)
    return xp.asarray(np.eye(m, dtype=dtype)[rows].swapaxes(-1, -2).copy())


def eigh(A: Tensor, UPLO: str = "L") -> return_types.linalg_eigh:
    """Ascending eigenvalues (real) and orthonormal eigenvectors (columns) of Hermitian matrices.

    Only the lower triangle is read, with UPLO="U" the upper one. Signs or phases of the vectors are not unique.
    """
    need_matrices("linalg.eigh", A, square=True)
    return return_types.linalg_eigh(ops.eigh.call(A, _triangle(UPLO)))


def eigvalsh(A: Tensor, UPLO: str = "L") -> Tensor:
    """The eigenvalues of `eigh`."""
    need_matrices("linalg.eigvalsh", A, square=True)
    return ops.eigvalsh.call(A, _triangle(UPLO))  # type: ignore[no-any-return]


def _triangle(UPLO: str) -> str:
    if UPLO.upper() not in ("L", "U"):
        raise RuntimeError(f"UPLO must be 'L' or 'U', got {UPLO!r}")
    return UPLO.upper()


def eig(A: Tensor) -> return_types.linalg_eig:
    """Eigenvalues and eigenvectors (columns of length 1) of square matrices, always complex, in no fixed order."""
    need_matrices("linalg.eig", A, square=True)
    return return_types.linalg_eig(ops.eig.call(A))


def eigvals(A: Tensor) -> Tensor:
    """The eigenvalues of `eig`."""
    need_matrices("linalg.eigvals", A, square=True)
    return eig(A).eigenvalues if A.requires_grad else ops.eigvals.call(A)


def svd(A: Tensor, full_matrices: bool = True, *, driver: str | None = None) -> return_types.linalg_svd:
    """A = U @ diag(S) @ Vh, S descending and real. `full_matrices` makes U and Vh square: what that adds is
    arbitrary and has no gradient. `driver` is for GPUs."""
    need_matrices("linalg.svd", A)
    _no_driver("linalg.svd", driver)
    return return_types.linalg_svd(ops.svd.call(A, full_matrices))


def svdvals(A: Tensor, *, driver: str | None = None) -> Tensor:
    """The singular values, descending, real."""
    need_matrices("linalg.svdvals", A)
    _no_driver("linalg.svdvals", driver)
    return ops.svdvals.call(A)  # type: ignore[no-any-return]


def _no_driver(where: str, driver: str | None) -> None:
    if driver is not None:
        raise RuntimeError(f"{where}: driver chooses among algorithms for GPUs only, got {driver!r}; leave it out")


def householder_product(A: Tensor, tau: Tensor) -> Tensor:
    """The first n columns of H_1 H_2 ... H_k for the reflectors I - tau_i v_i v_i^H that geqrf packs below the
    diagonal of `A` (m, n), m >= n >= k."""
    need_matrices("linalg.householder_product", A)
    m, n = A._array.shape[-2:]
    if tau._array.shape[:-1] != A._array.shape[:-2] or not tau._array.ndim:
        raise RuntimeError(
            f"linalg.householder_product: expected tau of shape {tuple(A._array.shape[:-2])} and its number of "
            f"reflectors for A of shape {tuple(A._array.shape)}, got shape {tuple(tau._array.shape)}"
        )
    k = tau._array.shape[-1]
    if not m >= n >= k:
        raise RuntimeError(f"linalg.householder_product: expected m >= n >= k, got A {m} by {n} and {k} factors")
    start = np.broadcast_to(np.eye(m, n, dtype=A._array.dtype), A._array.shape)
    product = wrap(start.copy(), A._dev)
    vectors = A.tril(-1) + wrap(A._dev.xp.eye(m, n, dtype=A._array.dtype), A._dev)
    for i in range(k - 1, -1, -1):
        v = vectors[..., i : i + 1]
        product = product - tau[..., i, None, None] * (v @ (v.mH @ product))
    return product
