"""Copies traces out of buckets, and from whatever else has a URL, into a folder that is gone afterwards."""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

from resilin.checkpoint.open_storage import open_parent, open_storage
from resilin.checkpoint.storage import Storage
from resilin.errors import UsageError
from resilin.profiler.traces.folder import SUFFIXES

_BLOCK_BYTES = 8 << 20
_MOST_DEPTH = 8  # of folders within folders


@contextlib.contextmanager
def fetched(given: Sequence[str], most_bytes: int) -> Iterator[list[Path]]:
    """Give paths as they are, and those of copies of what has a URL, until the block ends.

    most_bytes: of each file; UsageError for larger ones, for a URL without traces, and without the package for its
    kind. StorageError and its kinds when the storage does not answer or refuses.
    """
    with tempfile.TemporaryDirectory(prefix="resilin-traces-") as folder:
        yield [
            _copied(one, Path(folder) / str(number), most_bytes) if "://" in one else Path(one)
            for number, one in enumerate(given)
        ]


def _copied(url: str, folder: Path, most_bytes: int) -> Path:
    """The copy of a file, or of all traces in a folder."""
    if url.endswith(SUFFIXES):
        storage, name = open_parent(url)
        return _copy(storage, name, folder, most_bytes)
    storage = open_storage(url)
    names = list(_names(storage, "", _MOST_DEPTH))
    if not names:
        raise UsageError(f"{url}: no traces (*{', *'.join(SUFFIXES)}): is it the folder that ranks recorded into?")
    for number, name in enumerate(names):
        _copy(storage, name, folder / str(number), most_bytes)
    return folder


def _names(storage: Storage, folder: str, depth: int) -> Iterator[str]:
    for item in storage.list(folder):
        name = f"{folder}/{item.name}" if folder else item.name
        if item.is_folder and depth:
            yield from _names(storage, name, depth - 1)
        elif not item.is_folder and name.endswith(SUFFIXES):
            yield name


def _copy(storage: Storage, name: str, folder: Path, most_bytes: int) -> Path:
    size = storage.size(name)
    if size > most_bytes:
        raise UsageError(
            f"{storage.root}/{name}: expected at most {most_bytes >> 20} MiB, got {size >> 20}: record fewer steps "
            "(`active` of a schedule), or allow more (--megabytes)"
        )
    folder.mkdir(parents=True)
    path = folder / name.rpartition("/")[2]
    with open(path, "xb") as file:
        for start in range(0, size, _BLOCK_BYTES):
            file.write(storage.read(name, start, min(size, start + _BLOCK_BYTES)))
    return path
