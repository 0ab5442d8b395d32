"""Small methods that say how a tensor lies in memory, add to its diagonal, or make another like it.

`METHODS` are methods of `Tensor`.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from resilin.core.api import shaping
from resilin.core.tensor import Tensor

METHODS = ["storage_offset", "sum_to_size", "fill_diagonal_", "is_set_to", "is_pinned", "apply_", "map_"]


def _start(array: Any) -> int:
    return int(array.__array_interface__["data"][0])


def storage_offset(self: Tensor) -> int:
    """How many elements before its first the memory starts: that of the tensor which this one is a view of."""
    base = self if self._view is None else self._view.base
    return (_start(self._array) - _start(base._array)) // self._array.itemsize


def sum_to_size(self: Tensor, *size: Any) -> Tensor:
    """Summed over the dimensions that broadcasting from `size` to this tensor's shape would add or stretch."""
    target = tuple(size[0]) if len(size) == 1 and isinstance(size[0], tuple | list) else size
    shape = self._array.shape
    extra = len(shape) - len(target)
    if extra < 0 or any(n not in (1, m) for n, m in zip(target, shape[max(extra, 0) :], strict=False)):
        raise RuntimeError(f"sum_to_size: size {tuple(target)} is not expandable to size {tuple(shape)}")
    stretched = [i + extra for i, n in enumerate(target) if n == 1 and shape[i + extra] != 1]
    dims = (*range(extra), *stretched)
    return self.sum(dims, keepdim=True).reshape(target) if dims else self


def fill_diagonal_(self: Tensor, fill_value: float, wrap: bool = False) -> Tensor:
    """Write one number on the main diagonal, of all dimensions; with `wrap`, again below in a tall matrix."""
    shape = self._array.shape
    if len(shape) < 2 or (len(shape) > 2 and len(set(shape)) > 1):
        raise RuntimeError(f"fill_diagonal_: expected a matrix or equal dimensions, got shape {tuple(shape)}")
    count = min(shape)
    rows = np.arange(count)
    if wrap and len(shape) == 2 and shape[0] > shape[1]:
        rows = np.arange(0, shape[0] * shape[1], shape[1] + 1)
        self[rows // shape[1], rows % shape[1]] = fill_value
    else:
        self[(rows,) * len(shape)] = fill_value
    return self


def is_set_to(self: Tensor, tensor: Tensor) -> bool:
    """Whether both show the same memory in the same way."""
    a, b = self._array, tensor._array
    return _start(a) == _start(b) and a.shape == b.shape and a.strides == b.strides


def is_pinned(self: Tensor, device: Any = None) -> bool:
    """False: no memory is pinned without a GPU."""
    return False


def apply_(self: Tensor, fn: Any) -> Tensor:
    """Write `fn` of each element, one at a time. For leaves outside the graph."""
    return _written(self, "apply_", [fn(v) for v in shaping.ravel(self.detach()).tolist()])


def map_(self: Tensor, tensor: Tensor, fn: Any) -> Tensor:
    """Write `fn(element, element of tensor)`, one at a time. For leaves outside the graph."""
    other = shaping.ravel(shaping.expand(tensor.detach(), self._array.shape)).tolist()
    values = shaping.ravel(self.detach()).tolist()
    return _written(self, "map_", [fn(a, b) for a, b in zip(values, other, strict=True)])


def _written(self: Tensor, name: str, values: list[Any]) -> Tensor:
    if self.requires_grad:
        raise RuntimeError(f"{name}: cannot be used on a tensor that requires grad; use detach()")
    made = np.array(values, dtype=self._array.dtype).reshape(self._array.shape)
    return self.copy_(self.new_tensor(made))
