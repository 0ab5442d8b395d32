"""Reduction operators, dtype codes and their numpy arithmetic: the reference for the native loops."""

from __future__ import annotations

from collections.abc import Callable
from enum import IntEnum
from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt

from resilin.errors import UsageError

Array = npt.NDArray[Any]


class ReduceOp(IntEnum):
    """How `all_reduce` and friends combine elements; the names of torch.distributed.ReduceOp."""

    SUM = 0
    AVG = 1
    PRODUCT = 2
    MIN = 3
    MAX = 4
    BAND = 5
    BOR = 6
    BXOR = 7


# Wire codes of dtypes: fixed for ever, shared with native/reduce.hpp. Never reuse one.
_CODES: tuple[type, ...] = (
    np.bool_,
    np.uint8,
    np.int8,
    np.uint16,
    np.int16,
    np.uint32,
    np.int32,
    np.uint64,
    np.int64,
    np.float16,
    ml_dtypes.bfloat16,
    np.float32,
    np.float64,
    np.complex64,
    np.complex128,
)
DTYPE_CODES: dict[np.dtype[Any], int] = {np.dtype(scalar): code for code, scalar in enumerate(_CODES)}
DTYPES: tuple[np.dtype[Any], ...] = tuple(DTYPE_CODES)
_HALF = {np.dtype(np.float16), np.dtype(ml_dtypes.bfloat16)}
_BITWISE = {ReduceOp.BAND, ReduceOp.BOR, ReduceOp.BXOR}

_COMBINE: dict[ReduceOp, Callable[..., Any]] = {
    ReduceOp.SUM: np.add,
    ReduceOp.AVG: np.add,
    ReduceOp.PRODUCT: np.multiply,
    ReduceOp.MIN: np.minimum,
    ReduceOp.MAX: np.maximum,
    ReduceOp.BAND: np.bitwise_and,
    ReduceOp.BOR: np.bitwise_or,
    ReduceOp.BXOR: np.bitwise_xor,
}


def check(given: Any, dtype: np.dtype[Any]) -> ReduceOp:
    """`given` as the ReduceOp it is, if that is defined for `dtype`; UsageError otherwise, before anything is sent."""
    try:
        op = ReduceOp(given)
    except ValueError:
        names = ", ".join(known.name for known in ReduceOp)
        raise UsageError(f"op: expected a ReduceOp, as in op=ReduceOp.SUM, got {given!r}; there are {names}") from None
    if dtype not in DTYPE_CODES:
        raise UsageError(f"collectives do not carry dtype {dtype}; they carry {', '.join(str(d) for d in DTYPES)}")
    if op in _BITWISE and dtype.kind not in "bui":
        raise UsageError(f"ReduceOp.{op.name} needs an integer or bool tensor, got {dtype}")
    if op in (ReduceOp.MIN, ReduceOp.MAX) and dtype.kind == "c":
        raise UsageError(f"ReduceOp.{op.name} is not defined for complex tensors, got {dtype}")
    if op is ReduceOp.AVG and dtype.kind == "b":
        raise UsageError("ReduceOp.AVG is not defined for bool tensors")
    return op


def array_bytes(array: Array) -> memoryview:
    """The bytes of a C-contiguous array, whatever its dtype."""
    return array.reshape(-1).view(np.uint8).data


def accumulator(array: Array, op: ReduceOp) -> Array:
    """The array that partial results live in: float32 for half types (a copy), `array` itself otherwise."""
    return array.astype(np.float32) if array.dtype in _HALF and op not in (ReduceOp.MIN, ReduceOp.MAX) else array


def combine(op: ReduceOp, into: Array, other: Array) -> None:
    """`into = into (op) other`, elementwise; AVG only adds, `finish` divides."""
    _COMBINE[op](into, other, out=into)


def finish(op: ReduceOp, array: Array, count: int) -> None:
    """Divide by `count` after the last `combine` of an AVG; integers are cut toward zero."""
    if op is not ReduceOp.AVG:
        return
    if array.dtype.kind in "ui":
        np.copyto(array, np.trunc(array / count).astype(array.dtype) if array.itemsize < 8 else _divide(array, count))
    else:
        np.divide(array, array.dtype.type(count), out=array)


def _divide(array: Array, count: int) -> Array:
    quotient = array // array.dtype.type(count)
    inexact = (array < 0) & (array % array.dtype.type(count) != 0)
    return np.asarray(quotient + inexact.astype(array.dtype))
