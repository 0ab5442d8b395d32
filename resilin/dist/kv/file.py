"""The store in a file that all ranks can open and lock: one JSON object, rewritten under `flock`.

Meant for a handful of keys at start. Other POSIX systems have no common way to be told of a change, so waiting looks
at the file again every few milliseconds.
"""

from __future__ import annotations

import base64
import contextlib
import fcntl
import json
import os
from collections.abc import Callable, Iterator, Sequence
from datetime import timedelta

from resilin._base.clock import SYSTEM
from resilin.dist.kv.base import DEFAULT_TIMEOUT_S, Store, Value, encode
from resilin.errors import DistStoreError

_LOOK_AGAIN_S = 0.005
_USERS = "users"  # of the reserved table: stores that have the file open; the last to close removes it


class FileStore(Store):
    """A store in the file `file_name` (made when missing, removed when the last of its users closes)."""

    def __init__(
        self, file_name: str | os.PathLike[str], world_size: int = -1, timeout: timedelta | float = DEFAULT_TIMEOUT_S
    ) -> None:
        super().__init__(timeout)
        self.path = os.fspath(file_name)
        self._world_size = world_size
        self._closed = False
        with self._table() as (_, meta):
            meta[_USERS] = meta.get(_USERS, 0) + 1

    def set(self, key: str, value: Value) -> None:
        """See Store."""
        with self._table() as (values, _):
            values[key] = encode(value)

    def get(self, key: str) -> bytes:
        """See Store."""
        self.wait([key])
        with self._table() as (values, _):
            return values[key]

    def add(self, key: str, amount: int) -> int:
        """See Store."""
        with self._table() as (values, _):
            total = int(values.get(key, b"0")) + amount
            values[key] = str(total).encode()
            return total

    def compare_set(self, key: str, expected: Value, desired: Value) -> bytes:
        """See Store."""
        with self._table() as (values, _):
            present = values.get(key)
            if (present is None and not encode(expected)) or present == encode(expected):
                present = values[key] = encode(desired)
            return encode(expected) if present is None else present

    def check(self, keys: Sequence[str]) -> bool:
        """See Store."""
        with self._table() as (values, _):
            return all(key in values for key in keys)

    def wait(self, keys: Sequence[str], timeout: timedelta | float | None = None) -> None:
        """See Store."""
        self._until(lambda: self.check(keys), keys, timeout)

    def append(self, key: str, value: Value) -> None:
        """See Store."""
        with self._table() as (values, _):
            values[key] = values.get(key, b"") + encode(value)

    def delete_key(self, key: str) -> bool:
        """See Store."""
        with self._table() as (values, _):
            return values.pop(key, None) is not None

    def num_keys(self) -> int:
        """See Store."""
        return len(self.list_keys())

    def list_keys(self) -> list[str]:
        """See Store."""
        with self._table() as (values, _):
            return sorted(values)

    def close(self) -> None:
        """Leave the store; the last user removes the file."""
        if self._closed:
            return
        self._closed = True
        with self._table() as (_, meta):
            meta[_USERS] = meta.get(_USERS, 1) - 1
            if meta[_USERS] <= 0:
                with contextlib.suppress(FileNotFoundError):
                    os.unlink(self.path)

    def _until(self, there: Callable[[], bool], keys: Sequence[str], timeout: timedelta | float | None) -> None:
        deadline = self._deadline(timeout)
        while not there():
            if deadline.passed():
                missing = ", ".join(repr(key) for key in keys if not self.check([key]))
                raise DistStoreError(f"no value for {missing} in {self.path} within {deadline.seconds:g} s")
            SYSTEM.sleep(_LOOK_AGAIN_S)

    @contextlib.contextmanager
    def _table(self) -> Iterator[tuple[dict[str, bytes], dict[str, int]]]:
        """The whole content under the lock; written back when changed."""
        try:
            fd = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise DistStoreError(f"file store {self.path}: {error.strerror}") from error
        with open(fd, "r+b", buffering=0) as file:
            _require_own(fd, self.path)
            fcntl.flock(fd, fcntl.LOCK_EX)
            raw = file.read()
            try:
                content = json.loads(raw) if raw else {"meta": {}, "values": {}}
                values = {key: base64.b85decode(text) for key, text in content["values"].items()}
                meta: dict[str, int] = dict(content["meta"])
            except (ValueError, KeyError, TypeError, AttributeError):
                raise DistStoreError(f"{self.path} exists and is not a resilin file store: remove it") from None
            yield values, meta
            text = {key: base64.b85encode(value).decode() for key, value in values.items()}
            new = json.dumps({"meta": meta, "values": text}).encode()
            if new != raw:
                file.seek(0)
                file.truncate()
                file.write(new)


def _require_own(fd: int, path: str) -> None:
    """The file may hold the job's secret: DistStoreError when another user owns it or can open it."""
    info = os.fstat(fd)
    if info.st_uid not in (0, os.geteuid()) or info.st_mode & 0o077:
        raise DistStoreError(
            f"file store {path}: user {info.st_uid} owns it with mode {info.st_mode & 0o777:o}, expected user "
            f"{os.geteuid()} and mode 600: remove it, or choose a path in a directory of your own"
        )
