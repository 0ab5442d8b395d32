"""Keep the template that workers are forked from: it imports resilin once, so that a worker has it when it starts.

The spawner starts it and asks it for workers, with the packets of `spawner.py`. A worker becomes the spawner's child
before it runs: the template forks a process that forks the worker and ends.

    template ──fork──> process in between ──fork──> worker: a session, environment and streams of its own,
             <─waits─┘ (ends at once)                 then its script or module as `__main__`

To a program it is a fresh interpreter in which resilin is imported: nothing was computed, no thread and no file is
left, and the random state of other libraries is made anew. The template itself has one thread.
"""

from __future__ import annotations

import builtins
import gc
import importlib
import io
import json
import os
import runpy
import select
import socket
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib.machinery import SourceFileLoader
from types import ModuleType, TracebackType
from typing import Any

import numpy as np

# what every worker imports; the first ones are waited for, so no more than that
import resilin.core.public.names
import resilin.distributed.group.process_group  # noqa: F401
from resilin._base import env, excepthook, parent_death
from resilin.core.machine import threads
from resilin.elastic.spawn import processes, spawner
from resilin.errors import UsageError

# what most import besides; done when nobody has asked for a worker for a while
_LATER = ("data.loader", "ddp", "elastic.worker.loop", "elastic.worker.state", "nn", "optim")
_IDLE_S = 0.5  # a start of a job asks for its workers at once; one that comes later is a replacement


@dataclass(frozen=True)
class Order:
    """A worker to be: what the spawner said, and the descriptors that came with it. Seen by the worker alone."""

    streams: str
    fds: tuple[int, ...]
    parent: int
    """The spawner."""


def serve(sock: socket.socket) -> Order | None:
    """Fork a worker for each packet; returns in the worker. None, in the template, when the other end is closed."""
    parent = os.getppid()
    gc.freeze()  # no worker copies pages because its collector looked at them
    later = list(_LATER)
    while True:
        if later and not select.select([sock], [], [], _IDLE_S)[0]:
            for name in later:
                importlib.import_module(f"resilin.{name}")
            later.clear()
            gc.freeze()
        packet, fds = spawner.receive(sock)
        if not packet:
            return None
        message = json.loads(packet)
        pid = _fork_grandchild()
        if pid is None:
            return Order(message["streams"], tuple(fds), parent)
        for fd in fds:
            os.close(fd)
        sock.send(json.dumps({"id": message["id"], "pid": pid}).encode())


def _fork_grandchild() -> int | None:
    """The number of a grandchild that is nobody's child here, 0 if there can be none; in the grandchild: None."""
    reads, writes = os.pipe()
    try:
        between = os.fork()
    except OSError:
        between = -1
    if between == 0:
        if _fork_or_end() != 0:
            os._exit(0)
        os.close(reads)
        os.setsid()
        os.write(writes, str(os.getpid()).encode())
        os.close(writes)
        return None
    os.close(writes)
    if between > 0:
        os.waitpid(between, 0)  # its children have another parent when it has ended
    text = os.read(reads, 32)
    os.close(reads)
    return int(text or 0)


def _fork_or_end() -> int:
    try:
        return os.fork()
    except OSError:
        os._exit(1)


def become(order: Order) -> None:
    """Run the program that was ordered as this process's `__main__`. Returns or raises SystemExit when it has ended."""
    go, request_fd, control_fd, *streams = order.fds
    if os.read(go, 1) != b"g":
        os._exit(0)  # it was to be killed before it had begun, or the spawner has ended
    os.close(go)
    parent_death.die_with(order.parent)
    with open(request_fd, "rb") as file:
        request = json.loads(file.read())
    for name, fd in zip(order.streams, streams, strict=True):
        os.dup2(fd, {"o": 1, "e": 2}[name])
        os.close(fd)
    os.set_inheritable(control_fd, True)
    gc.enable()
    env.replace({**request["env"], spawner.ENV_FD: str(control_fd)})
    sys.orig_argv[:] = request["argv"]
    processes.rename(request["argv"])
    if "numpy.random" in sys.modules:  # else it is imported by each worker for itself, with a state of its own
        np.random.seed()  # every interpreter's own, as torch's and Python's are by themselves
    threads.set_num_threads(threads.default())  # the template had one
    excepthook.watch()
    try:
        _run(request["program"], as_module=request["module"])
    except BaseException:  # KeyboardInterrupt, too; the interpreter shows it, and ends as it does
        _show_only_the_program()
        raise


def _run(argv: Sequence[str], *, as_module: bool) -> None:
    sys.argv[:] = argv
    main: Any = ModuleType("__main__")
    main.__builtins__ = builtins  # without this a program finds a dictionary there
    if "__annotations__" in vars(sys.modules["__main__"]):
        main.__annotations__ = {}
    sys.modules["__main__"] = main
    if not sys.flags.safe_path:
        sys.path.insert(0, os.getcwd() if as_module else os.path.dirname(os.path.realpath(argv[0])))
    if as_module:
        runpy._run_module_as_main(argv[0])  # type: ignore[attr-defined]  # what `python -m` calls
        return
    path = argv[0]
    if not os.path.isabs(path):  # the program may go to another folder and ask for its file there
        path = os.path.join(os.getcwd(), path)
    main.__file__, main.__cached__, main.__loader__ = path, None, SourceFileLoader("__main__", path)
    with io.open_code(path) as file:
        code = compile(file.read(), path, "exec", dont_inherit=True)
    exec(code, main.__dict__)


def _show_only_the_program() -> None:
    """Have whatever shows the exception that ends this process begin with the program's first frame."""
    shown_by = sys.excepthook

    def hook(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        frames = list(_frames(trace))
        ours = [place for place, frame in enumerate(frames) if frame.tb_frame.f_code.co_filename == __file__]
        below = [f for f in frames[max(ours, default=-1) + 1 :] if f.tb_frame.f_code.co_filename != "<frozen runpy>"]
        error.__traceback__ = below[0] if below else None
        shown_by(kind, error, error.__traceback__)

    sys.excepthook = hook


def _frames(trace: TracebackType | None) -> Iterator[TracebackType]:
    while trace is not None:
        yield trace
        trace = trace.tb_next


def main() -> None:
    """Be a template. Returns or raises in a worker whose program has ended, as that did."""
    descriptor = env.get_int(spawner.ENV_FD)
    if descriptor is None:
        raise UsageError(f"a template is started by a spawner: {spawner.ENV_FD} is not set")
    with socket.socket(fileno=descriptor) as sock:
        order = serve(sock)
    if order is not None:
        become(order)
