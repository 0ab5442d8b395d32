"""Linear algebra under the names that PyTorch has at its root only: older forms, and factors of low rank.

`resilin` resolves `__all__` here on first use.
"""

from __future__ import annotations

from typing import Any

from resilin.core import return_types
from resilin.core.ops import random
from resilin.core.public import dispatch as _dispatch
from resilin.core.tensor import Tensor
from resilin.linalg import decompose
from resilin.linalg.solve import lu_solve as _lu_solve
from resilin.linalg.solve import solve_triangular

__all__ = ["lu", "lu_solve", "lu_unpack", "orgqr", "pca_lowrank", "svd_lowrank", "triangular_solve"]

orgqr, lu_unpack = decompose.householder_product, decompose.lu_unpack


def lu(A: Tensor, pivot: bool = True, get_infos: bool = False) -> Any:
    """(LU, pivots) of `linalg.lu_factor`; with `get_infos` also where a pivot is zero."""
    packed, pivots, info = decompose.lu_factor_ex(A, pivot=pivot, check_errors=not get_infos)
    return (packed, pivots, info) if get_infos else (packed, pivots)


def lu_solve(b: Tensor, LU_data: Tensor, LU_pivots: Tensor) -> Tensor:
    """X with A @ X = b for the A that `lu` factorised."""
    return _lu_solve(LU_data, LU_pivots, b)


def triangular_solve(
    b: Tensor, A: Tensor, upper: bool = True, transpose: bool = False, unitriangular: bool = False
) -> return_types.triangular_solve:
    """X with A @ X = b (with `transpose`: A.mT @ X = b) for triangular A, and a copy of A."""
    matrix, is_upper = (A.mT, not upper) if transpose else (A, upper)
    found = solve_triangular(matrix, b, upper=is_upper, unitriangular=unitriangular)
    return return_types.triangular_solve((found, A.clone()))


def svd_lowrank(A: Tensor, q: int | None = 6, niter: int = 2, M: Tensor | None = None) -> tuple[Tensor, Tensor, Tensor]:
    """U (m, q), S (q), V (n, q) with A - M close to U @ diag(S) @ V^H, for matrices that are nearly of rank q or less.

    The range of A - M is found by `niter` rounds of multiplying random vectors (Halko and others, "Finding structure
    with randomness", 2011): choose q somewhat larger than the rank. The random numbers are the default generator's.
    """
    if M is not None:
        A = A - M
    rows, columns = A.shape[-2:]
    rank = min(6 if q is None else q, rows, columns)
    if rank < 0:
        raise ValueError(f"svd_lowrank: q must not be negative, got {q}")
    if niter < 0:
        raise ValueError(f"svd_lowrank: niter(={niter}) must be non-negative")
    tall = A if rows >= columns else A.mH
    basis = decompose.qr(tall @ random.randn(tall.shape[-1], rank, dtype=A.dtype, device=A.device)).Q
    for _ in range(niter):
        basis = decompose.qr(tall.mH @ basis).Q
        basis = decompose.qr(tall @ basis).Q
    u, s, vh = decompose.svd(basis.mH @ tall, full_matrices=False)
    left, right = basis @ u, vh.mH
    return (left, s, right) if rows >= columns else (right, s, left)


def pca_lowrank(A: Tensor, q: int | None = None, center: bool = True, niter: int = 2) -> tuple[Tensor, Tensor, Tensor]:
    """`svd_lowrank` of the rows of A less their mean (unless `center` is False): V holds the principal directions."""
    if A._array.ndim < 2:
        raise ValueError(f"pca_lowrank: expected a matrix or a batch of them, got a tensor of {A.dim()} dimensions")
    rows, columns = A.shape[-2:]
    rank = min(6, rows, columns) if q is None else q
    if not 0 <= rank <= min(rows, columns):
        raise ValueError(f"pca_lowrank: q must be at least 0 and at most min(m, n) = {min(rows, columns)}, got {q}")
    return svd_lowrank(A - A.mean(-2, keepdim=True) if center else A, rank, niter)


_dispatch.publish("resilin", globals(), __all__)
