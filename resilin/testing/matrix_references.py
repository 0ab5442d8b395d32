"""scipy's linear algebra for ops on batches of matrices, which numpy computes in the library."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import scipy.fft  # type: ignore[import-untyped]
import scipy.linalg  # type: ignore[import-untyped]

Array = Any


def _each(fn: Callable[..., Any]) -> Callable[..., Any]:
    """`fn` of single matrices, on batches: all leading dimensions of the arrays are stretched to one shape."""

    def of_batch(*args: Any) -> Any:
        arrays = [a for a in args if isinstance(a, np.ndarray)]
        batch = np.broadcast_shapes(*(a.shape[:-2] for a in arrays))
        wide = [np.broadcast_to(a, (*batch, *a.shape[-2:])) for a in arrays]
        rest = args[len(arrays) :]
        found = [fn(*(a[place] for a in wide), *rest) for place in np.ndindex(*batch)]
        if not found:  # of an empty batch: as many outputs, and their shapes, as of one matrix
            one = of_batch(*(np.eye(*a.shape[-2:], dtype=a.dtype) for a in arrays), *rest)
            parts = one if isinstance(one, tuple) else (one,)
            empty = tuple(np.zeros((*batch, *np.shape(part)), part.dtype) for part in parts)
            return empty if isinstance(one, tuple) else empty[0]
        if isinstance(found[0], tuple):
            return tuple(np.reshape(part, (*batch, *np.shape(part[0]))) for part in zip(*found, strict=True))
        return np.reshape(found, (*batch, *np.shape(found[0])))

    return of_batch


def _qr(x: Array, complete: bool = False) -> Any:
    return scipy.linalg.qr(x, mode="full" if complete else "economic")


def _lu(x: Array, pivot: bool = True) -> Any:
    packed, pivots = np.array(x), np.arange(1, min(x.shape) + 1)
    for k in range(min(x.shape)):
        if pivot:
            pivots[k] = k + 1 + np.argmax(np.abs(packed[k:, k]))
            packed[[k, pivots[k] - 1]] = packed[[pivots[k] - 1, k]]
        packed[k + 1 :, k] /= packed[k, k]
        packed[k + 1 :, k + 1 :] -= np.outer(packed[k + 1 :, k], packed[k, k + 1 :])
    return packed, pivots, np.int32(0)


def _slogdet(x: Array) -> Any:
    det = scipy.linalg.det(x)
    return det / abs(det), np.log(abs(det))


def _pinv(x: Array, *_: Any) -> Array:
    return scipy.linalg.pinv(x) if x.size else np.zeros(x.shape[::-1], x.dtype)


def _svd(x: Array, full: bool = False) -> Any:
    return scipy.linalg.svd(x, full_matrices=full)


def _c2c(x: Array, axes: Any, norm: str, forward: bool) -> Array:
    return (scipy.fft.fftn if forward else scipy.fft.ifftn)(x, axes=axes, norm=norm)


def _c2r(x: Array, axes: Any, norm: str, n: int) -> Array:
    return scipy.fft.irfftn(x, s=(*(x.shape[i] for i in axes[:-1]), n), axes=axes, norm=norm)


def _triangular(a: Array, b: Array, upper: bool, unit: bool) -> Array:
    return scipy.linalg.solve_triangular(a, b, lower=not upper, unit_diagonal=unit)


def _expm(x: Array) -> Array:
    return scipy.linalg.expm(x) if x.size else x


ALL: dict[str, Callable[..., Any]] = {
    "cholesky": _each(lambda x: scipy.linalg.cholesky(x, lower=True)),
    "cofactors": _each(lambda x: scipy.linalg.det(x) * scipy.linalg.inv(x).T),
    "det": _each(scipy.linalg.det),
    "eig": _each(scipy.linalg.eig),
    "eigh": _each(lambda x, uplo="L": scipy.linalg.eigh(x, lower=uplo == "L")),
    "eigvals": _each(scipy.linalg.eigvals),
    "eigvalsh": _each(lambda x, uplo="L": scipy.linalg.eigvalsh(x, lower=uplo == "L")),
    "inv": _each(scipy.linalg.inv),
    "lstsq": _each(lambda a, b, _rtol=0.0: scipy.linalg.lstsq(a, b)[0]),
    "lu_packed": _each(_lu),
    "matrix_exp": _expm,
    "pinv": _each(_pinv),
    "qr": _each(_qr),
    "slogdet": _each(_slogdet),
    "solve": _each(lambda a, b, *_: scipy.linalg.solve(a, b)),
    "solve_triangular": _each(_triangular),
    "svd": _each(_svd),
    "svdvals": _each(scipy.linalg.svdvals),
    "fft_c2c": _c2c,
    "fft_c2r": _c2r,
    "fft_real": _c2c,
    "fft_r2c": lambda x, axes, norm: scipy.fft.rfftn(x, axes=axes, norm=norm),
}
