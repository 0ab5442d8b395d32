"""Control what becomes of a process's descendants, and what the system knows of it. Linux; loads little (`spawner`)."""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import signal

TYPE_CHECKING = False  # `typing` itself would cost 5 ms
if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Sequence

_PR_SET_NAME, _PR_SET_CHILD_SUBREAPER = 15, 36
ROUND_S = 0.025
_CLEANUP_ROUNDS = 200  # a process in uninterruptible sleep must not keep us for ever
_libc = ctypes.CDLL(None, use_errno=True)


def adopt_orphans() -> None:
    """Make this process a subreaper: descendants whose parent ended become its children."""
    _libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def sweep(rest: Callable[[Collection[int]], None], spare: Collection[int] = ()) -> None:
    """Kill all descendants of a subreaper: children first, then those that thereby become its children.

    rest: called with the children just killed; waits a moment (ROUND_S) and collects those that ended.
    spare: children that are left alone.
    """
    for _ in range(_CLEANUP_ROUNDS):
        found = [pid for pid in children() if pid not in spare]
        if not found:
            return
        for pid in found:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
        rest(found)


def children() -> list[int]:
    """The direct children of this process that are still there."""
    try:
        with open(f"/proc/self/task/{os.getpid()}/children", encoding="ascii") as file:
            return [int(pid) for pid in file.read().split()]
    except OSError:  # a kernel without CONFIG_PROC_CHILDREN
        return [pid for pid in map(int, filter(str.isdigit, os.listdir("/proc"))) if _parent_of(pid) == os.getpid()]


def _parent_of(pid: int) -> int:
    try:
        return int(stat(pid)[1])
    except (IndexError, ValueError):
        return -1


def stat(pid: int) -> list[str]:
    """Read what /proc says of a process behind its name: its state, its parent, ...; nothing when it is gone."""
    try:
        with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as file:
            return file.read().rpartition(")")[2].split()
    except OSError as error:
        if error.errno not in (errno.ENOENT, errno.ESRCH, errno.EACCES):
            raise
        return []


def remove(folder: str) -> None:
    """Remove a folder and all in it, as far as that can be done. (`shutil` would load bz2 and lzma: 10 ms.)"""
    for place, folders, files in os.walk(folder, topdown=False):
        for name in (*files, *folders):
            path = os.path.join(place, name)
            with contextlib.suppress(OSError):
                (os.rmdir if name in folders and not os.path.islink(path) else os.unlink)(path)
    with contextlib.suppress(OSError):
        os.rmdir(folder)


def name_itself(name: str) -> None:
    """Be shown as `name` where only a short name is shown (15 bytes)."""
    _libc.prctl(_PR_SET_NAME, os.fsencode(name), 0, 0, 0)


def rename(command: Sequence[str]) -> None:
    """Show `command` in lists of processes, as far as the room of this process's own goes."""
    start, end = map(int, stat(os.getpid())[45:47])
    room = end - start - 1  # the last byte stays 0, or the environment would be shown, too
    text = b"\0".join(map(os.fsencode, command))[:room]
    ctypes.memmove(start, text.ljust(room, b"\0"), room)
