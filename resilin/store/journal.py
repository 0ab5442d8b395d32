"""The file behind a `FileStore`: an append-only journal of commands, one checksummed record each, replaced when it
grew.

File: 16 random bytes that no other file has (inode numbers are used again), then records.
Record: 4 bytes length, 4 bytes CRC-32 of the payload (both big-endian), the payload: one JSON object. The first record
of a file is a snapshot of everything; a new file replaces the old one by rename. A record cut short by a dying writer
is the last one: readers ignore it, the next writer cuts it off. All access happens under `lock`.

Folder and files are one user's alone: who can write the journal steers the job, and who can open `lock` can keep it.
"""

from __future__ import annotations

import fcntl
import json
import os
import secrets
import struct
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from resilin._base import json_text, private_files
from resilin._base.clock import Deadline
from resilin._base.private_files import NotOurs
from resilin.errors import StoreError, StoreRefused, StoreTimeout

_ID_BYTES = 16
_HEADER = struct.Struct(">II")
MAX_RECORD_BYTES = 64 << 20
_NAME = "journal"
LOCK_POLL_S = 0.002


def holds_store(folder: str) -> bool:
    """Whether there is a journal in `folder`."""
    return os.path.isfile(os.path.join(folder, _NAME))


class Journal:
    """Reads and appends records in `folder`. Not thread-safe: its owner serializes the calls."""

    def __init__(self, folder: str) -> None:
        self.folder = folder
        self.size_bytes = 0
        """Bytes read so far of the present file."""
        self._path = os.path.join(folder, _NAME)
        self._id = b""
        self._lock_path = os.path.join(folder, "lock")
        try:
            private_files.named_folder(folder)
            self._lock_fd = private_files.open_file(self._lock_path, os.O_RDWR | os.O_CREAT, tighten=True)
        except NotOurs as error:
            raise StoreRefused(f"file store: {error}") from None
        except OSError as error:
            raise StoreError(f"file store: cannot use folder {folder}: {error.strerror}") from None

    def close(self) -> None:
        """Close the lock file."""
        os.close(self._lock_fd)

    @contextmanager
    def lock(self, deadline: Deadline, exclusive: bool) -> Iterator[None]:
        """Hold the folder's lock.

        StoreTimeout when another process keeps it past the deadline; StoreRefused when another user does.
        """
        try:
            private_files.lock(self._lock_fd, self._lock_path, deadline, exclusive=exclusive, poll_s=LOCK_POLL_S)
        except TimeoutError as error:
            raise StoreTimeout(f"file store: {error}") from None
        except NotOurs as error:
            raise StoreRefused(f"file store: {error}") from None
        try:
            yield
        finally:
            fcntl.flock(self._lock_fd, fcntl.LOCK_UN)

    def changed(self) -> bool:
        """Whether there is something new to read. Opens the file: NFS looks at the server then, not at its cache."""
        try:
            fd = private_files.open_file(self._path, os.O_RDONLY, tighten=True)
        except FileNotFoundError:
            return False
        try:
            return os.fstat(fd).st_size != self.size_bytes or os.read(fd, _ID_BYTES) != self._id
        finally:
            os.close(fd)

    def read(self) -> Iterator[tuple[bool, dict[str, Any]]]:
        """The records not read yet, each with whether it is the first one of its file."""
        try:
            fd = private_files.open_file(self._path, os.O_RDONLY, tighten=True)
        except FileNotFoundError:
            return
        with open(fd, "rb") as file:
            found = file.read(_ID_BYTES)
            if found != self._id:
                self._id, self.size_bytes = found, _ID_BYTES
            file.seek(self.size_bytes)
            data = file.read()
        start = 0
        while (end := self._record_end(data, start)) is not None:
            is_first = self.size_bytes == _ID_BYTES
            self.size_bytes += end - start
            yield is_first, self._parsed(data[start + _HEADER.size : end])
            start = end

    def _record_end(self, data: bytes, start: int) -> int | None:
        if len(data) - start < _HEADER.size:
            return None
        length, checksum = _HEADER.unpack_from(data, start)
        end = start + _HEADER.size + length
        if end > len(data):
            return None
        if length <= MAX_RECORD_BYTES and zlib.crc32(data[start + _HEADER.size : end]) == checksum:
            return int(end)
        if end == len(data):
            return None
        raise self._damaged()

    def _parsed(self, data: bytes) -> Any:
        try:
            return json_text.parse(data)
        except ValueError:
            raise self._damaged() from None

    def _damaged(self) -> StoreError:
        return StoreError(
            f"file store {self.folder}: the journal is damaged at byte {self.size_bytes}; remove the folder when no "
            "process of the job runs any more"
        )

    def append(self, record: dict[str, Any]) -> None:
        """Add one record after everything was read, under the exclusive lock. Not synced to disk: a machine that
        crashes takes its processes with it, and one that only loses a process keeps its page cache."""
        fd = private_files.open_file(self._path, os.O_RDWR, tighten=True)
        try:
            os.ftruncate(fd, self.size_bytes)  # a record cut short by a writer that died
            data = _encode(record)
            written = os.pwrite(fd, data, self.size_bytes)
            if written != len(data):
                os.ftruncate(fd, self.size_bytes)
                raise OSError(f"wrote {written} of {len(data)} bytes")
            self.size_bytes += len(data)
        finally:
            os.close(fd)

    def replace(self, snapshot: dict[str, Any]) -> None:
        """Start a new file with `snapshot`, under the exclusive lock."""
        new_id = secrets.token_bytes(_ID_BYTES)
        data = new_id + _encode(snapshot)
        private_files.replace_file(self._path, data, scratch=f"{self._path}.new", sync=True)
        self._id = new_id
        self.size_bytes = len(data)


def _encode(record: dict[str, Any]) -> bytes:
    payload = json.dumps(record, separators=(",", ":"), ensure_ascii=True).encode()
    return _HEADER.pack(len(payload), zlib.crc32(payload)) + payload
