"""What a checkpoint consists of: `Manifest`, its text, and every check of a text that somebody else wrote. Pure.

manifest.json is a JSON array of three, one per line:

    [{"format": ..., "version": 1, "id": ..., "serial": 7, "step": 40, "world_size": 2, "block_bytes": 16777216},
    {"tree": ..., "tensors": [[name, dtype, shape], ...], "files": [{"name", "size", "data", "header",
     "pieces": [[tensor, start, stop, [hash of each block]], ...]}, ...]},
    "sha256 of the two lines above"]

tree:    the state as `core.typed_json`, with {"$": "tensor", "v": number} in the place of a tensor (numpy's: "array").
pieces:  elements [start, stop) of a tensor, in the order of their bytes in the file, without a gap from byte `data` to
         the file's end; hashes are sha256 of each `block_bytes` of a piece. `header` is that of what is before `data`.
What a file of this format may name is only data files beside it, and of each tensor every element once, so nothing that
is read is larger than the files that are there.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NoReturn, TypeGuard

from resilin._base import json_text
from resilin._base.text import shown
from resilin.core import dtype as dtypes
from resilin.core.dtype import dtype as DType
from resilin.errors import CorruptFile

NAME: Final = "manifest.json"
MAX_BYTES: Final = 1 << 30
HEAD_BYTES: Final = 4096  # the first line is shorter
_FORMAT, _VERSION = "resilin-checkpoint", 1
_DATA_FILE = re.compile(r"data-\d{5,}-\d{3,}-[0-9a-f]{16}\.safetensors")
_PART_FILE = re.compile(r"part-\d{5,}-[0-9a-f]{16}\.json")
_ID = re.compile(r"[0-9a-f]{16}")
_HASH = re.compile(r"[0-9a-f]{64}")
_BLOCK_BYTES = range(1 << 10, (1 << 30) + 1)
MOST: Final = 1 << 62
_MAX_DIMS = 64  # numpy's


@dataclass(frozen=True, slots=True)
class Logical:
    """A tensor as a whole, whoever holds what of it."""

    name: str
    dtype: DType
    shape: tuple[int, ...]

    def numel(self) -> int:
        """Number of elements."""
        return math.prod(self.shape)


@dataclass(frozen=True, slots=True)
class Piece:
    """Elements [start, stop) of tensor number `tensor`. `hashes`: of each block of their bytes."""

    tensor: int
    start: int
    stop: int
    hashes: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class File:
    """A data file: a safetensors header of `data` bytes, whose hash is `header`, and the pieces' bytes up to `size`."""

    name: str
    size: int
    data: int
    header: str
    pieces: tuple[Piece, ...]


@dataclass(frozen=True, slots=True)
class Head:
    """What is known of a checkpoint before its content. serial: one more than that of every checkpoint before it."""

    id: str
    serial: int
    step: int | None
    world_size: int
    block_bytes: int


@dataclass(frozen=True, slots=True)
class Place:
    """Where a piece lies: byte `at` of the file."""

    file: File
    piece: Piece
    at: int


@dataclass(frozen=True)
class Manifest:
    """All of a checkpoint but the bytes of its tensors."""

    head: Head
    tree: Any
    tensors: tuple[Logical, ...]
    files: tuple[File, ...]
    places: tuple[tuple[Place, ...], ...] = field(init=False, repr=False)
    """For each tensor its pieces, in the order of elements."""

    def __post_init__(self) -> None:
        places: list[list[Place]] = [[] for _ in self.tensors]
        for file in self.files:
            at = file.data
            for piece in file.pieces:
                places[piece.tensor].append(Place(file, piece, at))
                at += (piece.stop - piece.start) * self.tensors[piece.tensor].dtype.itemsize
        ordered = tuple(tuple(sorted(found, key=lambda place: place.piece.start)) for found in places)
        object.__setattr__(self, "places", ordered)

    def nbytes(self) -> int:
        """Bytes of all tensors."""
        return sum(tensor.numel() * tensor.dtype.itemsize for tensor in self.tensors)

    def text(self) -> bytes:
        """The content of manifest.json."""
        head = self.head
        first = {"format": _FORMAT, "version": _VERSION, "id": head.id, "serial": head.serial, "step": head.step}
        first |= {"world_size": head.world_size, "block_bytes": head.block_bytes}
        second = {
            "tree": self.tree,
            "tensors": [[one.name, one.dtype.name, list(one.shape)] for one in self.tensors],
            "files": [file_record(file) for file in self.files],
        }
        lines = f"[{_dumped(first)},\n{_dumped(second)},\n".encode()
        return lines + f'"{hash_of(lines)}"]\n'.encode()


def hash_of(data: Any) -> str:
    """The hash that files and blocks have in a manifest.

    SHA-256: with the processor's instructions for it 1.8 GB/s a core where BLAKE2b makes 0.8 (and CRC-32, which misses
    one damaged block in 4e9, makes 4): benchmarks/results/checkpoint.md.
    """
    return hashlib.sha256(data).hexdigest()


def file_record(file: File) -> dict[str, Any]:
    """The JSON of a file."""
    pieces = [[piece.tensor, piece.start, piece.stop, list(piece.hashes)] for piece in file.pieces]
    return {"name": file.name, "size": file.size, "data": file.data, "header": file.header, "pieces": pieces}


def entry_name(logical: Logical, start: int, stop: int) -> str:
    """What elements [start, stop) are called in a safetensors file: as the tensor when they are all of it."""
    whole = start == 0 and stop == logical.numel() and not logical.name.endswith("]")
    return logical.name if whole else f"{logical.name}[{start}:{stop}]"


def _dumped(value: Any) -> str:
    return json.dumps(value, separators=(",", ":"), allow_nan=False)


# -- reading


def parse_head(text: bytes, path: str) -> Head:
    """The head of a manifest from its first bytes, unverified: for finding the newest. CorruptFile when it is none."""
    line, newline, _ = text.partition(b",\n")
    if not newline or not line.startswith(b"["):
        _wrong(path, f"it starts with {text[:20]!r}")
    return _head(_json(line[1:], path), path)


def parse(text: bytes, path: str) -> Manifest:
    """The manifest whose text this is, checked throughout. CorruptFile says what is wrong. `path` is for messages."""
    body, newline, last = text[:-1].rpartition(b"\n")
    told = last.removeprefix(b'"').removesuffix(b'"]').decode("ascii", "replace")
    if text[-1:] != b"\n" or not newline or not _is_hash(told):
        _wrong(path, "it is cut short: no hash at its end")
    if hash_of(body + newline) != told:
        _wrong(path, "its bytes do not have the hash at its end: they were changed after they were written")
    value = _json(text, path)
    if not isinstance(value, list) or len(value) != 3 or not isinstance(value[1], dict):
        _wrong(path, "expected a list of a head, a body and a hash")
    head = _head(value[0], path)
    if set(value[1]) != {"tree", "tensors", "files"}:
        _wrong(path, f"expected tree, tensors and files, got {shown(sorted(value[1]))}")
    tensors = _tensors(value[1]["tensors"], path)
    files = parse_files(value[1]["files"], tensors, head, path)
    manifest = Manifest(head, value[1]["tree"], tensors, files)
    _check_cover(manifest, path)
    return manifest


def _json(text: bytes, path: str) -> Any:
    try:
        return json_text.parse(text, finite=True, deepest=None)
    except ValueError as error:
        _wrong(path, f"it is no JSON: {error!r:.200}")


def _head(value: Any, path: str) -> Head:
    if not isinstance(value, dict) or value.get("format") != _FORMAT:
        _wrong(path, "its first line has no format of a checkpoint")
    if value.get("version") != _VERSION:
        _wrong(
            path,
            f"it is of version {shown(value.get('version'))}, this resilin reads version {_VERSION}: take a newer one",
        )
    step = value.get("step")
    if not (isinstance(value.get("id"), str) and _ID.fullmatch(value["id"])) or not (step is None or _is_count(step)):
        _wrong(path, f"its id {shown(value.get('id'))} or step {shown(step)} is impossible")
    serial, world_size, block_bytes = numbers = [value.get(key) for key in ("serial", "world_size", "block_bytes")]
    if not _is_count(serial) or not _is_count(world_size) or not world_size or not _is_count(block_bytes):
        _wrong(path, f"serial, world size and block size are {shown(numbers)}")
    if block_bytes not in _BLOCK_BYTES or block_bytes % 16:
        _wrong(path, f"a block size of {block_bytes} is impossible")
    return Head(value["id"], serial, step, world_size, block_bytes)


def _tensors(value: Any, path: str) -> tuple[Logical, ...]:
    if not isinstance(value, list):
        _wrong(path, "tensors should be a list")
    made = []
    for number, entry in enumerate(value):
        if not isinstance(entry, list) or len(entry) != 3 or not all(isinstance(text, str) for text in entry[:2]):
            _wrong(path, f"tensor {number} should have a name, a dtype and a shape, got {shown(entry)}")
        name, dtype, shape = entry
        if not _is_shape(shape):
            _wrong(path, f"tensor {name!r:.100} has the impossible shape {shown(shape)}")
        try:
            made.append(Logical(name, dtypes.by_name(dtype), tuple(shape)))
        except (KeyError, TypeError, ValueError, AttributeError):
            _wrong(path, f"tensor {name!r:.100} has the unknown dtype {dtype!r:.100}")
    return tuple(made)


def is_written_by_saves(name: str) -> bool:
    """Whether a finished file has a name that only saves give, beside the manifest: data, or one rank's list of it."""
    return bool(_DATA_FILE.fullmatch(name) or _PART_FILE.fullmatch(name))


def parse_files(value: Any, tensors: Sequence[Logical], head: Head, path: str) -> tuple[File, ...]:
    """The files of a manifest, or of one rank's part of it. CorruptFile when one is impossible by itself."""
    if not isinstance(value, list):
        _wrong(path, "files should be a list")
    files = tuple(_file(record, tensors, head, path) for record in value)
    if len({file.name for file in files}) != len(files):
        _wrong(path, "a file is there twice")
    return files


def _file(record: Any, tensors: Sequence[Logical], head: Head, path: str) -> File:
    if not isinstance(record, dict) or set(record) != {"name", "size", "data", "header", "pieces"}:
        _wrong(path, f"a file should have name, size, data, header and pieces, got {shown(record)}")
    name, size, data, header = (record[key] for key in ("name", "size", "data", "header"))
    if not isinstance(name, str) or not _DATA_FILE.fullmatch(name) or not name.endswith(f"-{head.id}.safetensors"):
        _wrong(path, f"{shown(name)} cannot be the name of a data file of this checkpoint")
    if not _is_count(size) or not _is_count(data) or not _is_hash(header):
        _wrong(path, f"size, start or hash of file {name!r:.100} is impossible")
    if not isinstance(record["pieces"], list):
        _wrong(path, f"the pieces of file {name!r:.100} should be a list")
    pieces = tuple(_piece(entry, tensors, head.block_bytes, name, path) for entry in record["pieces"])
    end = data + sum((piece.stop - piece.start) * tensors[piece.tensor].dtype.itemsize for piece in pieces)
    if end != size:
        _wrong(
            path, f"the pieces of file {name!r:.100} end at byte {end}, the file at {size}: they must cover it exactly"
        )
    return File(name, size, data, header, pieces)


def _piece(entry: Any, tensors: Sequence[Logical], block_bytes: int, name: str, path: str) -> Piece:
    if not isinstance(entry, list) or len(entry) != 4 or not all(map(_is_count, entry[:3])):
        _wrong(path, f"a piece of file {name!r:.100} should have tensor, start, stop and hashes, got {shown(entry)}")
    number, start, stop, hashes = entry
    if number >= len(tensors) or not start < stop <= tensors[number].numel():
        _wrong(path, f"file {name!r:.100} has elements [{start}, {stop}) of tensor number {number}, which has them not")
    blocks = -(-(stop - start) * tensors[number].dtype.itemsize // block_bytes)
    if not isinstance(hashes, list) or len(hashes) != blocks or not all(map(_is_hash, hashes)):
        _wrong(path, f"tensor {tensors[number].name!r:.100} should have {blocks} hashes in file {name!r:.100}")
    return Piece(number, start, stop, tuple(hashes))


def _check_cover(manifest: Manifest, path: str) -> None:
    """CorruptFile unless the pieces of each tensor have every element once."""
    for logical, places in zip(manifest.tensors, manifest.places, strict=True):
        end = 0
        for place in places:
            if place.piece.start != end:
                what = "are in no file" if place.piece.start > end else "are there twice"
                low, high = sorted((end, place.piece.start))
                _wrong(path, f"elements [{low}, {high}) of tensor {logical.name!r:.100} {what}")
            end = place.piece.stop
        if end != logical.numel():
            _wrong(path, f"elements [{end}, {logical.numel()}) of tensor {logical.name!r:.100} are in no file")


def _is_shape(value: Any) -> bool:
    """Whether it is a shape of fewer than `MOST` elements, not counting lengths of 0."""
    fits = isinstance(value, list) and len(value) <= _MAX_DIMS and all(map(_is_count, value))
    return fits and math.prod(length or 1 for length in value) < MOST


def _is_hash(value: Any) -> bool:
    return isinstance(value, str) and bool(_HASH.fullmatch(value))


def _is_count(value: Any) -> TypeGuard[int]:
    return type(value) is int and 0 <= value < MOST


def _wrong(path: str, what: str) -> NoReturn:
    raise CorruptFile(f"{path} is no intact manifest of a checkpoint: {what}", path)
