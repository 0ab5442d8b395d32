"""A warm spare: `python -m resilin.elastic.warm` does the slow imports, then waits to be told which worker it becomes.

It says `ready` on the control descriptor and reads one `start`; from then on it is that worker: its environment, its
log files, its script or module run as `__main__`, with the same descriptor for `elastic.run`.
"""

from __future__ import annotations

import os
import runpy
import socket
import sys

# the imports that a worker would pay for, done while nobody waits
import resilin.data.loader
import resilin.ddp
import resilin.elastic.loop
import resilin.elastic.state
import resilin.nn
import resilin.optim  # noqa: F401
from resilin._base import env, framing, uncaught
from resilin._base.clock import Deadline
from resilin.core.machine.threads import set_num_threads
from resilin.elastic import control
from resilin.errors import UsageError


def wait_for_start(sock: socket.socket) -> control.Start | None:
    """Say `ready` and read the one message a spare may get. None: the agent closed the descriptor, nobody needs us."""
    sock.sendall(control.encode(control.Ready(pid=os.getpid())))
    try:
        payload = framing.recv_frame(sock, Deadline(None))
    except framing.FrameError:
        return None
    message = control.decode(payload)
    if not isinstance(message, control.Start):
        raise control.ControlError(f"a warm spare expects 'start', the agent sent {message.kind!r}")
    return message


def become(start: control.Start) -> None:
    """Run the program of `start` as this process's `__main__`."""
    for path, descriptor in ((start.stdout, 1), (start.stderr, 2)):
        if path:
            _append_to(path, descriptor)
    env.adopt(start.env)
    uncaught.watch()
    count = env.get_int("OMP_NUM_THREADS")
    if count is not None:  # BLAS read it when it was imported, before this worker's environment was known
        set_num_threads(count)
    program = start.argv[0]
    sys.argv[:] = list(start.argv)
    if start.module:
        sys.path[0] = os.getcwd()
        runpy.run_module(program, run_name="__main__", alter_sys=True)
    else:
        sys.path[0] = os.path.dirname(os.path.abspath(program))
        runpy.run_path(program, run_name="__main__")


def _append_to(path: str, descriptor: int) -> None:
    target = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
    os.dup2(target, descriptor)
    os.close(target)


def main() -> None:
    """Entry point."""
    descriptor = env.get_int(control.ENV_FD)
    if descriptor is None:
        raise UsageError(f"a warm spare is started by an agent: {control.ENV_FD} is not set")
    # a copy of its own to wait on: the descriptor itself stays open for elastic.run
    with socket.socket(fileno=os.dup(descriptor)) as sock:
        start = wait_for_start(sock)
    if start is not None:
        become(start)


if __name__ == "__main__":
    main()
