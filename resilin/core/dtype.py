"""Data types: PyTorch's names over numpy's, and the promotion rules of the Python array API standard.

Promotion within a kind follows the standard's lattice; between kinds the higher kind wins (bool < integer < floating
point < complex), as in PyTorch: int64 + float32 is float32. Python scalars are weak: they never widen within a kind.
"""

from __future__ import annotations

import math
from typing import Any, Final

import ml_dtypes
import numpy as np

from resilin._base import place_finder
from resilin.core.kernels.loader import native

NpDtype = np.dtype[Any]

HELD_BY_FLOATS = 65504  # the largest number of float16: every floating dtype holds what is no larger
_KINDS = {"b": 0, "i": 1, "u": 1, "f": 2, "V": 2, "c": 3}


class dtype:
    """One data type. `np` is numpy's dtype for it; `itemsize` is in bytes."""

    __slots__ = ("is_complex", "is_floating_point", "is_signed", "itemsize", "kind", "name", "np")

    def __init__(self, name: str, np_dtype: Any) -> None:
        self.name: Final = name
        self.np: Final[NpDtype] = np.dtype(np_dtype)
        self.itemsize: Final = self.np.itemsize
        self.kind: Final = _KINDS[self.np.kind]
        self.is_floating_point: Final = self.kind == 2
        self.is_complex: Final = self.kind == 3
        self.is_signed: Final = self.np.kind not in "bu"

    def __repr__(self) -> str:
        return f"{place_finder.shown_root}.{self.name}"

    def __reduce__(self) -> tuple[Any, ...]:
        return by_name, (self.name,)

    def to_real(self) -> dtype:
        """The dtype of the real part."""
        return from_numpy(real_of(self.np))


bool_ = dtype("bool", np.bool_)
uint8 = dtype("uint8", np.uint8)
uint16 = dtype("uint16", np.uint16)
uint32 = dtype("uint32", np.uint32)
uint64 = dtype("uint64", np.uint64)
int8 = dtype("int8", np.int8)
int16 = dtype("int16", np.int16)
int32 = dtype("int32", np.int32)
int64 = dtype("int64", np.int64)
float16 = dtype("float16", np.float16)
bfloat16 = dtype("bfloat16", ml_dtypes.bfloat16)
float32 = dtype("float32", np.float32)
float64 = dtype("float64", np.float64)
complex64 = dtype("complex64", np.complex64)
complex128 = dtype("complex128", np.complex128)

ALL: Final = (bool_, uint8, uint16, uint32, uint64, int8, int16, int32, int64, float16, bfloat16, float32, float64)
ALL_COMPLEX: Final = (complex64, complex128)

_BY_NUMPY: dict[NpDtype, dtype] = {d.np: d for d in (*ALL, *ALL_COMPLEX)}
_BY_NAME: dict[str, dtype] = {d.name: d for d in (*ALL, *ALL_COMPLEX)}
_BY_PYTHON: dict[type, dtype] = {bool: bool_, int: int64, float: float64, complex: complex128}
_PROMOTED: dict[tuple[NpDtype, NpDtype], NpDtype] = {}

_LIMITS: dict[NpDtype, tuple[Any, Any]] = {bool_.np: (-math.inf, math.inf)}  # what elements hold, but for complex ones
for _known in ALL[1:]:
    _info_of: Any = np.iinfo if _known.kind == 1 else ml_dtypes.finfo
    _info = _info_of(_known.np)
    _LIMITS[_known.np] = (int(_info.min), int(_info.max)) if _known.kind == 1 else (float(_info.min), float(_info.max))

_default: dtype = float32
_default_np: NpDtype = float32.np
if native is not None:
    native.creation_dtype(_default)


def by_name(name: str) -> dtype:
    """The dtype called `name`, e.g. "float32". Raises TypeError for an unknown name."""
    try:
        return _BY_NAME[name]
    except KeyError:
        raise TypeError(f"no dtype is called {name!r:.80}; there are {', '.join(_BY_NAME)}") from None


def from_numpy(np_dtype: Any) -> dtype:
    """The dtype for a numpy dtype. Raises TypeError for what a tensor cannot hold (text, objects, longdouble, ...)."""
    try:
        return _BY_NUMPY[np_dtype]
    except (KeyError, TypeError):
        found = _BY_NUMPY.get(np.dtype(np_dtype).newbyteorder("="))
        if found is None:
            raise TypeError(f"a tensor cannot hold numpy dtype {np_dtype}; it can hold {', '.join(_BY_NAME)}") from None
        return found


def to_numpy(value: Any) -> NpDtype:
    """The numpy dtype for a resilin dtype, numpy dtype, Python type or name. Raises TypeError otherwise."""
    if type(value) is dtype:
        return value.np
    if isinstance(value, type) and value in _BY_PYTHON:
        return _BY_PYTHON[value].np
    if isinstance(value, str):
        return by_name(value).np
    return from_numpy(value).np


def of_number(number: Any) -> NpDtype:
    """The dtype of a tensor made of one Python number: the default one for floats."""
    if isinstance(number, bool | int):
        return bool_.np if isinstance(number, bool) else int64.np
    return _default_np if isinstance(number, float) else complex_of(_default_np)


def get_default_dtype() -> dtype:
    """The dtype of tensors made from Python floats; float32 at first."""
    return _default


def set_default_dtype(d: dtype) -> None:
    """Set the dtype of tensors made from Python floats. Raises TypeError unless it is a floating point dtype."""
    global _default, _default_np
    if type(d) is not dtype or not d.is_floating_point:
        raise TypeError(f"set_default_dtype: expected a floating point dtype, got {d!r}")
    _default, _default_np = d, d.np
    _PROMOTED.clear()
    if native is not None:
        native.creation_dtype(d)


def default_np() -> NpDtype:
    """numpy's dtype of the default dtype."""
    return _default_np


def complex_of(np_dtype: NpDtype) -> NpDtype:
    """The complex dtype whose parts hold `np_dtype`."""
    return complex128.np if np_dtype == float64.np or np_dtype == complex128.np else complex64.np


def real_of(np_dtype: NpDtype) -> NpDtype:
    """The dtype of the parts of a complex dtype; itself otherwise."""
    if np_dtype.kind != "c":
        return np_dtype
    return float64.np if np_dtype == complex128.np else float32.np


def promote_np(a: NpDtype, b: NpDtype) -> NpDtype:
    """The common dtype of two arrays. Raises RuntimeError for uint64 with a signed integer: none holds both."""
    if a == b:
        return a
    key = (a, b)
    found = _PROMOTED.get(key)
    if found is None:
        found = _PROMOTED[key] = _promote(a, b)
    return found


def _promote(a: NpDtype, b: NpDtype) -> NpDtype:
    kind_a, kind_b = _KINDS[a.kind], _KINDS[b.kind]
    if kind_a < kind_b:
        a, b, kind_a, kind_b = b, a, kind_b, kind_a
    if kind_a == 3 and kind_b == 2:
        return complex128.np if float64.np in (a, b) or a == complex128.np else complex64.np
    if kind_a != kind_b:
        return a
    if {a, b} == {float16.np, bfloat16.np}:
        return float32.np
    found = np.result_type(a, b)
    if kind_a == 1 and found.kind == "f":
        raise RuntimeError(f"no integer dtype holds both {a} and {b}; convert one of them with .to(...)")
    return found


def promote_types(type1: dtype, type2: dtype) -> dtype:
    """The dtype that arithmetic between the two gives."""
    _expect_dtypes("promote_types", type1, type2)
    return from_numpy(promote_np(type1.np, type2.np))


def can_cast(from_: dtype, to: dtype) -> bool:
    """Whether `from_` converts to `to` without leaving its kind (as in-place results must)."""
    _expect_dtypes("can_cast", from_, to)
    return from_.kind <= to.kind


def _expect_dtypes(where: str, *given: Any) -> None:
    for value in given:
        if not isinstance(value, dtype):
            raise TypeError(f"{where}(): expected a resilin.dtype, got {type(value).__name__}")


class finfo:
    """Limits of a floating point dtype: `eps`, `max`, `min`, `tiny`, `bits`, `resolution`."""

    def __init__(self, type: dtype | None = None) -> None:
        self.dtype = type or _default
        if self.dtype.kind < 2:
            raise TypeError(f"finfo() needs a floating point dtype, got {self.dtype!r}; use iinfo() for integers")
        real = real_of(self.dtype.np)
        of: Any = ml_dtypes.finfo if real == bfloat16.np else np.finfo
        info = of(real)
        self.bits = int(info.bits)
        self.eps, self.max, self.min = float(info.eps), float(info.max), float(info.min)
        self.tiny = self.smallest_normal = float(info.smallest_normal)
        self.resolution = 10.0**-info.precision

    def __repr__(self) -> str:
        return (
            f"finfo(resolution={self.resolution:g}, min={self.min:g}, max={self.max:g}, eps={self.eps:g}, "
            f"smallest_normal={self.tiny:g}, tiny={self.tiny:g}, dtype={self.dtype.name})"
        )


class iinfo:
    """Limits of an integer dtype: `max`, `min`, `bits`."""

    def __init__(self, type: dtype) -> None:
        if type.kind != 1:
            raise TypeError(f"iinfo() needs an integer dtype, got {type!r}; use finfo() for floating point")
        info = np.iinfo(type.np)
        self.dtype, self.bits, self.max, self.min = type, int(info.bits), int(info.max), int(info.min)

    def __repr__(self) -> str:
        return f"iinfo(min={self.min}, max={self.max}, dtype={self.dtype.name})"


def number_for(where: str, value: Any, kind: Any) -> Any:
    """`value`, if elements of the dtype `kind` can hold numbers like it; unsigned integers hold -1 as their largest.

    RuntimeError for 1j among real numbers, NaN among integers, and what is too large.
    """
    if type(value) in (int, float) and kind.kind == "f" and abs(value) <= HELD_BY_FLOATS:
        return value
    if type(value) is int and 0 <= value < 128 and kind.kind in "iu":  # int8 holds these, too
        return value
    if isinstance(value, np.generic):
        value = value.item()
    if not isinstance(value, int | float | complex):
        return value
    wrong = isinstance(value, complex) and value.imag and kind.kind not in "cb"
    if wrong or (isinstance(value, float) and kind.kind in "iu" and not math.isfinite(value)):
        raise RuntimeError(f"{where}(): the value {value!r} cannot be converted to {from_numpy(kind)}")
    if kind.kind in "cb":
        return value
    number = value.real
    low, high = _LIMITS.get(kind, _LIMITS[bool_.np])
    if low <= number <= high or not math.isfinite(number):
        return float(number) if kind.kind == "V" else number  # bfloat16 is made of no int beyond 64 bits
    if kind.kind == "u" and isinstance(number, int) and -high <= number < 0:
        return number + high + 1
    raise RuntimeError(f"{where}(): the value {value!r} cannot be converted to {from_numpy(kind)} without overflow")


def wrapped(where: str, number: int, kind: Any) -> int:
    """`number` as the integer dtype `kind` holds it: its lowest bits, as in PyTorch. OverflowError beyond 64 bits."""
    if not -(1 << 63) <= number < 1 << 64:
        raise OverflowError(f"{where}(): the number {number} does not fit into 64 bits")
    low, high = _LIMITS[kind]
    value: int = (number - low) % (high - low + 1) + low
    return value
