"""The folder that relative paths start from."""

from __future__ import annotations

import os

from resilin.errors import UsageError


def absolute(path: str, what: str) -> str:
    """`path`, which is `what`, from the root. UsageError for a relative one when the current folder was removed."""
    if os.path.isabs(path):
        return path
    try:
        return os.path.abspath(path)
    except OSError as error:
        raise UsageError(
            f"{what} {path!r} starts from the current folder, which is not there any more ({error.strerror}): "
            "was it removed? Change to a folder that exists"
        ) from None
