"""Between float32 and the 16-bit floats, rounding to nearest, ties to even. NaN stays NaN, overflow gives infinity."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np

from resilin.core.kernels.common import Array
from resilin.core.kernels.loader import kernel

BFLOAT16 = np.dtype(ml_dtypes.bfloat16)
_FLOAT16, _FLOAT32 = np.dtype(np.float16), np.dtype(np.float32)  # one object each, as numpy keeps them

_native_pack_float16 = kernel("pack_float16")
_native_pack_bfloat16 = kernel("pack_bfloat16")
_native_unpack_float16 = kernel("unpack_float16")
_native_unpack_bfloat16 = kernel("unpack_bfloat16")
_native_convert = kernel("convert_elements")


def to_float16(x: Array) -> Array:
    """x (float32) as float16."""
    bits: Array | None = _native_pack_float16(x)
    if bits is not None:
        return bits.view(np.float16)
    with np.errstate(over="ignore"):
        return x.astype(np.float16)


def to_bfloat16(x: Array) -> Array:
    """x (float32) as bfloat16."""
    bits: Array | None = _native_pack_bfloat16(x)
    return x.astype(BFLOAT16) if bits is None else bits.view(BFLOAT16)


def to_float32(x: Array) -> Array:
    """x (float16 or bfloat16) as float32; exact."""
    y: Array | None = None
    if x.dtype is _FLOAT16 or x.dtype == np.float16:
        y = _native_unpack_float16(x.view(np.uint16))
    elif x.dtype == BFLOAT16:
        y = _native_unpack_bfloat16(x.view(np.uint16))
    return x.astype(np.float32) if y is None else y


def is_half(x: Any) -> bool:
    """Whether `x` is one of numpy's arrays of 16-bit floats."""
    return isinstance(x, np.ndarray) and x.dtype.itemsize == 2 and x.dtype.kind in "fV"


def widened(x: Any) -> Any:
    """One of numpy's arrays of 16-bit floats as float32; anything else as it is."""
    return to_float32(x) if is_half(x) else x


def add(x: Any, y: Any) -> Any:
    """x + y; of arrays of one 16-bit type several times as fast as numpy's, with the same bits."""
    if is_half(x) and is_half(y) and x.dtype == y.dtype:
        return astype(to_float32(x) + to_float32(y), x.dtype)
    return x + y


def add_to(out: Any, x: Any) -> None:
    """out += x, as `add` does it."""
    if is_half(out) and is_half(x) and x.dtype == out.dtype:
        out[...] = add(out, x)
    else:
        out += x


def astype(x: Array, dtype: np.dtype[Any]) -> Array:
    """`x.astype(dtype)`, for every array; of one of numpy's numbers, which would warn of overflow, an array."""
    if isinstance(x, np.generic):
        x = np.asarray(x)
    if isinstance(x, np.ndarray):
        kind = x.dtype
        if kind is _FLOAT32 and dtype is _FLOAT16:
            return to_float16(x)
        if kind is _FLOAT32 and dtype is BFLOAT16:
            return to_bfloat16(x)
        if (kind is _FLOAT16 or kind is BFLOAT16) and dtype is _FLOAT32:
            return to_float32(x)
        converted: Array | None = _native_convert(x, dtype)
        if converted is not None:
            return converted
        if dtype.kind in "fcV" and x.dtype.itemsize > dtype.itemsize:
            with np.errstate(over="ignore"):  # infinite without a word, as in the forms above
                return x.astype(dtype)
    return x.astype(dtype)
