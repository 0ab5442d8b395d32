"""A rank's share of a checkpoint, written: data files, the hashes of their blocks, and the commit by who is last.

Every rank writes its files and then a part, `part-<rank>-<id>.json`, which lists them. Whoever finds the parts of all
ranks there writes the manifest: no rank waits for another, and no collective runs, so this can happen behind training
and even when the group is gone. Of several that are last at once, all write the same manifest. When none was, as where
listings are old, rank 0 looks again once all have said that they have written (`complete`).
"""

from __future__ import annotations

import itertools
import json
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from resilin._base import json_text, log
from resilin.checkpoint import folder, safetensors
from resilin.checkpoint import manifest as manifests
from resilin.checkpoint.flat import as_bytes
from resilin.checkpoint.folder import Before
from resilin.checkpoint.hashing import Hasher
from resilin.checkpoint.manifest import File, Head, Logical, Manifest, Piece, entry_name, file_record, hash_of
from resilin.checkpoint.plan import Range
from resilin.checkpoint.storage import Storage
from resilin.errors import CheckpointError, StorageMissing

_LOG = log.logger("checkpoint")
BLOCK_BYTES = 16 << 20  # that a hash is of, and that is read or written at once: a disk's full rate, and little memory
_NICE = 10  # of a thread that hashes what is being written: copying into the file comes first, the flush waits anyway
Source = Callable[[int, int, int], tuple[Any, bool]]
"""(tensor, start, stop) -> these elements, which lie here, as a flat contiguous numpy array; and whether it stays as it
is until the share is written, which copies of a block that are made for this call need not."""


class Writing(Protocol):
    """What `storage.writing` gives."""

    def write(self, data: Any) -> None:
        """Append."""


@dataclass(frozen=True)
class Save:
    """One save, as all its ranks have agreed on it.

    replaces: the id of the checkpoint that is in the folder now, or None. before: what else lay there when it began.
    missing: how many folders were not there then, of its own, the path and all above. keep_last: how many the path
    keeps; 0: all.
    """

    storage: Storage
    folder: str
    head: Head
    tree: Any
    tensors: tuple[Logical, ...]
    replaces: str | None
    before: Before
    missing: int
    keep_last: int

    @property
    def path(self) -> str:
        """Where the checkpoint lies, as `load` takes it."""
        return self.storage.full(self.folder)

    def name(self, file: str) -> str:
        """A file of it, for the storage."""
        return folder.joined(self.folder, file)

    def owns(self, file: str) -> bool:
        """Whether a file in the folder has the name of one of this save, also one that is not complete yet."""
        return f"-{self.head.id}." in file


def write_share(save: Save, rank: int, files: Sequence[Sequence[Range]], source: Source) -> bool:
    """Write this rank's files and its part; and the manifest, when it is the last: whether it was.

    Errors are the storage's. Of memory that is not contiguous on the host, two blocks at most are copied at a time.
    """
    with Hasher(_NICE) as hasher:
        written = [_write_file(save, rank, number, ranges, source, hasher) for number, ranges in enumerate(files)]
    parts = _parts(save, rank, written)
    if parts is not None:
        commit(save, [file for part in parts for file in part])
    return parts is not None


def _write_file(save: Save, rank: int, number: int, ranges: Sequence[Range], source: Source, hasher: Hasher) -> File:
    by_name = {entry_name(save.tensors[one.tensor], one.start, one.stop): one for one in ranges}
    layout = safetensors.layout([_entry(name, one, save.tensors[one.tensor]) for name, one in by_name.items()])
    name = f"data-{rank:05d}-{number:03d}-{save.head.id}.safetensors"
    ordered = [by_name[entry] for entry in layout.entries]
    steps = [max(1, save.head.block_bytes // save.tensors[one.tensor].dtype.itemsize) for one in ordered]
    hashes: list[str] = []
    with save.storage.writing(save.name(name)) as file:
        file.write(layout.header)
        for one, step in zip(ordered, steps, strict=True):
            hashes += _write_piece(file, one, step, source, hasher)
    hashes += hasher.results()  # most blocks were hashed while the file was flushed
    left = iter(hashes)
    pieces = tuple(
        Piece(one.tensor, one.start, one.stop, tuple(itertools.islice(left, -(-(one.stop - one.start) // step))))
        for one, step in zip(ordered, steps, strict=True)
    )
    return File(name, layout.size, len(layout.header), hash_of(layout.header), pieces)


def _entry(name: str, one: Range, tensor: Logical) -> tuple[str, Any, tuple[int, ...]]:
    dtype, width = safetensors.carrier(tensor.dtype)
    shape = tensor.shape if one.stop - one.start == tensor.numel() else (one.stop - one.start,)
    return name, dtype, shape if width == 1 else (*shape, width)


def _write_piece(file: Writing, one: Range, step: int, source: Source, hasher: Hasher) -> list[str]:
    """Write all blocks, and begin to hash them; the hashes that had to be waited for, of blocks begun before, too."""
    hashes: list[str] = []
    for start in range(one.start, one.stop, step):
        elements, stays = source(one.tensor, start, min(start + step, one.stop))
        block = as_bytes(elements)
        hasher.begin(block)
        file.write(block)
        if not stays:
            hashes += hasher.results()
    return hashes


# -- the end of a save


def part_name(rank: int, save_id: str) -> str:
    """The file in which `rank` lists its files."""
    return f"part-{rank:05d}-{save_id}.json"


def _parts(save: Save, rank: int, written: list[File]) -> list[list[File]] | None:
    """The files of all ranks, when all have written theirs; None when one has not, or another has seen to the rest."""
    world_size = save.head.world_size
    if world_size == 1:
        return [written]
    text = json.dumps([file_record(file) for file in written], separators=(",", ":"))
    save.storage.write(save.name(part_name(rank, save.head.id)), text.encode())
    names = [part_name(each, save.head.id) for each in range(world_size)]
    if not set(names) <= {item.name for item in save.storage.list(save.folder)}:
        return None
    try:
        return [written if each == rank else _read_part(save, name) for each, name in enumerate(names)]
    except StorageMissing as error:  # another was last, too, and has tidied up: then its manifest is there
        if _current(save) != save.head.id:
            raise _dropped(save, f"what this save wrote is gone: {error}") from None
        return None


def complete(save: Save) -> None:
    """Write the manifest when all ranks have written, and none of them has found the parts of all others.

    CheckpointError names the ranks whose parts are not seen here. Called by rank 0 alone.
    """
    if _current(save) == save.head.id:  # by a rank that was not asked
        return
    names = [part_name(rank, save.head.id) for rank in range(save.head.world_size)]
    unseen = [str(rank) for rank, name in enumerate(names) if not save.storage.exists(save.name(name))]
    if unseen:
        raise CheckpointError(
            f"{save.path}: rank 0 does not see what rank {', '.join(unseen)} wrote there, so nothing was saved: all "
            "ranks must see the same files; give a folder that all machines share, or a URL"
        )
    commit(save, [file for name in names for file in _read_part(save, name)])


def _read_part(save: Save, name: str) -> list[File]:
    path = save.storage.full(save.name(name))
    text = save.storage.read(save.name(name))
    try:
        records = json_text.parse(text)
    except ValueError as error:
        raise CheckpointError(f"{path}, which another rank has just written, is damaged: {error}") from None
    return list(manifests.parse_files(records, save.tensors, save.head, path))


def commit(save: Save, files: Sequence[File]) -> None:
    """Make the checkpoint complete. CheckpointError when another job writes, or has written, to its place meanwhile."""
    _check_alone(save, files)
    manifest = Manifest(save.head, save.tree, save.tensors, tuple(files))
    save.storage.write(save.name(manifests.NAME), manifest.text())
    try:
        _tidy(save, manifest)
    except CheckpointError as error:  # the checkpoint is complete: what is left over costs space, nothing else
        log.event(_LOG, logging.WARNING, "could not tidy up after a checkpoint", path=save.path, error=str(error))


def discard(save: Save) -> None:
    """Delete what a save has written that failed on some rank, folders too, unless it became complete all the same.

    Its writing has ended on all ranks. An error is logged: what the save failed with is being raised.
    """
    try:
        if _current(save) == save.head.id:
            return
        there = list(folder.written(save.storage, save.folder))
        for name in filter(save.owns, there):
            save.storage.delete(save.name(name))
        if all(map(save.owns, there)):
            save.storage.remove_empty(save.folder, max(save.missing, 1 if save.folder else 0))
    except CheckpointError as error:
        log.event(_LOG, logging.WARNING, "could not delete a failed checkpoint", path=save.path, error=str(error))


def _check_alone(save: Save, files: Sequence[File]) -> None:
    """CheckpointError unless the folder is as this save and those before it have left it."""
    current, there = _current(save), folder.written(save.storage, save.folder)
    if current not in (save.replaces, save.head.id):
        raise _dropped(save, f"the checkpoint there has the id {current} now, which was {save.replaces} at the start")
    before = save.before[save.folder]
    strange = [name for name, size in there.items() if not save.owns(name) and before.get(name) != size]
    if strange:
        raise _dropped(save, f"{strange[0]} has come, or changed, since this save began")
    gone = [file.name for file in files if there.get(file.name) != file.size]
    if gone:
        raise _dropped(save, f"{gone[0]}, which this save wrote, is gone or cut")


def _dropped(save: Save, what: str) -> CheckpointError:
    return CheckpointError(
        f"{save.path}: another job writes to the same place: {what}. This save, with id {save.head.id}, is dropped; "
        "let one job at a time write to a path, or give each job a path of its own"
    )


def _current(save: Save) -> str | None:
    head = folder.read_head(save.storage, save.folder)
    return None if head is None else head.id


def _tidy(save: Save, manifest: Manifest) -> None:
    """Delete what the folder held before, and parts; name the newest; drop checkpoints that are one too many.

    What came while this save was at work, or changed, is another's, and stays.
    """
    kept = {file.name for file in manifest.files}
    before, there = save.before[save.folder], folder.written(save.storage, save.folder)
    if _current(save) != save.head.id:
        return
    for name, size in there.items():
        if name not in kept and (save.owns(name) or before.get(name) == size):
            save.storage.delete(save.name(name))
    if save.folder:
        for name in save.before[folder.LATEST]:
            save.storage.delete(name)
        save.storage.write(folder.LATEST, f"{save.folder}\n".encode())
        if save.keep_last:
            folder.prune(save.storage, save.keep_last, save.folder, save.before)


def owned(ranges: Sequence[Range]) -> Mapping[int, Range]:
    """By tensor, the one run of elements that a rank writes of it."""
    made: dict[int, Range] = {}
    for one in ranges:
        before = made.get(one.tensor)
        assert before is None or before.stop == one.start, f"a rank writes two runs of tensor {one.tensor}"
        made[one.tensor] = Range(one.tensor, one.start if before is None else before.start, one.stop)
    return made
