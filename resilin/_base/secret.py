"""Reads secrets and passwords, and says which secrets are good enough."""

from __future__ import annotations

import logging
import os
import stat

from resilin._base import env, log
from resilin.errors import UsageError

_log = log.logger("secret")
VARIABLE = "RESILIN_SECRET"
MAX_BYTES = 4096
MIN_CHARS = 22  # 128 random bits in base64: what a proof lets its reader try without asking us has no end before that
_ADVICE = "`elastic-run --make-secret` prints a new one, for all nodes of the job"


def new_secret() -> str:
    """A fresh job secret: 32 random bytes as hexadecimal text."""
    return os.urandom(32).hex()


def checked(text: str, source: str) -> str:
    """`text`, the secret that `source` gives; empty: there is none.

    UsageError, which never shows it, when it is so short that whoever sees a proof of it may find it by guessing.
    """
    if 0 < len(text) < MIN_CHARS:
        raise UsageError(
            f"{source}: expected a secret of at least {MIN_CHARS} random characters, got {len(text)}, which can be "
            f"guessed; {_ADVICE}"
        )
    return text


def from_environment() -> str | None:
    """The secret in RESILIN_SECRET; empty: there is none; None: nothing is said. UsageError as of `checked`."""
    text = env.get(VARIABLE)
    return None if text is None else checked(text, VARIABLE)


def given(path: str | None) -> str:
    """The job's secret from the file of --secret-file, else from the environment; empty: there is none."""
    if path is None:
        return from_environment() or ""
    return checked(read_file(path, "--secret-file"), f"--secret-file {path}")


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
        raise UsageError(f"{flag} {path}: expected text in UTF-8, got other bytes; {_ADVICE}") from None
    if not text or "\0" in text:
        raise UsageError(f"{flag} {path}: expected a secret, the file {'holds a zero byte' if text else 'is empty'}")
    if stat.S_ISREG(mode) and mode & 0o077:
        log.event(
            _log, logging.WARNING, "others may read this secret; chmod 600 it", file=path, mode=oct(stat.S_IMODE(mode))
        )
    return text
