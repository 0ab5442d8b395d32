"""Write to standard error what must neither fail nor wait: its reader may have gone or read nothing, its disk be full.

What cannot be written is left out. Nothing is left in the buffers of `sys.stderr`: what they could not write when the
interpreter ends would become its exit code.
"""

from __future__ import annotations

import contextlib
import io
import os
import select
import stat
import sys
from collections.abc import Iterator
from typing import TextIO

WAIT_S = 1.0  # for a reader that is busy; one that has let this pass is waited for no more, until it reads again
_CHUNK_BYTES = 4096  # PIPE_BUF: a pipe takes so much whole, or nothing
_patient = True  # whether the last text was taken in time; no lock guards it, which a fork might keep locked


def write(text: str, stream: TextIO | None = None) -> None:
    """Write `text` and the end of its line to `stream`, `sys.stderr` by default, if that can be done."""
    stream = sys.stderr if stream is None else stream
    if stream is None:  # the descriptor was closed when the interpreter started
        return
    with contextlib.suppress(Exception):  # of what a program has put in its place, any; of Python's, when it is closed
        descriptor = _descriptor(stream)
        if descriptor is None:
            stream.write(f"{text}\n")
            stream.flush()
        else:
            _put(descriptor, f"{text}\n".encode(errors="backslashreplace"))


def _descriptor(stream: TextIO) -> int | None:
    """What Python's own stream writes to; None for one that a program has put in its place."""
    buffer = getattr(stream, "buffer", None)
    raw = getattr(buffer, "raw", buffer)  # without buffering (python -u) it is that itself
    return raw.fileno() if isinstance(raw, io.FileIO) else None


def _put(descriptor: int, data: bytes) -> None:
    global _patient
    ready = select.poll()
    with _unblocked(descriptor) as own:
        ready.register(own, select.POLLOUT)
        while data:
            _patient = bool(ready.poll(WAIT_S * 1000 if _patient else 0))
            if not _patient:
                return
            data = data[os.write(own, data[:_CHUNK_BYTES]) :]


@contextlib.contextmanager
def _unblocked(descriptor: int) -> Iterator[int]:
    """A descriptor of the same pipe that never blocks, whoever else fills it; of what is no pipe, the same one.

    To set the flag of `descriptor` would set it for all processes that have inherited it.
    """
    own = -1
    if stat.S_ISFIFO(os.fstat(descriptor).st_mode):
        with contextlib.suppress(PermissionError, FileNotFoundError):  # another user's pipe; no /proc
            own = os.open(f"/proc/self/fd/{descriptor}", os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        yield descriptor if own < 0 else own
    finally:
        if own >= 0:
            os.close(own)
