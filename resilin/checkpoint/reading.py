"""A checkpoint's tensors, read block by block and checked by hash before anybody sees them."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from resilin.checkpoint import folder
from resilin.checkpoint.flat import as_bytes
from resilin.checkpoint.manifest import File, Manifest, Place, hash_of
from resilin.checkpoint.safetensors import check_booleans
from resilin.checkpoint.sliced import Slices, check_range
from resilin.checkpoint.storage import Storage
from resilin.core.dtype import dtype as DType
from resilin.core.tensor import Tensor, wrap
from resilin.errors import CorruptFile, StorageMissing


@dataclass(frozen=True, slots=True)
class HashedBlock:
    """Elements [start, stop) of a tensor: `nbytes` bytes from `at` on in `file`, that have one hash."""

    tensor: int
    start: int
    stop: int
    file: File
    at: int
    nbytes: int
    hash: str


class Reader:
    """Reads the tensors of the checkpoint in `where` of a storage. Errors: CorruptFile, and the storage's."""

    def __init__(self, storage: Storage, where: str, manifest: Manifest) -> None:
        self.manifest = manifest
        self._storage, self._where = storage, where
        self._last: tuple[HashedBlock, Any] | None = (
            None  # the block that a part was cut from last: the next one may be, too
        )

    def blocks(self, tensors: Iterable[int]) -> list[HashedBlock]:
        """All blocks of these tensors, in the order of files and of bytes in them."""
        found = [block for number in tensors for place in self.manifest.places[number] for block in self._of(place)]
        return sorted(found, key=lambda block: (block.file.name, block.at))

    def blocks_of(self, file: File) -> list[HashedBlock]:
        """All blocks in one file, in the order of bytes."""
        found: list[HashedBlock] = []
        for piece in file.pieces:
            at = found[-1].at + found[-1].nbytes if found else file.data
            found += self._of(Place(file, piece, at))
        return found

    def _of(self, place: Place) -> Iterator[HashedBlock]:
        piece = place.piece
        itemsize = self.manifest.tensors[piece.tensor].dtype.itemsize
        step = self.manifest.head.block_bytes // itemsize
        for number, start in enumerate(range(piece.start, piece.stop, step)):
            stop = min(start + step, piece.stop)
            at = place.at + (start - piece.start) * itemsize
            yield HashedBlock(
                piece.tensor, start, stop, place.file, at, (stop - start) * itemsize, piece.hashes[number]
            )

    def runs(self, blocks: Sequence[HashedBlock]) -> Iterator[list[HashedBlock]]:
        """`blocks` in runs that one read of at most a block's size gets."""
        run: list[HashedBlock] = []
        for block in blocks:
            last = run[-1] if run else block
            joins = last.file is block.file and last.at + last.nbytes == block.at
            if run and not (joins and block.at + block.nbytes - run[0].at <= self.manifest.head.block_bytes):
                yield run
                run = []
            run.append(block)
        if run:
            yield run

    def read_into(self, run: Sequence[HashedBlock], buffer: memoryview) -> None:
        """Fill `buffer` with the bytes of a run; not checked yet."""
        first = run[0]
        try:
            self._storage.read_into(folder.joined(self._where, first.file.name), first.at, buffer)
        except CorruptFile as error:
            raise CorruptFile(f"{error}; tensor {self.name(first)!r:.100} lies there", self.path(first.file)) from None
        except StorageMissing as error:
            raise self._gone(error) from None

    def check(self, block: HashedBlock, found: str) -> None:
        """CorruptFile unless a block's bytes have the hash that the manifest tells."""
        if found != block.hash:
            raise CorruptFile(
                f"{self.path(block.file)}: tensor {self.name(block)!r:.100}, elements [{block.start}, {block.stop}), "
                f"bytes [{block.at}, {block.at + block.nbytes}): sha256 is {found[:16]}..., the manifest says "
                f"{block.hash[:16]}...; the file has changed since it was written: load another checkpoint",
                self.path(block.file),
            )

    def read(self, block: HashedBlock) -> Any:
        """The elements of a block, checked, as a flat numpy array of its own memory."""
        array = np.empty(block.stop - block.start, self.manifest.tensors[block.tensor].dtype.np)
        self.read_into([block], as_bytes(array))
        self.check(block, hash_of(array))
        if array.dtype == np.bool_:
            check_booleans(array, self.name(block), self.path(block.file))
        return array

    def part_into(self, tensor: int, start: int, out: Any) -> None:
        """Fill the flat array `out` with the elements of a tensor from `start` on; a block at a time is in memory."""
        stop = start + out.size
        for block in itertools.chain.from_iterable(map(self._of, self.manifest.places[tensor])):
            low, high = max(start, block.start), min(stop, block.stop)
            if low < high:
                if self._last is None or self._last[0] != block:
                    self._last = None
                    self._last = block, self.read(block)
                out[low - start : high - start] = self._last[1][low - block.start : high - block.start]

    def check_header(self, file: File) -> None:
        """CorruptFile unless the bytes before the tensors are those that were written."""
        try:
            data = self._storage.read(folder.joined(self._where, file.name), 0, file.data)
        except StorageMissing as error:
            raise self._gone(error) from None
        if hash_of(data) != file.header:
            raise CorruptFile(
                f"{self.path(file)}: its header, bytes [0, {file.data}), has changed since it was written: load "
                "another checkpoint",
                self.path(file),
            )

    def _gone(self, error: StorageMissing) -> StorageMissing:
        """Files were all there when reading began."""
        why = "the checkpoint was deleted, or replaced in its place, while it was read: load again"
        return StorageMissing(f"{error}; {why}", error.path, error.errno)

    def name(self, block: HashedBlock) -> str:
        """What the tensor of a block is called."""
        return self.manifest.tensors[block.tensor].name

    def path(self, file: File) -> str:
        """A file's full name."""
        return self._storage.full(folder.joined(self._where, file.name))


class Stored(Slices):
    """A tensor of a checkpoint as slices: all of it is here, and `part` reads what it is asked for."""

    def __init__(self, reader: Reader, tensor: int) -> None:
        self._reader, self._tensor = reader, tensor
        self._logical = reader.manifest.tensors[tensor]

    @property
    def shape(self) -> tuple[int, ...]:
        """Of the tensor."""
        return self._logical.shape

    @property
    def dtype(self) -> DType:
        """Of the elements."""
        return self._logical.dtype

    @property
    def start(self) -> int:
        """0."""
        return 0

    @property
    def stop(self) -> int:
        """The number of elements."""
        return self._logical.numel()

    def part(self, start: int, stop: int) -> Tensor:
        """Elements [start, stop) in memory of their own, on the CPU. CorruptFile, and the storage's errors."""
        check_range(self, start, stop)
        out = np.empty(stop - start, self.dtype.np)
        self._reader.part_into(self._tensor, start, out)
        return wrap(out)

    def __repr__(self) -> str:
        return f"<Stored {self._logical.name!r} shape={list(self.shape)} {self.dtype}>"
