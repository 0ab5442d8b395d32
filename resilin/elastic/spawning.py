"""The process that starts workers (`spawner.py`), seen from the process that starts it.

It imports little, and not asyncio: the launcher starts the spawner, and what workers are forked from, before it imports
what it needs itself.
"""

from __future__ import annotations

import array
import contextlib
import json
import os
import select
import socket
import subprocess
import sys
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from resilin.elastic import spawner

# last on the path: no module beside it can stand before one of the standard library; by import: it has its bytecode
_START = f"import sys; sys.path.append({str(Path(spawner.__file__).parent)!r}); import spawner; spawner.main()"
CLOSE_TIMEOUT_S = 6.0  # the spawner's own clean-up gives up after 5 s


@dataclass(frozen=True, kw_only=True)
class Command:
    """What to run. `stdout`, `stderr`: descriptors to give to the worker (None: inherit); they stay the caller's."""

    argv: Sequence[str]
    env: Mapping[str, str]
    stdout: int | None = None
    stderr: int | None = None
    program: Sequence[str] = ()
    """The part after the interpreter: what a template runs instead. Empty: none can."""
    module: bool = False
    """Whether the program is the name of a module."""


class SpawnerProcess:
    """The spawner as a child process. Make it first: before threads, before gRPC, before anything slow.

    folders: removed by the spawner when the agent ends, however it ends.
    inherit: should the spawner be killed, this process inherits what workers have left behind, and `close` kills it.
        For a process that starts nothing else from now on.
    """

    def __init__(self, folders: Sequence[str] = (), *, inherit: bool = False) -> None:
        self._inherits = inherit
        if inherit:
            spawner.adopt_orphans()
        self._others = frozenset(spawner.children())  # none of ours
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            program = [sys.executable, "-I", "-S", "-c", _START, str(theirs.fileno()), *folders]
            self._process = subprocess.Popen(program, pass_fds=[theirs.fileno()], start_new_session=True)
        self.socket = ours

    def prepare(self, template: Command) -> None:
        """Start the process that workers with a `program` are forked from, unless there is one. OSError: no spawner."""
        with request_file(template) as file:
            self.request([file.fileno()], op="prepare")

    def request(self, fds: Sequence[int] = (), **message: Any) -> None:
        """Send one request to the spawner. OSError: it is gone; BlockingIOError: it reads nothing."""
        ancillary = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", fds))] if fds else []
        self.socket.sendmsg([json.dumps(message).encode()], ancillary)

    def close(self) -> None:
        """Let it kill what is left and wait for its end."""
        self.socket.close()
        try:
            self._process.wait(CLOSE_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        if self._inherits and self._process.returncode != 0:
            spawner.sweep(_collect, self._others)


def request_file(command: Command) -> BinaryIO:
    """What the spawner reads of a command, in a file without a name."""
    body = {
        "argv": list(command.argv),
        "env": dict(command.env),
        "cwd": None,
        "program": list(command.program),
        "module": command.module,
    }
    file = os.fdopen(os.memfd_create("resilin-spawn"), "w+b", buffering=0)
    file.write(json.dumps(body).encode())
    file.seek(0)
    return file


def _collect(pids: Collection[int]) -> None:
    """Wait a moment for the end of these children."""
    select.select([], [], [], spawner.ROUND_S)
    for pid in pids:
        with contextlib.suppress(ChildProcessError):
            os.waitpid(pid, os.WNOHANG)
