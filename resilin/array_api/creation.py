"""Making tensors under the standard's signatures: shapes are one argument, ranges may be empty."""

from __future__ import annotations

from typing import Any, Literal

import numpy as np

from resilin.core import dtype as dtypes
from resilin.core.api.conversion import dlpack
from resilin.core.api.manipulation import rearranging, shaping
from resilin.core.ops import creation
from resilin.core.tensor import Tensor

asarray, from_dlpack = creation.asarray, dlpack.from_dlpack


def arange(
    start: float, /, stop: float | None = None, step: float = 1, *, dtype: Any = None, device: Any = None
) -> Tensor:
    """Numbers from `start` (0 when `stop` is None) up to but without `stop`; none when `step` leads away from it."""
    start, stop = (0, start) if stop is None else (start, stop)
    if step and (stop - start) * step < 0:
        stop = start + 0 * stop  # a float if either is
    return creation.arange(start, stop, step, dtype=dtype, device=device)


def empty(shape: Any, *, dtype: Any = None, device: Any = None) -> Tensor:
    """Memory as it comes."""
    return creation.empty(shape, dtype=dtype, device=device)


def zeros(shape: Any, *, dtype: Any = None, device: Any = None) -> Tensor:
    """Zeros."""
    return creation.zeros(shape, dtype=dtype, device=device)


def ones(shape: Any, *, dtype: Any = None, device: Any = None) -> Tensor:
    """Ones."""
    return creation.ones(shape, dtype=dtype, device=device)


def full(shape: Any, fill_value: Any, *, dtype: Any = None, device: Any = None) -> Tensor:
    """`fill_value` everywhere; of its own kind's default dtype unless `dtype` is given."""
    return creation.full(shape, fill_value, dtype=dtype, device=device)


def eye(n_rows: int, n_cols: int | None = None, /, *, k: int = 0, dtype: Any = None, device: Any = None) -> Tensor:
    """Ones on the `k`-th diagonal of a matrix."""
    places = np.eye(n_rows, n_cols, k, bool)
    return creation.tensor(places, dtype=dtypes.get_default_dtype() if dtype is None else dtype, device=device)


def linspace(
    start: complex, stop: complex, /, num: int, *, dtype: Any = None, device: Any = None, endpoint: bool = True
) -> Tensor:
    """`num` equally spaced numbers from `start` to `stop`, which is left out without `endpoint`."""
    values = np.linspace(start, stop, num, endpoint).tolist()  # a list: Python's numbers get the default dtype
    return creation.tensor(values, dtype=dtype, device=device)


def meshgrid(*arrays: Tensor, indexing: Literal["xy", "ij"] = "xy") -> list[Tensor]:
    """Coordinate tensors of a grid; "xy" exchanges the first two dimensions."""
    return list(rearranging.meshgrid(*arrays, indexing=indexing))


def tril(x: Tensor, /, *, k: int = 0) -> Tensor:
    """The part on and below the `k`-th diagonal of the last two dimensions."""
    return shaping.tril(x, k)


def triu(x: Tensor, /, *, k: int = 0) -> Tensor:
    """The part on and above the `k`-th diagonal of the last two dimensions."""
    return shaping.triu(x, k)
