"""What a process says that has no file descriptor left."""

from __future__ import annotations

import errno

ADVICE = "raise the limit of file descriptors (ulimit -n)"


def are_gone(error: OSError) -> bool:
    """Whether it came of a process, or a host, without descriptors left."""
    return error.errno in (errno.EMFILE, errno.ENFILE)


def named(error: OSError, where: str, why: str = "") -> OSError:
    """The same error for its user, who is told where it came from, and what to do. why: what takes descriptors."""
    more = f"; {why + ': ' if why else ''}{ADVICE}" if are_gone(error) else ""
    return OSError(error.errno, f"{where}: {error.strerror}{more}")
