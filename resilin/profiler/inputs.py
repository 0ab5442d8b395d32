"""What was recorded of an operation's inputs, in the words of trace files."""

from __future__ import annotations

from typing import Any

from resilin._base.trace_ring import TensorInput

_DTYPES = {
    "f2": "c10::Half",
    "f4": "float",
    "f8": "double",
    "V2": "c10::BFloat16",
    "c8": "c10::complex<float>",
    "c16": "c10::complex<double>",
    "b1": "bool",
    "i1": "signed char",
    "i2": "short int",
    "i4": "int",
    "i8": "long int",
    "u1": "unsigned char",
    "u2": "unsigned short",
    "u4": "unsigned int",
    "u8": "unsigned long",
}


class Inputs:
    """The inputs of one operation, as lists of equal length: one entry for each input."""

    __slots__ = ("_recorded",)

    def __init__(self, recorded: list[Any] | None) -> None:
        self._recorded = recorded or []

    @property
    def shapes(self) -> list[list[int]]:
        """Of tensors their shape; of everything else, lists of tensors too, an empty list."""
        return [list(one.shape) if isinstance(one, TensorInput) else [] for one in self._recorded]

    @property
    def structured_shapes(self) -> list[Any]:
        """As `shapes`; of a list of tensors a list of their shapes."""
        return [_of_tensors(one, "shape") for one in self._recorded]

    @property
    def strides(self) -> list[Any]:
        """As `structured_shapes`, the strides in elements."""
        return [_of_tensors(one, "strides") for one in self._recorded]

    @property
    def dtypes(self) -> list[str]:
        """The element type of a tensor, "TensorList", "ScalarList", "Scalar", or "" for everything else."""
        return [_type_of(one) for one in self._recorded]

    @property
    def values(self) -> list[Any]:
        """Numbers, texts, and lists of them, as they are; None for everything else, in lists, too."""
        return [None if _is_tensors(one) else _value_of(one) for one in self._recorded]

    @property
    def concrete(self) -> list[str]:
        """Numbers, and lists of them, as text; "" for everything else."""
        return [_text_of(one) for one in self._recorded]


def _value_of(one: Any) -> Any:
    if isinstance(one, list):
        return [_value_of(item) for item in one]
    return None if one is ... or isinstance(one, TensorInput) else one


def _is_tensors(one: Any) -> bool:
    return isinstance(one, list) and bool(one) and all(isinstance(item, TensorInput) for item in one)


def _of_tensors(one: Any, name: str) -> list[Any]:
    if isinstance(one, TensorInput):
        return list(getattr(one, name))
    return [list(getattr(item, name)) for item in one] if _is_tensors(one) else []


def _type_of(one: Any) -> str:
    if isinstance(one, TensorInput):
        return _DTYPES.get(one.dtype, one.dtype)
    if isinstance(one, list):
        return "TensorList" if _is_tensors(one) else "ScalarList"
    return "Scalar" if isinstance(one, bool | int | float) else ""


def _text_of(one: Any) -> str:
    if isinstance(one, float):
        return f"{one:g}." if one.is_integer() and abs(one) < 1e6 else repr(one)
    if isinstance(one, bool | int | str):
        return str(one)
    if isinstance(one, list) and not _is_tensors(one):
        return "[" + ", ".join(_text_of(item) for item in one) + "]"
    return ""
