"""A ring of spans in a file: the newest spans of a process, to be read while it runs and after it was killed.

The bytes are those of `_base.trace_ring`; whose they are stands as JSON in the room that its head leaves. The folder is
always one that somebody named: what lies there is theirs to remove, no process removes files of others. While a process
writes, it holds a lock on its file.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import mmap
import os
import socket
import stat
import struct
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from resilin._base import private_files, trace_ring
from resilin._base.flight import is_held
from resilin._base.trace_ring import HEAD_BYTES, MAGIC, Recording
from resilin.errors import UsageError

SUFFIX = ".spans"
MOST_BYTES = 4 << 30  # of a file, before it is believed to be one
_ABOUT_AT = 1024  # in the head, whose numbers end before
_LENGTH = struct.Struct("<I")
_BOOT = Path("/proc/sys/kernel/random/boot_id")


@dataclass(frozen=True, kw_only=True)
class About:
    """Whose spans a file holds, as its process knew when it made the file."""

    host: str = ""
    boot: str = ""
    """Which start of which machine: processes that say the same share the monotonic clock. Empty: unknown."""
    rank: int = -1
    world_size: int = -1
    job: str = ""


@dataclass(frozen=True)
class SpanFile:
    """What a file holds."""

    path: Path
    about: About
    recording: Recording
    alive: bool | None
    """Whether its process runs; None where that cannot be known: it is another host's."""


def boot() -> str:
    """Return what only processes on one running kernel share: their monotonic clocks are one. Empty: unknown."""
    try:
        return _BOOT.read_text(encoding="ascii").strip()
    except (OSError, ValueError):
        return ""


class Writer:
    """Owns a new file of `nbytes` in `folder`; `buffer` is its memory, for a recorder.

    Raises OSError when there is no room or no right to write, UsageError below 64 KiB. The file stays after `close`.
    """

    def __init__(self, folder: Path, nbytes: int, about: About) -> None:
        trace_ring.sizes(nbytes)
        private_files.make_folders(folder)
        self.path, file = _new(folder, about.host)
        try:
            os.posix_fallocate(file, 0, nbytes)  # a full disk is an error now, not a SIGBUS at some span
            self.buffer = mmap.mmap(file, nbytes)
            self._held = os.open(self.path, os.O_RDONLY | os.O_CLOEXEC)  # not the mapped one, which a fork copies
            with contextlib.suppress(OSError):  # some network file systems have no locks
                fcntl.flock(self._held, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.unlink(self.path)
            raise
        finally:
            os.close(file)
        text = json.dumps(asdict(about)).encode()[: HEAD_BYTES - _ABOUT_AT - _LENGTH.size]
        self.buffer[_ABOUT_AT : _ABOUT_AT + _LENGTH.size + len(text)] = _LENGTH.pack(len(text)) + text

    def close(self) -> None:
        """Hold the file no more. In a forked child: the parent goes on holding it."""
        if self._held >= 0:
            os.close(self._held)
            self._held = -1


def _new(folder: Path, host: str) -> tuple[Path, int]:
    for number in range(1000):  # a process of the same number, in another container or before this one
        path = folder / f"{host}_{os.getpid()}{f'_{number}' if number else ''}{SUFFIX}"
        with contextlib.suppress(FileExistsError):
            return path, os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    raise FileExistsError(f"{folder}: a thousand files of process {os.getpid()} of {host} are there")


def read(path: Path, read_ring: Callable[[Any], Recording] = trace_ring.read) -> SpanFile:
    """Read a file; its process may be writing to it. UsageError when it is none or was cut, OSError when unreadable.

    read_ring: does what `trace_ring.read` does, quicker.
    """
    file = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY)
    try:
        found = os.fstat(file)
        if not stat.S_ISREG(found.st_mode) or not HEAD_BYTES <= found.st_size <= MOST_BYTES:
            raise UsageError(f"{path}: expected a file of spans, got {found.st_size} bytes: it was cut, or is none")
        memory = memoryview(mmap.mmap(file, found.st_size, access=mmap.ACCESS_READ))
        if bytes(memory[: len(MAGIC)]) != MAGIC:
            raise UsageError(
                f"{path}: expected a file of spans that begins with {MAGIC!r}, got {bytes(memory[: len(MAGIC)])!r}: "
                "its process ended before it recorded anything, or another version of resilin wrote it"
            )
        about = _about(bytes(memory[_ABOUT_AT:HEAD_BYTES]))
        try:
            recording = read_ring(memory)
        except (UsageError, ValueError, struct.error) as error:
            raise UsageError(f"{path}: {error}: it was cut or damaged") from None
    finally:
        os.close(file)
    here = about.host == socket.gethostname() and about.boot == boot()
    return SpanFile(path, about, recording, is_held(path) if here else None)


def _about(data: bytes) -> About:
    (length,) = _LENGTH.unpack_from(data)
    try:
        body = json.loads(data[_LENGTH.size : _LENGTH.size + length])
        text = {key: str(body[key]) for key in ("host", "boot", "job")}
        return About(**text, rank=int(body["rank"]), world_size=int(body["world_size"]))
    except (ValueError, KeyError, TypeError):  # damaged: the spans themselves say most of it
        return About()
