"""Nested Python data as one numpy array, read as PyTorch reads it: a sequence is a dimension, a tensor of one element
is a number, and the dtype is that to which all promote, in whatever order they come. Pure.

Two things are not as in PyTorch: arrays without dimensions are numbers wherever they stand, and what follows an empty
sequence must be empty, too, where PyTorch drops it.
"""

from __future__ import annotations

import functools
import math
import operator
from collections.abc import Mapping, Set
from itertools import chain
from typing import Any

import numpy as np

from resilin.core import dtype as dtypes
from resilin.core.state.size import Size
from resilin.errors import UsageError, UsageTypeError

_MOST_DIMENSIONS = 64  # numpy's limit; a list that holds itself has no end
_PLAIN = frozenset((bool, int, float, complex))
_ROWS = frozenset((list, tuple))
_PLAIN_AND_ROWS = _PLAIN | _ROWS
_NO_SEQUENCES = (np.generic, int, float, complex, str, bytes, Mapping, Set)


def array_of(data: Any, kind: Any, tensors: Any) -> np.ndarray[Any, Any]:
    """A new array of `data`, in the dtype `kind`, or for None in that of its numbers. `tensors`: the class of tensors.

    Raises: UsageTypeError for what is no number, UsageError for rows of different lengths, ValueError for tensors of
    several elements and integers beyond int64 without a dtype, RuntimeError for numbers that `kind` cannot hold,
    TypeError for complex numbers among real ones and floating point tensors among integers.
    """
    if kind is None and type(data) in _PLAIN and (type(data) is not int or -(2**63) <= data < 2**63):  # most calls
        return np.array(data, dtypes.of_number(data))
    sizes, leaves, kinds = ([], [data], {type(data)}) if type(data) in _PLAIN else _taken_apart(data, tensors)
    if isinstance(leaves, np.ndarray):
        return _of_arrays(leaves, kind).reshape(sizes)
    target = _inferred(leaves, kinds, tensors) if kind is None else kind
    if not kinds <= _PLAIN:
        leaves = [v if type(v) in _PLAIN else _number(v, target, tensors) for v in leaves]
        kinds = set(map(type, leaves))
    if target.kind not in "cb" and any(issubclass(kind, complex) for kind in kinds):
        raise TypeError(f"cannot make a tensor of dtype {dtypes.from_numpy(target)} of complex numbers: {data!r:.80}")
    if target.kind in "iu":
        if any(issubclass(kind, float) for kind in kinds):
            leaves = [_cut(v, target) if isinstance(v, float) else v for v in leaves]
        return _whole(leaves, target, kind is None).reshape(sizes)
    if target.kind == "V":  # bfloat16 takes no large integers
        return np.array(leaves, np.float64).astype(target).reshape(sizes)
    return np.array(leaves, target).reshape(sizes)


def number_of(where: str, value: Any) -> Any:
    """`value` as one of Python's numbers. UsageTypeError for what is none: None, text, sequences, arrays."""
    number = value.item() if isinstance(value, np.generic) else value
    if not isinstance(number, int | float | complex):
        raise UsageTypeError(f"{where}(): expected a number, got {type(value).__name__} {value!r:.80}")
    return number


def contents_of(data: tuple[Any, ...], tensors: Any) -> np.ndarray[Any, Any]:
    """The array that `Tensor(*data)` holds: zeros of these lengths, or a copy of the data, in the default dtype."""
    kind, first = dtypes.default_np(), data[0] if data else 0
    if len(data) != 1 or isinstance(first, int | Size):
        return np.zeros(first if isinstance(first, Size) else data or 0, kind)
    if first is None or (isinstance(first, float | complex) and not isinstance(first, np.generic)):
        raise UsageTypeError(f"Tensor(): data must be a sequence or an array (got {type(first).__name__}): use tensor")
    with np.errstate(all="ignore"):  # what is too large becomes inf without a word
        if isinstance(first, tensors | np.ndarray):
            return np.array(getattr(first, "_array", first), kind)
        return array_of(first, kind, tensors)


# ---- shape -----------------------------------------------------------------------------------------------------------


def _taken_apart(data: Any, tensors: Any) -> tuple[list[int], Any, set[type]]:
    """The length of each dimension, all numbers in order, and their types: a list, or an array of those of arrays or of
    none."""
    sizes: list[int] = []
    items: Any = [data]
    while True:
        kinds = set(map(type, items))
        if not kinds <= _PLAIN_AND_ROWS:
            items = [_opened(item, tensors) for item in items]
            kinds = set(map(type, items))
        first = items[0]
        if not _is_sequence(first, tensors):
            return sizes, items, kinds
        if isinstance(first, np.ndarray) and all(isinstance(a, np.ndarray) and a.shape == first.shape for a in items):
            return [*sizes, *first.shape], np.stack(_of_one_dtype(items)), kinds
        if len(sizes) == _MOST_DIMENSIONS:
            raise UsageError(f"too many dimensions: {type(data).__name__} is nested more than {len(sizes)} times")
        length = len(first)
        rows = items if kinds <= _ROWS else [_row(item, length, len(sizes), tensors) for item in items]
        for row in rows:
            if len(row) != length:
                raise UsageError(
                    f"expected sequence of length {length} at dim {len(sizes)} (got {len(row)}): the rows of a tensor "
                    "have equal lengths; pad them"
                )
        sizes.append(length)
        if not length:
            return sizes, np.zeros(0, _promoted({_dtype_of(item) for item in items})), kinds
        items = rows[0] if len(rows) == 1 else list(chain.from_iterable(rows))


def _opened(item: Any, tensors: Any) -> Any:
    """An object that gives its own array, as that; an array without dimensions as its number."""
    if not isinstance(item, (tensors, np.ndarray, np.generic)) and hasattr(item, "__array__"):
        item = np.asarray(item)
    return item[()] if isinstance(item, np.ndarray) and not item.ndim else item


def _is_sequence(item: Any, tensors: Any) -> bool:
    kind = type(item)
    if kind in _PLAIN_AND_ROWS or isinstance(item, np.ndarray):
        return kind not in _PLAIN
    if isinstance(item, (tensors, _NO_SEQUENCES)):
        return False
    return hasattr(kind, "__getitem__") and hasattr(kind, "__len__")


def _row(item: Any, length: int, dim: int, tensors: Any) -> Any:
    """The elements of what stands where a sequence is expected."""
    if type(item) in _ROWS:
        return item
    if _is_sequence(item, tensors) or (isinstance(item, tensors) and item._array.ndim):
        return list(item)
    raise UsageTypeError(f"expected a sequence of length {length} at dim {dim}, got {type(item).__name__} {item!r:.80}")


# ---- dtype -----------------------------------------------------------------------------------------------------------


def _promoted(kinds: Any) -> Any:
    """The dtype to which all promote: from the highest kind down, as integers need not agree below floats."""
    known = sorted((dtypes.from_numpy(kind) for kind in kinds), key=lambda kind: -kind.kind)
    return functools.reduce(dtypes.promote_np, [kind.np for kind in known])


def _dtype_of(item: Any) -> Any:
    """That of an empty array or tensor, for an empty sequence the default one."""
    item = getattr(item, "_array", item)
    return item.dtype if isinstance(item, np.ndarray) else dtypes.default_np()


def _of_one_dtype(arrays: list[np.ndarray[Any, Any]]) -> list[np.ndarray[Any, Any]]:
    target = _promoted({array.dtype for array in arrays})
    return [array.astype(target, copy=False) for array in arrays]


def _inferred(leaves: list[Any], kinds: set[type], tensors: Any) -> Any:
    found = set()
    for kind in kinds:
        if issubclass(kind, tensors):
            found |= {_dtype_of(v) for v in leaves if type(v) is kind}
        elif issubclass(kind, np.generic):  # before Python's own: np.float64 is a float, too
            found |= {v.dtype for v in leaves if type(v) is kind}
        elif issubclass(kind, bool | int | float | complex):
            found.add(dtypes.of_number(next(v for v in leaves if type(v) is kind)))
        else:
            raise _no_number(next(v for v in leaves if type(v) is kind), None)
    return _promoted(found) if found else dtypes.default_np()


# ---- numbers ---------------------------------------------------------------------------------------------------------


def _no_number(value: Any, kind: Any) -> UsageTypeError:
    if kind is not None:
        return UsageTypeError(
            f"cannot make a tensor of dtype {dtypes.from_numpy(kind)} of what is not a number: {value!r:.80}"
        )
    if isinstance(value, str | bytes):
        return UsageTypeError(f"cannot make a tensor of text: {value!r:.80}")
    return UsageTypeError(
        f"cannot make a tensor of {type(value).__name__}: it is no number, and no sequence or array of numbers"
    )


def _number(value: Any, kind: Any, tensors: Any) -> Any:
    """A tensor of one element, a number of numpy's or an object that is like one, as a Python number for `kind`."""
    if isinstance(value, tensors):
        return _of_tensor(value, kind)
    if isinstance(value, np.generic):
        number = value.item()
        if isinstance(number, np.generic):  # bfloat16's own
            number = float(number)
        if not isinstance(number, int | float | complex):
            raise _no_number(value, kind)
        return _part(number, kind)
    if isinstance(value, int | float | complex):
        return value
    if kind.kind in "iub" and hasattr(value, "__index__"):
        return operator.index(value)
    if kind.kind in "fVc" and (hasattr(value, "__float__") or hasattr(value, "__index__")):
        return float(value)
    raise _no_number(value, kind)


def _of_tensor(value: Any, kind: Any) -> Any:
    if value._array.size != 1:
        raise ValueError(
            "only one element tensors can be converted to Python scalars, got one of shape "
            f"{tuple(value.shape)} among the numbers: use stack or cat"
        )
    if kind.kind in "iub" and value._array.dtype.kind not in "iub":
        raise TypeError(
            f"only integer tensors of a single element can be converted to {dtypes.from_numpy(kind)} in a list, got "
            f"{value.dtype}: use stack, and convert its result"
        )
    return _part(value.item(), kind)


def _part(number: Any, kind: Any) -> Any:
    """A complex number as a real one, where `kind` is real. RuntimeError when there is something to lose."""
    complex_in_reals = isinstance(number, complex) and kind.kind not in "cb"
    return dtypes.number_for("tensor", number, kind) if complex_in_reals else number


def _whole(numbers: list[Any], kind: Any, inferred: bool) -> np.ndarray[Any, Any]:
    """Integers in an integer dtype. RuntimeError for what is too large, ValueError if the dtype was `inferred`."""
    try:
        return np.array(numbers, kind)
    except OverflowError:
        pass  # numpy has no -1 for uint8's 255; what else is too large is told below
    if inferred:
        large = next(v for v in numbers if not -(2**63) <= v < 2**63)
        raise ValueError(f"cannot make a tensor of {large}: int64 holds -2**63 to 2**63 - 1; give a dtype")
    return np.array([dtypes.number_for("tensor", v, kind) for v in numbers], kind)


def _cut(number: float, kind: Any) -> int:
    """A float without its fraction. RuntimeError for what is too large, and for NaN."""
    info = np.iinfo(kind)
    if not info.min <= number <= info.max:  # NaN neither
        raise RuntimeError(f"tensor(): the value {number!r} cannot be converted to {dtypes.from_numpy(kind)}")
    return math.trunc(number)


def _of_arrays(array: np.ndarray[Any, Any], kind: Any) -> np.ndarray[Any, Any]:
    """`array` in a dtype. RuntimeError where integers of `kind` cannot hold its numbers, as for each by itself."""
    if kind is None or kind == array.dtype:
        return array
    if kind.kind not in "iu" or array.dtype.kind == "b":
        return array.astype(kind)
    if array.dtype.kind not in "iu":
        return _whole([_cut(_part(v, kind), kind) for v in array.ravel().tolist()], kind, False)
    for number in (array.min(initial=0), array.max(initial=0)):
        dtypes.number_for("tensor", int(number), kind)
    return array.astype(kind)
