"""What the kernels share: the array type and the dtype they compute in."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from resilin.core.kernels.loader import kernel

Array = NDArray[Any]

_FLOAT32 = np.dtype(np.float32)
_address = kernel("memory_address")


def compute_dtype(dtype: np.dtype[Any]) -> np.dtype[Any]:
    """The dtype sums are kept in: float32 for 16-bit floats, else the dtype itself."""
    return _FLOAT32 if dtype.itemsize == 2 else dtype


_NAMESPACES: dict[type, Any] = {}
_WITHOUT_ELEMENTS: set[type] = set()


def register_namespace(kind: type, xp: Any, elements: bool = True) -> None:
    """Let `array_namespace` give `xp` for arrays of type `kind`; `elements`: whether they have some to look at."""
    _NAMESPACES[kind] = xp
    if not elements:
        _WITHOUT_ELEMENTS.add(kind)


def has_elements(array: Any) -> bool:
    """Whether there is something in `array` to look at: not on the meta device."""
    return type(array) not in _WITHOUT_ELEMENTS


def array_namespace(array: Any) -> Any:
    """The functions that work on `array`: numpy's, or those of the backend that registered the array's type.

    For code that is given arrays and no `xp`: references of kernels, constants of a rule that is being recorded.
    """
    return _NAMESPACES.get(type(array), np)


def is_readable(array: Any) -> bool:
    """Whether there are elements to look at: not in an empty array, and not on the meta device."""
    return bool(array.size) and has_elements(array)


def is_array(value: Any) -> bool:
    """Whether `value` is an array of numpy's, or of a backend that registered the type."""
    return isinstance(value, np.ndarray) or type(value) in _NAMESPACES


def address_of(array: Any) -> int:
    """Where an array's first element lies: in the host's memory, or in its device's."""
    at: int | None = _address(array)
    if at is not None:
        return at
    return int(array.__array_interface__["data"][0] if isinstance(array, np.ndarray) else array.data.ptr)
