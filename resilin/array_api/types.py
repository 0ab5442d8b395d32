"""Data types in the standard's functions: converting, limits, kinds and what arithmetic gives."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from resilin.core import dtype as dtypes
from resilin.core.api.conversion import convert
from resilin.core.dtype import dtype as DType
from resilin.core.tensor import Tensor

SIGNED = (dtypes.int8, dtypes.int16, dtypes.int32, dtypes.int64)
UNSIGNED = (dtypes.uint8, dtypes.uint16, dtypes.uint32, dtypes.uint64)
REAL = (dtypes.float32, dtypes.float64)
COMPLEX = (dtypes.complex64, dtypes.complex128)
KINDS: dict[str, tuple[DType, ...]] = {
    "bool": (dtypes.bool_,),
    "signed integer": SIGNED,
    "unsigned integer": UNSIGNED,
    "integral": SIGNED + UNSIGNED,
    "real floating": REAL,
    "complex floating": COMPLEX,
    "numeric": SIGNED + UNSIGNED + REAL + COMPLEX,
}


@dataclass(frozen=True)
class FloatLimits:
    """What `finfo` gives; `dtype` is that of the real part."""

    bits: int
    eps: float
    max: float
    min: float
    smallest_normal: float
    dtype: DType


@dataclass(frozen=True)
class IntegerLimits:
    """What `iinfo` gives."""

    bits: int
    max: int
    min: int
    dtype: DType


def astype(x: Tensor, dtype: Any, /, *, copy: bool = True, device: Any = None) -> Tensor:
    """`x` converted to `dtype`, on `device`; itself when nothing changes and `copy` is False."""
    return convert.to(x, device=device, dtype=dtype, copy=copy)


def _dtype_of(value: Any) -> DType:
    return value.dtype if isinstance(value, Tensor) else dtypes.from_numpy(dtypes.to_numpy(value))


def can_cast(from_: Any, to: Any, /) -> bool:
    """Whether promotion leads from a dtype (or a tensor's) to `to`, so that no value is lost within a kind."""
    target = _dtype_of(to)
    try:
        return dtypes.promote_types(_dtype_of(from_), target) is target
    except RuntimeError:  # no dtype holds both
        return False


def finfo(type: Any, /) -> FloatLimits:
    """Limits of a floating point dtype, or of a tensor's; of the parts of a complex one. TypeError for integers."""
    info = dtypes.finfo(_dtype_of(type))
    real = _dtype_of(type).to_real()
    return FloatLimits(info.bits, info.eps, info.max, info.min, info.smallest_normal, real)


def iinfo(type: Any, /) -> IntegerLimits:
    """Limits of an integer dtype, or of a tensor's. TypeError for others."""
    info = dtypes.iinfo(_dtype_of(type))
    return IntegerLimits(info.bits, info.max, info.min, _dtype_of(type))


def isdtype(dtype: Any, kind: Any) -> bool:
    """Whether `dtype` is `kind`: a dtype, one of the standard's names of kinds, or one of a tuple of these."""
    if isinstance(kind, tuple):
        return any(isdtype(dtype, one) for one in kind)
    if isinstance(kind, str):
        if kind not in KINDS:
            raise ValueError(f"isdtype: no kind of dtypes is called {kind!r}; there are {', '.join(KINDS)}")
        return dtype in KINDS[kind]
    if not isinstance(kind, DType):
        raise TypeError(f"isdtype: expected a dtype, a kind's name or a tuple of these, got {type(kind).__name__}")
    return dtype is kind


def result_type(*arrays_and_dtypes: Any) -> DType:
    """The dtype of arithmetic between all; Python numbers never widen within a kind. ValueError for no dtype at all."""
    numbers = [v for v in arrays_and_dtypes if isinstance(v, bool | int | float | complex)]
    known = [_dtype_of(v) for v in arrays_and_dtypes if not isinstance(v, bool | int | float | complex)]
    if not known:
        raise ValueError("result_type: expected at least one tensor or dtype")
    found = known[0]
    for other in known[1:]:
        found = dtypes.promote_types(found, other)
    for number in numbers:
        found = _beside(found, number)
    return found


def _beside(found: DType, number: Any) -> DType:
    """The dtype of arithmetic between `found` and a Python number."""
    own = dtypes.from_numpy(dtypes.of_number(number))
    if own.kind <= found.kind:
        return found
    return dtypes.promote_types(found, own) if own.is_complex and found.is_floating_point else own


def promoted(*tensors: Tensor) -> tuple[Tensor, ...]:
    """The tensors in their common dtype."""
    target = result_type(*tensors)
    return tuple(convert.to(x, target) for x in tensors)
