"""Drive the process that starts workers (`spawner.py`) from the process that starts it.

It imports little, and not asyncio: the launcher starts the spawner, and what workers are forked from, before it imports
what it needs itself.
"""

from __future__ import annotations

import array
import contextlib
import json
import os
import select
import signal
import socket
import subprocess
import sys
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from resilin._base import env
from resilin.elastic.spawn import processes, spawner

# last on the path: no module beside resilin can stand before one of the standard library
_START = (
    f"import socket, sys; sys.path.append({str(Path(spawner.__file__).parents[3])!r}); "
    "from resilin.elastic.spawn import spawner; spawner.serve(socket.socket(fileno=int(sys.argv[1])))"
)
CLOSE_TIMEOUT_S = 6.0  # the spawner's own clean-up gives up after 5 s


@dataclass(frozen=True, kw_only=True)
class Command:
    """Say what to run. `stdout`, `stderr`: descriptors for the worker (None: inherit); they stay the caller's."""

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

    inherit: should the spawner be killed, this process inherits what workers have left behind, and `close` kills it.
        For a process that starts nothing else from now on. If it has no other thread it forks its spawner, and that
        forks what workers are forked from (each 30 ms less than a new interpreter): there `spawner.Copied` is raised,
        which `copies.run` takes.
    """

    def __init__(self, *, inherit: bool = False) -> None:
        self._inherits = inherit
        if inherit:
            processes.adopt_orphans()
        self._others = frozenset(processes.children())  # none of ours
        self._folders: list[str] = []
        self.socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            forks = inherit and len(os.listdir("/proc/self/task")) == 1
            self._pid = _forked(self.socket, theirs) if forks else _executed(theirs)

    def own(self, folder: str) -> None:
        """Have the spawner remove `folder` when this process has ended, however that was, or with `close`."""
        self._folders.append(folder)
        self.request(op="own", folder=folder)

    def prepare(self, template: Command) -> None:
        """Start the process that workers with a `program` are forked from, unless there is one. OSError: no spawner."""
        with request_file(template) as file:
            self.request([file.fileno()], op="prepare")

    def request(self, fds: Sequence[int] = (), **message: Any) -> None:
        """Send one request to the spawner. OSError: it is gone; BlockingIOError: it reads nothing."""
        ancillary = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", fds))] if fds else []
        self.socket.sendmsg([json.dumps({**message, "fds": len(fds)}).encode()], ancillary)

    def close(self) -> None:
        """Let it kill what is left and wait for its end. A second call does nothing."""
        if self.socket.fileno() < 0:
            return
        self.socket.close()
        descriptor = os.pidfd_open(self._pid)
        try:
            ending = select.poll()  # not `select`: the number may be beyond 1023
            ending.register(descriptor, select.POLLIN)
            if not ending.poll(CLOSE_TIMEOUT_S * 1000):
                os.kill(self._pid, signal.SIGKILL)
        finally:
            os.close(descriptor)
        _, status = os.waitpid(self._pid, 0)
        if status == 0:
            return
        if self._inherits:
            processes.sweep(_collect, self._others)
        for folder in self._folders:
            processes.remove(folder)


def _executed(theirs: socket.socket) -> int:
    """The process number of a spawner in an interpreter of its own."""
    program = [sys.executable, "-I", "-S", "-c", _START, str(theirs.fileno())]
    variables = env.snapshot({"TORCHELASTIC_ERROR_FILE": ""})  # the one of a job around this one is none of its own
    process = subprocess.Popen(program, pass_fds=[theirs.fileno()], start_new_session=True, env=variables)
    process.returncode = 0  # it is waited for by its number
    return process.pid


def _forked(ours: socket.socket, theirs: socket.socket) -> int:
    """The process number of a spawner that is a copy of this process. Returns in this process alone.

    `spawner.Copied` is raised in what the copy starts.
    """
    pid = os.fork()
    if pid:
        return pid
    code = 1
    try:
        os.setsid()
        ours.close()
        for descriptor in map(int, os.listdir("/proc/self/fd")):
            if descriptor > 2 and descriptor != theirs.fileno():
                with contextlib.suppress(OSError):  # the one of the listing itself is closed by now
                    os.close(descriptor)
        processes.rename([spawner.NAME])
        spawner.serve(theirs, copies=_is_plain())
        code = 0
    except spawner.Copied:
        raise
    except BaseException:  # noqa: BLE001 - nothing of the launcher may run here
        sys.excepthook(*sys.exc_info())
    os._exit(code)


def _is_plain() -> bool:
    """Whether a copy of this process is like a new interpreter: started without options, and no worker of a job."""
    first = sys.orig_argv[1] if len(sys.orig_argv) > 1 else "-"
    return (first in ("-m", "-c") or not first.startswith("-")) and not env.get("TORCHELASTIC_ERROR_FILE")


def request_file(command: Command) -> BinaryIO:
    """Write what the spawner reads of a command to a file without a name."""
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
    select.select([], [], [], processes.ROUND_S)
    for pid in pids:
        with contextlib.suppress(ChildProcessError):
            os.waitpid(pid, os.WNOHANG)
