"""Make temporary folders that have an owner, and remove those whose owner was killed before it could.

In each lies a file on which its owner holds a lock as long as it lives, so no number of a process that somebody else
has got by now is taken for it. The file gets its name when it is locked: nobody finds a folder whose owner begins.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import stat
import tempfile
from collections.abc import Iterator
from pathlib import Path

PREFIX = "resilin"  # of their names
_OWNER = ".owner"


class OwnedFolder:
    """A new folder of this user's alone. A context manager: removed at its end, and else by `clear` of a later process.

    prefix: what its name begins with, `PREFIX` at least. parent: where it lies, by default with all temporary files.
    """

    def __init__(self, prefix: str, parent: str | None = None) -> None:
        self.path = Path(tempfile.mkdtemp(prefix=prefix, dir=parent))
        scratch = self.path / f"{_OWNER}.new"
        self._lock = os.open(scratch, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        fcntl.flock(self._lock, fcntl.LOCK_EX)
        scratch.rename(self.path / _OWNER)

    def close(self) -> None:
        """Remove it and all that is in it, as far as that can be done."""
        shutil.rmtree(self.path, ignore_errors=True)
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1

    def __enter__(self) -> Path:
        return self.path

    def __exit__(self, *exc_info: object) -> None:
        self.close()


def clear() -> list[Path]:
    """Remove the folders of this user whose owners have ended without it; which these were."""
    return [folder for folder in _folders() if _cleared(folder)]


def _folders() -> Iterator[Path]:
    for place in dict.fromkeys((tempfile.gettempdir(), "/tmp")):
        with contextlib.suppress(OSError), os.scandir(place) as entries:
            yield from [Path(entry.path) for entry in entries if entry.name.startswith(PREFIX) and _is_own(entry.path)]


def _is_own(path: str) -> bool:
    with contextlib.suppress(FileNotFoundError):  # its owner removes it just now
        found = os.lstat(path)
        return stat.S_ISDIR(found.st_mode) and found.st_uid == os.geteuid() and not found.st_mode & 0o077
    return False


def _cleared(folder: Path) -> bool:
    try:
        lock = os.open(folder / _OWNER, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
    except OSError:  # it is none of these
        return False
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        shutil.rmtree(folder, ignore_errors=True)
        return not folder.exists()
    except BlockingIOError:  # its owner lives
        return False
    finally:
        os.close(lock)
