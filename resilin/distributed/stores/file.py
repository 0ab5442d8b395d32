"""Keep the store in a file that all ranks can open and lock: one JSON object, replaced as a whole under `flock`.

Meant for a handful of keys at start. Other POSIX systems have no common way to be told of a change, so waiting looks
at the file again every few milliseconds.

A change is written to `FILE.new`, which then takes the file's name: whoever is killed meanwhile leaves the file as it
was. The lock is that of the file which has the name; who got another one's, that of a file replaced or removed, opens
again.

Beside it stands `FILE.users`, of which every open store holds a shared lock. Locks end with their process, so whoever
gets it exclusively is alone: when it opens, what it finds is a dead job's and is dropped; when it closes, it removes
the files. This lock is only taken and given back under the lock of the table.
"""

from __future__ import annotations

import base64
import contextlib
import fcntl
import json
import os
import weakref
from collections.abc import Callable, Iterator, Sequence
from datetime import timedelta

from resilin._base import json_text, private_files
from resilin._base.clock import SYSTEM, Deadline, spell
from resilin._base.private_files import NotOurs
from resilin.distributed.stores.base import DEFAULT_TIMEOUT_S, Store, Value, added, encode, take_first, text
from resilin.errors import DistStoreError

_LOOK_AGAIN_S = 0.005
_LEAVE_S = 2.0
_USERS_SUFFIX = ".users"
_NEW_SUFFIX = ".new"


class FileStore(Store):
    """A store in the file `file_name` (made when missing, removed when the last of its living users closes).

    What a job left there whose users were all killed is dropped by the next one to open it. DistStoreError: the file
    cannot be opened, is another user's, or is no store.
    """

    def __init__(
        self, file_name: str | os.PathLike[str], world_size: int = -1, timeout: timedelta | float = DEFAULT_TIMEOUT_S
    ) -> None:
        super().__init__(timeout)
        self.path = os.fspath(file_name)
        self._world_size = world_size
        self._closed = False
        with self._table() as values:
            users = _open_own(self.path + _USERS_SUFFIX)
            try:
                if _alone(users):
                    values.clear()
                _lock(users, self.path + _USERS_SUFFIX, self._deadline(), exclusive=False)
            except BaseException:
                os.close(users)
                raise
        whole_path = os.path.abspath(self.path)
        self._end = weakref.finalize(self, _leave, whole_path, users, os.getpid())  # once: at exit, at the latest

    def set(self, key: str, value: Value) -> None:
        """See Store."""
        with self._table() as values:
            values[text(key)] = encode(value)

    def get(self, key: str) -> bytes:
        """See Store."""
        self.wait([key])
        with self._table() as values:
            return values[key]

    def add(self, key: str, amount: int) -> int:
        """See Store."""
        with self._table() as values:
            total = added(key, values.get(key), amount)
            values[text(key)] = str(total).encode()
            return total

    def compare_set(self, key: str, expected: Value, desired: Value) -> bytes:
        """See Store."""
        with self._table() as values:
            present = values.get(key)
            if (present is None and not encode(expected)) or present == encode(expected):
                present = values[text(key)] = encode(desired)
            return encode(expected) if present is None else present

    def check(self, keys: Sequence[str]) -> bool:
        """See Store."""
        with self._table() as values:
            return all(text(key) in values for key in keys)

    def wait(self, keys: Sequence[str], timeout: timedelta | float | None = None) -> None:
        """See Store."""
        self._until(lambda: self.check(keys), keys, timeout)

    def append(self, key: str, value: Value) -> None:
        """See Store."""
        with self._table() as values:
            values[text(key)] = values.get(key, b"") + encode(value)

    def delete_key(self, key: str) -> bool:
        """See Store."""
        with self._table() as values:
            return values.pop(text(key), None) is not None

    def clone(self) -> FileStore:
        """See Store."""
        return FileStore(self.path, self._world_size, self.timeout)

    def _shift(self, key: str) -> bytes | None:
        with self._table() as values:
            return take_first(key, values)

    def _peek(self, key: str) -> bytes:
        with self._table() as values:
            return values.get(text(key), b"")

    def num_keys(self) -> int:
        """See Store."""
        return len(self.list_keys())

    def list_keys(self) -> list[str]:
        """See Store."""
        with self._table() as values:
            return sorted(values)

    def close(self) -> None:
        """Leave the store; the last user removes the file. Happens by itself when the store is dropped, or at exit."""
        self._closed = True
        self._end()

    def _until(self, there: Callable[[], bool], keys: Sequence[str], timeout: timedelta | float | None) -> None:
        deadline = self._deadline(timeout)
        while not there():
            if deadline.passed():
                missing = ", ".join(repr(key) for key in keys if not self.check([key]))
                raise DistStoreError(f"no value for {missing} in {self.path} within {spell(deadline.seconds)}")
            SYSTEM.sleep(_LOOK_AGAIN_S)

    @contextlib.contextmanager
    def _table(self) -> Iterator[dict[str, bytes]]:
        """The whole content under the lock; replaced when changed."""
        if self._closed:
            raise DistStoreError(f"file store {self.path} is closed")
        with open(_open_locked(self.path, self._deadline()), "rb") as file, _unlocked_after(file.fileno()):
            raw = file.read()
            try:
                content = json_text.parse(raw) if raw else {}
                values = {key: base64.b85decode(text) for key, text in content.items()}
            except (ValueError, TypeError, AttributeError):
                raise DistStoreError(f"{self.path} exists and is not a resilin file store: remove it") from None
            yield values
            new = json.dumps({key: base64.b85encode(value).decode() for key, value in values.items()}).encode()
            if new != raw:
                _replace(self.path, new)


def _replace(path: str, content: bytes) -> None:
    """Let `path` name a file with this content, or the one it named before; called under the lock of that."""
    side = path + _NEW_SUFFIX
    try:
        private_files.replace_file(path, content, scratch=side)
    except OSError as error:
        raise DistStoreError(f"file store {path}: cannot write {side}: {error.strerror}; nothing changed") from error


def _leave(path: str, users: int, pid: int) -> None:
    """Give back the lock on `FILE.users`; the last one removes the files.

    Waits `_LEAVE_S` at most for the table: garbage collection may call this in a thread that has it locked. Then the
    files stay, and their next user drops what they hold.
    """
    try:
        if os.getpid() != pid:  # a forked child: the lock and the file are its parent's
            return
        try:
            table = _open_locked(path, Deadline(_LEAVE_S))
        except DistStoreError:
            fcntl.flock(users, fcntl.LOCK_UN)
            return
        with open(table, "rb"), _unlocked_after(table):
            fcntl.flock(users, fcntl.LOCK_UN)  # closing is not enough where a forked child has a copy
            if _alone(users):
                for name in (path + _USERS_SUFFIX, path + _NEW_SUFFIX, path):
                    with contextlib.suppress(FileNotFoundError):
                        os.unlink(name)
    finally:
        os.close(users)


def _open_locked(path: str, deadline: Deadline) -> int:
    """A descriptor of the file that `path` names, under the exclusive lock; DistStoreError at `deadline`."""
    while True:
        fd = _open_own(path)
        try:
            _lock(fd, path, deadline)
            if _is_named(fd, path):
                return fd
        except BaseException:
            os.close(fd)
            raise
        os.close(fd)  # its last user removed it between the opening and the lock


def _lock(fd: int, path: str, deadline: Deadline, *, exclusive: bool = True) -> None:
    try:
        private_files.lock(fd, path, deadline, exclusive=exclusive)
    except (TimeoutError, NotOurs) as error:
        raise DistStoreError(f"file store {path}: {error}") from None


@contextlib.contextmanager
def _unlocked_after(fd: int) -> Iterator[None]:
    try:
        yield
    finally:
        fcntl.flock(fd, fcntl.LOCK_UN)  # closing is not enough where another thread has just forked


def _is_named(fd: int, path: str) -> bool:
    try:
        return os.path.samestat(os.fstat(fd), os.lstat(path))
    except FileNotFoundError:
        return False


def _open_own(path: str) -> int:
    """Open or make a file that may hold the job's secret: DistStoreError when other users own it or can open it."""
    try:
        return private_files.open_file(path, os.O_RDWR | os.O_CREAT)
    except NotOurs as error:
        raise DistStoreError(f"file store {error}") from None
    except OSError as error:
        raise DistStoreError(f"file store {path}: {error.strerror}") from error


def _alone(fd: int) -> bool:
    """Whether nobody else holds the lock of `fd`; it is exclusive then."""
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
