"""Define reduction operators, dtype codes and their numpy arithmetic: the reference for the native loops."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from enum import IntEnum
from numbers import Number
from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt

from resilin.errors import UsageError, UsageTypeError

Array = npt.NDArray[Any]


class ReduceOp(IntEnum):
    """Name how `all_reduce` and friends combine elements, as torch.distributed.ReduceOp does.

    Written as in a program, `ReduceOp.SUM`; the number, which peers compare, is `int(op)`.
    """

    SUM = 0
    AVG = 1
    PRODUCT = 2
    MIN = 3
    MAX = 4
    BAND = 5
    BOR = 6
    BXOR = 7
    PREMUL_SUM = 8
    """A sum of factors times tensors; made by `_make_nccl_premul_sum(factor)`, for it needs the factor."""

    def __str__(self) -> str:
        return f"ReduceOp.{self.name}"

    def __format__(self, spec: str) -> str:
        return format(str(self), spec)


class _ReduceOpsOldName:
    """`torch.distributed.reduce_op`, the name of ReduceOp before PyTorch 1.0, which warns as there."""

    def __getattr__(self, name: str) -> ReduceOp:
        found: ReduceOp = getattr(ReduceOp, name)
        warnings.warn(
            "`torch.distributed.reduce_op` is deprecated, please use `torch.distributed.ReduceOp` instead",
            FutureWarning,
            stacklevel=2,
        )
        return found


reduce_op = _ReduceOpsOldName()


@dataclass(frozen=True)
class PremulSum:
    """ReduceOp.PREMUL_SUM: each rank's tensor times its own `factor`, rounded to the dtype, then summed."""

    factor: Any

    def check(self, dtype: np.dtype[Any]) -> None:
        """UsageError for a factor that tensors of `dtype` cannot be multiplied with."""
        number = getattr(self.factor, "_array", self.factor)
        if np.iscomplexobj(number) and dtype.kind != "c":
            raise UsageError(f"ReduceOp.PREMUL_SUM: factor: expected a real number for {dtype}, got {self.factor!r}")
        try:
            np.ones(1, dtype) * number
        except (OverflowError, TypeError) as error:
            raise UsageError(f"ReduceOp.PREMUL_SUM: factor: expected a number for {dtype}: {error}") from None

    def scaled(self, array: Array) -> Array:
        """A copy of `array` times the factor, in its dtype."""
        flat = array.reshape(-1)  # what has no dimension would become a scalar
        product: Array = flat * getattr(self.factor, "_array", self.factor)
        return product.astype(array.dtype).reshape(array.shape)


def _make_nccl_premul_sum(factor: Any) -> PremulSum:
    """The op of PyTorch's name: a sum of `factor` times the tensor; a number or a tensor of one element.

    UsageTypeError for anything else. Unlike in PyTorch, every backend can do it, not only NCCL.
    """
    number = getattr(factor, "_array", factor)
    if not isinstance(number, Number) and getattr(number, "size", 0) != 1:
        raise UsageTypeError(f"premul_sum: factor: expected a number or a tensor of one element, got {factor!r}")
    return PremulSum(factor)


def supports_complex(reduceOp: Any) -> bool:
    """Return whether complex tensors can be reduced with this op: SUM, AVG, PRODUCT and PREMUL_SUM.

    PyTorch refuses PRODUCT, because it reduces real and imaginary parts apart; here the numbers are multiplied.
    """
    return isinstance(reduceOp, PremulSum) or ReduceOp(reduceOp) in _COMPLEX


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
_COMPLEX = {ReduceOp.SUM, ReduceOp.AVG, ReduceOp.PRODUCT, ReduceOp.PREMUL_SUM}
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
    ReduceOp.PREMUL_SUM: np.add,  # the factors are in the terms already
}


def check(given: Any, dtype: np.dtype[Any], function: str) -> ReduceOp:
    """The `op` of `function` as the ReduceOp it is, if that is defined for `dtype`; UsageError before anything is sent.

    For a PremulSum it is PREMUL_SUM: a sum of what `scaled` gives.
    """
    try:
        return _known(given, dtype)
    except UsageError as error:
        raise type(error)(f"{function}: {error}") from None


def _known(given: Any, dtype: np.dtype[Any]) -> ReduceOp:
    premultiplied = isinstance(given, PremulSum)
    try:
        op = ReduceOp.PREMUL_SUM if premultiplied else ReduceOp(given)
    except ValueError:
        names = ", ".join(known.name for known in ReduceOp)
        what = f"op: expected a ReduceOp, as in op=ReduceOp.SUM, got {given!r}; there are {names}"
        raise UsageTypeError(what) from None
    if op is ReduceOp.PREMUL_SUM and not premultiplied:
        raise UsageError("ReduceOp.PREMUL_SUM needs its factor: op=_make_nccl_premul_sum(factor)")
    if premultiplied and dtype.kind in "bui":
        raise UsageError(f"ReduceOp.PREMUL_SUM needs a floating-point or complex tensor, got {dtype}")
    if premultiplied:
        given.check(dtype)
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


def scaled(given: Any, array: Array) -> Array:
    """Return what is really summed: `array` itself, or for a PremulSum a copy times its factor."""
    return given.scaled(array) if isinstance(given, PremulSum) else array


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
