"""What is in the way of a file, in words: which folder or name is to blame, and what to do. Looks, changes nothing."""

from __future__ import annotations

import errno
import os
import shutil
import stat

from resilin.checkpoint.storage import LEFTOVER

PARTIAL_BYTES = 6  # of the random text in the name of a file that is being written, as twice as many digits
_ADDED = len(LEFTOVER) + 2 * PARTIAL_BYTES
_SHOWN = 40  # of a name that is too long
_MOST_BYTES = 255  # of a name, on all usual file systems


def advice(path: str, code: int | None, is_new: bool) -> str:
    """What to add to the system's own words for the error `code` of `path`; "" when they say it all.

    is_new: it was to be written, so what is missing is no answer.
    """
    if code == errno.ENOENT and is_new:
        return _without_folder(path)
    if code == errno.ENOTDIR:
        return (
            f"; {_lowest(path, 'file')} is a file, where a folder was expected: choose another place, or move it away"
        )
    if code == errno.EISDIR:
        return f"; {path} is a folder, where a file was expected: choose another name, or move it away"
    if code in (errno.EACCES, errno.EPERM):
        return f"; this process is user {os.geteuid()}" + (_owner(_lowest(path, "folder")) if is_new else "")
    if code == errno.EROFS:
        return "; choose a place on one that can be written"
    if code == errno.ENAMETOOLONG:
        return _too_long(path, is_new)
    if code == errno.EBUSY and is_new:
        return "; something is mounted there: choose another name, or unmount it"
    if code in (errno.ENOSPC, errno.EDQUOT):
        return f"; free space, or keep fewer checkpoints. {_space(path)}"
    return ""


def _without_folder(path: str) -> str:
    """Why there is no place for the new file `path`, whose folder is missing, or takes none."""
    lowest = _lowest(path, "name")
    if os.path.islink(lowest) and not os.path.exists(lowest):
        what = f"{lowest} is a link to {os.readlink(lowest)}, which is not there"
        return f"; {what}: make that folder, or choose another place"
    return f"; {lowest} takes no new files or folders, as those that the kernel makes: choose another place"


def _lowest(path: str, kind: str) -> str:
    """The nearest above `path` that is there, or `path`, when it is a file and such is asked for."""
    is_there = {"file": _is_file, "folder": os.path.isdir, "name": os.path.lexists}[kind]
    above = path if kind == "file" else os.path.dirname(path)
    while not is_there(above) and above != os.path.dirname(above):
        above = os.path.dirname(above)
    return above


def _is_file(path: str) -> bool:
    return os.path.exists(path) and not os.path.isdir(path)


def _owner(folder: str) -> str:
    """Whose folder it is that refuses, as far as it tells."""
    try:
        found = os.stat(folder)
    except OSError:
        return ""
    mode = f"{stat.S_IMODE(found.st_mode):o}"
    return f", {folder} is of user {found.st_uid} with mode {mode}: have it opened to this one, or choose another place"


def _too_long(path: str, is_new: bool) -> str:
    longest = max(path.split("/"), key=lambda part: len(os.fsencode(part)))
    count = len(os.fsencode(longest))
    if count + _ADDED * is_new <= _MOST_BYTES:
        return f"; it is a path of {len(os.fsencode(path))} bytes: expected a shorter one"
    less = f", less {_ADDED} while it is written" if count <= _MOST_BYTES else ""
    return f"; {longest[:_SHOWN] + '...'!r} has {count} bytes: expected a name of up to {_MOST_BYTES}{less}"


def _space(path: str) -> str:
    """How full the disk is, as far as it tells."""
    folder = os.path.dirname(path)
    try:
        usage = shutil.disk_usage(folder)
    except OSError:
        return f"The space on the disk of {folder} is not known"
    return f"The disk of {folder} has {usage.free} of {usage.total} bytes free"
