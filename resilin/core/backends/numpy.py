"""The `cpu` backend and the numpy-backed `sim` test devices.

`xp` is numpy plus the few functions that ops need and numpy lacks. A `sim:N` device holds ordinary numpy arrays; the
engine refuses to mix tensors of different devices, so code for several devices is tested without any.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np

from resilin.core.backends import small_array
from resilin.core.backends.base import ArrayBackend
from resilin.core.kernels import choose, contiguous, gemm, joining, pack, places, reduce_rows, sigmoid
from resilin.core.kernels.loader import native

Array = np.ndarray[Any, Any]


def _conj(x: Any) -> Any:
    dtype = getattr(x, "dtype", None)
    if dtype is None:  # a Python number
        return x.conjugate()
    return np.conjugate(x) if dtype.kind == "c" else x


def _itself(x: Any) -> Any:
    return x


def _constant(array: Any, like: Any) -> Any:
    return array.astype(like.dtype, copy=False)


def _astype(x: Any, dtype: Any) -> Any:
    return x if x.dtype == dtype else pack.astype(x, np.dtype(dtype))


def _index_add_zeros(g: Array, shape: tuple[int, ...], index: Any) -> Array:
    """Zeros of `shape` with `g` added at `index`, repeated places summed in order. What undoes `x[index]`."""
    if not is_basic(index):
        return places.add_slices(g, shape, index)
    out = np.zeros(shape, g.dtype)
    out[index] = g
    return out


def is_basic(index: Any) -> bool:
    """Whether `index` holds integers, slices, None and ... only, so that it reaches no element twice."""
    if isinstance(index, tuple):
        return all(is_basic(i) for i in index)
    return index is None or index is Ellipsis or isinstance(index, int | slice)


def shortened(x: Any, index: Any, axis: int) -> Any:
    """`x` as long as `index` in every dimension but `axis`: there, PyTorch's gather leaves the rest out."""
    if x.shape == index.shape or x.ndim == 1:
        return x
    axis %= x.ndim
    if all(n == m or i == axis for i, (n, m) in enumerate(zip(x.shape, index.shape, strict=True))):
        return x
    return x[tuple(slice(None) if i == axis else slice(n) for i, n in enumerate(index.shape))]


def _take_along_axis(x: Array, index: Array, axis: int) -> Array:
    return places.take_along(shortened(x, index, axis), index, axis)


def _write_at(out: Array, index: Any, value: Any) -> None:
    """out[index] = value, as it was before; the last of several values for one place stays."""
    if type(value) is np.ndarray and value.ndim and np.may_share_memory(out, value) and is_basic(index):
        value = contiguous.apart(value, out[index])
    out[index] = value


def _sign(x: Array) -> Array:
    """0 of NaN, as native code's; numpy's is NaN."""
    return (x > 0).astype(x.dtype) - (x < 0).astype(x.dtype) if x.dtype.kind in "fV" else np.sign(x)


def _on_threads(ufunc: np.ufunc) -> Any:
    """The function with its loops run by native code, on several threads; its methods are numpy's."""
    if native is None or ufunc.nout != 1 or ufunc.nin > 2 or ufunc.signature:
        return ufunc
    made = native.looped(ufunc, ufunc.__name__)
    for name in ("__name__", "accumulate", "at", "outer", "reduce", "reduceat"):
        setattr(made, name, getattr(ufunc, name))
    return made


def make_xp() -> SimpleNamespace:
    """numpy's public names plus the extras. The op registry adds every op that numpy has no function for."""
    names = {n: f for n, f in vars(np).items() if callable(f) and not isinstance(f, type) and not n.startswith("_")}
    names = {n: _on_threads(f) if isinstance(f, np.ufunc) else f for n, f in names.items()}
    extras = {
        "conj": _conj,
        "astype": _astype,
        "sum": reduce_rows.total,  # accurate along every axis, which numpy's is not
        "mean": reduce_rows.mean,
        "prod": reduce_rows.product,
        "constant": _constant,
        "index_add_zeros": _index_add_zeros,
        "as_strided": np.lib.stride_tricks.as_strided,
        "ascontiguousarray": contiguous.ascontiguousarray,
        "concatenate": joining.concatenate,
        "matmul": gemm.matmul,
        "matmul_add": gemm.matmul_add,
        "sigmoid": sigmoid.forward,
        "broadcast_to": small_array.broadcast_to,
        "expand_dims": small_array.expand_dims,
        "squeeze": small_array.squeeze,
        "ones_like": small_array.ones_like,
        "stack": small_array.stack,
        "any": small_array.any,
        "all": small_array.all,
        "count_nonzero": small_array.count_nonzero,
        "max": small_array.max,
        "min": small_array.min,
        "argmax": small_array.argmax,
        "argmin": small_array.argmin,
        "scatter_add_zeros": places.add_along,
        "take_along_axis": _take_along_axis,
        "where": choose.where,
        "write_at": _write_at,
        "linalg": np.linalg,
        "fft": np.fft,
        "asarray": np.asarray,
    }
    if native is None:
        extras["sign"] = _sign
    made = SimpleNamespace(**{**names, **extras, "from_host": _itself, "to_host": _itself})
    made.host = made  # where ops run that a device's library has no functions for; see `ops/on_host.py`
    return made


class NumpyBackend(ArrayBackend):
    """The host's memory."""

    type = "cpu"

    def __init__(self, xp: Any) -> None:
        self.xp = xp

    def from_host(self, array: Array, index: int) -> Array:
        """A copy."""
        return array.copy()

    def to_host(self, array: Array) -> Array:
        """The array itself."""
        return array

    def synchronize(self, index: int) -> None:
        """Nothing is ever queued."""


class SimBackend(NumpyBackend):
    """Eight pretended devices over numpy; reading one from the host copies, as it would from a real device."""

    type = "sim"

    def count(self) -> int:
        """Eight."""
        return 8

    def to_host(self, array: Array) -> Array:
        """A copy."""
        return array.copy()
