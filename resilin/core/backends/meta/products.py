"""What shape and dtype numpy's products, decompositions of matrices and Fourier transforms give."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np

from resilin.core.backends.meta.array import FUNCTIONS, MetaArray, fresh
from resilin.core.backends.meta.rules import axes_of, reduction, rule, small


@rule("matmul")
def matmul(a: Any, b: Any, out: Any = None, **options: Any) -> Any:
    """The product of matrices, stacked or not."""
    kind = np.matmul(np.empty((0, 0), a.dtype), np.empty((0, 0), b.dtype)).dtype
    rows, columns = a.shape[-2:-1], b.shape[-1:] if b.ndim > 1 else ()
    inner = b.shape[-2] if b.ndim > 1 else b.shape[0] if b.ndim else None
    if not a.ndim or not b.ndim or a.shape[-1] != inner:
        raise ValueError(f"matmul: shapes {a.shape} and {b.shape} do not fit together")
    return fresh((*np.broadcast_shapes(a.shape[:-2], b.shape[:-2]), *rows, *columns), kind)


@rule("dot")
def dot(a: Any, b: Any, out: Any = None) -> Any:
    """Of vectors a number, of matrices their product."""
    return matmul(a, b)


@rule("tensordot")
def tensordot(a: Any, b: Any, axes: Any = 2) -> Any:
    """Summed over the dimensions `axes`."""
    left, right = (range(a.ndim - axes, a.ndim), range(axes)) if isinstance(axes, int) else axes
    left, right = (
        axes_of(tuple(left) if not isinstance(left, int) else left, a.ndim),
        axes_of(tuple(right) if not isinstance(right, int) else right, b.ndim),
    )
    shape = [n for i, n in enumerate(a.shape) if i not in left] + [n for i, n in enumerate(b.shape) if i not in right]
    return fresh(shape, np.result_type(a.dtype, b.dtype))


@rule("einsum")
def einsum(text: str, *arrays: Any, **options: Any) -> Any:
    """What is named behind the arrow."""
    sources, target = text.replace(" ", "").split("->")
    lengths: dict[str, int] = {}
    for letters, x in zip(sources.split(","), arrays, strict=True):
        for letter, n in zip(letters, x.shape, strict=True):
            lengths[letter] = n if lengths.get(letter, 1) == 1 else lengths[letter]
    return fresh([lengths[letter] for letter in target], np.result_type(*(x.dtype for x in arrays)))


def _square(x: Any) -> Any:
    if x.ndim < 2 or x.shape[-1] != x.shape[-2]:
        raise ValueError(f"expected square matrices, got shape {x.shape}")
    return x


def _kind(function: Any, *arrays: Any) -> Any:
    """The dtypes that a function of matrices gives."""
    found = function(*(small(x, (1, 1)) for x in arrays))
    return tuple(part.dtype for part in found) if isinstance(found, tuple) else found.dtype


def _inv(x: Any) -> Any:
    return fresh(_square(x).shape, _kind(np.linalg.inv, x))


def _cholesky(x: Any, **options: Any) -> Any:
    return fresh(_square(x).shape, _kind(np.linalg.cholesky, x))


def _det(x: Any) -> Any:
    return fresh(_square(x).shape[:-2], _kind(np.linalg.det, x))


def _slogdet(x: Any) -> Any:
    sign, size = _kind(np.linalg.slogdet, x)
    return fresh(_square(x).shape[:-2], sign), fresh(x.shape[:-2], size)


def _solve(a: Any, b: Any) -> Any:
    kind = _kind(np.linalg.solve, a, b)
    if b.ndim == 1:
        return fresh((*_square(a).shape[:-2], b.shape[0]), kind)
    if b.shape[-2] != _square(a).shape[-1]:
        raise ValueError(f"solve: shapes {a.shape} and {b.shape} do not fit together")
    return fresh((*np.broadcast_shapes(a.shape[:-2], b.shape[:-2]), *b.shape[-2:]), kind)


def _qr(x: Any, mode: str = "reduced") -> Any:
    kind, (*lead, m, n) = _kind(np.linalg.inv, x), x.shape
    k = m if mode == "complete" else min(m, n)
    r = fresh((*lead, k, n), kind)
    return r if mode == "r" else (fresh((*lead, m, k), kind), r)


def _svd(x: Any, full_matrices: bool = True, compute_uv: bool = True, hermitian: bool = False) -> Any:
    (kind, real, _), (*lead, m, n) = _kind(np.linalg.svd, x), x.shape
    s = fresh((*lead, min(m, n)), real)
    left, right = (m, n) if full_matrices else (min(m, n),) * 2
    return (fresh((*lead, m, left), kind), s, fresh((*lead, right, n), kind)) if compute_uv else s


def _eigh(x: Any, UPLO: str = "L") -> Any:
    real, kind = _kind(np.linalg.eigh, x)
    return fresh(_square(x).shape[:-1], real), fresh(x.shape, kind)


def _eigvalsh(x: Any, UPLO: str = "L") -> Any:
    return _eigh(x)[0]


def _eig(x: Any) -> Any:
    kind = np.result_type(x.dtype, np.complex64)
    return fresh(_square(x).shape[:-1], kind), fresh(x.shape, kind)


def _eigvals(x: Any) -> Any:
    return _eig(x)[0]


def _pinv(x: Any, *args: Any, **options: Any) -> Any:
    return fresh((*x.shape[:-2], x.shape[-1], x.shape[-2]), x.dtype)


def _lstsq(a: Any, b: Any, rcond: Any = None) -> Any:
    a.item()


def _norm(x: Any, ord: Any = None, axis: Any = None, keepdims: bool = False) -> Any:
    real = np.empty(0, x.dtype).real.dtype
    return reduction(np.sum)(fresh(x.shape, real), axis, keepdims=keepdims)


_LINALG = {
    **{"inv": _inv, "cholesky": _cholesky, "det": _det, "slogdet": _slogdet, "solve": _solve, "qr": _qr, "svd": _svd},
    **{"eigh": _eigh, "eigvalsh": _eigvalsh, "eig": _eig, "eigvals": _eigvals, "pinv": _pinv, "norm": _norm},
}
LINALG = SimpleNamespace(**_LINALG)


def _complex(x: Any) -> Any:
    return np.fft.fft(small(x, (1,))).dtype


def _lengths(x: Any, s: Any, axes: Any) -> tuple[list[int], tuple[int, ...]]:
    at = tuple(range(x.ndim))[-len(s) :] if axes is None and s is not None else axes_of(axes, x.ndim)
    shape = list(x.shape)
    for number, i in enumerate(at):
        if s is not None and s[number] not in (None, -1):
            shape[i] = s[number]
    return shape, at


def _fftn(x: Any, s: Any = None, axes: Any = None, norm: Any = None, out: Any = None) -> Any:
    return fresh(_lengths(x, s, axes)[0], _complex(x))


def _rfftn(x: Any, s: Any = None, axes: Any = None, norm: Any = None, out: Any = None) -> Any:
    shape, at = _lengths(x, s, axes)
    shape[at[-1]] = shape[at[-1]] // 2 + 1
    return fresh(shape, _complex(x))


def _irfftn(x: Any, s: Any = None, axes: Any = None, norm: Any = None, out: Any = None) -> Any:
    shape, at = _lengths(x, s, axes)
    if s is None or s[-1] is None:
        shape[at[-1]] = 2 * (x.shape[at[-1]] - 1)
    return fresh(shape, np.empty(0, _complex(x)).real.dtype)


_FFT = {"fftn": _fftn, "ifftn": _fftn, "rfftn": _rfftn, "irfftn": _irfftn}
FFT = SimpleNamespace(**_FFT)
FUNCTIONS.update({getattr(np.linalg, name): function for name, function in _LINALG.items()})
FUNCTIONS.update({getattr(np.fft, name): function for name, function in _FFT.items()})


def index_add_zeros(g: Any, shape: Any, index: Any) -> MetaArray:
    """Zeros of `shape` with `g` added at `index`."""
    return fresh(shape, g.dtype)


def scatter_add_zeros(g: Any, shape: Any, axis: int, index: Any) -> MetaArray:
    """Zeros of `shape` with `g` added at `index` along `axis`."""
    return fresh(shape, g.dtype)


def matmul_add(a: Any, b: Any, c: Any) -> Any:
    """a @ b + c."""
    return matmul(a, b) + c
