"""`verify`: reads every byte of a checkpoint and says what is wrong with it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, SupportsIndex

from resilin.checkpoint import folder, safetensors
from resilin.checkpoint.flat import as_bytes
from resilin.checkpoint.folder import Root
from resilin.checkpoint.manifest import File, Manifest, entry_name
from resilin.checkpoint.matching import stored_tree
from resilin.checkpoint.reading import Reader
from resilin.checkpoint.storage import Reading, Storage
from resilin.errors import CheckpointError, StorageDenied, StorageTimeout


@dataclass(frozen=True, slots=True)
class Problem:
    """One thing that is wrong. file: its full name; tensor: whose bytes are damaged, or None; what: the sentence."""

    file: str
    tensor: str | None
    what: str


def verify(path: Root, *, step: SupportsIndex | None = None, options: Mapping[str, Any] | None = None) -> list[Problem]:
    """Everything that is wrong with the checkpoint at `path` (as `load` takes it); empty: it will load.

    Reads all of it, a block at a time, and compares every hash. Raises CheckpointError when there is no complete
    checkpoint, CorruptFile when its manifest is damaged, StorageDenied and StorageTimeout.
    """
    storage = folder.opened(path, options)
    where = folder.folder_of(storage, folder.checked_step(step))
    return problems(storage, where, folder.read_manifest(storage, where))


def problems(storage: Storage, where: str, manifest: Manifest) -> list[Problem]:
    """What is wrong with the checkpoint in the folder `where`, as `verify`."""
    stored_tree(manifest, storage.full(where))
    reader = Reader(storage, where, manifest)
    return [problem for file in manifest.files for problem in _problems(storage, where, manifest, reader, file)]


def _problems(storage: Storage, where: str, manifest: Manifest, reader: Reader, file: File) -> Iterator[Problem]:
    path = reader.path(file)
    try:
        folder.check_file(storage, where, file)
    except CheckpointError as error:
        yield Problem(path, None, str(error))
        if not storage.exists(folder.joined(where, file.name)):
            return
    try:
        reader.check_header(file)
        _check_entries(Reading(storage, folder.joined(where, file.name)), manifest, file)
    except (StorageDenied, StorageTimeout):
        raise
    except CheckpointError as error:
        yield Problem(path, None, str(error))
    for block in reader.blocks_of(file):
        try:
            as_bytes(reader.read(block))
        except (StorageDenied, StorageTimeout):
            raise
        except CheckpointError as error:
            yield Problem(path, reader.name(block), str(error))


def _check_entries(source: Reading, manifest: Manifest, file: File) -> None:
    """CheckpointError unless the file, as safetensors, has the tensors that the manifest says, where it says."""
    layout = safetensors.read_layout(source)
    at = file.data
    expected = {}
    for piece in file.pieces:
        tensor = manifest.tensors[piece.tensor]
        end = at + (piece.stop - piece.start) * tensor.dtype.itemsize
        expected[entry_name(tensor, piece.start, piece.stop)] = (at, end)
        at = end
    found = {name: (entry.start, entry.stop) for name, entry in layout.entries.items()}
    if found != expected:
        wrong = sorted(name for name in expected.keys() | found.keys() if expected.get(name) != found.get(name))
        raise CheckpointError(f"{source.name}: its header and the manifest differ in {', '.join(wrong[:5])}")
