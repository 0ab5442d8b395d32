"""Weights as safetensors files, one or several with an index, as the PyTorch world exchanges them."""

from __future__ import annotations

import contextlib
import json
import logging
import math
import os
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from resilin._base import json_text, log
from resilin.checkpoint import safetensors
from resilin.checkpoint.open_storage import open_parent, open_storage
from resilin.checkpoint.safetensors import Entry, Layout
from resilin.checkpoint.storage import Item, Reading, Storage, checked, leftover
from resilin.core import dtype as dtypes
from resilin.core.argument_checks import whole
from resilin.core.dtype import dtype as DType
from resilin.core.tensor import Tensor, wrap
from resilin.errors import (
    CheckpointError,
    CorruptFile,
    StorageDenied,
    StorageError,
    StorageMissing,
    UsageError,
    UsageTypeError,
)

_LOG = log.logger("checkpoint")
SINGLE = "model.safetensors"
INDEX = "model.safetensors.index.json"
MAX_SHARD_BYTES = 5_000_000_000  # as model hubs divide files
_SHARD = re.compile(r"model-([0-9a-f]{8}-)?\d{5}-of-\d{5}\.safetensors")
_MAX_INDEX_BYTES = safetensors.MAX_HEADER_BYTES
_ATTEMPTS = 3  # of reading a model that is replaced meanwhile


def save_safetensors(
    state_dict: Mapping[str, Tensor],
    path: str | os.PathLike[str],
    *,
    metadata: Mapping[str, str] | None = None,
    max_shard_bytes: int = MAX_SHARD_BYTES,
    options: Mapping[str, Any] | None = None,
) -> None:
    """Write the tensors of `state_dict` under their names, which PyTorch's modules share, for safetensors readers.

    path:            a path or URL. One that ends in `.safetensors` is one file. Any other is a folder, which gets
                     `model.safetensors`, or, for more than `max_shard_bytes` (of elements), files
                     `model-00001-of-00003.safetensors`, ... and `model.safetensors.index.json`, which names them.
    metadata:        texts by names for the files' headers; {"format": "pt"}, which readers expect, unless given.
    max_shard_bytes: tensors go to files in order; one that is larger has a file of its own.
    options:         for the storage of a URL, as of `checkpoint.save`.

    Atomic, file or folder: until all of the new model is on the medium, beside the old one, the old one is what loads;
    then the file, or the index, is replaced (or, with one file in place of several, the index deleted), and the old
    files are deleted. So there must be room for both. Where the old model has the names of the new files, those get an
    id, `model-1f0c88a2-00001-of-00003.safetensors`, which readers find by the index. A save that fails before that
    deletes what it had begun, and the folders that it made; what one that was killed left, the next save to the file or
    folder deletes, while what another is writing stays.

    Each tensor is written in C order whatever its strides; tensors that share memory are written once each. At most a
    piece of 16 MB is copied at a time, of a GPU's tensors one tensor.
    UsageError for what is no tensor, a name that is no text, a max_shard_bytes that is no integer of at least 1, or
    complex128, which the format lacks. The storage's errors, as StorageError with `errno` ENOSPC of a full disk.
    """
    if not isinstance(state_dict, Mapping):
        raise UsageTypeError(
            f"save_safetensors: expected a dict of tensors by their names, got {type(state_dict).__name__}"
        )
    for key, tensor in state_dict.items():
        if not isinstance(key, str) or not isinstance(tensor, Tensor):
            raise UsageTypeError(
                f"save_safetensors: {key!r:.100} is a {type(tensor).__name__}; expected tensors by their names, as a "
                "module's state_dict() has them; checkpoint.save takes nested states"
            )
    weights = {key: _InMemory(tensor) for key, tensor in state_dict.items()}
    write_weights(weights, path, metadata, max_shard_bytes, options)


class Weight(Protocol):
    """A tensor that is to be written: what it is, and its bytes in C order, piece by piece."""

    @property
    def dtype(self) -> DType:
        """Of its elements."""

    @property
    def shape(self) -> tuple[int, ...]:
        """Lengths of its dimensions."""

    def pieces(self) -> Iterator[memoryview]:
        """Its bytes; asked for once."""


def write_weights(
    state: Mapping[str, Weight],
    path: str | os.PathLike[str],
    metadata: Mapping[str, str] | None = None,
    max_shard_bytes: int = MAX_SHARD_BYTES,
    options: Mapping[str, Any] | None = None,
) -> None:
    """`save_safetensors` of tensors wherever they are."""
    for key, weight in state.items():
        if weight.dtype is dtypes.complex128:
            raise UsageError(
                f"save_safetensors: {key!r:.100} is complex128, which safetensors has not: view_as_real() it"
            )
    limit = whole("save_safetensors: max_shard_bytes", max_shard_bytes, least=1)
    metadata = {"format": "pt"} if metadata is None else metadata
    text = os.fspath(path)
    if text.endswith(".safetensors"):
        storage, name = open_parent(text, options)
        with _folders_undone(storage):
            _write_file(storage, name, state, metadata)
    else:
        storage = open_storage(text, options)
        with _folders_undone(storage):
            _write_folder(storage, state, metadata, limit)


def load_safetensors(
    path: str | os.PathLike[str],
    *,
    names: Iterable[str] | None = None,
    mmap: bool = False,
    options: Mapping[str, Any] | None = None,
) -> dict[str, Tensor]:
    """The tensors of a safetensors file, or of a folder of them with their index, by name, on the CPU.

    path:    a path or URL: a file, an index (`*.index.json`), or a folder with `model.safetensors.index.json` or
             `model.safetensors`.
    names:   only these, and nothing of the others is read; None: all. UsageError when one is not there.
    mmap:    the tensors lie in the file's pages, which are read when they are looked at; what is written to them stays
             in this process. The file must not be changed meanwhile. Local files only.
    options: for the storage of a URL, as of `checkpoint.load`.

    A model that is replaced while it is read is read again, up to three times. `module.load_state_dict(
    load_safetensors(path))` says what is missing or unexpected. Raises StorageMissing, CorruptFile (cut, damaged, not
    of the format; with the tensor's name), UsageError for a dtype that tensors here cannot have, which is only raised
    for tensors that are asked for.
    """
    wanted = None if names is None else list(dict.fromkeys(names))
    for left in reversed(range(_ATTEMPTS)):
        sources: list[Reading] = []
        try:
            found = _loaded(weight_files(path, options, sources), wanted, mmap, sources)
        except CheckpointError as error:  # perhaps of half an old model and half a new one
            moved = isinstance(error, StorageMissing) and left  # perhaps: one file became several, or the other way
            if not moved and all(source.is_as_it_was() for source in sources):
                raise
        else:
            if all(source.is_as_it_was() for source in sources):
                break
    else:
        raise CheckpointError(
            f"load_safetensors: {os.fspath(path)} was replaced each of the {_ATTEMPTS} times that it was read; load it "
            "when its writer is done"
        )
    absent = sorted(set(wanted or ()) - found.keys())
    if absent:
        raise UsageError(f"load_safetensors: {os.fspath(path)} has no tensor {', '.join(map(repr, absent))}")
    return {key: found[key] for key in wanted} if wanted is not None else found


# -- writing


class _InMemory:
    """A tensor as a Weight; one of a GPU comes to the host when its turn comes."""

    def __init__(self, tensor: Tensor) -> None:
        self._tensor = tensor
        self.dtype, self.shape = tensor.dtype, tuple(tensor.shape)

    def pieces(self) -> Iterator[memoryview]:
        return safetensors.chunks(self._tensor._dev.backend.to_host(self._tensor._array))


def _write(storage: Storage, name: str, state: Mapping[str, Weight], metadata: Mapping[str, str]) -> None:
    made = safetensors.layout([(key, one.dtype, one.shape) for key, one in state.items()], metadata)
    with storage.writing(name) as file:
        safetensors.stream(made, lambda key: state[key].pieces(), file.write)


@contextlib.contextmanager
def _folders_undone(storage: Storage) -> Iterator[None]:
    """Around writing: when it fails, the folders are removed that were not there before and hold nothing."""
    count = storage.missing_folders()
    try:
        yield
    except BaseException:
        with contextlib.suppress(StorageError):  # the reason is being raised already
            storage.remove_empty("", count)
        raise


def _write_file(storage: Storage, name: str, state: Mapping[str, Weight], metadata: Mapping[str, str]) -> None:
    """One file, and delete what those that were killed over it have left."""
    before = _leftovers(storage, name)
    _write(storage, name, state, metadata)
    try:
        for item in _leftovers(storage, name) if before else []:
            if item in before:  # what has grown is somebody's at work
                storage.delete_leftover(item.name)
    except StorageError as error:  # the new file is complete: this costs space, nothing else
        log.event(_LOG, logging.WARNING, "could not delete what was left of a file", path=name, error=str(error))


def _leftovers(storage: Storage, name: str) -> Sequence[Item]:
    try:
        return storage.leftovers(name)
    except StorageDenied:  # a folder that may be written to and not listed
        return []


def _write_folder(storage: Storage, state: Mapping[str, Weight], metadata: Mapping[str, str], limit: int) -> None:
    sizes = {key: math.prod(one.shape) * one.dtype.itemsize for key, one in state.items()}
    groups = _grouped(sizes, limit)
    earlier = [item.name for item in storage.list() if not item.is_folder and _is_of_a_model(item.name)]
    if len(groups) == 1:
        _write(storage, SINGLE, state, metadata)
        storage.delete(INDEX)  # from here on the new model is what readers find: they look for the index first
        storage.sync()  # before the files go that the index names
        _delete(storage, earlier, but=[SINGLE, INDEX])
        return
    names = _free_names(storage, len(groups))
    weight_map = {key: name for name, group in zip(names, groups, strict=True) for key in group}
    index = json.dumps(
        {"metadata": {"total_size": sum(sizes.values())}, "weight_map": weight_map}, indent=2, sort_keys=True
    )
    _write_shards(
        storage,
        [(name, {key: state[key] for key in group}) for name, group in zip(names, groups, strict=True)],
        metadata,
        index.encode() + b"\n",
    )
    _delete(storage, earlier, but=[INDEX])


def _write_shards(
    storage: Storage, shards: Sequence[tuple[str, Mapping[str, Weight]]], metadata: Mapping[str, str], index: bytes
) -> None:
    """Write the files and then the index, which makes them the model; when that fails, none of them stays."""
    try:
        for name, state in shards:
            _write(storage, name, state, metadata)
        storage.write(INDEX, index)
    except BaseException:
        with contextlib.suppress(StorageError):  # the reason is being raised already
            if not storage.exists(INDEX) or storage.read(INDEX) != index:  # else it has its name, and needs them
                _delete(storage, [name for name, _ in shards])
        raise


def _free_names(storage: Storage, count: int) -> list[str]:
    """Names for so many files that no file has: the index that is there, or a reader of it, may need those."""
    names = [f"model-{number:05}-of-{count:05}.safetensors" for number in range(1, count + 1)]
    if not any(storage.exists(name) for name in names):
        return names
    own = os.urandom(4).hex()
    return [f"model-{own}-{name.removeprefix('model-')}" for name in names]


def _grouped(sizes: Mapping[str, int], limit: int) -> list[list[str]]:
    """The names in order, cut where the bytes would come to more than `limit`."""
    groups: list[list[str]] = [[]]
    filled = 0
    for key, nbytes in sizes.items():
        if groups[-1] and filled + nbytes > limit:
            groups.append([])
            filled = 0
        groups[-1].append(key)
        filled += nbytes
    return groups


def _is_of_a_model(name: str) -> bool:
    """Whether it is a file of a model in a folder, or was to be one when its writer was killed."""
    name = leftover(name) or name
    return name in (SINGLE, INDEX) or _SHARD.fullmatch(name) is not None


def _delete(storage: Storage, names: Iterable[str], but: Collection[str] = ()) -> None:
    for name in names:
        if leftover(name):
            storage.delete_leftover(name)
        elif name not in but:
            storage.delete(name)


# -- reading


@dataclass(frozen=True)
class WeightFiles:
    """The files to read, each with the names of its tensors, or None: all that it has."""

    storage: Storage
    tensors: Mapping[str, list[str] | None]


def weight_files(
    path: str | os.PathLike[str], options: Mapping[str, Any] | None, sources: list[Reading]
) -> WeightFiles:
    """What lies at a path or URL. To `sources` comes the index, if it has one."""
    text = os.fspath(path)
    if text.endswith((".json", ".safetensors")) or ("://" not in text and os.path.isfile(text)):
        storage, name = open_parent(text, options)
        return WeightFiles(storage, _indexed(storage, name, sources) if text.endswith(".json") else {name: None})
    storage = open_storage(text, options)
    if storage.exists(INDEX):
        return WeightFiles(storage, _indexed(storage, INDEX, sources))
    if storage.exists(SINGLE):
        return WeightFiles(storage, {SINGLE: None})
    storage.list()  # says when there is not even a bucket
    raise StorageMissing(f"load_safetensors: {text} has neither {INDEX} nor {SINGLE}", text)


def _indexed(storage: Storage, name: str, sources: list[Reading]) -> dict[str, list[str] | None]:
    full = storage.full(name)
    sources.append(Reading(storage, name))
    if sources[-1].size > _MAX_INDEX_BYTES:
        raise CorruptFile(f"{full} has more than {_MAX_INDEX_BYTES} bytes: no index of tensors is so large", full)
    try:
        weights = json_text.parse(storage.read(name))["weight_map"]
        pairs = [(str(checked(file)), str(key)) for key, file in weights.items()]
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise CorruptFile(f"{full} is no index of safetensors files: {error!r:.200}", full) from None
    files: dict[str, list[str] | None] = {}
    for file, key in pairs:
        listed = files.setdefault(file, [])
        assert listed is not None
        listed.append(key)
    return files


def _loaded(files: WeightFiles, wanted: list[str] | None, mmap: bool, sources: list[Reading]) -> dict[str, Tensor]:
    """The tensors of these names. To `sources` comes every file that is read."""
    found: dict[str, Tensor] = {}
    for file, listed in files.tensors.items():
        keys = listed if wanted is None else [key for key in wanted if listed is None or key in listed]
        if keys != []:
            sources.append(Reading(files.storage, file))
            made = safetensors.read_layout(sources[-1])
            found.update(_tensors(sources[-1], made, keys, mmap, strict=listed is not None))
    return found


def _tensors(
    source: Reading, made: Layout, keys: list[str] | None, mmap: bool, strict: bool
) -> Iterator[tuple[str, Tensor]]:
    mapped = _mapped(source) if mmap else None
    for key in made.entries if keys is None else keys:
        entry = made.entries.get(key)
        if entry is None:
            if strict:
                raise CorruptFile(f"{source.name} has no tensor {key!r:.100}, which the index says it has", source.name)
            continue
        yield key, wrap(_array(source, entry) if mapped is None else _view(mapped, entry, source.name))


def _array(source: Reading, entry: Entry) -> Any:
    array = np.empty(entry.shape, entry.dtype.np)
    safetensors.read_into(source, entry, 0, array)
    return array


def _mapped(source: Reading) -> Any:
    mapped = source.map()
    if mapped is None:
        raise UsageError(f"load_safetensors: mmap=True needs a local file, {source.name} is none")
    return mapped


def _view(mapped: Any, entry: Entry, path: str) -> Any:
    """The tensor in the file's pages; a copy where it does not start at a multiple of its elements' size."""
    dtype: DType = entry.dtype
    data = mapped[entry.start : entry.stop]
    if data.ctypes.data % dtype.itemsize:
        data = data.copy()
    array = data.view(dtype.np).reshape(entry.shape)
    if dtype is dtypes.bool_:
        safetensors.check_booleans(array, entry.name, path)
    return array
