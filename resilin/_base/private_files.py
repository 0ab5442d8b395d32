"""Files and folders that are one user's alone, made so whatever the umask, in places where others may make names, too.

A name in a shared folder may be anybody's: a link that leads to another file of ours, a file that its owner goes on
reading and writing, a lock that nobody gives back. So what is opened here is looked at once it is open: it is a
regular file with one name, of this process's user or root, and others have no hand in it. `NotOurs` says what is the
matter, with path, owner and what to do.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import grp
import os
import pwd
import stat
from dataclasses import dataclass

from resilin._base.clock import SYSTEM, Deadline, spell

FILE_MODE, FOLDER_MODE = 0o600, 0o700
_ATTEMPTS = 100  # of opening a name that others make and remove meanwhile
_FIRST_PAUSE_S = 0.0001  # a store's lock is held for less than a millisecond
_FOREIGN_S = 1.0  # a lock may change hands: who has it for so long is looked up
_OTHERS, _OTHERS_WRITE = 0o077, 0o022


class NotOurs(PermissionError):
    """Something has a hand in a file or folder that is to be one user's alone."""

    def __init__(self, text: str) -> None:
        super().__init__(errno.EPERM, text)

    def __str__(self) -> str:
        return str(self.strerror)


def open_file(path: str | os.PathLike[str], flags: int, *, tighten: bool = False) -> int:
    """A descriptor of the regular file `path`, as `os.open` gives it; with O_CREAT it is made with mode 0600.

    tighten: one of ours that others may read gets mode 0600, too; else it is refused.
    Raises: NotOurs when it is a link, no regular file, another user's, or others may use it; OSError.
    """
    path = os.fspath(path)
    flags |= os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY  # a pipe or a terminal may have its name
    fd = _open(path, flags & ~os.O_TRUNC)
    try:
        found = os.fstat(fd)
        if not stat.S_ISREG(found.st_mode):
            raise NotOurs(f"{path} is no regular file: expected one of user {_name(os.geteuid())}{_ELSEWHERE}")
        _check_owner(path, found)
        _check_alone(path, found, _OTHERS_WRITE if tighten else _OTHERS)
        if tighten and found.st_mode & _OTHERS and found.st_uid == os.geteuid():
            os.fchmod(fd, FILE_MODE)
        if flags & os.O_TRUNC:
            os.ftruncate(fd, 0)
    except BaseException:
        os.close(fd)
        raise
    return fd


def _check_alone(path: str, found: os.stat_result, refused: int) -> None:
    """NotOurs when the file has another name, or its mode lets others do what `refused` says."""
    if found.st_nlink > 1:
        raise NotOurs(f"{path} is one of {found.st_nlink} names of a file: expected a file of its own{_ELSEWHERE}")
    if refused == _OTHERS_WRITE and _is_private(found.st_gid):
        refused = stat.S_IWOTH
    if found.st_mode & refused:
        raise NotOurs(
            f"{path}: user {_name(found.st_uid)} owns it with mode {stat.S_IMODE(found.st_mode):o}, expected mode "
            f"600, for what others have changed cannot be believed{_ELSEWHERE}"
        )


def _open(path: str, flags: int) -> int:
    """As `os.open`; what is new has mode 0600 whatever the umask."""
    for _ in range(_ATTEMPTS):
        try:
            if not flags & os.O_CREAT:
                return os.open(path, flags)
            fd = os.open(path, flags | os.O_EXCL, FILE_MODE)
            os.fchmod(fd, FILE_MODE)  # a umask may take from the owner, too
            return fd
        except FileExistsError:
            if flags & os.O_EXCL:
                raise
        except OSError as error:
            raise _not_a_link(path, error) from None
        try:
            return os.open(path, flags & ~os.O_CREAT)
        except FileNotFoundError:  # removed since
            continue
        except OSError as error:
            raise _not_a_link(path, error) from None
    raise FileNotFoundError(errno.ENOENT, f"it was made and removed {_ATTEMPTS} times meanwhile", path)


def _not_a_link(path: str, error: OSError) -> OSError:
    """`error`, in words of its own where the reason is that `path` is a link, or a file of somebody else."""
    try:
        found = os.lstat(path)
    except OSError:
        return error
    if stat.S_ISLNK(found.st_mode) and error.errno in (errno.ELOOP, errno.EMLINK):
        return NotOurs(f"{path} is a symbolic link of user {_name(found.st_uid)}: expected the file itself{_ELSEWHERE}")
    if error.errno in (errno.EACCES, errno.EPERM) and found.st_uid != os.geteuid():
        return NotOurs(f"{path} belongs to user {_name(found.st_uid)}, expected {_name(os.geteuid())}{_ELSEWHERE}")
    return error


def open_log(path: str | os.PathLike[str]) -> int:
    """A descriptor for appending to `path`, which a person has named: a file, made with mode 0600, or a pipe or device.

    A link of this user's or of root's is followed. Never waits for the reader of a pipe.
    Raises: NotOurs when it is another user's, or a file that others may write; OSError, as for a pipe without a reader.
    """
    path = os.fspath(path)
    with contextlib.suppress(FileNotFoundError):
        link = os.lstat(path)
        if stat.S_ISLNK(link.st_mode):
            _check_owner(path, link)
            return _open_log(path, os.O_CREAT)
    return _open_log(path, os.O_CREAT | os.O_NOFOLLOW)


def _open_log(path: str, flags: int) -> int:
    if not flags & os.O_NOFOLLOW and not os.path.exists(path):
        path, flags = os.path.realpath(path), flags | os.O_NOFOLLOW  # the link says where it is to be made
    fd = _open(path, os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY | flags)
    try:
        found = os.fstat(fd)
        _check_owner(path, found)
        if stat.S_ISREG(found.st_mode):
            _check_alone(path, found, _OTHERS_WRITE)
        os.set_blocking(fd, True)
    except BaseException:
        os.close(fd)
        raise
    return fd


def write_file(path: str | os.PathLike[str], text: str) -> None:
    """Write `text` to the file `path` of mode 0600, made when it is not there. Raises: as `open_file`."""
    with open(open_file(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, tighten=True), "w", encoding="utf-8") as file:
        file.write(text)


def replace_file(path: str, data: bytes, *, scratch: str, sync: bool = False) -> None:
    """Let `path` name a new file of mode 0600 with `data`, written as `scratch` first: the whole or nothing."""
    with contextlib.suppress(FileNotFoundError):
        os.unlink(scratch)  # what a writer left that was killed, or somebody's link
    with open(open_file(scratch, os.O_WRONLY | os.O_CREAT | os.O_EXCL), "wb") as file:
        file.write(data)
        if sync:
            file.flush()
            os.fsync(file.fileno())
    os.replace(scratch, path)


# ------------------------------------------------------------------------------------------------------- folders


def own_folder(path: str | os.PathLike[str], *, others_may_read: bool = False) -> None:
    """Make the folder `path` with mode 0700, or find it to be of this user alone.

    Raises: NotOurs when it is a link, no folder, another user's, or open to others; OSError when it cannot be made.
    """
    path = os.fspath(path)
    with contextlib.suppress(FileExistsError):
        os.mkdir(path, FOLDER_MODE)
    check_own_folder(path, others_may_read=others_may_read)


def check_own_folder(path: str | os.PathLike[str], *, others_may_read: bool = False) -> None:
    """As `own_folder` of what is there; FileNotFoundError when nothing is."""
    path = os.fspath(path)
    found = os.lstat(path)
    if not stat.S_ISDIR(found.st_mode):
        what = "a symbolic link" if stat.S_ISLNK(found.st_mode) else "a file"
        raise NotOurs(f"{path} is {what} of user {_name(found.st_uid)}: expected a folder{_ELSEWHERE}")
    if found.st_uid != os.geteuid():
        raise NotOurs(
            f"{path} is no folder of this user's alone: it belongs to user {_name(found.st_uid)}, expected "
            f"{_name(os.geteuid())}{_ELSEWHERE}"
        )
    if found.st_mode & (_OTHERS_WRITE if others_may_read else _OTHERS):
        raise NotOurs(
            f"{path} is no folder of this user's alone: it has mode {stat.S_IMODE(found.st_mode):o}, expected 700: "
            f"`chmod 700 {path}`"
        )


def make_folders(path: str | os.PathLike[str]) -> None:
    """Make the folder `path` and what is missing above it, all with mode 0700; leave what is there as it is."""
    missing, place = [], os.path.abspath(path)
    while not os.path.lexists(place):
        missing.append(place)
        place = os.path.dirname(place)
    for each in reversed(missing):
        with contextlib.suppress(FileExistsError):  # made by another process meanwhile
            os.mkdir(each, FOLDER_MODE)
    if not os.path.isdir(path):
        raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), os.fspath(path))


def named_folder(path: str | os.PathLike[str]) -> None:
    """Make the folder `path`, which a person has named, or find that others cannot replace what is made in it.

    A link of this user's or of root's is followed. A folder in which everybody makes names of his own (mode 1777) will
    do. What is missing is made as by `make_folders`.
    Raises: NotOurs when it is another user's, or others may write to it; OSError when it cannot be made.
    """
    path = os.fspath(path)
    make_folders(path)
    link = os.lstat(path)
    if stat.S_ISLNK(link.st_mode):
        _check_owner(path, link)
    found = os.stat(path)
    _check_owner(path, found)
    mode = found.st_mode
    others = mode & stat.S_IWOTH or (mode & stat.S_IWGRP and not _is_private(found.st_gid))
    if others and not mode & stat.S_ISVTX:
        raise NotOurs(
            f"others may write to {path}, of user {_name(found.st_uid)} with mode {stat.S_IMODE(mode):o}, and so "
            f"replace what is made there: `chmod 700 {path}`, or name a folder of your own in it, which is made"
        )


def _is_private(group: int) -> bool:
    """Whether nobody but this user is in `group`: some systems give each user one, and a umask that lets it write."""
    try:
        user, found = pwd.getpwuid(os.geteuid()), grp.getgrgid(group)
    except KeyError:
        return False
    return found.gr_name == user.pw_name and user.pw_gid == group and not set(found.gr_mem) - {user.pw_name}


# --------------------------------------------------------------------------------------------------------- owners

_ELSEWHERE = "; have it removed, or choose a path in a folder of your own"


def _check_owner(path: str, found: os.stat_result) -> None:
    if found.st_uid in (0, os.geteuid()) or found.st_uid == _called_there(os.path.dirname(os.path.abspath(path))):
        return
    what = "the symbolic link " * stat.S_ISLNK(found.st_mode)
    raise NotOurs(
        f"{what}{path} belongs to user {_name(found.st_uid)}, expected {_name(os.geteuid())} or root: that user could "
        f"read and change what this one does there{_ELSEWHERE}"
    )


def _called_there(folder: str) -> int | None:
    """The user as whom this process's new files in `folder` appear: servers of files may have their own idea of it."""
    path = os.path.join(folder, f".resilin-{os.urandom(8).hex()}")
    try:
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, FILE_MODE)
    except OSError:
        return None
    try:
        return os.fstat(fd).st_uid
    finally:
        os.close(fd)
        with contextlib.suppress(OSError):
            os.unlink(path)


def _name(user: int) -> str:
    """ "1000 (ada)", or the number alone of a user without a name."""
    try:
        return f"{user} ({pwd.getpwuid(user).pw_name})"
    except KeyError:
        return str(user)


# ---------------------------------------------------------------------------------------------------------- locks


@dataclass(frozen=True, kw_only=True)
class Holder:
    """Who holds a lock, as far as this machine's kernel tells: of other machines and containers it knows nothing."""

    pid: int
    user: int | None
    command: str

    def __str__(self) -> str:
        whose = "" if self.user is None else f" of user {_name(self.user)}"
        return f"process {self.pid}{f' ({self.command})' if self.command else ''}{whose}"

    @property
    def foreign(self) -> bool:
        """Whether it is neither this user's nor root's."""
        return self.user not in (None, 0, os.geteuid())


def lock(fd: int, path: str, deadline: Deadline, *, exclusive: bool = True, poll_s: float = 0.001) -> None:
    """Take the lock (flock) of `fd`, which `path` names, before `deadline`.

    flock has no deadline of its own, and over NFS nothing tells when a lock becomes free: it is asked, soon
    again at first and then every `poll_s`.
    Raises: TimeoutError, which names the holder; NotOurs when another user holds it for a second or longer.
    """
    mode = fcntl.LOCK_EX if exclusive else fcntl.LOCK_SH
    suspect, pause_s = Deadline(_FOREIGN_S), min(_FIRST_PAUSE_S, poll_s)
    while True:
        try:
            fcntl.flock(fd, mode | fcntl.LOCK_NB)
            return
        except BlockingIOError:
            pass
        if deadline.passed():
            raise TimeoutError(
                f"{holder(fd) or 'another process or thread'} held the lock of {path} for {spell(deadline.seconds)}"
            )
        if suspect.passed():
            found, suspect = holder(fd), Deadline(_FOREIGN_S)
            if found is not None and found.foreign:
                raise NotOurs(
                    f"{found} holds the lock of {path}, which is to be of user {_name(os.geteuid())} alone: have that "
                    "process ended, or choose a path in a folder of your own"
                )
        SYSTEM.sleep(pause_s)
        pause_s = min(2 * pause_s, poll_s)


def holder(fd: int) -> Holder | None:
    """A process of this machine that holds a lock (flock) of the file at `fd`, another user's first."""
    found = os.fstat(fd)
    place = f"{os.major(found.st_dev):02x}:{os.minor(found.st_dev):02x}:{found.st_ino}"
    try:
        with open("/proc/locks", encoding="ascii", errors="replace") as table:
            rows = [line.split() for line in table]
    except OSError:
        return None
    # "1: FLOCK ADVISORY WRITE 812 fe:00:2179330 0 EOF"; who waits has "->" after the number
    pids = {int(row[4]) for row in rows if len(row) > 5 and row[1] == "FLOCK" and row[5] == place}
    holders = [_holder(pid) for pid in sorted(pids - {os.getpid()}) if pid > 0]
    return min(holders, key=lambda each: not each.foreign, default=None)


def _holder(pid: int) -> Holder:
    user, command = None, ""
    with contextlib.suppress(OSError, ValueError, IndexError):
        with open(f"/proc/{pid}/status", encoding="utf-8", errors="replace") as status:
            lines = dict(line.split(":", 1) for line in status if ":" in line)
        command = lines["Name"].strip() if "Name" in lines else ""
        user = int(lines["Uid"].split()[1]) if "Uid" in lines else None  # the effective one
    return Holder(pid=pid, user=user, command=command)
