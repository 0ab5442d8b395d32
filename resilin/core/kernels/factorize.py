"""Factorisations that numpy.linalg has not, or that say more about a failure than it does. In numpy, over batches."""

from __future__ import annotations

from typing import Any

import numpy as np

from resilin.core.kernels.contiguous import ascontiguousarray
from resilin.core.kernels.loader import kernel
from resilin.errors import LinAlgError

Array = np.ndarray[Any, Any]

_native_lu, _native_substitute = kernel("lu"), kernel("substitute")


def lu(x: Array, pivot: bool = True) -> tuple[Array, Array, Array]:
    """Packed L and U of x = P L U, the row exchanged with each row (from 1, as LAPACK's), and the first zero pivot.

    The largest element of a column is the pivot, the first of equals (of complex ones by |real| + |imaginary|, as in
    LAPACK); without `pivot` no rows are exchanged. Floats by native code, in blocks of columns; others with one
    step of numpy per column, each over the whole batch. The third result is 0 where no pivot is zero, else its number
    from 1.
    """
    found: tuple[Array, Array, Array] | None = _native_lu(ascontiguousarray(x), pivot)
    return reference_lu(x, pivot) if found is None else found


def reference_lu(x: Array, pivot: bool = True) -> tuple[Array, Array, Array]:
    """numpy form of `lu`."""
    m, n = x.shape[-2:]
    a = np.array(x, order="C").reshape(-1, m, n)
    k = min(m, n)
    pivots = np.broadcast_to(np.arange(1, k + 1, dtype=np.int32), (len(a), k)).copy()
    info = np.zeros(len(a), np.int32)
    every = np.arange(len(a))
    with np.errstate(all="ignore"):
        for j in range(k):
            if pivot:
                row = j + np.argmax(_lapack_size(a[:, j:, j]), axis=1)
                pivots[:, j] = row + 1
                upper = a[:, j].copy()
                a[:, j] = a[every, row]
                a[every, row] = upper
            head = a[:, j, j]
            info[(head == 0) & (info == 0)] = j + 1
            a[:, j + 1 :, j] /= np.where(head == 0, 1, head)[:, None]
            a[:, j + 1 :, j + 1 :] -= a[:, j + 1 :, j, None] * a[:, j, None, j + 1 :]
    shape = x.shape[:-2]
    return a.reshape(x.shape), pivots.reshape(*shape, k), info.reshape(shape)


def _lapack_size(x: Array) -> Array:
    return np.abs(x.real) + np.abs(x.imag) if x.dtype.kind == "c" else np.abs(x)


def permutation(pivots: Array, m: int) -> Array:
    """Where each row of L U comes from in x: `x[rows] = L U`, for the pivots of `lu` of `m` rows."""
    flat = pivots.reshape(np.prod(pivots.shape[:-1], dtype=int), pivots.shape[-1])
    rows = np.broadcast_to(np.arange(m), (len(flat), m)).copy()
    every = np.arange(len(flat))
    for j in range(flat.shape[1]):
        other = flat[:, j] - 1
        kept = rows[:, j].copy()
        rows[:, j] = rows[every, other]
        rows[every, other] = kept
    return rows.reshape(*pivots.shape[:-1], m)


def solve_triangle(t: Array, b: Array, upper: bool, unit: bool) -> Array | None:
    """X with T X = b, T the upper or lower triangle of `t`, with ones on its diagonal if `unit`; None for no floats."""
    if t.dtype != b.dtype:
        return None
    shape = np.broadcast_shapes(t.shape[:-2], b.shape[:-2])
    x = np.array(np.broadcast_to(b, (*shape, *b.shape[-2:])), order="C")
    full = ascontiguousarray(np.broadcast_to(t, (*shape, *t.shape[-2:])))
    return x if _native_substitute(full, x, upper, unit) else None


def solve(a: Array, b: Array) -> Array | None:
    """X with a X = b for one matrix `a`, by the factors of `lu`; None for no floats, and where a pivot is zero."""
    if a.dtype != b.dtype or a.dtype.char not in "fd" or not a.size or not b.size:
        return None
    packed, pivots, info = lu(a)
    if info.any():
        return None
    lower = solve_triangle(packed, b[..., permutation(pivots, len(a)), :], False, True)
    return None if lower is None else solve_triangle(packed, lower, True, False)


def substitute(t: Array, b: Array) -> Array:
    """X with t X = b for upper triangles `t`, row by row from the last; a zero on the diagonal gives inf or NaN."""
    shape = np.broadcast_shapes(t.shape[:-2], b.shape[:-2])
    x = np.broadcast_to(b, (*shape, *b.shape[-2:])).astype(np.result_type(t, b))
    with np.errstate(all="ignore"):
        for i in range(t.shape[-1] - 1, -1, -1):
            known = (t[..., i, None, i + 1 :] @ x[..., i + 1 :, :])[..., 0, :]
            x[..., i, :] = (x[..., i, :] - known) / t[..., i, i, None]
    return x


def zero_pivots(x: Array) -> Array:
    """For each square matrix 0 if LAPACK inverts it, else the number of the zero pivot of its LU factorisation."""
    flat = x.reshape(-1, *x.shape[-2:])
    found = np.zeros(len(flat), np.int32)
    for i, matrix in enumerate(flat):
        try:
            np.linalg.inv(matrix)
        except np.linalg.LinAlgError:
            found[i] = lu(matrix)[2] or x.shape[-1]  # rounded otherwise here, the zero is at the last pivot
    return found.reshape(x.shape[:-2])


def minors(x: Array) -> Array:
    """For each Hermitian matrix 0 if it is positive definite, else the order of its first leading minor that is not."""
    flat = x.reshape(-1, *x.shape[-2:])
    found = np.zeros(len(flat), np.int32)
    for i, matrix in enumerate(flat):
        low, high = 0, x.shape[-1] + 1  # the minor of order `low` is positive definite, that of `high` is not
        if _is_definite(matrix):
            continue
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (middle, high) if _is_definite(matrix[:middle, :middle]) else (low, middle)
        found[i] = high
    return found.reshape(x.shape[:-2])


def _is_definite(matrix: Array) -> bool:
    try:
        factor = np.linalg.cholesky(matrix)
    except np.linalg.LinAlgError:
        return False
    return not np.isnan(factor).any()


def singular(where: str, x: Array) -> LinAlgError:
    """The error for a batch with singular matrices."""
    index, pivot = _first(zero_pivots(x))
    return LinAlgError(
        f"{where}: {_which(index, x)} is singular: pivot {pivot} of its LU factorisation is zero. Add a small multiple "
        "of the identity, or use lstsq or pinv"
    )


def indefinite(where: str, x: Array) -> LinAlgError:
    """The error for a batch with matrices that are not positive definite."""
    index, order = _first(minors(x))
    return LinAlgError(
        f"{where}: {_which(index, x)} is not positive definite: its leading minor of order {order} is not. Only the "
        "lower triangle counts; add a small multiple of the identity, or see cholesky_ex"
    )


def not_converged(where: str, x: Array) -> LinAlgError:
    """The error when LAPACK's iteration gave up, which it does on NaN and infinities."""
    bad = np.asarray(~np.isfinite(x).all(axis=(-2, -1)))
    if not bad.any():
        return LinAlgError(f"{where}: the iteration did not converge for a {list(x.shape)} input of finite numbers")
    return LinAlgError(f"{where}: {_which(_first(bad)[0], x)} has infinities or NaN, expected finite numbers")


def _first(info: Array) -> tuple[tuple[int, ...], int]:
    index = tuple(int(i) for i in np.argwhere(info)[0]) if info.any() else (0,) * info.ndim
    return index, int(info[index])


def _which(index: tuple[int, ...], x: Array) -> str:
    size = f"{x.shape[-2]} x {x.shape[-1]} matrix"
    return f"the {size}" if not index else f"the {size} at batch index {index[0] if len(index) == 1 else index}"
