"""File descriptors: what a process says that has none left, how many it may have, and what is kept of them."""

from __future__ import annotations

import errno
import resource

ADVICE = "raise the limit of file descriptors (ulimit -n)"
RESERVE = 64  # of the highest numbers, for what brings workers back: some ten for each, a few workers at a time
_UNLIMITED = 1 << 30


def are_gone(error: OSError) -> bool:
    """Whether it came of a process, or a host, without descriptors left."""
    return error.errno in (errno.EMFILE, errno.ENFILE)


def named(error: OSError, where: str, why: str = "") -> OSError:
    """The same error for its user, who is told where it came from, and what to do. why: what takes descriptors."""
    more = f"; {why + ': ' if why else ''}{ADVICE}" if are_gone(error) else ""
    return OSError(error.errno, f"{where}: {error.strerror}{more}")


def room() -> tuple[int, int]:
    """How many this process may have, and the number from which on they are the reserve.

    The kernel gives the lowest free number: one in the reserve says that no other is left.
    """
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    limit = _UNLIMITED if soft == resource.RLIM_INFINITY else soft
    return limit, limit - max(min(RESERVE, limit // 2), limit // 8)


def raise_limit() -> None:
    """Allow this process as many as it may allow itself. Processes that it starts from now on inherit it."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
