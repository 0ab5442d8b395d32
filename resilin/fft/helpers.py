"""Frequencies of transforms, and shifting frequency 0 to the middle."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from resilin.core import dtype as dtypes
from resilin.core.api.manipulation import shaping
from resilin.core.ops import creation
from resilin.core.state.size import check_dim
from resilin.core.tensor import Tensor


def fftfreq(n: int, d: float = 1.0, *, dtype: Any = None, device: Any = None, requires_grad: bool = False) -> Tensor:
    """The frequencies of an n-point `fft` of samples `d` apart: 0, 1, ..., negative ones last, over n * d."""
    return _frequencies("fft.fftfreq", True, n, d, dtype, device, requires_grad)


def rfftfreq(n: int, d: float = 1.0, *, dtype: Any = None, device: Any = None, requires_grad: bool = False) -> Tensor:
    """The n // 2 + 1 frequencies of `rfft`."""
    return _frequencies("fft.rfftfreq", False, n, d, dtype, device, requires_grad)


def _frequencies(where: str, signed: bool, n: int, d: float, dtype: Any, device: Any, requires_grad: bool) -> Tensor:
    if n < 0:
        raise RuntimeError(f"{where}: expected a number of points, got n = {n}")
    dtype = dtype or dtypes.get_default_dtype()
    whole = np.arange(n if signed else n // 2 + 1, dtype=np.float64)
    if signed:
        whole[(n + 1) // 2 :] -= n
    with np.errstate(all="ignore"):  # a distance of 0 makes infinities and NaN, as in PyTorch
        values = whole / np.float64(n * d)
    return creation.tensor(values, dtype=dtype, device=device, requires_grad=requires_grad)


def fftshift(input: Tensor, dim: int | Sequence[int] | None = None) -> Tensor:
    """`fft` order to ascending order: frequency 0 moves to the middle of `dim` (of all dimensions when None)."""
    dims, lengths = _dims(input, dim)
    return shaping.roll(input, [n // 2 for n in lengths], dims) if dims else input


def ifftshift(input: Tensor, dim: int | Sequence[int] | None = None) -> Tensor:
    """The inverse of `fftshift`."""
    dims, lengths = _dims(input, dim)
    return shaping.roll(input, [(n + 1) // 2 for n in lengths], dims) if dims else input


def _dims(input: Tensor, dim: int | Sequence[int] | None) -> tuple[list[int], list[int]]:
    ndim = input._array.ndim
    given = range(ndim) if dim is None else (dim,) if isinstance(dim, int) else dim
    dims = [check_dim(d, ndim) for d in given]
    return dims, [input._array.shape[d] for d in dims]
