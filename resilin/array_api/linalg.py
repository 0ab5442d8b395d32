"""The standard's extension `linalg`, and its four products: `resilin.linalg` under the standard's signatures."""

from __future__ import annotations

import functools
from typing import Any, Literal

import resilin.linalg as linalg
from resilin.array_api.statistics import over
from resilin.array_api.statistics import sum as _sum
from resilin.array_api.types import promoted
from resilin.core.api.manipulation import shaping
from resilin.core.api.mathematics import arithmetic, linear_algebra, products
from resilin.core.tensor import Tensor

__all__ = [
    "cholesky",
    "cross",
    "det",
    "diagonal",
    "eigh",
    "eigvalsh",
    "inv",
    "matmul",
    "matrix_norm",
    "matrix_power",
    "matrix_rank",
    "matrix_transpose",
    "outer",
    "pinv",
    "qr",
    "slogdet",
    "solve",
    "svd",
    "svdvals",
    "tensordot",
    "trace",
    "vecdot",
    "vector_norm",
]
cholesky, det, eigh, eigvalsh, inv, matrix_power = (
    linalg.cholesky,
    linalg.det,
    linalg.eigh,
    linalg.eigvalsh,
    linalg.inv,
    linalg.matrix_power,
)
svdvals, slogdet = linalg.svdvals, linalg.slogdet


def matmul(x1: Tensor, x2: Tensor, /) -> Tensor:
    """The matrix product in the common dtype; leading dimensions broadcast, one-dimensional tensors are vectors."""
    return products.matmul(*promoted(x1, x2))


def matrix_transpose(x: Tensor, /) -> Tensor:
    """A view with the last two dimensions exchanged."""
    return shaping.transpose(x, -2, -1)


def tensordot(x1: Tensor, x2: Tensor, /, *, axes: Any = 2) -> Tensor:
    """Sums of products over `axes`: the last of `x1` with the first of `x2`, or two lists of dimensions."""
    x1, x2 = promoted(x1, x2)
    return linear_algebra.tensordot(x1, x2, axes)


def vecdot(x1: Tensor, x2: Tensor, /, *, axis: int = -1) -> Tensor:
    """sum(conj(x1) * x2) over `axis`, counted from the end; other dimensions broadcast.

    ValueError when the lengths of `axis` differ, even when one of them is 1.
    """
    x1, x2 = promoted(x1, x2)
    if not -min(x1.ndim, x2.ndim) <= axis < 0 or x1.shape[axis] != x2.shape[axis]:
        raise ValueError(
            f"vecdot: shapes {tuple(x1.shape)} and {tuple(x2.shape)} must have equal lengths at axis {axis}, which is "
            "negative"
        )
    return _sum(arithmetic.conj(x1) * x2, axis=axis, dtype=x1.dtype)


def cross(x1: Tensor, x2: Tensor, /, *, axis: int = -1) -> Tensor:
    """The cross product along `axis`, counted from the end, of length 3; other dimensions broadcast."""
    x1, x2 = promoted(x1, x2)
    if not -min(x1.ndim, x2.ndim) <= axis < 0:
        raise ValueError(f"cross: axis must be negative and name a dimension of both, got {axis}")
    ndim = max(x1.ndim, x2.ndim)
    x1, x2 = (x.reshape(*(1,) * (ndim - x.ndim), *x.shape) for x in (x1, x2))
    return linear_algebra.linalg_cross(x1, x2, dim=axis)


def diagonal(x: Tensor, /, *, offset: int = 0) -> Tensor:
    """Views of the diagonals of matrices."""
    return shaping.diagonal(x, offset, -2, -1)


def trace(x: Tensor, /, *, offset: int = 0, dtype: Any = None) -> Tensor:
    """The sums of the diagonals of matrices."""
    return _sum(diagonal(x, offset=offset), axis=-1, dtype=dtype)


def outer(x1: Tensor, x2: Tensor, /) -> Tensor:
    """The outer product of two vectors, in their common dtype."""
    return products.outer(*promoted(x1, x2))


def solve(x1: Tensor, x2: Tensor, /) -> Tensor:
    """X with x1 @ X = x2 for square `x1`; leading dimensions broadcast. A one-dimensional `x2` is one vector."""
    x1, x2 = promoted(x1, x2)
    if x2.ndim == 1:
        return linalg.solve(x1, x2[:, None])[..., 0]
    # matrices, even where PyTorch would see a batch of vectors: one more dimension decides it
    return linalg.solve(x1, x2[None] if x1.ndim - 1 == x2.ndim else x2)


def matrix_norm(x: Tensor, /, *, keepdims: bool = False, ord: Any = "fro") -> Tensor:
    """The norms of matrices; `ord` as in `resilin.linalg.matrix_norm`."""
    return linalg.matrix_norm(x, ord, keepdim=keepdims)


def vector_norm(x: Tensor, /, *, axis: Any = None, keepdims: bool = False, ord: float = 2) -> Tensor:
    """The norm over `axis` (all elements when None): sum(|x| ** ord) ** (1 / ord)."""
    return over(functools.partial(linalg.vector_norm, ord=ord), x, axis, keepdims)


def matrix_rank(x: Tensor, /, *, rtol: Any = None) -> Tensor:
    """How many singular values exceed rtol * the largest; rtol is max(m, n) * eps unless given."""
    return linalg.matrix_rank(x, rtol=rtol)


def pinv(x: Tensor, /, *, rtol: Any = None) -> Tensor:
    """The Moore-Penrose inverse; singular values up to rtol * the largest count as 0."""
    return linalg.pinv(x, rtol=rtol)


def qr(x: Tensor, /, *, mode: Literal["reduced", "complete"] = "reduced") -> Any:
    """Q, R with x = Q R."""
    return linalg.qr(x, mode)


def svd(x: Tensor, /, *, full_matrices: bool = True) -> Any:
    """U, S, Vh with x = U diag(S) Vh, S descending."""
    return linalg.svd(x, full_matrices)
