"""Records spans into a file whenever no profile does, the newest of them: from the start of a process where
RESILIN_RECORD_DIR names a folder, or for a while where somebody asks.

RESILIN_RECORD_BYTES is how much memory and disk that takes, 64 MiB unless it is set. A folder that cannot be written is
a warning, and nothing is recorded. A profile that is made meanwhile records in its place until it stops.
"""

from __future__ import annotations

import atexit
import contextlib
import logging
import os
import socket
from pathlib import Path

from resilin._base import env, log, span_file, trace, trace_ring
from resilin._base.span_file import About, Writer
from resilin.core.machine import span_rings
from resilin.errors import UsageError

MOST_CHILDREN = 32  # forked ones that have a file: a loader may fork some for each epoch, and files stay
FOLDER, BYTES = "RESILIN_RECORD_DIR", "RESILIN_RECORD_BYTES"

_LOG = logging.getLogger(__name__)
_writer: Writer | None = None
_forks = 0  # of this process, while it recorded


def start() -> None:
    """Record from now on, if the environment says so. UsageError when RESILIN_RECORD_BYTES makes no sense."""
    folder = env.get(FOLDER)
    if folder is None or _writer is not None:
        return
    nbytes = env.get_int(BYTES, trace_ring.DEFAULT_BYTES) or 0
    if not 64 << 10 <= nbytes <= span_file.MOST_BYTES:
        raise UsageError(f"environment variable {BYTES}: expected 65536 to {span_file.MOST_BYTES}, got {nbytes}")
    try:
        begin(Path(folder), nbytes, env.get_int("RANK", -1) or 0, env.get_int("WORLD_SIZE", -1) or 0)
    except OSError as error:  # a job does not end because what watches it finds no room
        log.event(_LOG, logging.WARNING, "spans are not recorded", folder=folder, reason=str(error))


def begin(folder: Path, nbytes: int, rank: int, world_size: int) -> Path:
    """Record from now on, and return the file. OSError: it cannot be made. UsageError: this process records already."""
    global _writer
    if _writer is not None:
        raise UsageError(f"this process records already, into {_writer.path}")
    job = env.get("RESILIN_JOB") or ""
    _writer = Writer(
        folder,
        nbytes,
        About(host=socket.gethostname(), boot=span_file.boot(), job=job, rank=rank, world_size=world_size),
    )
    trace.record_with(span_rings.make_recorder(_writer.buffer), trace.Layer.STANDING)
    return _writer.path


def end() -> None:
    """Record no more. The file stays."""
    global _writer
    trace.record_with(None, trace.Layer.STANDING)
    if _writer is not None:
        _writer.close()
        _writer = None


def _count_fork() -> None:
    global _forks
    _forks += _writer is not None


def _again_in_child() -> None:
    """A forked child is another process: it has a file of its own, and leaves its parent's alone."""
    global _forks
    if _writer is None:
        return
    before, _forks = _forks, 0
    end()
    if before < MOST_CHILDREN:
        start()
    elif before == MOST_CHILDREN:
        log.event(_LOG, logging.WARNING, "spans of further forked processes are not recorded", recorded=before)


def _remove_when_empty() -> None:
    """A process that did nothing that is traced leaves no file: it made it itself."""
    if _writer is not None and not trace_ring.written(_writer.buffer):
        with contextlib.suppress(FileNotFoundError):
            os.unlink(_writer.path)


atexit.register(_remove_when_empty)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_again_in_child, after_in_parent=_count_fork)
