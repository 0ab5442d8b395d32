"""Writes a file whole or not at all: under another name in its folder, then renamed."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Callable
from typing import Any, BinaryIO


def write_whole(path: str | os.PathLike[str], write: Callable[[BinaryIO], Any]) -> None:
    """Let `write` fill a file that takes the place of the one at `path`, with its permissions, once it is on the disk.

    Whoever reads `path` meanwhile sees the old file; of several writers the last one's file stays. A link is followed.
    What is no regular file (a pipe, /dev/null) is written as it is, for it cannot be replaced.
    Raises: FileNotFoundError when the folder does not exist, OSError that names `path`, and whatever `write` raises:
    the old file stays.
    """
    try:
        _write_whole(path, write)
    except FileNotFoundError:
        raise
    except OSError as error:  # it names the file under its other name, or, in a write, none
        if error.errno is None:
            raise
        raise OSError(error.errno, error.strerror, os.fspath(path)) from None


def _write_whole(path: str | os.PathLike[str], write: Callable[[BinaryIO], Any]) -> None:
    target = os.path.realpath(path)
    folder = os.path.dirname(target)
    if not os.path.isdir(folder):
        raise FileNotFoundError(errno.ENOENT, "there is no such folder; make it first", folder)
    mode = os.stat(target).st_mode if os.path.exists(target) else None
    if mode is not None and not stat.S_ISREG(mode):
        with open(target, "wb") as file:
            write(file)
        return
    # its own for each writer, in whatever thread, process or container with this folder
    partial = f"{target}.partial-{os.urandom(6).hex()}"
    try:
        with open(partial, "xb") as file:
            if mode is not None:
                os.fchmod(file.fileno(), stat.S_IMODE(mode))
            write(file)
            file.flush()
            os.fsync(file.fileno())
        os.replace(partial, target)
    except BaseException:
        if os.path.exists(partial):
            os.unlink(partial)
        raise
