"""The checkpoints in a folder, with what people ask about each."""

from __future__ import annotations

from dataclasses import dataclass

from resilin._base.clock import SYSTEM, Clock
from resilin.checkpoint import folder as folders
from resilin.checkpoint import manifest as manifests
from resilin.checkpoint.folder import Root
from resilin.checkpoint.storage import Storage
from resilin.errors import CheckpointError


@dataclass(frozen=True)
class Listed:
    """A checkpoint. nbytes: of its files. age_s: since its manifest was written, by the storage's clock and this one's.

    tensors: None of a torn one. world_size, age_s: None where its manifest does not tell. problem: why it is torn, or
    unreadable: then nothing else of it is known.
    """

    name: str
    path: str
    step: int | None
    nbytes: int
    files: int
    tensors: int | None
    world_size: int | None
    age_s: float | None
    problem: str | None
    unreadable: bool = False


def list_all(path: Root, clock: Clock = SYSTEM) -> list[Listed]:
    """All checkpoints in `path`, oldest first. UsageError for a file; else errors are the storage's."""
    storage = folders.opened(path)
    folders.check_no_file(storage)
    found = []
    for one in folders.list_checkpoints(storage):
        try:
            found.append(_listed(storage, one, clock))
        except CheckpointError:
            if storage.list(one.name):
                raise  # else a job has deleted it since, being one too many
    return found


def _listed(storage: Storage, found: folders.Found, clock: Clock) -> Listed:
    if found.unreadable:
        return Listed(found.name or ".", found.path, found.step, 0, 0, None, None, None, found.problem, unreadable=True)
    items = {item.name: item for item in storage.list(found.name)}
    written = items[manifests.NAME].modified_s if manifests.NAME in items else None
    head = folders.read_head(storage, found.name)
    tensors = None if found.problem else len(folders.read_manifest(storage, found.name).tensors)
    return Listed(
        name=found.name or ".",
        path=found.path,
        step=found.step,
        nbytes=found.nbytes,
        files=sum(item.name.startswith("data-") and not item.is_folder for item in items.values()),
        tensors=tensors,
        world_size=head.world_size if head else None,
        age_s=None if written is None else max(0.0, clock.wall() - written),
        problem=found.problem,
    )
