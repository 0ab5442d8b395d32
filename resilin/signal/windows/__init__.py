"""Windows: vectors of M factors that fade a signal in and out.

`sym`: True for a symmetric window, False for a periodic one, the first M points of one of M + 1. All take `dtype`
(float32 or float64; by default the default one), `layout`, `device` and `requires_grad`, and are [1] for M = 1. They
raise ValueError for a negative M and for another dtype, TypeError for an M that is no int.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import numpy as np

from resilin.core import dtype as dtypes
from resilin.core.api.mathematics import spectral
from resilin.core.ops import creation
from resilin.core.tensor import Tensor

if TYPE_CHECKING:  # what the table of places adds; written by scripts/type_stubs.py
    from resilin.signal.windows import windows as windows

__all__ = [
    "bartlett",
    "blackman",
    "cosine",
    "exponential",
    "gaussian",
    "general_cosine",
    "general_hamming",
    "hamming",
    "hann",
    "kaiser",
    "nuttall",
]


def _made(name: str, M: int, sym: bool, options: dict[str, Any], shape: Any) -> Tensor:
    """`shape(places, last)` of M places from 0, `last` being that of the whole window."""
    dtype = options.get("dtype") or dtypes.get_default_dtype()
    if dtype not in (dtypes.float32, dtypes.float64):
        raise ValueError(f"{name} expects float32 or float64 dtypes, got: {dtype}")
    if not isinstance(M, int):
        raise TypeError(f"{name}: M must be an int, got {M!r}")
    if M < 0:
        raise ValueError(f"{name} requires non-negative window length, got M={M}")
    return spectral.window(name, M, not sym, shape, options)


@creation.factory
def bartlett(M: int, *, sym: bool = True, **options: Any) -> Tensor:
    """A triangle from 0 to 1 and back."""
    return _made("bartlett", M, sym, options, lambda n, last: 1 - np.abs(2 * n / last - 1))


@creation.factory
def blackman(M: int, *, sym: bool = True, **options: Any) -> Tensor:
    """`general_cosine` of 0.42, 0.5, 0.08."""
    return _cosines("blackman", M, sym, options, (0.42, 0.5, 0.08))


@creation.factory
def cosine(M: int, *, sym: bool = True, **options: Any) -> Tensor:
    """sin(pi (n + 1/2) / M): half a wave."""
    return _made("cosine", M, sym, options, lambda n, last: np.sin(math.pi * (n + 0.5) / (last + 1)))


@creation.factory
def exponential(M: int, *, center: float | None = None, tau: float = 1.0, sym: bool = True, **options: Any) -> Tensor:
    """exp(-|n - center| / tau); the center is the middle, and can be chosen for a periodic window only."""
    if tau <= 0:
        raise ValueError(f"exponential: tau must be positive, got: {tau}")
    if sym and center is not None:
        raise ValueError("exponential: center must be None for symmetric windows")

    def shape(n: Any, last: int) -> Any:
        return np.exp(-np.abs(n - (last / 2 if center is None else center)) / tau)

    return _made("exponential", M, sym, options, shape)


@creation.factory
def gaussian(M: int, *, std: float = 1.0, sym: bool = True, **options: Any) -> Tensor:
    """exp(-((n - middle) / std) ** 2 / 2)."""
    if std <= 0:
        raise ValueError(f"gaussian: standard deviation must be positive, got: {std}")
    return _made("gaussian", M, sym, options, lambda n, last: np.exp(-0.5 * ((n - last / 2) / std) ** 2))


@creation.factory
def general_cosine(M: int, *, a: Iterable[float], sym: bool = True, **options: Any) -> Tensor:
    """The sum of (-1) ** i a[i] cos(2 pi i n / (M - 1))."""
    if not isinstance(a, Iterable):
        raise TypeError(f"general_cosine: coefficients must be a list or tuple, got {type(a).__name__}")
    weights = tuple(a)
    if not weights:
        raise ValueError("general_cosine: coefficients cannot be empty")
    return _cosines("general_cosine", M, sym, options, weights)


def _cosines(name: str, M: int, sym: bool, options: dict[str, Any], weights: tuple[float, ...]) -> Tensor:
    def shape(n: Any, last: int) -> Any:
        terms = [(-1) ** i * weight * np.cos(2 * math.pi * i * n / last) for i, weight in enumerate(weights)]
        return np.sum(terms, axis=0)

    return _made(name, M, sym, options, shape)


@creation.factory
def general_hamming(M: int, *, alpha: float = 0.54, sym: bool = True, **options: Any) -> Tensor:
    """alpha - (1 - alpha) cos(2 pi n / (M - 1))."""
    return _cosines("general_hamming", M, sym, options, (alpha, 1 - alpha))


@creation.factory
def hamming(M: int, *, sym: bool = True, **options: Any) -> Tensor:
    """`general_hamming` of 0.54."""
    return _cosines("hamming", M, sym, options, (0.54, 0.46))


@creation.factory
def hann(M: int, *, sym: bool = True, **options: Any) -> Tensor:
    """`general_hamming` of 0.5."""
    return _cosines("hann", M, sym, options, (0.5, 0.5))


@creation.factory
def kaiser(M: int, *, beta: float = 12.0, sym: bool = True, **options: Any) -> Tensor:
    """I_0(beta sqrt(1 - ((n - middle) / middle) ** 2)) / I_0(beta)."""
    if beta < 0:
        raise ValueError(f"kaiser: beta must be non-negative, got: {beta}")

    def shape(n: Any, last: int) -> Any:
        return np.i0(beta * np.sqrt(np.maximum(1 - (2 * n / last - 1) ** 2, 0))) / np.i0(beta)

    return _made("kaiser", M, sym, options, shape)


@creation.factory
def nuttall(M: int, *, sym: bool = True, **options: Any) -> Tensor:
    """`general_cosine` of the four terms of Nuttall's minimal window."""
    return _cosines("nuttall", M, sym, options, (0.3635819, 0.4891775, 0.1365995, 0.0106411))
