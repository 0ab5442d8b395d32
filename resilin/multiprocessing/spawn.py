"""Start processes that run one function each, and join them: `spawn`, `start_processes`, `ProcessContext`."""

from __future__ import annotations

import logging
import multiprocessing
import os
import signal
import sys
import tempfile
import traceback
import warnings
from collections.abc import Callable, Sequence
from multiprocessing.connection import wait
from pathlib import Path
from typing import Any, NoReturn

from resilin._base import log, parent_death
from resilin._base.clock import SYSTEM
from resilin.errors import ProcessException, ProcessExitedException, ProcessRaisedException

__all__ = [
    "ProcessContext",
    "ProcessException",
    "ProcessExitedException",
    "ProcessRaisedException",
    "SpawnContext",
    "spawn",
    "start_processes",
]

TERMINATE_S = 30.0
"""How long processes may take to end after SIGTERM, before SIGKILL, when `join` was given no `grace_period`."""

_log = log.logger("multiprocessing")


def _wrap(fn: Callable[..., Any], i: int, args: tuple[Any, ...], error_file: str, parent: int | None) -> None:
    """What a process runs: `fn(i, *args)`. Leaves the traceback of what that raises in `error_file`."""
    if sys.platform == "linux" and parent is not None:
        parent_death.die_with(parent, signal.SIGINT)
    try:
        fn(i, *args)
    except KeyboardInterrupt:
        pass  # the parent's end, or the terminal's Ctrl-C, which the parent has got, too
    except Exception:  # noqa: BLE001  told to the parent
        Path(error_file).write_text(traceback.format_exc(), encoding="utf-8", errors="backslashreplace")
        sys.exit(1)


class ProcessContext:
    """Processes that were started together. `join` waits for them, and ends all when one fails."""

    def __init__(
        self,
        processes: Sequence[Any],
        error_files: Sequence[str],
        folder: tempfile.TemporaryDirectory[str] | None = None,
    ) -> None:
        self.processes = list(processes)
        self.error_files = list(error_files)
        self.sentinels = {process.sentinel: index for index, process in enumerate(self.processes)}
        self._folder = folder  # of the error files; goes with this object at the latest

    def pids(self) -> list[int]:
        """The processes' ids."""
        return [int(process.pid) for process in self.processes]

    def join(self, timeout: float | None = None, grace_period: float | None = None) -> bool:
        """Wait for a process to end, or for `timeout` seconds. True when all have ended well, False when some run.

        When one has failed, the others get `grace_period` seconds to end by themselves, then SIGTERM, then, as long
        again (or 30 seconds) later, SIGKILL.

        Raises: ProcessRaisedException with the traceback of what its function raised, ProcessExitedException of one
        that ended otherwise.
        """
        failed = None
        for sentinel in wait(list(self.sentinels), timeout) if self.sentinels else ():
            index = self.sentinels.pop(sentinel)
            self.processes[index].join()
            if self.processes[index].exitcode != 0:
                failed = index
                break
        if failed is not None:
            self._end_all(grace_period)
            self._raise(failed)
        if not self.sentinels:
            self._clean_up()
        return not self.sentinels

    def _end_all(self, grace_period: float | None) -> None:
        if grace_period is not None:
            self._wait_all(grace_period)
        for process in self.processes:
            if process.is_alive():
                log.event(_log, logging.WARNING, "a process is ended, as another has failed", pid=process.pid)
                process.terminate()
        self._wait_all(TERMINATE_S if grace_period is None else grace_period)
        for process in self.processes:
            if process.is_alive():
                log.event(_log, logging.WARNING, "a process is killed, as SIGTERM did not end it", pid=process.pid)
                process.kill()
            process.join()

    def _wait_all(self, seconds: float) -> None:
        until = SYSTEM.monotonic() + seconds
        for process in self.processes:
            process.join(max(0.0, until - SYSTEM.monotonic()))

    def _raise(self, index: int) -> NoReturn:
        process, path = self.processes[index], Path(self.error_files[index])
        told = path.read_text(encoding="utf-8") if path.exists() else None
        self._clean_up()
        if told is not None:
            text = f"\n\n-- Process {index} terminated with the following error:\n{told}"
            raise ProcessRaisedException(text, index, process.pid)
        code = process.exitcode
        if code >= 0:
            text = f"process {index} terminated with exit code {code}"
            raise ProcessExitedException(text, index, process.pid, code)
        name = signal.Signals(-code).name if -code in set(signal.Signals) else f"<Unknown signal {-code}>"
        text = f"process {index} terminated with signal {name}"
        raise ProcessExitedException(text, index, process.pid, code, name)

    def _clean_up(self) -> None:
        folder, self._folder = self._folder, None
        if folder is not None:
            folder.cleanup()


class SpawnContext(ProcessContext):
    """`ProcessContext` under its older name."""

    def __init__(self, processes: Sequence[Any], error_files: Sequence[str]) -> None:
        warnings.warn("SpawnContext is renamed to ProcessContext since 1.4 release.", stacklevel=2)
        super().__init__(processes, error_files)


def start_processes(
    fn: Callable[..., Any],
    args: tuple[Any, ...] = (),
    nprocs: int = 1,
    join: bool = True,
    daemon: bool = False,
    start_method: str = "spawn",
) -> ProcessContext | None:
    """Start `nprocs` processes, each of which calls `fn(its number, *args)`, and wait for them unless `join` is False.

    A process gets SIGINT when this one ends (Linux; not with "forkserver"). Returns the processes when it does not
    wait. Raises what `ProcessContext.join` raises.
    """
    context: Any = multiprocessing.get_context(start_method)
    folder = tempfile.TemporaryDirectory(prefix="resilin-errors-", ignore_cleanup_errors=True)
    parent = None if start_method == "forkserver" else os.getpid()  # else their parent is the server
    error_files = [str(Path(folder.name, f"{i}.txt")) for i in range(nprocs)]
    processes: list[Any] = []
    try:
        for i in range(nprocs):
            process = context.Process(target=_wrap, args=(fn, i, args, error_files[i], parent), daemon=daemon)
            process.start()
            processes.append(process)
    except BaseException:
        ProcessContext(processes, error_files, folder)._end_all(None)
        folder.cleanup()
        raise
    started = ProcessContext(processes, error_files, folder)
    if not join:
        return started
    while not started.join():
        pass
    return None


def spawn(
    fn: Callable[..., Any],
    args: tuple[Any, ...] = (),
    nprocs: int = 1,
    join: bool = True,
    daemon: bool = False,
    start_method: str = "spawn",
) -> ProcessContext | None:
    """`start_processes` with fresh interpreters: `fn` and `args` must be picklable, so `fn` at the top of a module.

    Tensors among `args` are shared with the processes.
    """
    if start_method != "spawn":
        warnings.warn(
            f"This method only supports start_method=spawn (got: {start_method}). To use a different start_method use "
            "resilin.multiprocessing.start_processes(...)",
            FutureWarning,
            stacklevel=2,
        )
    return start_processes(fn, args, nprocs, join, daemon, start_method="spawn")
