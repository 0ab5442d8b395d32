"""Read what numpy's arrays, scalars and dtypes are pickled with, without numpy's own unpickling.

That sets whatever a pickle says as the inside of an array or dtype, and crashes where it is not what numpy writes.
Here a dtype is parsed: a code of numpy's, a byte order, and for records the names, dtypes and places of fields, of
which numpy makes the dtype as for anyone. An array is made of bytes only if their number is that of dtype and shape.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from typing import Any, Final

import ml_dtypes
import numpy as np

from resilin._base.pickles.costs import Costs
from resilin._base.pickles.unpickling import Allowed, Unbuilt
from resilin._base.text import shown
from resilin.core.state.copying import are_booleans

_CODE = re.compile(
    r"(?P<plain>b1|[iu][1248]|f(2|4|8|12|16)|c(8|16|24|32)|O[48])|(?P<time>[mM]8?)|(?P<sized>[SUV]\d{1,10})"
)
_UNITS = {b"generic", b"Y", b"M", b"W", b"D", b"h", b"m", b"s", b"ms", b"us", b"ns", b"ps", b"fs", b"as"}
_MOST_ITEM_BYTES = (1 << 31) - 1  # what numpy keeps
_MOST_NESTED, _MOST_FIELDS = (
    8,
    10_000,
)  # of records in records, and of their fields: numpy goes through them recursively
_ALIGNED = 0x80  # a flag of a dtype whose fields are where C puts them
_MOST_LETTER = 0x10FFFF


class _Dtype(Unbuilt):
    """A dtype without byte order and fields, which its state has."""

    def __init__(self, code: str | type) -> None:
        super().__init__()
        self.code = code


class _Array(Unbuilt):
    """An array without anything."""


def _dtype(code: Any, align: Any = False, copy: Any = False) -> _Dtype:
    """numpy.dtype, as numpy pickles it: called with a code, and `copy`."""
    if type(align) not in (bool, int) or type(copy) not in (bool, int):
        raise TypeError(f"a numpy dtype is made with {shown(align)}, {shown(copy)}")
    if code is _BFLOAT16:
        return _Dtype(ml_dtypes.bfloat16)
    if type(code) is not str or not _CODE.fullmatch(code):
        raise TypeError(f"a numpy dtype is called {shown(code)}")
    return _Dtype(code)


def _set_dtype(costs: Costs, target: _Dtype, state: Any) -> Any:
    """The dtype: (version, order, subarray, names, fields, bytes, alignment, flags, metadata) is its state."""
    if type(state) is not tuple or not 8 <= len(state) <= 9 or type(state[0]) is not int or not 3 <= state[0] <= 4:
        raise TypeError(f"a numpy dtype has the state {shown(state)}")
    _, order, sub, names, fields, size, _, flags, *metadata = state
    if type(order) is not str or order not in ("<", ">", "|", "="):
        raise TypeError(f"a numpy dtype has the byte order {shown(order)}")
    if type(flags) is not int or type(size) is not int:
        raise TypeError(f"a numpy dtype has {shown(size)} bytes, flags {shown(flags)}")
    found = None if isinstance(target.code, type) else _CODE.fullmatch(target.code)
    if (sub is not None or names is not None or fields) and (found is None or target.code[:1] != "V"):  # type: ignore[index]
        raise TypeError(f"a numpy dtype of the kind {shown(target.code)} has fields or a shape")
    if found is None:
        return np.dtype(target.code)
    if found["time"]:
        return _time(costs, found["time"][0], order, metadata)
    if found["plain"]:
        made = np.dtype(found["plain"]).newbyteorder(order)  # type: ignore[arg-type]
    elif sub is not None:
        made = _subarray(sub)
    elif names is not None:
        made = _record(costs, names, fields, size, bool(flags & _ALIGNED))
    else:
        made = _sized(found["sized"][0], order, size)
    _check_extent(costs, made)
    return _with_notes(costs, made, metadata[0]) if metadata and metadata[0] else made


def _sized(kind: str, order: str, size: int) -> Any:
    """Text, bytes or raw memory of a fixed length."""
    letter = 4 if kind == "U" else 1
    if size % letter or not 0 <= size <= _MOST_ITEM_BYTES:
        raise ValueError(f"a numpy dtype {kind} has {shown(size)} bytes")
    return np.dtype(f"{order}{kind}{size // letter}")


def _time(costs: Costs, kind: str, order: str, metadata: list[Any]) -> Any:
    notes = metadata[0] if metadata else None
    if type(notes) is not tuple or len(notes) != 2 or type(notes[1]) is not tuple or len(notes[1]) != 4:
        raise TypeError(f"a numpy dtype of times has {shown(notes)}")
    unit, count, parts, _ = notes[1]
    unit = unit.encode() if type(unit) is str else unit
    counts = type(count) is int and 0 < count < 1 << 31 and type(parts) is int and parts == 1
    if type(unit) is not bytes or unit not in _UNITS or not counts:
        raise TypeError(f"a numpy dtype of times has the unit {shown(notes)}")
    step = "" if unit == b"generic" else f"[{count}{unit.decode()}]"
    made = np.dtype(f"{order}{kind}8{step}")
    return _with_notes(costs, made, notes[0]) if notes[0] else made


def _subarray(sub: Any) -> Any:
    if type(sub) is not tuple or len(sub) != 2 or not isinstance(sub[0], np.dtype):
        raise TypeError(f"a numpy dtype has parts {shown(sub)}")
    base, shape = sub
    lengths = _lengths((shape,) if type(shape) is int else shape)
    if base.itemsize * math.prod(length or 1 for length in lengths) > _MOST_ITEM_BYTES:
        raise ValueError(f"a numpy dtype has the shape {shown(lengths)}")
    return np.dtype((base, lengths))


def _record(costs: Costs, names: Any, fields: Any, size: int, align: bool) -> Any:
    """Of named fields: `fields` has a dtype, a place and maybe a title of each name, and again by title."""
    if type(names) is not tuple or type(fields) is not dict or not all(type(name) is str for name in names):
        raise TypeError(f"a numpy dtype has the fields {shown(names)}: {shown(fields)}")
    costs.spend(len(names) + len(fields))
    formats, offsets, titles = [], [], []
    for name in names:
        field = fields.get(name)
        if type(field) is not tuple or not 2 <= len(field) <= 3 or not isinstance(field[0], np.dtype):
            raise TypeError(f"a numpy dtype has a field {shown(name)}: {shown(field)}")
        title = field[2] if len(field) == 3 else None
        if type(field[1]) is not int or field[1] < 0 or type(title) not in (str, type(None)):
            raise TypeError(f"a numpy dtype has a field {shown(name)}: {shown(field)}")
        formats.append(field[0])
        offsets.append(field[1])
        titles.append(title)
    if not 0 <= size <= _MOST_ITEM_BYTES:
        raise ValueError(f"a numpy dtype has {shown(size)} bytes")
    described: dict[str, Any] = {"names": list(names), "formats": formats, "offsets": offsets, "itemsize": size}
    if any(title is not None for title in titles):
        described["titles"] = titles
    return np.dtype(described, align=align)  # type: ignore[call-overload]


def _check_extent(costs: Costs, dtype: Any) -> None:
    """ValueError for records too deep or wide: numpy compares, hashes and shows them field by field, recursively."""
    waiting, fields = [(dtype, 0)], 0
    while waiting:
        one, depth = waiting.pop()
        inner = [one.base] if one.subdtype else [one.fields[name][0] for name in one.names or ()]
        fields += len(inner)
        if depth > _MOST_NESTED or fields > _MOST_FIELDS:
            raise ValueError(
                f"a numpy dtype nests more than {_MOST_NESTED} levels or has more than {_MOST_FIELDS} fields"
            )
        waiting.extend([(part, depth + 1) for part in inner])
    costs.spend(fields)


def _with_notes(costs: Costs, dtype: Any, notes: Any) -> Any:
    costs.spend_for((notes,))
    plain = (str, bytes, int, float, bool, type(None))
    if type(notes) is not dict or not all(type(k) is str and type(v) in plain for k, v in notes.items()):
        raise TypeError(f"a numpy dtype has the notes {shown(notes)}")
    return np.dtype(dtype, metadata=notes)


def _lengths(shape: Any) -> tuple[int, ...]:
    if type(shape) is not tuple or not all(type(length) is int and 0 <= length < 1 << 63 for length in shape):
        raise TypeError(f"an array has the shape {shown(shape)}")
    if len(shape) > 64 or math.prod(length or 1 for length in shape) >= 1 << 60:
        raise ValueError(f"an array has the shape {shown(shape)}")
    return shape


def _reconstruct(kind: Any, shape: Any, code: Any) -> _Array:
    """numpy's way to an empty array, whose state follows."""
    if kind is not _NDARRAY or type(shape) is not tuple or type(code) is not bytes:
        raise TypeError(f"an array begins as {shown(shape)}, {shown(code)}")
    return _Array()


def _set_array(costs: Costs, target: _Array, state: Any) -> Any:
    """The array: (version, shape, dtype, whether in Fortran's order, its bytes or list of objects) is its state."""
    if (
        type(state) is not tuple
        or len(state) != 5
        or type(state[0]) is not int
        or state[0] != 1
        or type(state[3]) not in (bool, int)
    ):
        raise TypeError(f"an array has the state {shown(state)}")
    version, shape, dtype, fortran, data = state
    if type(version) is not int or version != 1 or type(fortran) not in (bool, int):
        raise TypeError(f"an array has the state {shown(state)}")
    order = "F" if fortran else "C"
    if _dtype_of(dtype).kind != "O":
        return _over(costs, bytearray(_raw(data)), dtype, shape, order)
    lengths = _lengths(shape)
    if type(data) is not list or len(data) != math.prod(lengths):
        raise TypeError(f"an array of {shown(lengths)} objects is made of {shown(data)}")
    made = np.empty(len(data), object)
    for place, value in enumerate(data):
        made[place] = value
    return np.asarray(made.reshape(lengths), order=order)  # type: ignore[call-overload]


def _from_buffer(costs: Costs, data: Any, dtype: Any, shape: Any, order: Any, axes: Any = None) -> Any:
    """numpy's way to an array that shares the memory of `data`."""
    if type(order) is not str or order not in ("C", "F", "K"):
        raise TypeError(f"an array has the order {shown(order)}")
    if axes is None or order != "K":
        return _over(costs, data, dtype, shape, "F" if order == "F" else "C")
    made = _over(costs, data, dtype, shape, "C")
    if type(axes) is not tuple or not all(type(axis) is int for axis in axes):
        raise TypeError(f"an array has the axes {shown(axes)}")
    return made.transpose(axes)


def _over(costs: Costs, data: Any, dtype: Any, shape: Any, order: Any) -> Any:
    """An array over the memory of `data`, whose length must be right, and whose content what numpy can show."""
    lengths, size = _lengths(shape), len(_raw(data))
    if _dtype_of(dtype).hasobject:
        raise TypeError("an array of records that hold objects: these are not read from memory")
    count = math.prod(lengths)
    if count * dtype.itemsize != size or dtype.shape:
        raise ValueError(f"an array of {shown(lengths)} of {dtype.itemsize} bytes each has {size} bytes")
    if not dtype.itemsize:
        costs.spend(count)  # elements without bytes cost their reader something, too
    made = np.ndarray(lengths, dtype, data, order=order)
    _check_content(costs, made)
    return made


def _check_content(costs: Costs, array: Any) -> None:
    """ValueError for booleans that are neither true nor false, and letters that are none."""
    if array.dtype.names is not None:
        costs.spend(len(array.dtype.names))
        for name in array.dtype.names:
            _check_content(costs, array[name])
    elif array.dtype.kind == "b":
        costs.spend(array.nbytes)  # fields of a record may lie over one another
        if not are_booleans(array):
            raise ValueError("an array of booleans holds other bytes than 0 and 1")
    elif array.dtype.kind == "U" and array.size and array.dtype.itemsize:
        costs.spend(array.nbytes)
        letters = np.ascontiguousarray(array).view(np.dtype(np.uint32).newbyteorder(array.dtype.byteorder))
        if (letters > _MOST_LETTER).any():
            raise ValueError("an array of text holds letters that are none")


def _scalar(costs: Costs, dtype: Any, data: Any) -> Any:
    """One of numpy's numbers."""
    if _dtype_of(dtype).kind == "O":
        raise TypeError("a scalar is an object")
    return _over(costs, bytearray(_raw(data)), dtype, (), "C")[()]


def _dtype_of(dtype: Any) -> Any:
    if not isinstance(dtype, np.dtype):
        raise TypeError(f"a numpy dtype is {shown(dtype)}")
    return dtype


def _raw(data: Any) -> Any:
    if type(data) is not bytes and type(data) is not bytearray:
        raise TypeError(f"an array is made of {shown(data)}")
    return data


def _no_call(*arguments: Any) -> Any:
    raise TypeError("a class of numpy's is called, which pickles only name")


_NDARRAY = Allowed("numpy.ndarray", _no_call)
_BFLOAT16 = Allowed("ml_dtypes.bfloat16", _no_call)
ARRAYS: Final[Mapping[tuple[str, str], Allowed]] = {
    ("numpy", "ndarray"): _NDARRAY,
    ("ml_dtypes", "bfloat16"): _BFLOAT16,
    ("numpy", "dtype"): Allowed("numpy.dtype", _dtype),
    **{
        (f"numpy.{core}.{module}", name): Allowed(f"numpy.{core}.{module}.{name}", call, counts)
        for core in ("core", "_core")
        for module, name, call, counts in (
            ("multiarray", "_reconstruct", _reconstruct, False),
            ("multiarray", "scalar", _scalar, True),
            ("numeric", "_frombuffer", _from_buffer, True),
        )
    },
}
ARRAY_STATES: Final[Mapping[type, Callable[[Costs, Any, Any], Any]]] = {_Dtype: _set_dtype, _Array: _set_array}
ARRAY_KEYS: Final = (
    frozenset({type(np.dtype(code)) for code in ("O", "S", "U", "V", "M8", "m8", "?", *"bhilqBHILQefdgFDG")})
    | {kind for kind in np.sctypeDict.values() if kind not in (np.void, np.object_)}
    | {ml_dtypes.bfloat16, type(np.dtype(ml_dtypes.bfloat16))}
)
