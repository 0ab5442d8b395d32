"""All checkpoints of a folder against the hashes in their manifests."""

from __future__ import annotations

from dataclasses import dataclass

from resilin.checkpoint import folder as folders
from resilin.checkpoint import verifying
from resilin.checkpoint.folder import Root
from resilin.checkpoint.storage import Storage
from resilin.checkpoint.tools.states import check_there
from resilin.checkpoint.verifying import Problem
from resilin.errors import CheckpointError, StorageError


@dataclass(frozen=True)
class Verification:
    """What was found of one checkpoint. files, tensors, nbytes: 0 when its manifest cannot be read.

    problems: all that is wrong, by file and tensor; none when it is intact. unreadable: so that is not known.
    """

    path: str
    step: int | None
    files: int
    tensors: int
    nbytes: int
    problems: tuple[Problem, ...]
    unreadable: bool = False


def verify_all(path: Root, step: int | None = None) -> list[Verification]:
    """Read and hash all checkpoints in `path`, torn ones too, or that of `step`; oldest first.

    Damage is told in the verdicts, and which of several cannot be read. Raises StorageMissing when there is nothing,
    CheckpointError when there is something else, and the storage's errors.
    """
    storage = folders.opened(path)
    check_there(storage, step)
    if step is not None:
        return [_verdict(storage, folders.step_name(step))]
    found = folders.list_checkpoints(storage)
    if not found:
        folders.folder_of(storage, None)  # says what is there instead
    return [_unread(one) if one.unreadable else _verdict(storage, one.name) for one in found]


def _unread(found: folders.Found) -> Verification:
    return Verification(
        found.path, found.step, 0, 0, 0, (Problem(found.path, None, str(found.problem)),), unreadable=True
    )


def _verdict(storage: Storage, folder: str) -> Verification:
    path = storage.full(folder)
    try:
        manifest = folders.read_complete(storage, folder)
        problems = verifying.problems(storage, folder, manifest)
    except StorageError:
        raise
    except CheckpointError as error:  # torn, or its manifest is damaged
        return Verification(path, None, 0, 0, 0, (Problem(path, None, str(error)),))
    return Verification(
        path, manifest.head.step, len(manifest.files), len(manifest.tensors), manifest.nbytes(), tuple(problems)
    )
