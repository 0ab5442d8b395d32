"""`import_torch`: the state dicts in `.pt` and `.pth` files, without PyTorch, and without running anything of the file.

PyTorch writes two kinds of files. Since 1.6, and now, an archive: a zip, uncompressed, with a folder that holds
`data.pkl` (the object; its tensors name their storage by a key), `data/KEY` (the bytes of each storage), `byteorder`.
Before, and with `_use_new_zipfile_serialization=False`: four pickles (a magic number, a version, facts of the machine,
the object), the list of keys, then of each storage its number of elements (8 bytes) and its bytes.
"""

from __future__ import annotations

import io
import os
import struct
import zipfile
import zlib
from collections.abc import Callable, Mapping
from typing import Any, BinaryIO, Final, Literal

import numpy as np

from resilin._base.pickles.unpickling import Unpickler
from resilin._base.text import shown
from resilin.checkpoint.open_storage import open_file
from resilin.checkpoint.safetensors import CHUNK_BYTES, Source, check_booleans
from resilin.checkpoint.storage import steady
from resilin.checkpoint.torch_names import KEYS, NAMES, STATES, Memory, StorageType
from resilin.checkpoint.trusting import TrustingUnpickler
from resilin.checkpoint.whole_torch import WholeUnpickler
from resilin.core import dtype as dtypes
from resilin.core.tensor import Tensor
from resilin.errors import CheckpointError, CorruptFile, UsageError

_MAGIC: Final = 0x1950A86A20F9469CFC6C
_PROTOCOL: Final = 1001
Place = Callable[[Tensor, str, int], Tensor]
EVERYTHING: Final = "everything"
Trusted = Mapping[str, Any] | Literal["everything"] | None
_LOCAL_HEADER = struct.Struct("<4s22xHH")  # of an entry of a zip: signature, lengths of name and extra field


def import_torch(path: str | os.PathLike[str], *, options: Mapping[str, Any] | None = None) -> Any:
    """The object that `torch.save` wrote to `path` (a path or URL): a state dict, or containers of several.

    options: for the storage of a URL, as of `checkpoint.load`.

    Tensors come with their names, dtypes, strides and requires_grad, on the CPU wherever they were; those that shared
    storage share memory. Module versions (`_metadata`) stay; OrderedDict, tuples, sets, Counter, Size, bytes and
    numbers come as they were, numpy's arrays and numbers and argparse.Namespace, too; dtypes as resilin's, devices as
    text.

    Raises UnsafePickle, with the name, when the file asks for anything else (whole modules, functions, quantized or
    sparse tensors): nothing of it is called or imported. CorruptFile when it is cut or damaged (the check
    sums of an archive are compared), CheckpointError when it is replaced while it is read, UsageError when it is no
    such file, or was written on a big-endian machine.
    """
    source = open_file(path, options)
    with steady([source]):
        return _imported(source)


def read_torch(file: str | os.PathLike[str] | bytes, name: str, place: Place, trusted: Trusted = None) -> Any:
    """As `import_torch`, of a path or of the bytes of a file that errors call `name`.

    place:   called with each tensor, the device it was on (as "cuda:0") and the bytes of its storage; gives what is to
             be there in its stead.
    trusted: classes and functions by full name that the pickle may call, too; EVERYTHING for all that it names. In a
             file of PyTorch before 1.6 they are called twice, the first time with tensors that have no values yet.
    """
    try:
        if isinstance(file, bytes):
            return _imported(_Bytes(file, name), place, trusted)
        source = open_file(file)
        with steady([source]):
            return _imported(source, place, trusted)
    except _NotPlaced as error:
        raise error.cause from None


class _Bytes:
    """The bytes of a file as its source."""

    def __init__(self, data: bytes, name: str) -> None:
        self._data, self.name, self.size = data, name, len(data)

    def read(self, start: int, stop: int) -> bytes:
        return self._data[start:stop]

    def read_into(self, start: int, buffer: memoryview) -> None:
        buffer[:] = memoryview(self._data)[start : start + buffer.nbytes]


class _NotPlaced(CheckpointError):
    """Carries what `place` raised, `cause`, past those that say a pickle is damaged."""

    def __init__(self, cause: Exception) -> None:
        super().__init__(str(cause))
        self.cause = cause


def read_pickle(data: bytes, tensors: Callable[[Any], Any], name: str, trusted: Mapping[str, Any]) -> Any:
    """The object of a pickle whose tensors have persistent ids; it may call what is `trusted`, by full name."""
    return TrustingUnpickler(data, tensors, name, trusted).load()


def _imported(source: Source, place: Place | None = None, trusted: Trusted = None) -> Any:
    start = source.read(0, min(source.size, 16))
    with io.BufferedReader(_File(source), 1 << 16) as file:
        if start[:4] in (b"PK\x03\x04", b"PK\x05\x06"):
            return _Archive(source, file, place, trusted).load()
        if start[:1] == b"\x80":
            return _Stream(source, file, place, trusted).load()
    hint = "; load_safetensors reads safetensors files" if source.name.endswith(".safetensors") else ""
    raise UsageError(
        f"import_torch: {source.name} starts with {start!r}, so it is no file of torch.save (of PyTorch 0.4 or later)"
        f"{hint}"
    )


class _File(io.RawIOBase):
    """A source of bytes as a file that can be read."""

    def __init__(self, source: Source) -> None:
        super().__init__()
        self._source, self._at = source, 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._at

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        base = {os.SEEK_SET: 0, os.SEEK_CUR: self._at, os.SEEK_END: self._source.size}[whence]
        if base + offset < 0:
            raise ValueError(f"a negative place, {base + offset}")
        self._at = base + offset
        return self._at

    def readinto(self, buffer: Any) -> int:
        left = memoryview(buffer).cast("B")[: max(0, self._source.size - self._at)]
        if left:
            self._source.read_into(self._at, left)
        self._at += len(left)
        return len(left)


class _Memories:
    """Storages by key, no more bytes together than the file has."""

    def __init__(self, source: Source, place: Place | None) -> None:
        self._source, self._place = source, place
        self._taken = 0
        self._checked: set[str] = set()
        self.by_key: dict[str, Any] = {}  # bytes
        self.named: set[str] = set()  # in this reading of the object

    def of(self, kind: Any, key: Any, location: Any, numel: Any, filled: Callable[[str, Any], Any]) -> Memory:
        """The storage `key` of `numel` elements; `filled` gives its bytes when it is asked for first."""
        if not isinstance(kind, StorageType) or type(key) is not str or type(numel) is not int or numel < 0:
            raise TypeError(f"a storage is described by {shown(kind)}, {shown(key)}, {shown(numel)}")
        nbytes = numel * kind.dtype.itemsize
        found = self.by_key.get(key)
        earned = 0 if key in self.named else nbytes
        self.named.add(key)
        if found is None:
            self._taken += nbytes
            if self._taken > self._source.size:
                raise ValueError(f"storages have {self._taken} bytes, the whole file {self._source.size}")
            found = self.by_key[key] = filled(key, np.empty(nbytes, np.uint8))
        if nbytes > len(found):
            raise ValueError(f"storage {key!r:.100} has {len(found)} bytes, not {nbytes}")
        return Memory(found, kind.dtype, earned, self._placing(location, len(found)))

    def _placing(self, location: Any, held: int) -> Callable[[Tensor], Tensor] | None:
        place = self._place
        if place is None:
            return None
        if type(location) is not str:
            raise TypeError(f"a storage is on {shown(location)}")

        def run(tensor: Tensor) -> Tensor:
            try:
                return place(tensor, location, held)
            except Exception as error:
                raise _NotPlaced(error) from error

        return run

    def check(self, key: str, memory: Memory) -> Memory:
        """`memory`, of key `key`, whose bytes are there by now."""
        if memory.dtype is dtypes.bool_ and key not in self._checked:
            check_booleans(memory.data, f"in storage {key}", self._source.name)
            self._checked.add(key)
        return memory


class _Archive:
    """A zip file: found in its directory, read from its source, so nothing is ever unpacked."""

    def __init__(self, source: Source, file: BinaryIO, place: Place | None, trusted: Trusted) -> None:
        self._source, self._trusted = source, trusted
        self._memories = _Memories(source, place)
        try:
            with zipfile.ZipFile(file) as archive:
                entries = archive.infolist()
        except (zipfile.BadZipFile, NotImplementedError, ValueError, OverflowError, struct.error, EOFError) as error:
            raise CorruptFile(f"{source.name} is no intact zip archive: {error}", source.name) from None
        self._entries = {entry.filename: entry for entry in entries}
        if len(self._entries) != len(entries):
            raise CorruptFile(f"{source.name}: the archive has two entries of one name", source.name)
        roots = [name.removesuffix("/data.pkl") for name in self._entries if name.endswith("/data.pkl")]
        if len(roots) != 1:
            raise UsageError(f"{source.name} is a zip archive, but none of torch.save: data.pkl is there {len(roots)}x")
        (self._root,) = roots

    def load(self) -> Any:
        """The object."""
        if f"{self._root}/constants.pkl" in self._entries:
            raise UsageError(
                f"{self._source.name} is a TorchScript program; save the state_dict() of the module, not the module"
            )
        order = self._bytes("byteorder") if f"{self._root}/byteorder" in self._entries else b"little"
        if order != b"little":
            raise UsageError(
                f"{self._source.name} was written on a machine with byte order {order!r:.20}, only b'little' is read: "
                "load it there by PyTorch and save it as safetensors, which are always little-endian"
            )
        data = io.BytesIO(self._bytes("data.pkl"))
        return _machine(data, self._memory, self._source.name, self._trusted).load()

    def _memory(self, saved: Any) -> Memory:
        if type(saved) is not tuple or len(saved) != 5 or saved[0] != "storage":
            raise TypeError(f"a storage is described by {shown(saved)}")
        _, kind, key, location, numel = saved
        memory = self._memories.of(kind, key, location, numel, lambda key, data: self._fill(f"data/{key}", data))
        return self._memories.check(key, memory)

    def _bytes(self, name: str) -> bytes:
        entry = self._entry(name)
        if entry.file_size > self._source.size:
            raise CorruptFile(f"{self._source.name}: entry {name} is larger than the file", self._source.name)
        return bytes(self._fill(name, np.empty(entry.file_size, np.uint8)))

    def _fill(self, name: str, data: Any) -> Any:
        """Fill `data` with all bytes of an entry, whose check sum must be right (PyTorch may leave it out: 0)."""
        entry = self._entry(name)
        path = self._source.name
        if entry.file_size != len(data):
            raise CorruptFile(f"{path}: entry {name} has {entry.file_size} bytes, expected {len(data)}", path)
        start = self._start(entry)
        if start + len(data) > self._source.size:
            raise CorruptFile(f"{path} is cut short: entry {name} would end at byte {start + len(data)}", path)
        check = 0
        for at in range(0, len(data), CHUNK_BYTES):
            piece = memoryview(data[at : at + CHUNK_BYTES])
            self._source.read_into(start + at, piece)
            check = zlib.crc32(piece, check) if entry.CRC else 0
        if check != entry.CRC:
            raise CorruptFile(
                f"{path}: entry {name} is damaged: its check sum is {check:#010x}, expected {entry.CRC:#010x}", path
            )
        return data

    def _entry(self, name: str) -> zipfile.ZipInfo:
        entry = self._entries.get(f"{self._root}/{name}")
        if entry is None:
            raise CorruptFile(f"{self._source.name}: the archive has no entry {name}", self._source.name)
        if entry.compress_type != zipfile.ZIP_STORED or entry.flag_bits & 1:
            raise CorruptFile(
                f"{self._source.name}: entry {name} is compressed or encrypted, which torch.save never does: unpack "
                "and save it by PyTorch",
                self._source.name,
            )
        return entry

    def _start(self, entry: zipfile.ZipInfo) -> int:
        at = entry.header_offset
        if not 0 <= at <= self._source.size - _LOCAL_HEADER.size:
            raise CorruptFile(f"{self._source.name}: entry {entry.filename} lies outside the file", self._source.name)
        head = self._source.read(at, at + _LOCAL_HEADER.size)
        signature, name, extra = _LOCAL_HEADER.unpack(head)
        if signature != b"PK\x03\x04":
            raise CorruptFile(f"{self._source.name}: entry {entry.filename} has no header", self._source.name)
        return int(at + _LOCAL_HEADER.size + name + extra)


class _Stream:
    """A file of PyTorch before 1.6. Its storages stand behind the object, so the object is read twice."""

    def __init__(self, source: Source, file: BinaryIO, place: Place | None, trusted: Trusted) -> None:
        self._source, self._file, self._trusted = source, file, trusted
        self._memories = _Memories(source, place)
        self._sizes: dict[str, int] = {}  # bytes of one element, by key
        self._filled = False

    def load(self) -> Any:
        """The object."""
        if self._plain() != _MAGIC:
            raise UsageError(f"{self._source.name} is a pickle, but none of torch.save")
        if self._plain() != _PROTOCOL:
            raise UsageError(f"{self._source.name} has another version than {_PROTOCOL}, the last one of such files")
        facts = self._plain()
        if type(facts) is not dict or facts.get("little_endian") is not True:
            raise UsageError(f"{self._source.name} was not written on a little-endian machine: {shown(facts)}")
        start = self._file.tell()
        _machine(self._file, self._memory, self._source.name, self._trusted).load()
        self._read_storages(self._plain())
        self._filled = True
        self._memories.named.clear()
        self._file.seek(start)
        return _machine(self._file, self._memory, self._source.name, self._trusted).load()

    def _plain(self) -> Any:
        return Unpickler(self._file, {}, _no_storage, self._source.name).load()

    def _memory(self, saved: Any) -> Memory:
        if type(saved) is not tuple or len(saved) != 6 or saved[0] != "storage":
            raise TypeError(f"a storage is described by {shown(saved)}")
        _, kind, key, location, numel, view = saved
        memory = self._memories.of(kind, key, location, numel, lambda key, data: data)
        self._sizes.setdefault(key, memory.dtype.itemsize)
        if self._filled:
            self._memories.check(key, memory)
        if view is None:
            return memory
        _, offset, length = view
        if not (type(offset) is int and type(length) is int and 0 <= offset <= offset + length <= numel):
            raise ValueError(f"a view of storage {key!r:.100} of {numel} elements has {shown(view)}")
        size = memory.dtype.itemsize
        return Memory(memory.data[offset * size : (offset + length) * size], memory.dtype, memory.earned, memory.place)

    def _read_storages(self, keys: Any) -> None:
        """Fill all memory that tensors refer to, none else, from the storages in their order."""
        by_key = self._memories.by_key
        if type(keys) is not list or len(keys) != len(by_key) or set(map(str, keys)) != set(by_key):
            raise CorruptFile(f"{self._source.name}: its storages are not those of its tensors", self._source.name)
        at = self._file.tell()
        for key in keys:
            data = by_key[key]
            if at + 8 + len(data) > self._source.size:
                raise CorruptFile(f"{self._source.name} is cut short in storage {key!r:.100}", self._source.name)
            count = int.from_bytes(self._source.read(at, at + 8), "little")
            if count * self._sizes[key] != len(data):
                raise CorruptFile(
                    f"{self._source.name}: storage {key!r:.100} has {count} elements, expected "
                    f"{len(data) // self._sizes[key]}",
                    self._source.name,
                )
            at += 8
            for piece in range(0, len(data), CHUNK_BYTES):
                self._source.read_into(at + piece, memoryview(data[piece : piece + CHUNK_BYTES]))
            at += len(data)


def _machine(file: Any, memory: Callable[[Any], Memory], name: str, trusted: Trusted) -> Unpickler | WholeUnpickler:
    if trusted == EVERYTHING:
        return WholeUnpickler(file, memory, name)
    if trusted is not None:
        return TrustingUnpickler(file, memory, name, trusted)
    return Unpickler(file, NAMES, memory, name, states=STATES, keys=KEYS)


def _no_storage(saved: Any) -> Any:
    raise TypeError(f"there is no storage yet, {shown(saved)} asks for one")
