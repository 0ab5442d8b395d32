"""Makes of an argument what its type in a schema says: a float of an int, a list of a tuple. Pure."""

from __future__ import annotations

import operator
import re
from collections.abc import Callable
from numbers import Number, Real
from typing import Any

import numpy as np

from resilin.core.device import device
from resilin.core.dtype import dtype
from resilin.core.state.size import Size
from resilin.core.tensor import Tensor

_LISTS = (list, tuple, range, Size)


class Mismatch(TypeError):
    """The argument is not of the type. Who called says where."""


def taker(kind: str) -> Callable[[Any], Any] | None:
    """What makes an argument of type `kind`, as schemas write types; Mismatch where it cannot. None: all is taken."""
    kind = re.sub(r"\([^)]*\)", "", kind)  # which memory it shares
    if kind.endswith("?"):
        inner = taker(kind[:-1])
        return inner and (lambda value: None if value is None else inner(value))
    found = re.fullmatch(r"(.*)\[(\d*)\]", kind)
    if found is None:
        return _TAKERS.get(kind)
    one = taker(found[1])
    return one and (lambda value: _list(value, one, found[1], may_be_one=bool(found[2])))


def shown(kind: str) -> str:
    """A type as errors name it: "List[int]" of "SymInt[]"."""
    kind = re.sub(r"\([^)]*\)", "", kind).replace("SymInt", "int")
    if kind.endswith("?"):
        return f"Optional[{shown(kind[:-1])}]"
    found = re.fullmatch(r"(.*)\[\d*\]", kind)
    return kind if found is None else f"List[{shown(found[1])}]"


def _list(value: Any, one: Callable[[Any], Any], kind: str, *, may_be_one: bool) -> list[Any]:
    if isinstance(value, _LISTS) or (isinstance(value, np.ndarray) and value.ndim == 1):
        return [one(each) for each in value]
    if isinstance(value, Tensor) and value.ndim == 1 and not kind.startswith("Tensor"):
        return [one(each) for each in value.tolist()]
    if may_be_one:
        return [one(value)]
    raise Mismatch


def _tensor(value: Any) -> Tensor | None:
    if value is None or isinstance(value, Tensor):
        return value
    raise Mismatch


def _number(value: Any) -> Any:
    """A number, also one that a tensor or an array of one element holds."""
    if isinstance(value, Tensor | np.ndarray | np.generic):
        if isinstance(value, Tensor) and value.is_meta:
            return value  # it has none
        if (value.numel() if isinstance(value, Tensor) else value.size) != 1:
            raise Mismatch
        return value.item()
    if isinstance(value, Number):
        return value
    raise Mismatch


def _int(value: Any) -> int:
    if hasattr(value, "__index__") and not isinstance(value, Tensor | np.ndarray):
        return operator.index(value)
    number = _number(value)
    if number is value and not isinstance(value, Tensor):  # a float or a complex number of Python's
        raise Mismatch
    return int(number)


def _float(value: Any) -> float:
    number = _number(value)
    if not isinstance(number, Real | Tensor):
        raise Mismatch
    return float(number)


def _bool(value: Any) -> bool:
    return bool(value is not None and _number(value))


def _str(value: Any) -> str:
    if not isinstance(value, str):
        raise Mismatch
    return value


def _scalar(value: Any) -> Any:
    if isinstance(value, dtype):
        return value
    if isinstance(value, Tensor):
        raise Mismatch
    return _number(value)


def _dtype(value: Any) -> Any:
    if not isinstance(value, dtype | int):
        raise Mismatch
    return value


def _device(value: Any) -> device:
    if not isinstance(value, device | str):
        raise Mismatch
    return device(value)


_TAKERS: dict[str, Callable[[Any], Any]] = {
    "Tensor": _tensor,
    "int": _int,
    "SymInt": _int,
    "float": _float,
    "bool": _bool,
    "str": _str,
    "Scalar": _scalar,
    "ScalarType": _dtype,
    "Device": _device,
}
