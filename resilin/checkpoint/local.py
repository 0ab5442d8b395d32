"""`LocalStorage`: a folder of this machine, or of a network file system that it has mounted."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import shutil
import stat
from collections.abc import Iterator, Sequence
from typing import Any, NoReturn

import numpy as np

from resilin._base import fault_points
from resilin.checkpoint.path_errors import PARTIAL_BYTES, advice
from resilin.checkpoint.storage import LEFTOVER, Item, Storage, Writing, checked
from resilin.errors import (
    CorruptFile,
    StorageDenied,
    StorageError,
    StorageExists,
    StorageMissing,
    UsageError,
)

_MOST_AT_ONCE = 1 << 30  # Linux takes no more than 2 GiB - 4 KiB in one call
_MAKING = ("written", "created")


class LocalStorage(Storage):
    """Files under the folder `root`, which is made, with its parents, when the first file is written.

    A file is written beside its place, flushed (fsync), renamed, and the folder flushed: after that a power cut does
    not take it back. Until then it is locked (flock), which ends with its writer. Nothing is cached, and no file stays
    open.
    """

    def __init__(self, root: str | os.PathLike[str]) -> None:
        text = os.fspath(root)
        if not isinstance(text, str) or not text or "\0" in text:
            raise UsageError(f"LocalStorage: expected the path of a folder, got {root!r}")
        check_bytes(text)
        self.root = os.path.abspath(os.path.expanduser(text))

    def path(self, name: str) -> str:
        """Where `name` lies."""
        return os.path.join(self.root, checked(name)) if name else self.root

    @contextlib.contextmanager
    def writing(self, name: str) -> Iterator[Writing]:
        """As `Storage.writing`; a link at the name is replaced, not followed."""
        path = self.path(name)
        with self._partial(path) as partial, _Local(partial, path) as file:
            yield file
            file.flush()
            with _told(path, "written"), _still_there(partial, path):
                os.replace(partial, path)
                _flush_folder(os.path.dirname(path))

    def create(self, name: str, data: bytes) -> None:
        """As `Storage.create`: by a link where the file system has links, else by O_EXCL."""
        path = self.path(name)
        with self._partial(path) as partial, _Local(partial, path) as file:
            file.write(data)
            file.flush()
            with _told(path, "created"), _still_there(partial, path):
                try:
                    os.link(partial, path)
                except OSError as error:
                    if error.errno not in (errno.EPERM, errno.ENOTSUP, errno.ENOSYS, errno.EMLINK):
                        raise
                    _create_without_links(path, data)
                _flush_folder(os.path.dirname(path))

    @contextlib.contextmanager
    def _partial(self, path: str) -> Iterator[str]:
        """The name of a file that no other writer uses, which is gone afterwards whatever happens."""
        with _told(path, "written"):
            _make_folders(os.path.dirname(path))
        partial = f"{path}{LEFTOVER}{os.urandom(PARTIAL_BYTES).hex()}"
        try:
            yield partial
        finally:
            with _told(path, "written"), contextlib.suppress(FileNotFoundError, NotADirectoryError):
                os.unlink(partial)  # unless it has its name now, or never was

    def read(self, name: str, start: int = 0, stop: int | None = None) -> bytes:
        """As `Storage.read`."""
        path = self.path(name)
        with _opened(path) as fd:
            size = os.fstat(fd).st_size
            end = size if stop is None else stop
            if end > size:
                raise _short(path, end, size)
            data = bytearray(max(0, end - start))
            _fill(fd, path, start, memoryview(data))
        return bytes(data)

    def read_into(self, name: str, start: int, buffer: memoryview) -> None:
        """As `Storage.read_into`."""
        path = self.path(name)
        with _opened(path) as fd:
            _fill(fd, path, start, buffer.cast("B"))

    def size(self, name: str) -> int:
        """As `Storage.size`."""
        return self._stat(name).st_size

    def version(self, name: str) -> str:
        """As `Storage.version`."""
        found = self._stat(name)
        return f"{found.st_ino} {found.st_mtime_ns} {found.st_ctime_ns} {found.st_size}"

    def _stat(self, name: str) -> os.stat_result:
        path = self.path(name)
        with _told(path, "looked at"):
            found = os.stat(path)
            if not stat.S_ISREG(found.st_mode):
                raise StorageMissing(f"{path} is no file", path, errno.ENOENT)
            return found

    def list(self, folder: str = "") -> Sequence[Item]:
        """As `Storage.list`; what is neither a file nor a folder is left out, links are followed.

        A link to what cannot be looked at counts as a folder: who looks into it is told why.
        """
        path = self.path(folder)
        with _told(path, "listed"):
            try:
                entries = os.scandir(path)
            except FileNotFoundError:
                return []
            with entries:
                items = [item for entry in entries if (item := _item(entry)) is not None]
        return sorted(items, key=lambda item: item.name)

    def delete(self, name: str) -> None:
        """As `Storage.delete`."""
        path = self.path(name)
        with _told(path, "deleted"), contextlib.suppress(FileNotFoundError):
            os.unlink(path)

    def delete_tree(self, folder: str) -> None:
        """As `Storage.delete_tree`; of a link only the link."""
        path = self.path(folder)
        with _told(path, "deleted"):
            if os.path.islink(path):
                os.unlink(path)
                return
            with contextlib.suppress(FileNotFoundError):
                shutil.rmtree(path)

    def missing_folders(self, folder: str = "") -> int:
        """As `Storage.missing_folders`."""
        path, count = self.path(folder), 0
        while not os.path.lexists(path):
            path, count = os.path.dirname(path), count + 1
        return count

    def remove_empty(self, folder: str, count: int = 1) -> None:
        """As `Storage.remove_empty`; a link stays."""
        path = self.path(folder)
        for _ in range(count):
            with _told(path, "removed"):
                try:
                    os.rmdir(path)
                except FileNotFoundError:  # it was not made, or another rank was faster
                    pass
                except OSError as error:
                    if error.errno not in (errno.ENOTEMPTY, errno.EEXIST, errno.ENOTDIR):
                        raise
                    return
            path = os.path.dirname(path)

    def is_link(self, folder: str) -> bool:
        """As `Storage.is_link`."""
        return os.path.islink(self.path(folder))

    def is_something_else(self, name: str) -> bool:
        """As `Storage.is_something_else`; a link to nowhere is nothing."""
        path = self.path(name)
        return os.path.exists(path) and not os.path.isfile(path)

    def delete_leftover(self, name: str) -> None:
        """As `Storage.delete_leftover`: who writes to a file holds a lock of it."""
        path = self.path(name)
        with _told(path, "deleted"), contextlib.suppress(FileNotFoundError):
            if not _is_locked(path):
                os.unlink(path)

    def sync(self, folder: str = "") -> None:
        """As `Storage.sync`."""
        path = self.path(folder)
        with _told(path, "flushed"):
            _flush_folder(path)

    def map(self, name: str) -> Any:
        """As `Storage.map`."""
        path = self.path(name)
        if not self.size(name):  # nothing to map
            return np.empty(0, np.uint8)
        with _told(path, "mapped"):
            return np.memmap(path, np.uint8, "c").view(np.ndarray)


def check_bytes(path: str) -> None:
    """UsageError for a path that cannot be given to the system, as of half a pair of surrogates."""
    try:
        os.fsencode(path)
    except UnicodeEncodeError as error:
        raise UsageError(f"{path!a:.200}: no file can be called so: {error}") from None


class _Local(Writing):
    """A new file, locked while it is open, so that others know that its writer lives."""

    def __init__(self, path: str, shown: str) -> None:
        self._path, self._shown = path, shown
        self._fd = -1

    def __enter__(self) -> _Local:
        with _told(self._shown, "written"):
            self._fd = self._made()
        with contextlib.suppress(OSError):  # a file system without locks
            fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return self

    def __exit__(self, *error: object) -> None:
        with _told(self._shown, "written"):
            os.close(self._fd)

    def _made(self) -> int:
        """The file, opened. Its folder was there a moment ago: where it is missing, somebody has deleted it."""
        try:
            return os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
        except FileNotFoundError:
            if os.path.isdir(os.path.dirname(self._path)):
                raise
            with _still_there(self._path, self._shown):
                raise

    def flush(self) -> None:
        """Come back when the bytes are on the medium."""
        with _told(self._shown, "written"):
            os.fsync(self._fd)

    def write(self, data: Any) -> None:
        """As `Writing.write`."""
        fault_points.reached("saving")
        left = memoryview(data).cast("B")
        with _told(self._shown, "written"):
            while left:
                left = left[os.write(self._fd, left[:_MOST_AT_ONCE]) :]


def _item(entry: os.DirEntry[str]) -> Item | None:
    try:
        found = entry.stat()
    except FileNotFoundError:  # deleted since, or a link to nowhere
        return None
    except OSError:
        if not entry.is_symlink():
            raise
        return Item(entry.name, None)
    if stat.S_ISDIR(found.st_mode):
        return Item(entry.name, None, found.st_mtime)
    return Item(entry.name, found.st_size, found.st_mtime) if stat.S_ISREG(found.st_mode) else None


def _create_without_links(path: str, data: bytes) -> None:
    file = _Local(path, path)
    with file:  # who is not the first ends here
        try:
            file.write(data)
            file.flush()
        except BaseException:
            os.unlink(path)
            raise


def _is_locked(path: str) -> bool:
    """Whether somebody is writing to this file."""
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:  # a file system without locks
        return False
    finally:
        os.close(fd)
    return False


@contextlib.contextmanager
def _told(path: str, done: str) -> Iterator[None]:
    """Errors of the system become ours, with the path and what to do."""
    try:
        yield
    except StorageError:
        raise
    except OSError as error:
        _raise(error, path, done)


@contextlib.contextmanager
def _still_there(partial: str, path: str) -> Iterator[None]:
    """A file that has vanished while it was written was deleted by somebody, who is to be looked for."""
    try:
        yield
    except FileNotFoundError as error:
        raise StorageMissing(
            f"{path} cannot be written: {partial} or its folder is not there: another job or person has deleted it; "
            "let one job at a time write to a path",
            path,
            error.errno,
        ) from None


def _raise(error: OSError, path: str, done: str) -> NoReturn:
    code = error.errno
    if code == errno.EEXIST:
        raise StorageExists(f"{path} is there already: another writer was first", path, code) from None
    why = f"{path} cannot be {done}: {error.strerror or error}{advice(path, code, done in _MAKING)}"
    if code in (errno.ENOENT, errno.ENOTDIR):
        raise StorageMissing(why, path, code) from None
    if code in (errno.EACCES, errno.EPERM, errno.EROFS):
        raise StorageDenied(why, path, code) from None
    raise StorageError(why, path, code) from None


@contextlib.contextmanager
def _opened(path: str) -> Iterator[int]:
    with _told(path, "read"):
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            yield fd
        finally:
            os.close(fd)


def _fill(fd: int, path: str, start: int, buffer: memoryview) -> None:
    done = 0
    while done < len(buffer):
        count = os.preadv(fd, [buffer[done : done + _MOST_AT_ONCE]], start + done)
        if not count:
            raise _short(path, start + len(buffer), os.fstat(fd).st_size)
        done += count


def _short(path: str, wanted: int, size: int) -> CorruptFile:
    return CorruptFile(f"{path} is cut short: bytes up to {wanted} were expected, it has {size}", path)


def _make_folders(path: str) -> None:
    """Make `path` and what is missing above it, each entered into its parent for good."""
    if os.path.isdir(path):
        return
    parent = os.path.dirname(path)
    if parent != path:
        _make_folders(parent)
    try:
        os.mkdir(path)
    except FileExistsError:  # made by another writer meanwhile, or no folder
        os.stat(f"{path}/")
    _flush_folder(parent)


def _flush_folder(path: str) -> None:
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOTSUP):  # file systems whose folders need no flushing say so
            raise
    finally:
        os.close(fd)
