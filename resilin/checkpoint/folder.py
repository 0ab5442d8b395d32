"""Folders of checkpoints: which are there, which are complete, which is the newest, which are deleted.

    run7/
        latest                      text: the name of the newest complete one, for people; `opened` takes it as a path
        step-40/manifest.json       written last: without it, or with files that do not fit it, a checkpoint is torn
                data-00000-000-1f0c88a2b7d94e35.safetensors
        step-50/...

Which is the newest is told by the `serial` in the manifests, not by `latest`, steps or clocks: a job that goes on from
an earlier step writes newer checkpoints of lower steps.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import operator
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from resilin._base import log
from resilin.checkpoint import manifest as manifests
from resilin.checkpoint.manifest import File, Head, Manifest
from resilin.checkpoint.open_storage import open_parent, open_storage
from resilin.checkpoint.storage import Item, Storage, leftover
from resilin.errors import CheckpointError, CorruptFile, StorageDenied, StorageError, StorageMissing, UsageError

_LOG = log.logger("checkpoint")
LATEST = "latest"
_BROKEN = (errno.EIO, errno.ELOOP, errno.ESTALE, errno.EUCLEAN)  # what lies there cannot be read; the storage answers
_STEP = re.compile(r"step-(0|[1-9]\d*)")
Root = str | os.PathLike[str] | Storage
Before = Mapping[str, Mapping[str, int]]
"""What a save found when it began: by folder, the files that saves write, with their sizes. Of its own folder and of
those without a manifest; under "latest", what was to become that. What has not changed since is left from writers that
ended; all else is somebody's at work."""


@dataclass(frozen=True, slots=True)
class Found:
    """A checkpoint in a folder.

    name:    its folder's name below the path that was asked for; "" when it is that itself.
    path:    all of it, as `load` takes it.
    step:    what it was saved as; None without.
    serial:  grows with each checkpoint of a path; None when the manifest does not tell.
    nbytes:  of its files.
    problem: why it is torn or unreadable, in words that begin with its path; None when it is complete: every file is
             there and has its size. What the bytes are is `verify`'s question.
    unreadable: what it is cannot be known: this process may not read it, or the medium fails there.
    """

    name: str
    path: str
    step: int | None
    serial: int | None
    nbytes: int
    problem: str | None = None
    unreadable: bool = False

    @property
    def is_complete(self) -> bool:
        """Whether it can be loaded, as far as the sizes of its files tell."""
        return self.problem is None


def opened(path: Root, options: Mapping[str, Any] | None = None) -> Storage:
    """The storage of the checkpoints in `path`: of `run7/latest`, the file that names the newest, that of `run7`."""
    storage = open_storage(path, options)
    return storage if isinstance(path, Storage) else _above_latest(storage, options) or storage


def opened_to_save(path: Root, options: Mapping[str, Any] | None = None) -> Storage:
    """The storage that `path` is. UsageError when it is the file that names the newest checkpoint."""
    storage = open_storage(path, options)
    above = None if isinstance(path, Storage) else _above_latest(storage, options)
    if above is not None:
        raise UsageError(
            f"checkpoint.save: {storage.root} is the file that names the newest of the checkpoints in its folder; save "
            f"to {above.root}"
        )
    return storage


def _above_latest(storage: Storage, options: Mapping[str, Any] | None) -> Storage | None:
    """The folder in which the root of `storage` is the file that names the newest; None when it is no such file."""
    if storage.root.rpartition("/")[2] != LATEST:
        return None
    above, name = open_parent(storage.root, options)
    return above if above.exists(name) else None


def step_name(step: int) -> str:
    """The folder of a step."""
    return f"step-{step}"


def check_no_file(storage: Storage) -> None:
    """UsageError when a file lies where the folder of checkpoints was expected."""
    if "://" not in storage.root and os.path.isfile(storage.root):
        raise UsageError(f"{storage.root} is a file: expected a checkpoint, or a folder of them; diff reads files, too")


def named_step(path: str | os.PathLike[str]) -> tuple[str, int | None]:
    """The folder of checkpoints that a path with a step's name lies in, and the step; else the path, and None."""
    text = os.fspath(path).rstrip("/")
    parent, slash, name = text.rpartition("/")
    match = _STEP.fullmatch(name)
    if match is None or parent.endswith("/"):  # a bucket may be called as it likes
        return os.fspath(path), None
    return parent or slash or ".", int(match[1])


def joined(folder: str, name: str) -> str:
    """`name` in `folder`, which may be the root."""
    return f"{folder}/{name}" if folder else name


def list_checkpoints(path: Root, *, options: Mapping[str, Any] | None = None) -> list[Found]:
    """The checkpoints in `path` (the one that it is, or its `step-<n>` folders), oldest first, torn ones included.

    A folder in which no file is of a save is none, whatever its name; one that cannot be read may be one. Order: by
    serial; those whose manifest is missing or unreadable come last, by step. Errors are the storage's, of `path` itself
    or as a whole. options: for the storage of a URL, as of `load`.
    """
    storage = opened(path, options)
    return _all(storage, _folders(storage))


def _all(storage: Storage, names: Iterable[str]) -> list[Found]:
    return sorted(filter(None, (_found(storage, name) for name in names)), key=_age)


def latest(path: Root, *, options: Mapping[str, Any] | None = None) -> str | None:
    """The path of the newest complete checkpoint in `path`, or None. Others that may be newer are logged by name: torn
    ones, and those that cannot be read; where there are only such, their error is raised.

    options: for the storage of a URL, as of `load`.
    """
    storage = opened(path, options)
    name = latest_name(storage)
    return None if name is None else storage.full(name)


def latest_name(storage: Storage) -> str | None:
    """The folder of the newest complete checkpoint, "" for the root itself.

    Who saves meanwhile may delete each one that is looked at: when there was none, new folders are looked at, too.
    """
    names, before = list(_folders(storage)), None
    while names != before:
        found = _all(storage, names)
        complete = [one for one in found if one.is_complete]
        names, before = names if complete else list(_folders(storage)), names
    newest = complete[-1] if complete else None
    for one in found[found.index(newest) + 1 if newest else 0 :]:
        what = "a checkpoint cannot be read" if one.unreadable else "a checkpoint is torn"
        log.event(_LOG, logging.WARNING, what, problem=one.problem)
    if newest is not None:
        return newest.name
    for one in found:
        if one.unreadable:  # to say that there is none would have a job begin anew
            read_complete(storage, one.name)
            return one.name
    return None


def read_manifest(storage: Storage, folder: str) -> Manifest:
    """The checked manifest of the checkpoint in `folder`. CheckpointError: none; CorruptFile: damaged."""
    name = joined(folder, manifests.NAME)
    try:
        size = storage.size(name)
    except StorageMissing:
        raise CheckpointError(_torn(storage, folder)) from None
    if size > manifests.MAX_BYTES:
        raise CorruptFile(f"{storage.full(name)} has {size} bytes, the limit is {manifests.MAX_BYTES}", name)
    return manifests.parse(storage.read(name), storage.full(name))  # to its end: it may have been replaced since


def read_head(storage: Storage, folder: str) -> Head | None:
    """The head of the manifest in `folder`, or None when there is none that can be read."""
    name = joined(folder, manifests.NAME)
    try:
        return manifests.parse_head(_start(storage, name, manifests.HEAD_BYTES), name)
    except (StorageMissing, CorruptFile):
        return None


def _start(storage: Storage, name: str, most: int) -> bytes:
    """The first `most` bytes of a file, or all of a shorter one: of one version, also when it is replaced meanwhile."""
    before = None
    while (size := storage.size(name)) > most:
        try:
            return storage.read(name, 0, most)
        except CorruptFile:  # a shorter one has taken its place
            if size == before:
                raise
            before = size
    return storage.read(name)


def survey(storage: Storage, where: str) -> tuple[int, Before]:
    """For a save to `where` that begins now: its serial, above that of any checkpoint there, and what it found."""
    serial, unreadable, before = 0, 0, {where: written(storage, where)}
    for name in _folders(storage):
        try:
            head = read_head(storage, name)
            if head is not None:
                serial = max(serial, head.serial)
            elif name != where:
                before[name] = written(storage, name)
        except StorageError as error:
            if not _is_unreadable(error):
                raise
            unreadable += 1  # and as likely as not one of the last
    before[LATEST] = {item.name: item.size or 0 for item in storage.list() if leftover(item.name) == LATEST}
    return serial + unreadable + 1, before


def written(storage: Storage, folder: str) -> dict[str, int]:
    """The files in `folder` that saves have written or are writing, but its manifest, with their sizes."""
    return {item.name: item.size or 0 for item in storage.list(folder) if is_written(item)}


def check_files(storage: Storage, folder: str, manifest: Manifest) -> None:
    """CorruptFile unless every file of the manifest is there and has its size."""
    sizes = {item.name: item.size for item in storage.list(folder)}
    for file in manifest.files:
        _check_size(storage, folder, file, sizes.get(file.name))


def check_file(storage: Storage, folder: str, file: File) -> None:
    """CorruptFile unless this file is there and has its size."""
    name = joined(folder, file.name)
    _check_size(storage, folder, file, storage.size(name) if storage.exists(name) else None)


def _check_size(storage: Storage, folder: str, file: File, size: int | None) -> None:
    path = storage.full(joined(folder, file.name))
    if size is None:
        what = "is no plain file" if storage.is_something_else(joined(folder, file.name)) else "is missing"
        raise CorruptFile(f"{path}, a file of the checkpoint {storage.full(folder)}, {what}", path)
    if size != file.size:
        what = f"it has {size} bytes instead of {file.size}"
        raise CorruptFile(f"{path}, a file of the checkpoint {storage.full(folder)}, is cut or replaced: {what}", path)


def prune(storage: Storage, keep_last: int, current: str, before: Before) -> list[str]:
    """Delete all complete checkpoints but the newest `keep_last`, and torn ones; never `current`. Returns their names.

    A manifest goes first, for good, and then the rest: what is half deleted is torn. Of a link only the link goes. What
    has no manifest stays unless it was so `before`: another job may be writing it. What cannot be read stays, too.
    """
    found = list_checkpoints(storage)
    complete = [one for one in found if one.is_complete]
    kept = {one.name for one in complete[-keep_last:]} | {current}
    old = [one for one in found if one.name and one.name not in kept and not one.unreadable]
    dropped = [one.name for one in old if one.is_complete or not _is_being_written(storage, one.name, before)]
    for name in dropped:
        if not storage.is_link(name):
            storage.delete(joined(name, manifests.NAME))
            with contextlib.suppress(StorageMissing):  # another rank that was last, too, has deleted the folder
                storage.sync(name)
        storage.delete_tree(name)
    for name in _folders(storage):
        if not before.get(name, {"new": 0}):  # nothing was in it, as of a save that was killed at once
            storage.remove_empty(name)
    return dropped


def folder_of(storage: Storage, step: int | None) -> str:
    """The folder to load from: of `step`, or the newest complete one. CheckpointError says what is there instead."""
    if step is not None:
        return step_name(step)
    name = latest_name(storage)
    if name is None:
        torn = [one.problem for one in list_checkpoints(storage) if one.problem]
        what = "; ".join(torn) if torn else "expected manifest.json, or folders step-<n> with one"
        raise CheckpointError(f"{storage.root} holds no complete checkpoint: {what}")
    return name


def open_complete(storage: Storage, step: int | None) -> tuple[str, Manifest]:
    """The folder and the manifest of the checkpoint to load, as `folder_of`, with all its files there, by their sizes.

    CorruptFile when they are not. A newest one that is deleted meanwhile gives way to the one that is newest then.
    """
    where = folder_of(storage, step)
    while True:
        try:
            return where, read_complete(storage, where)
        except CheckpointError:
            newest = where if step is not None else latest_name(storage)
            if newest is None or newest == where:
                raise
            where = newest


def read_complete(storage: Storage, folder: str) -> Manifest:
    """The manifest of the checkpoint in `folder`, whose files are all there; what is replaced is read again."""
    failed = None
    while True:
        manifest = read_manifest(storage, folder)
        try:
            check_files(storage, folder, manifest)
        except CorruptFile:
            if manifest.head.id == failed:
                raise
            failed = manifest.head.id
        else:
            return manifest


def is_written(item: Item) -> bool:
    """Whether it is a file of data or a part that a save has written, or had begun when it was killed."""
    return not item.is_folder and manifests.is_written_by_saves(leftover(item.name) or item.name)


def checked_step(step: Any) -> int | None:
    """`step` as an int: it may be any kind of integer, as numpy's. UsageError for what is no step."""
    if step is None:
        return None
    number = checked_count(step)
    if number is None:
        raise UsageError(f"checkpoint: step must be an int of at least 0 and below 2^62, or None, got {step!r}")
    return number


def checked_count(value: Any) -> int | None:
    """`value` as an int from 0 to below 2^62, of whatever kind of integer it is; None when it is no such number."""
    try:
        number = operator.index(value)
    except TypeError:
        return None
    return number if 0 <= number < manifests.MOST and not isinstance(value, bool) else None


def _folders(storage: Storage) -> Iterator[str]:
    items = storage.list()
    if any(item.name == manifests.NAME or _is_data(item) for item in items):
        yield ""
    for item in items:
        if item.is_folder and _STEP.fullmatch(item.name):
            yield item.name


def _is_data(item: Item) -> bool:
    return not item.is_folder and item.name.startswith("data-") and is_written(item)


def _is_checkpoint(items: Iterable[Item]) -> bool:
    """Whether a folder of these is a checkpoint, or a torn one: it has a manifest, or files that only saves write."""
    return any(item.name == manifests.NAME or is_written(item) for item in items)


def _is_being_written(storage: Storage, name: str, before: Before) -> bool:
    """Whether a torn checkpoint may be one that another job writes: without a manifest, and not as it was before."""
    return not storage.exists(joined(name, manifests.NAME)) and written(storage, name) != before.get(name)


def _found(storage: Storage, name: str) -> Found | None:
    """What is in a folder; None when no save has written there."""
    path, match = storage.full(name), _STEP.fullmatch(name)
    step = int(match[1]) if match else None
    serial, problem = None, None
    try:
        items = storage.list(name)
        if not _is_checkpoint(items):
            return None
        try:
            head = read_complete(storage, name).head
            step, serial = head.step, head.serial
        except CheckpointError as error:
            if isinstance(error, StorageError) and not isinstance(error, StorageMissing):
                raise
            problem = str(error)
            known = read_head(storage, name)
            step, serial = (step, None) if known is None else (known.step, known.serial)
    except StorageError as error:
        if not _is_unreadable(error):
            raise
        return Found(name, path, step, None, 0, str(error), unreadable=True)
    return Found(name, path, step, serial, sum(item.size or 0 for item in items), problem)


def _is_unreadable(error: StorageError) -> bool:
    """Whether it says something of what lies there. All else is of the storage, which may answer better again."""
    return isinstance(error, StorageDenied) or error.errno in _BROKEN


def _torn(storage: Storage, folder: str) -> str:
    items = storage.list(folder)
    files = sum(map(_is_data, items))
    if not any(map(is_written, items)):
        what = "nothing there was written by a save" if items else "there is nothing"
        return f"{storage.full(folder)} is no checkpoint: {what}"
    return (
        f"{storage.full(folder)} is torn: it has no {manifests.NAME}, which is written last, and {files} data files; "
        "it was being written when its writers ended, or still is"
    )


def _age(found: Found) -> tuple[bool, int, int]:
    return found.serial is None, found.serial or 0, -1 if found.step is None else found.step
