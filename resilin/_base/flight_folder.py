"""Where flight recorders' files lie, and who removes them.

A folder that somebody named is theirs: files stay. Without one they lie in a folder of the user's in the system's
temporary folder, so that a job nobody prepared can be asked too. There each process that opens a file removes the
oldest files of processes that have ended, all but `KEPT`; files of the living are locked and stay.
"""

from __future__ import annotations

import contextlib
import os
import socket
from pathlib import Path

from resilin._base import env, private_files
from resilin._base.flight import SUFFIX, Recorder, is_held

KEPT = 64  # of ended processes: a job or a few of one host, 60 MB


def default() -> Path:
    """The folder of files that nobody gave a place."""
    return Path(env.get("TMPDIR") or "/tmp", f"resilin-flights-{os.geteuid()}")  # tempfile costs 2 ms of every import


def open_in(folder: str | None, capacity: int, job: str) -> Recorder:
    """A recorder with a new file in `folder`, or in `default()`. OSError when it cannot be made there."""
    if folder is None:
        place = default()
        private_files.own_folder(place, others_may_read=True)
        _tidy(place)
    else:
        place = Path(folder)
        private_files.make_folders(place)
    host = socket.gethostname()
    for number in range(1000):  # a process of the same number, in another container or before this one
        with contextlib.suppress(FileExistsError):
            name = f"{host}_{os.getpid()}{f'_{number}' if number else ''}{SUFFIX}"
            return Recorder(place / name, host, capacity, job)
    raise FileExistsError(f"{place}: a thousand files of process {os.getpid()} of {host} are there")


def _tidy(place: Path) -> None:
    def age(path: Path) -> float:
        with contextlib.suppress(FileNotFoundError):  # another process tidies, too
            return path.stat().st_mtime
        return 0.0

    for path in sorted(place.glob(f"*{SUFFIX}"), key=age, reverse=True)[KEPT:]:
        with contextlib.suppress(FileNotFoundError):
            if not is_held(path):
                path.unlink()
