"""The safetensors format: headers made and checked, tensors as streams of bytes. Opens nothing itself.

A file (little-endian, tensors in C order):

    8 bytes   length N of the header
    N bytes   header, JSON: {"__metadata__": {text: text}, NAME: {"dtype": "F32", "shape": [2, 3],
              "data_offsets": [start, stop]}, ...}; offsets in bytes from the header's end; spaces may follow the JSON
    rest      the tensors' bytes, without a gap

`layout` says what a file of given tensors looks like before any byte of them is there, `stream` writes it piece by
piece, `read_layout` takes a file's header apart. A file is hostile until that has passed: sizes have caps, offsets
must cover the rest of the file exactly, and what is wrong is said with the file's and the tensor's name.
The format is documented at https://huggingface.co/docs/safetensors; the limit of a header is that of its first
implementation, so that each reads what the other writes.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Final, Protocol

import numpy as np

from resilin._base import json_text
from resilin._base.text import shown
from resilin.core import dtype as dtypes
from resilin.core.dtype import dtype as DType
from resilin.core.state.copying import are_booleans
from resilin.errors import CorruptFile, UsageError

MAX_HEADER_BYTES: Final = 100_000_000
CHUNK_BYTES: Final = 16 << 20  # of one write or read: large enough for any disk's full rate
_ALIGN = 64  # cache line: where the first tensor's bytes start
_METADATA = "__metadata__"
_MAX_DIMS = 64  # numpy's
_MAX_BYTES = 1 << 63  # what numpy counts lengths of memory in

_HELD: dict[str, DType] = {
    "BOOL": dtypes.bool_,
    "U8": dtypes.uint8,
    "U16": dtypes.uint16,
    "U32": dtypes.uint32,
    "U64": dtypes.uint64,
    "I8": dtypes.int8,
    "I16": dtypes.int16,
    "I32": dtypes.int32,
    "I64": dtypes.int64,
    "F16": dtypes.float16,
    "BF16": dtypes.bfloat16,
    "F32": dtypes.float32,
    "F64": dtypes.float64,
    "C64": dtypes.complex64,
}
_NAMES: dict[DType, str] = {held: name for name, held in _HELD.items()}
_BITS: dict[str, int] = {  # also of what the format has and tensors here have not: a file may be read but for these
    **{name: 8 * held.itemsize for name, held in _HELD.items()},
    **dict.fromkeys(("F8_E5M2", "F8_E4M3", "F8_E8M0", "F8_E5M2FNUZ", "F8_E4M3FNUZ"), 8),
    **dict.fromkeys(("F6_E2M3", "F6_E3M2"), 6),
    "F4": 4,
}


class Source(Protocol):
    """Where bytes of a file come from; `storage.Reading` is one."""

    @property
    def name(self) -> str:
        """For messages."""

    @property
    def size(self) -> int:
        """Bytes of the file."""

    def read(self, start: int, stop: int) -> bytes:
        """Bytes `[start, stop)`, all of them."""

    def read_into(self, start: int, buffer: memoryview) -> None:
        """Fill `buffer` with the bytes from `start` on."""


@dataclass(frozen=True, slots=True)
class Entry:
    """One tensor of a file. `start` and `stop` are bytes from the start of the file; `format_dtype` as in "F32"."""

    name: str
    format_dtype: str
    shape: tuple[int, ...]
    start: int
    stop: int

    @property
    def dtype(self) -> DType:
        """The elements' dtype. UsageError for one that tensors here cannot have."""
        held = _HELD.get(self.format_dtype)
        if held is None:
            raise UsageError(
                f"tensor {self.name!r} has elements of {self.format_dtype}, which resilin has not; it has "
                f"{', '.join(_HELD)}: convert it where it was made, or leave it out"
            )
        return held

    def numel(self) -> int:
        """Number of elements."""
        return math.prod(self.shape)


@dataclass(frozen=True)
class Layout:
    """What a file looks like: its tensors in the order of their bytes, and its size."""

    entries: Mapping[str, Entry]
    metadata: Mapping[str, str]
    data_start: int
    size: int
    header: bytes = field(repr=False, default=b"")  # with its length; empty when it was read and not made

    def __getitem__(self, name: str) -> Entry:
        try:
            return self.entries[name]
        except KeyError:
            raise UsageError(f"no tensor is called {name!r} in a file of {len(self.entries)} tensors") from None


# -- making


def carrier(dtype: DType) -> tuple[DType, int]:
    """As what elements of `dtype` are stored: the stored dtype, and how many of these make one element.

    The format has no complex128: such an element is two of float64. All others are themselves.
    """
    return (dtypes.float64, 2) if dtype is dtypes.complex128 else (dtype, 1)


def layout(
    tensors: Iterable[tuple[str, DType, Sequence[int]]], metadata: Mapping[str, str] = MappingProxyType({})
) -> Layout:
    """The layout of a file of `tensors`: (name, dtype, shape) each.

    Wide elements come first, otherwise the order given stays, and the first tensor starts at a multiple of 64: so each
    starts at a multiple of its element's size, and can be used where it lies in a mapped file.
    UsageError for a name twice, a dtype that the format lacks (see `carrier`), or a header above the format's limit.
    """
    head: dict[str, Any] = {_METADATA: dict(metadata)} if metadata else {}
    places: list[tuple[str, str, tuple[int, ...], int, int]] = []
    end = 0
    for name, dtype, shape in sorted(tensors, key=lambda tensor: -tensor[1].itemsize):
        stored = _NAMES.get(dtype)
        if stored is None:
            raise UsageError(f"tensor {name!r:.100} is {dtype}, which safetensors has not; store view_as_real() of it")
        if name in head or name == _METADATA:
            raise UsageError(f"tensor name {name!r} is taken{'' if name in head else ' by the format itself'}")
        lengths = tuple(int(length) for length in shape)
        begin, end = end, end + math.prod(lengths) * dtype.itemsize
        head[name] = {"dtype": stored, "shape": list(lengths), "data_offsets": [begin, end]}
        places.append((name, stored, lengths, begin, end))
    if not _are_texts(dict(metadata)):
        raise UsageError(f"layout: metadata should be texts by names, got {shown(metadata)}")
    try:
        text = json.dumps(head, separators=(",", ":"), ensure_ascii=False).encode()
    except UnicodeEncodeError as error:
        raise UsageError(f"layout: a name or text cannot be written as UTF-8: {error}") from None
    text += b" " * (-(8 + len(text)) % _ALIGN)
    if len(text) > MAX_HEADER_BYTES:
        raise UsageError(
            f"the header of {len(places)} tensors has {len(text)} bytes, the format's limit is {MAX_HEADER_BYTES}: "
            "divide them over several files"
        )
    base = 8 + len(text)
    entries = {name: Entry(name, stored, shape, base + a, base + b) for name, stored, shape, a, b in places}
    return Layout(entries, dict(metadata), base, base + end, len(text).to_bytes(8, "little") + text)


def chunks(array: Any, chunk_bytes: int = CHUNK_BYTES) -> Iterator[memoryview]:
    """The bytes of `array`'s elements in C order, in pieces of at most `chunk_bytes` (one element at the least).

    Contiguous memory is shown where it lies. Of any other (views with strides, transposed, expanded, reversed) no more
    than one piece at a time is copied.
    """
    if array.flags.c_contiguous:
        data = memoryview(array.reshape(-1).view(np.uint8)) if array.size else memoryview(b"")
        for start in range(0, len(data), max(1, chunk_bytes)):
            yield data[start : start + chunk_bytes]
        return
    row = array[0].nbytes
    if row > chunk_bytes:
        for part in array:
            yield from chunks(part, chunk_bytes)
        return
    step = max(1, chunk_bytes // max(1, row))
    for start in range(0, len(array), step):
        yield from chunks(np.ascontiguousarray(array[start : start + step]), chunk_bytes)


def stream(made: Layout, pieces_of: Callable[[str], Iterable[memoryview]], put: Callable[[memoryview], Any]) -> None:
    """Hand all bytes of the file of layout `made` to `put`, in order: of tensors what `pieces_of` their names gives.

    put: takes a piece, and must have done with it when it returns.
    UsageError when a tensor has another number of bytes than the layout says.
    """
    put(memoryview(made.header))
    for name, entry in made.entries.items():
        left = entry.stop - entry.start
        for piece in pieces_of(name):
            put(piece)
            left -= len(piece)
        if left:
            what = f"{entry.stop - entry.start - left} bytes, its layout {entry.stop - entry.start}"
            raise UsageError(f"tensor {name!r:.100} has {what}")


# -- reading


def read_layout(source: Source) -> Layout:
    """The checked layout of a file. CorruptFile says what is wrong with it, where, and what was expected."""
    if source.size < 8:
        raise _wrong(source, f"it has {source.size} bytes, the length of its header alone has 8")
    length = int.from_bytes(source.read(0, 8), "little")
    if length > MAX_HEADER_BYTES:
        raise _wrong(source, f"it announces a header of {length} bytes, the format's limit is {MAX_HEADER_BYTES}")
    if 8 + length > source.size:
        raise _wrong(source, f"it is cut short: a header of {length} bytes, a file of {source.size}")
    head = _parsed(source, source.read(8, 8 + length))
    metadata = head.pop(_METADATA, {})
    if not _are_texts(metadata):
        raise _wrong(source, f"{_METADATA} should be texts by names, got {shown(metadata)}")
    base = 8 + length
    entries = sorted((_entry(source, name, value, base) for name, value in head.items()), key=_place)
    end = base
    for entry in entries:
        if entry.start != end:
            what = f"{entry.start - end} bytes before it belong to none" if entry.start > end else "it overlaps another"
            raise _wrong(source, f"tensor {entry.name!r:.100} starts at byte {entry.start} instead of {end}: {what}")
        end = entry.stop
    if end != source.size:
        what = f"{source.size - end} bytes at its end belong to no tensor" if end < source.size else "it is cut short"
        raise _wrong(source, f"{what}: tensors end at byte {end}, the file has {source.size}")
    return Layout({entry.name: entry for entry in entries}, metadata, base, end)


def read(source: Source, entry: Entry, start: int = 0, stop: int | None = None) -> Any:
    """Elements `[start, stop)` in C order of the tensor `entry`: a flat array of its own memory.

    UsageError for elements that it has not, or a dtype that tensors cannot have; CorruptFile for booleans of 2
    or more.
    """
    stop = entry.numel() if stop is None else stop
    if not 0 <= start <= stop <= entry.numel():
        raise UsageError(
            f"{source.name}: tensor {entry.name!r:.100} has {entry.numel()} elements, not [{start}, {stop})"
        )
    array = np.empty(stop - start, entry.dtype.np)
    read_into(source, entry, start, array)
    return array


def read_into(source: Source, entry: Entry, start: int, array: Any) -> None:
    """Fill the contiguous `array`, whose dtype is the entry's, with its elements from `start` on."""
    data = memoryview(array.reshape(-1).view(np.uint8)) if array.size else memoryview(b"")
    place = entry.start + start * array.itemsize
    if place + len(data) > entry.stop:
        raise UsageError(f"{source.name}: tensor {entry.name!r:.100} ends before element {start + array.size}")
    for offset in range(0, len(data), CHUNK_BYTES):
        source.read_into(place + offset, data[offset : offset + CHUNK_BYTES])
    if array.dtype == np.bool_:
        check_booleans(array, entry.name, source.name)


def check_booleans(array: Any, name: str, path: str) -> None:
    """CorruptFile when bytes of booleans are neither 0 nor 1: what is computed with such is anything."""
    if not are_booleans(array):
        raise CorruptFile(f"{path}: tensor {name!r:.100} is boolean and has bytes that are neither 0 nor 1", path)


def _wrong(source: Source, what: str) -> CorruptFile:
    return CorruptFile(f"{source.name} is no intact safetensors file: {what}", source.name)


def _parsed(source: Source, text: bytes) -> dict[str, Any]:
    if text[:1] != b"{":
        raise _wrong(source, f"its header starts with {text[:1]!r}, expected b'{{'")
    try:
        head = json_text.parse(text.decode("utf-8"), pairs=_without_repeats)
    except ValueError as error:  # JSON's and Unicode's errors are ValueErrors
        raise _wrong(source, f"its header is damaged: {error!s:.200}") from None
    return dict(head)


def _without_repeats(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    made = dict(pairs)
    if len(made) != len(pairs):
        twice, _ = Counter(key for key, _ in pairs).most_common(1)[0]
        raise ValueError(f"{twice!r:.100} is there twice")
    return made


def _are_texts(metadata: Any) -> bool:
    return isinstance(metadata, dict) and all(isinstance(v, str) for pair in metadata.items() for v in pair)


def _entry(source: Source, name: str, value: Any, base: int) -> Entry:
    """The entry of one tensor, each value of a kind, and as many bytes as its shape and dtype need."""
    if not isinstance(value, dict) or set(value) != {"dtype", "shape", "data_offsets"}:
        raise _wrong(source, f"tensor {name!r:.100} should have dtype, shape and data_offsets, got {shown(value)}")
    stored, shape, offsets = value["dtype"], value["shape"], value["data_offsets"]
    if not isinstance(stored, str) or stored not in _BITS:
        raise _wrong(source, f"tensor {name!r:.100} has an unknown dtype {stored!r:.80}; known are {', '.join(_BITS)}")
    bits = math.prod(shape) * _BITS[stored] if _is_shape(shape, _BITS[stored]) else None
    if bits is None:
        raise _wrong(source, f"tensor {name!r:.100} has the impossible shape {shown(shape)}")
    if not _counts(offsets) or len(offsets) != 2 or offsets[0] > offsets[1]:
        raise _wrong(source, f"tensor {name!r:.100} has the impossible offsets {shown(offsets)}")
    if bits != 8 * (offsets[1] - offsets[0]):
        raise _wrong(
            source,
            f"tensor {name!r:.100}, {stored} of shape {shown(shape)}, needs {bits / 8:g} bytes, its offsets say "
            f"{offsets[1] - offsets[0]}",
        )
    return Entry(name, stored, tuple(shape), base + offsets[0], base + offsets[1])


def _is_shape(value: Any, bits: int) -> bool:
    """Whether numpy can have an array of such a shape, of elements of so many bits."""
    fits = _counts(value) and len(value) <= _MAX_DIMS
    return fits and math.prod(length or 1 for length in value) * bits < 8 * _MAX_BYTES


def _counts(values: Any) -> bool:
    return isinstance(values, list) and all(type(value) is int and value >= 0 for value in values)


def _place(entry: Entry) -> tuple[int, int]:
    return entry.start, entry.stop
