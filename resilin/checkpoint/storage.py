"""`Storage`: the few things that checkpoints ask of a folder, a memory or a bucket. The rules, no I/O.

Names of files are relative to the storage's root, with "/" between their parts; folders need not be made. A file
appears whole or not at all: what is written has another name, or none, until it is complete and lies on the medium.
Nothing else is promised: there is no renaming of folders, and a listing may be older than the last write of another
machine. So a checkpoint is complete when its manifest, written last, is there.
"""

from __future__ import annotations

import contextlib
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

from resilin.errors import CheckpointError, StorageMissing, UsageError


@dataclass(frozen=True, order=True)
class Item:
    """What a folder holds: a file of `size` bytes, or a folder, whose size is None.

    modified_s: seconds since 1970 by the storage's own clock; None where it keeps none. For people, not for decisions.
    """

    name: str
    size: int | None
    modified_s: float | None = None

    @property
    def is_folder(self) -> bool:
        """Whether it is a folder."""
        return self.size is None


class Writing(ABC):
    """One file while it is written, from one thread."""

    @abstractmethod
    def write(self, data: Any) -> None:
        """Append all bytes of `data`, which is the caller's own again on return."""


class Storage(ABC):
    """A root under which files are written whole, read in ranges, listed and deleted. Thread-safe.

    Errors of every method: StorageMissing, StorageDenied, StorageTimeout, or StorageError with `errno` (a full disk has
    ENOSPC) for all else; the message has the file's full name and what to do. UsageError for a name that would leave
    the root. Transient failures of a network are tried again before they are told, see each storage's arguments.
    """

    root: str
    """The root as a path or URL, for messages and for opening it again."""

    @abstractmethod
    def writing(self, name: str) -> AbstractContextManager[Writing]:
        """`with storage.writing(name) as file: file.write(data)`: a new file in place of `name`.

        On leaving it is flushed to the medium and takes its name; when the block raises it is dropped, and what was
        there stays. Of a process that is killed a file with another name may remain, which `leftover` tells.
        """

    @abstractmethod
    def create(self, name: str, data: bytes) -> None:
        """Write `name` whole unless it is there already: of several that try, one succeeds. StorageExists for others.

        When an answer was lost, a storage knows its own file by the content, so let `data` be unique to the writer.
        """

    @abstractmethod
    def read(self, name: str, start: int = 0, stop: int | None = None) -> bytes:
        """Bytes `[start, stop)`, or up to the end. CorruptFile when the file ends before `stop`."""

    @abstractmethod
    def read_into(self, name: str, start: int, buffer: memoryview) -> None:
        """Fill `buffer` with the bytes from `start` on. CorruptFile when the file ends before that."""

    @abstractmethod
    def size(self, name: str) -> int:
        """Bytes of the file. StorageMissing when there is none."""

    @abstractmethod
    def version(self, name: str) -> str:
        """A text that is another one when the file has been replaced. StorageMissing when there is none."""

    @abstractmethod
    def list(self, folder: str = "") -> Sequence[Item]:
        """What lies directly in `folder`, by name; names are relative to it. Empty when there is no such folder.

        StorageMissing when there is no such bucket.
        """

    @abstractmethod
    def delete(self, name: str) -> None:
        """Delete a file. It is no error when there is none: another may have been faster."""

    @abstractmethod
    def delete_tree(self, folder: str) -> None:
        """Delete a folder and all in it, also what was left over from killed writers. No error when there is none."""

    @abstractmethod
    def sync(self, folder: str = "") -> None:
        """Come back when the names in `folder` are on the medium, too: a file whose name is lost is lost.

        `writing` and `create` do it for their own file, so this is for what is deleted.
        """

    def map(self, name: str) -> Any:
        """The file as a flat uint8 array whose pages are read when they are looked at, or None where that is not so.

        What is written to it stays in this process. The file must not be changed while it is in use, though it may be
        replaced, as `writing` does.
        """
        return None

    def is_link(self, folder: str) -> bool:
        """Whether a folder is a link to one elsewhere, which `delete_tree` leaves alone. Few storages have links."""
        return False

    def is_something_else(self, name: str) -> bool:
        """Whether what has this name is no file: a folder, a device. Few storages have such."""
        return False

    def missing_folders(self, folder: str = "") -> int:
        """How many of `folder`, the root and all above them are not there. 0 in buckets, which have no folders."""
        return 0

    def remove_empty(self, folder: str, count: int = 1) -> None:
        """Remove a folder in which nothing is, and those above it, `count` in all; what holds something stays.

        Buckets have no folders of their own.
        """
        return

    def leftovers(self, name: str) -> Sequence[Item]:
        """What there is of `name` under other names, directly in the root: being written, or left when a writer died.

        Nothing where files appear whole.
        """
        return [item for item in self.list() if not item.is_folder and leftover(item.name) == name]

    def delete_leftover(self, name: str) -> None:
        """Delete what a writer left, with the name that it has now; where it can be known that one is at work, not."""
        self.delete(name)

    def exists(self, name: str) -> bool:
        """Whether there is such a file."""
        try:
            self.size(name)
        except FileNotFoundError:
            return False
        return True

    def write(self, name: str, data: Any) -> None:
        """Write a file whole, in place of the one there."""
        with self.writing(name) as file:
            file.write(data)

    def full(self, name: str) -> str:
        """The path or URL of a file, for messages."""
        if not name:
            return self.root
        return f"{self.root}{'' if self.root.endswith('/') else '/'}{name}"

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.root}>"


class Reading:
    """One file of a storage as a source of bytes (`safetensors.Source`). It keeps nothing open."""

    def __init__(self, storage: Storage, name: str) -> None:
        self._storage, self._file = storage, name
        self.name = storage.full(name)
        self._version = storage.version(name)
        self.size = storage.size(name)

    def is_as_it_was(self) -> bool:
        """Whether all that was read is of one file, which nobody has replaced or deleted since."""
        try:
            return self._storage.version(self._file) == self._version
        except StorageMissing:
            return False

    def read(self, start: int, stop: int) -> bytes:
        """Bytes `[start, stop)`."""
        return self._storage.read(self._file, start, stop)

    def read_into(self, start: int, buffer: memoryview) -> None:
        """Fill `buffer` with the bytes from `start` on."""
        self._storage.read_into(self._file, start, buffer)

    def map(self) -> Any:
        """As `Storage.map`."""
        return self._storage.map(self._file)


@contextlib.contextmanager
def steady(sources: Iterable[Reading]) -> Iterator[None]:
    """Around reading from files: CheckpointError when one was replaced or deleted since it was opened.

    So what was read belongs together; and what such a file makes go wrong is not taken for damage.
    """
    try:
        yield
    except CheckpointError:
        _check_steady(sources)
        raise
    _check_steady(sources)


def _check_steady(sources: Iterable[Reading]) -> None:
    for source in sources:
        if not source.is_as_it_was():
            raise CheckpointError(
                f"{source.name} was replaced or deleted while it was read: read it again when its writer is done"
            ) from None


LEFTOVER = ".partial-"
"""Between a file's name and a random text: what is being written, or was when its writer was killed."""


def leftover(name: str) -> str | None:
    """The name that the file `name` would have got when its writer had not been killed; None for finished files."""
    head, mark, tail = name.rpartition(LEFTOVER)
    return head if mark and head and "/" not in tail else None


def checked(name: str, what: str = "file") -> str:
    """`name`, which stays below the root whoever chose it. UsageError otherwise: names also come from manifests."""
    parts = name.split("/")
    if any(part in ("", ".", "..") or "\0" in part or "\\" in part for part in parts):
        raise UsageError(
            f"{name!r} cannot be the name of a {what} in a checkpoint: expected parts that are no '..' with '/' between"
        )
    return name
