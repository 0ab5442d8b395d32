"""Factorisations of batches of matrices, and systems of equations by them: native for floats, else numpy's.

Order of sums: an element of a factor is the matrix's, less its terms: those of earlier blocks of columns as products
(`native/matmul/product.hpp`), those of its own block one after the other. Blocks depend on the matrix's size alone.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from resilin.core.kernels.common import has_elements
from resilin.core.kernels.contiguous import ascontiguousarray
from resilin.core.kernels.loader import kernel
from resilin.errors import LinAlgError

Array = np.ndarray[Any, Any]

_native_lu, _native_substitute = kernel("lu"), kernel("substitute")
_native_permutation, _native_solve = kernel("permutation"), kernel("solve")
_native_cholesky, _native_qr, _native_least_squares = kernel("cholesky"), kernel("qr"), kernel("least_squares")
_native_full_rank = kernel("full_rank")
_native_determinant, _native_pivots = kernel("determinant"), kernel("pivots")
_native_eigen, _native_singular = kernel("small_eigen"), kernel("small_singular")


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
    a = _flat(np.array(x, order="C"))
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


def _flat(x: Array) -> Array:
    """The matrices of a batch in one dimension, however many have no elements."""
    return x.reshape(np.prod(x.shape[:-2], dtype=int), *x.shape[-2:])


def _lapack_size(x: Array) -> Array:
    return np.abs(x.real) + np.abs(x.imag) if x.dtype.kind == "c" else np.abs(x)


def permutation(pivots: Array, m: int) -> Array:
    """Where each row of L U comes from in x: `x[rows] = L U`, for the pivots of `lu` of `m` rows."""
    found: Array | None = _native_permutation(ascontiguousarray(pivots), m) if isinstance(pivots, np.ndarray) else None
    return reference_permutation(pivots, m) if found is None else found


def reference_permutation(pivots: Array, m: int) -> Array:
    """numpy form of `permutation`."""
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
    full, x = _of_one_shape(t, b)
    if x is b or x.base is not None or not x.flags.writeable:
        x = x.copy()
    return x if _native_substitute(full, x, upper, unit) else None


def _of_one_shape(a: Array, b: Array) -> tuple[Array, Array]:
    """Both contiguous, the dimensions before the last two broadcast."""
    if a.shape[:-2] != b.shape[:-2]:
        shape = np.broadcast_shapes(a.shape[:-2], b.shape[:-2])
        a, b = np.broadcast_to(a, (*shape, *a.shape[-2:])), np.broadcast_to(b, (*shape, *b.shape[-2:]))
    return ascontiguousarray(a), ascontiguousarray(b)


def solve(a: Array, b: Array) -> Array | None:
    """X with a X = b, by the factors of `lu`; None for no floats, and where a pivot of one of them is zero."""
    if a.dtype != b.dtype or a.dtype.char not in "fd":
        return None
    return _native_solve(*_of_one_shape(a, b))  # type: ignore[no-any-return]


def inverse(x: Array) -> Array | None:
    """Inverses by the factors of `lu`; None as of `solve`."""
    return _native_solve(ascontiguousarray(x), None)  # type: ignore[no-any-return]


def log_determinant(x: Array) -> tuple[Array, Array] | None:
    """Sign and logarithm of the absolute value of the determinants by the factors of `lu`; None for no floats.

    Logarithms are added in float64.
    """
    if x.dtype.char not in "fd" or (found := _native_pivots(ascontiguousarray(x))) is None:
        return None
    signs, heads = found
    with np.errstate(all="ignore"):
        return signs, np.log(heads).sum(-1)


def determinant(x: Array) -> Array | None:
    """Determinants: products, in float64, of the pivots of `lu`; None for no floats."""
    if x.dtype.char not in "fd":
        return None
    x = ascontiguousarray(x)
    made: Array | None = _native_determinant(x)
    if made is not None or (found := _native_pivots(x)) is None:
        return made
    signs, heads = found
    with np.errstate(all="ignore"):
        products = heads.prod(-1)
        exact = np.isfinite(products) & (products > 1e-290)  # else a product of some of them may have left the range
        if not exact.all():
            products = np.where(exact, products, np.exp(np.log(heads).sum(-1)))
        return (signs * products).astype(x.dtype)  # type: ignore[no-any-return]


def cholesky(x: Array) -> tuple[Array, Array] | None:
    """Lower factors, zeros above, and for each matrix what `minors` says of it; None for what numpy factorizes."""
    return _native_cholesky(ascontiguousarray(x))  # type: ignore[no-any-return]


def qr(x: Array, complete: bool) -> tuple[Array, Array] | None:
    """Q and R, by reflections as LAPACK's; None for what numpy factorizes."""
    return _native_qr(ascontiguousarray(x), complete)  # type: ignore[no-any-return]


_LONG = 2  # times as many rows as columns: LAPACK does the same from 11 / 6 on, with products that take longer


def long_qr(x: Array, complete: bool = False) -> tuple[Array, Array] | None:
    """`qr` of the host's finite floats with many more rows than columns, or more where both are few; None of others.

    What is asked of singular values is then asked of R.
    """
    if not isinstance(x, np.ndarray) or x.dtype.char not in "fd" or not x.size:
        return None
    m, n = x.shape[-2:]
    if m < _LONG * n and not n < m <= SMALL:
        return None
    found = qr(x, complete)
    return found if found is not None and np.isfinite(found[1]).all() else None


def least_squares(a: Array, b: Array, rtol: float) -> Array | None:
    """The shortest X with least |a X - b|, by Q R, of matrices whose smallest singular value is certainly more than
    `rtol` times the largest; None where one may not be so, and of what has no kernel."""
    if a.dtype != b.dtype or a.dtype.char not in "fd" or not isinstance(b, np.ndarray):
        return None
    return _native_least_squares(*_of_one_shape(a, b), _certain(a, rtol))  # type: ignore[no-any-return]


SMALL = 8  # rows of matrices that rotations take, as in jacobi.cpp; LAPACK is faster for one larger matrix


def by_rotations(name: str, x: Array, triangle: str = "") -> Any:
    """numpy.linalg's "eigh", "eigvalsh", "svd" or "svdvals" of small square matrices of finite floats; None of others.

    By Jacobi's rotations (`native/linalg/jacobi.cpp`); vectors of matrices of lower rank are LAPACK's.
    """
    if x.shape[-1] > SMALL or x.shape[-1] != x.shape[-2]:
        return None
    x = ascontiguousarray(x)
    if name in ("eigh", "eigvalsh"):
        return _native_eigen(x, triangle == "L", name == "eigh")
    found = _native_singular(x, name == "svd")
    if found is None or name != "svd":
        return found
    u, s, vh, lower_rank = found
    if lower_rank:
        rest = _flat(x)[lower_rank]
        of_rest = in_own_type("svd", rest) or np.linalg.svd(rest)
        for part, made in zip((_flat(u), s.reshape(-1, s.shape[-1]), _flat(vh)), of_rest, strict=True):
            part[lower_rank] = made
    return u, s, vh


_loops = getattr(np.linalg, "_umath_linalg", None)
LOOPS = {"eigh": ("eigh_lo", "eigh_up", "RC"), "eigvalsh": ("eigvalsh_lo", "eigvalsh_up", "R")}
LOOPS |= {"svd": ("svd_f", "svd_s", "CRC"), "svdvals": ("svd", "svd", "R")}  # what is made: R real, C as the matrix


def in_own_type(name: str, x: Array, UPLO: str = "L", full_matrices: bool = True) -> Any:
    """The same by LAPACK for float32 and complex64, NaN where it gave up; None of others.

    numpy.linalg takes float64 for them, which takes twice as long; its loops can do otherwise.
    """
    usual, other, made = LOOPS[name]
    loop = getattr(_loops, usual if UPLO == "L" and full_matrices else other, None)
    if loop is None or not x.size or x.dtype.char not in "fF":
        return None
    with np.errstate(all="ignore"):
        return loop(x, signature=f"{x.dtype.char}->{made.replace('R', 'f').replace('C', x.dtype.char)}")


def pseudo_inverse(a: Array, rtol: Any, atol: Any) -> Array | None:
    """The X of `least_squares` for the identity: the pseudo-inverses, where no singular value counts as 0."""
    if type(rtol) is not float or type(atol) is not float or atol > 0 or a.dtype.char not in _EPS:
        return None  # limits of each matrix, or absolute ones
    return _native_least_squares(ascontiguousarray(a), None, _certain(a, rtol))  # type: ignore[no-any-return]


def _certain(a: Array, rtol: float) -> float:
    """Above which part of the largest singular value another one is certainly known."""
    least: float = max(a.shape[-2:]) * _EPS[a.dtype.char]
    return max(rtol, least)


_EPS = {char: float(np.finfo(char).eps) for char in "fd"}


def full_rank(a: Array, rtol: float) -> bool:
    """Whether all singular values are certainly more than `rtol` times their matrix's largest; False may be wrong."""
    return a.dtype.char in _EPS and bool(_native_full_rank(ascontiguousarray(a), _certain(a, rtol)))


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
    flat = _flat(x)
    found = np.zeros(len(flat), np.int32)
    for i, matrix in enumerate(flat):
        if (factors := lu(matrix) if matrix.dtype.char in "fd" else None) is not None:
            found[i] = factors[2]
            continue
        try:
            np.linalg.inv(matrix)
        except np.linalg.LinAlgError:
            found[i] = lu(matrix)[2] or x.shape[-1]  # rounded otherwise here, the zero is at the last pivot
    return found.reshape(x.shape[:-2])


def minors(x: Array) -> Array:
    """For each Hermitian matrix 0 if it is positive definite, else the order of its first leading minor that is not."""
    if isinstance(x, np.ndarray) and (factors := cholesky(x)) is not None:
        return factors[1]
    flat = _flat(x)
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


def need_finite(where: str, xp: Any, x: Any, triangle: str = "") -> None:
    """Refuse matrices with infinities or NaN, in the `triangle` that counts ("L", "U"; all of it without).

    LAPACK's iterations do not: of an infinity some never return (dbdsqr, of singular values), of NaN some say nothing.
    """
    if not has_elements(x) or xp.isfinite(x).all():
        return
    host = xp.to_host(x)
    seen = host if not triangle else np.tril(host) if triangle == "L" else np.triu(host)
    bad = np.asarray(~np.isfinite(seen).all(axis=(-2, -1)))
    if bad.any():
        raise LinAlgError(f"{where}: {_which(_first(bad)[0], x)} has infinities or NaN, expected finite numbers")


def not_converged(where: str, x: Array) -> LinAlgError:
    """The error when LAPACK's iteration gave up on finite numbers; others are refused before it by `need_finite`."""
    return LinAlgError(f"{where}: the iteration did not converge for a {list(x.shape)} input of finite numbers")


def _first(info: Array) -> tuple[tuple[int, ...], int]:
    index = tuple(int(i) for i in np.argwhere(info)[0]) if info.any() else (0,) * info.ndim
    return index, int(info[index])


def _which(index: tuple[int, ...], x: Array) -> str:
    size = f"{x.shape[-2]} x {x.shape[-1]} matrix"
    return f"the {size}" if not index else f"the {size} at batch index {index[0] if len(index) == 1 else index}"
