"""The backend of the `meta` device, and its namespace."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, NoReturn

import numpy as np

from resilin.core.backends.base import ArrayBackend
from resilin.core.backends.meta import op_rules, products, shapes
from resilin.core.backends.meta.array import FUNCTIONS, MetaArray, fresh
from resilin.core.kernels.common import register_namespace
from resilin.errors import NoElements

HostArray = np.ndarray[Any, Any]


class MetaBackend(ArrayBackend):
    """Tensors of a shape and a dtype."""

    type = "meta"
    elements = False

    def __init__(self) -> None:
        self.xp = make_xp()
        register_namespace(MetaArray, self.xp, elements=False)

    def from_host(self, array: HostArray, index: int) -> MetaArray:
        """An array of the shape and dtype."""
        return fresh(array.shape, array.dtype)

    def empty(self, shape: tuple[int, ...], dtype: Any) -> MetaArray:
        """A new array."""
        return fresh(shape, dtype)

    def to_host(self, array: MetaArray) -> NoReturn:
        """Raise NoElements: there is nothing to copy."""
        raise NoElements("Cannot copy out of meta tensor; no data! Modules have to_empty(device=...)")

    def synchronize(self, index: int) -> None:
        """Nothing is ever computed."""


def make_xp() -> SimpleNamespace:
    """The rules as a namespace, with the extras of `backends/numpy.py`. The op registry adds what is missing."""
    found = {name: function for name, function in FUNCTIONS.items() if isinstance(name, str)}
    ufuncs = {
        name: value for name, value in vars(np).items() if isinstance(value, np.ufunc) and value.signature is None
    }
    made = SimpleNamespace(**{**found, **ufuncs})  # ufuncs ask their arguments for the rule, as their `reduce` does
    made.linalg, made.fft = products.LINALG, products.FFT
    made.conj = lambda x: (
        np.conjugate(x)
        if isinstance(x, MetaArray) and x.dtype.kind == "c"
        else (x if isinstance(x, MetaArray) else x.conjugate())
    )
    made.astype = lambda x, dtype: x.astype(dtype, copy=False)
    made.constant = lambda array, like: shapes.asarray(array, like.dtype)
    made.index_add_zeros, made.scatter_add_zeros = products.index_add_zeros, products.scatter_add_zeros
    made.matmul_add = products.matmul_add
    made.write_at = lambda out, index, value: out.__setitem__(index, value)
    made.from_host = _from_host
    made.to_host = _to_host
    made.rules = op_rules
    made.host = made
    return made


def _from_host(value: Any) -> Any:
    if isinstance(value, tuple | list):
        return type(value)(_from_host(part) for part in value)
    return fresh(value.shape, value.dtype) if isinstance(value, np.ndarray | np.generic) else value


def _to_host(value: Any) -> Any:
    if isinstance(value, MetaArray):
        value.item()
    return value
