"""QR, LU, eigenvalues and singular values of batches of matrices: QR and LU by kernels/factorize, others by LAPACK.

Outputs that are not unique (signs or phases of vectors) are as LAPACK gives them; gradients are those of functions that
do not depend on the choice, and do not exist where two eigenvalues (of vectors) or singular values are equal. Rules
compute the decomposition again instead of saving it, so that the same text gives second derivatives.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from resilin.core.kernels import factorize, gemm
from resilin.core.kernels.common import array_namespace, has_elements
from resilin.core.ops.linalg import adjoint
from resilin.core.ops.registry import is_complex, op


def _converging(xp: Any, name: str, x: Any, **options: Any) -> Any:
    """numpy.linalg's `name`, or "svdvals", of finite matrices."""
    host = isinstance(x, np.ndarray) and name in factorize.LOOPS
    triangle = options.get("UPLO", "")
    if host and (found := factorize.by_rotations(name, x, triangle)) is not None:
        return found
    where = f"linalg.{name}"
    factorize.need_finite(where, xp, x, triangle)
    found = factorize.in_own_type(name, x, **options) if host else None
    try:
        if found is None and name == "svdvals":
            found = xp.linalg.svd(x, compute_uv=False)
        elif found is None:
            found = getattr(xp.linalg, name)(x, **options)
    except np.linalg.LinAlgError:
        raise factorize.not_converged(where, xp.to_host(x)) from None
    if xp.isnan(xp.sum(found[0] if isinstance(found, tuple) else found)):  # eigh says nothing of NaN
        raise factorize.not_converged(where, xp.to_host(x))
    return found


def _scaled(xp, v, s):
    """The columns of `v` multiplied by `s`."""
    return v * xp.expand_dims(s, -2)


def _gaps(xp, s, squared=False):
    """s[j] - s[i], or of the squares, and 1 on the diagonal."""
    right, left = xp.expand_dims(s, -2), xp.expand_dims(s, -1)
    gaps = (right - left) * (right + left) if squared else right - left
    return gaps + xp.constant(np.eye(s.shape[-1]), s)


def _on_diagonal(xp, s, like):
    """Square matrices with `s` on the diagonal, complex if `like` is."""
    return xp.expand_dims(s, -1) * xp.constant(np.eye(s.shape[-1]), like)


def _skew(xp, x):
    return x - adjoint(xp, x)


def _off_diagonal(xp, x):
    return x * xp.constant(1 - np.eye(x.shape[-1]), x)


# -- QR


@op(
    dtypes="full",
    outputs=2,
    complex=True,
    samples=lambda r: [(r(4, 3),), (r(2, 3, 3),), (r(2, 3, 5),), (r(3, 3), True)],
)
def qr(xp, x, complete=False):
    """Q with orthonormal columns and upper triangular R, x = Q R; with `complete` Q is square."""
    if isinstance(x, np.ndarray) and (found := factorize.qr(x, complete)) is not None:
        return found
    return tuple(xp.linalg.qr(x, mode="complete" if complete else "reduced"))


@qr.vjp_all
def _(xp, needs, g, _y, x, complete=False):
    """Walter and Lehmann, "Algorithmic differentiation of linear algebra functions", 2010; wide ones by blocks."""
    m, n = x.shape[-2:]
    if complete and m > n:
        raise RuntimeError("linalg.qr: mode='complete' has no gradient for matrices with more rows than columns")
    q, r = xp.qr(x)
    gq = xp.zeros_like(q) if g[0] is None else g[0]
    gr = xp.zeros_like(r) if g[1] is None else g[1]
    if m >= n:
        return (_through_qr(xp, q, r, gq, gr),)
    # x = [left, right], left = Q R_left with Q square, right = Q R_right
    gq = gq + xp.matmul(x[..., m:], adjoint(xp, gr[..., m:]))
    left = _through_qr(xp, q, r[..., :m], gq, gr[..., :m])
    return (xp.concat((left, xp.matmul(q, gr[..., m:])), -1),)


def _through_qr(xp, q, r, gq, gr):
    inner = xp.matmul(r, adjoint(xp, gr)) - xp.matmul(adjoint(xp, gq), q)
    below = xp.tril(inner, -1)
    diagonal = _on_diagonal(xp, xp.real(xp.diagonal(inner, 0, inner.ndim - 2, inner.ndim - 1)), inner)
    right = gq + xp.matmul(q, below + adjoint(xp, below) + diagonal)
    return adjoint(xp, xp.solve_triangular(r, adjoint(xp, right), True, False))


# -- LU


@op(
    dtypes="full",
    outputs=3,
    complex=True,
    host="CuPy has no LU factorisation that keeps the exchanges of rows of a batch",
    samples=lambda r: [(r(3, 3),), (r(2, 4, 3),), (r(3, 5),), (r(3, 3, low=0.5), False)],
)
def lu_packed(xp, x, pivot=True):
    """x = P L U: L U in one matrix (without L's ones), LAPACK's row exchanges (from 1), the number of a zero pivot."""
    return factorize.lu(x, pivot)


@lu_packed.vjp_all
def _(xp, needs, g, _y, x, pivot=True):
    packed, pivots, _ = xp.lu_packed(x, pivot)
    m, n = x.shape[-2:]
    k = min(m, n)
    g = g[0]
    head, ghead = packed[..., :k, :k], g[..., :k, :k]
    lower = xp.tril(head, -1) + xp.constant(np.eye(k), head)
    upper = xp.triu(head)
    gl, gu = xp.tril(ghead, -1), xp.triu(ghead)
    # _left(v): inv(L^H) v, _right(v): v inv(U^H)
    if n > k:
        beside = _left(xp, lower, g[..., k:])
        gl = gl - xp.matmul(beside, adjoint(xp, packed[..., :k, k:]))
    if m > k:
        under = _right(xp, upper, g[..., k:, :])
        gu = gu - xp.matmul(adjoint(xp, packed[..., k:, :k]), under)
    inner = xp.tril(xp.matmul(adjoint(xp, lower), gl), -1) + xp.triu(xp.matmul(gu, adjoint(xp, upper)))
    rows = _right(xp, upper, _left(xp, lower, inner))
    if n > k:
        rows = xp.concat((rows, beside), -1)
    if m > k:
        rows = xp.concat((rows, under), -2)
    pivots = getattr(pivots, "_array", pivots)
    if not has_elements(pivots):
        return (rows,)
    ns = array_namespace(pivots)
    back = np.argsort(factorize.permutation(ns.to_host(pivots), m), axis=-1)[..., None]
    return (xp.take_along_axis(rows, ns.from_host(np.broadcast_to(back, rows.shape)), rows.ndim - 2),)


def _left(xp, lower, v):
    return xp.solve_triangular(adjoint(xp, lower), v, True, True)


def _right(xp, upper, v):
    return adjoint(xp, xp.solve_triangular(upper, adjoint(xp, v), True, False))


# -- eigenvalues


@op(dtypes="full", outputs=2, complex=True, samples=lambda r: [(r(3, 3),), (r(2, 2, 2), "U")])
def eigh(xp, x, uplo="L"):
    """Ascending eigenvalues and orthonormal eigenvectors (columns) of Hermitian matrices; one triangle is read."""
    return tuple(_converging(xp, "eigh", x, UPLO=uplo))


@eigh.vjp_all
def _(xp, needs, g, _y, x, uplo="L"):
    gs, gv = g
    s, v = xp.eigh(x, uplo)
    inner = 0 if gs is None else _on_diagonal(xp, gs, v)
    if gv is not None:
        turn = _skew(xp, xp.matmul(adjoint(xp, v), gv)) * 0.5
        inner = _off_diagonal(xp, turn / _gaps(xp, s)) + inner
    return (xp.matmul(v, xp.matmul(inner, adjoint(xp, v))),)


@op(dtypes="full", complex=True, samples=lambda r: [(r(3, 3),), (r(2, 2, 2), "U")])
def eigvalsh(xp, x, uplo="L"):
    """The eigenvalues of `eigh`; their gradient is defined for equal ones, too, where it is one of several."""
    return _converging(xp, "eigvalsh", x, UPLO=uplo)


@eigvalsh.vjp
def _(xp, g, _y, x, uplo="L"):
    _, v = xp.eigh(x, uplo)
    return xp.matmul(_scaled(xp, v, g), adjoint(xp, v))


_NOT_SYMMETRIC = "cuSOLVER has eigenvalues of matrices that are not symmetric since CUDA 12.8 only"


@op(dtypes="full", outputs=2, complex=True, host=_NOT_SYMMETRIC, samples=lambda r: [(r(3, 3),), (r(2, 2, 2),)])
def eig(xp, x):
    """Eigenvalues and eigenvectors (columns of length 1), always complex, in LAPACK's order."""
    s, v = _converging(xp, "eig", x)
    return _as_complex(s), _as_complex(v)


def _as_complex(x):
    return x if x.dtype.kind == "c" else x.astype(np.result_type(x.dtype, np.complex64))


@eig.vjp_all
def _(xp, needs, g, _y, x):
    """Boeddeker et al., "On the computation of complex-valued gradients", 2017; vectors of length 1."""
    gs, gv = g
    s, v = xp.eig(x)
    back = adjoint(xp, v)
    inner = 0 if gs is None else _on_diagonal(xp, gs, v)
    if gv is not None:
        turn = xp.matmul(back, gv)
        along = xp.real(xp.diagonal(turn, 0, turn.ndim - 2, turn.ndim - 1))
        turn = turn - _scaled(xp, xp.matmul(back, v), along)
        inner = _off_diagonal(xp, turn / xp.conj(_gaps(xp, s))) + inner
    return (xp.solve(back, xp.matmul(inner, back)),)


@op(dtypes="full", differentiable=False, host=_NOT_SYMMETRIC, samples=lambda r: [(r(3, 3),), (r(2, 2, 2),)])
def eigvals(xp, x):
    """The eigenvalues, complex; LAPACK may order them otherwise than `eig` does, so that has the gradient."""
    return _as_complex(_converging(xp, "eigvals", x))


# -- singular values


@op(
    dtypes="full",
    outputs=3,
    complex=True,
    samples=lambda r: [(r(3, 3),), (r(2, 4, 3),), (r(3, 5),), (r(2, 3), True)],
)
def svd(xp, x, full=False):
    """x = U diag(S) Vh with descending S; `full` makes U and Vh square. No gradient flows through what that adds."""
    return _by_square(xp, x, full) or tuple(_converging(xp, "svd", x, full_matrices=full))


def _by_square(xp, x, full):
    """The singular values and vectors of long or wide matrices by those of the R of Q R; None of others."""
    m, n = x.shape[-2:]
    if m < n:
        if (turned := _by_square(xp, x.swapaxes(-1, -2), full)) is None:
            return None
        u, s, vh = turned
        return vh.swapaxes(-1, -2), s, u.swapaxes(-1, -2)
    if (found := factorize.long_qr(x, full)) is None:
        return None
    q, r = found
    u, s, vh = _converging(xp, "svd", r[..., :n, :], full_matrices=True)
    left = gemm.matmul(np.ascontiguousarray(q[..., :n]), u)
    return (np.concatenate((left, q[..., n:]), -1) if full else left), s, vh


@svd.vjp_all
def _(xp, needs, g, _y, x, full=False):
    """Townsend, "Differentiating the singular value decomposition", 2016, with the phase of complex vectors."""
    gu, gs, gvh = g
    u, s, vh = xp.svd(x)
    k = s.shape[-1]
    inner = 0 if gs is None else _on_diagonal(xp, gs, u)
    outside: Any = 0
    if gu is not None:
        turned, rest = _rotation(xp, u, s, gu[..., :k])
        inner = _scaled(xp, turned, s) + inner
        if x.shape[-2] > k:
            outside = xp.matmul(_scaled(xp, rest, 1 / s), vh)
        if is_complex(x):
            phase = _skew(xp, xp.matmul(adjoint(xp, u), gu[..., :k])) * 0.5 / xp.expand_dims(s, -2)
            inner = phase - _off_diagonal(xp, phase) + inner
    if gvh is not None:
        turned, rest = _rotation(xp, adjoint(xp, vh), s, adjoint(xp, gvh[..., :k, :]))
        inner = xp.expand_dims(s, -1) * turned + inner
        if x.shape[-1] > k:
            outside = xp.matmul(_scaled(xp, u, 1 / s), adjoint(xp, rest)) + outside
    return (xp.matmul(u, xp.matmul(inner, vh)) + outside,)


def _rotation(xp, u, s, g):
    """Of the gradient of singular vectors `u`: the part that turns them among themselves, over the gaps of the squared
    singular values, and the part that leads out of their span."""
    inside = xp.matmul(adjoint(xp, u), g)
    return _off_diagonal(xp, _skew(xp, inside) / _gaps(xp, s, squared=True)), g - xp.matmul(u, inside)


@op(dtypes="full", complex=True, samples=lambda r: [(r(3, 3),), (r(2, 4, 3),), (r(3, 5),)])
def svdvals(xp, x):
    """The singular values, descending."""
    if (found := factorize.long_qr(x if x.shape[-2] >= x.shape[-1] else x.swapaxes(-1, -2))) is not None:
        x = found[1]
    return _converging(xp, "svdvals", x)


@svdvals.vjp
def _(xp, g, _y, x):
    u, _, vh = xp.svd(x)
    return xp.matmul(_scaled(xp, u, g), vh)
