"""Reads secrets and passwords from files."""

from __future__ import annotations

import logging
import os
import stat

from resilin._base import log
from resilin.errors import UsageError

_log = log.logger("secret")
MAX_BYTES = 4096


def read_file(path: str, flag: str) -> str:
    """The text of the file that option `flag` names, without the white space around it.

    UsageError, which never shows the text, when it cannot be read, is empty, too long or no UTF-8 text. A regular file
    that others than its owner may read or write leads to a warning.
    """
    try:
        with open(path, "rb") as opened:
            mode = os.fstat(opened.fileno()).st_mode
            data = opened.read(MAX_BYTES + 1)
    except (OSError, ValueError) as error:  # ValueError: a path with a NUL
        raise UsageError(f"{flag} {path}: cannot be read: {getattr(error, 'strerror', None) or error}") from None
    if len(data) > MAX_BYTES:
        raise UsageError(f"{flag} {path}: expected a secret of at most {MAX_BYTES} bytes, the file is longer")
    try:
        text = data.decode("utf-8").strip()
    except UnicodeDecodeError:
        raise UsageError(
            f"{flag} {path}: expected text in UTF-8, got other bytes; `openssl rand -hex 32` makes a secret"
        ) from None
    if not text or "\0" in text:
        raise UsageError(f"{flag} {path}: expected a secret, the file {'holds a zero byte' if text else 'is empty'}")
    if stat.S_ISREG(mode) and mode & 0o077:
        log.event(
            _log, logging.WARNING, "others may read this secret; chmod 600 it", file=path, mode=oct(stat.S_IMODE(mode))
        )
    return text
