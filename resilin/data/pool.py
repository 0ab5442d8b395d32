"""The parent's side of a loader's worker processes: starts them, talks to them, ends them."""

from __future__ import annotations

import multiprocessing
import os
import signal
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from multiprocessing.context import BaseContext
from typing import Any

from resilin._base.clock import Deadline
from resilin.core import memory
from resilin.data import messages
from resilin.data.fetch import stopped
from resilin.data.worker import Begin, Fetch, Result, WorkerConfig, WorkerError, main
from resilin.errors import ResilinError

_STOP_S = 5.0  # how long a worker may take to finish its batch when asked to stop; then it is killed


@dataclass(frozen=True)
class _Worker:
    process: Any  # BaseProcess of the chosen context
    connection: Connection[Any, Any]


class WorkerPool:
    """Worker processes of one loader. Each answers its requests in order. Ended by `close()`."""

    def __init__(self, configs: Sequence[WorkerConfig], context: BaseContext | str | None) -> None:
        chosen: Any = multiprocessing.get_context(context) if isinstance(context, str | None) else context
        self._owner_pid = os.getpid()
        self._epoch = 0
        self._grace_s = _STOP_S  # none once a worker was found stuck
        self._workers: list[_Worker] = []
        self._readers = memory.Readers()  # forked workers read the data set's tensors where they lie
        try:
            for config in configs:
                self._start(chosen, config)
        except BaseException:
            self.close()
            raise

    def _start(self, context: Any, config: WorkerConfig) -> None:
        ours, theirs = multiprocessing.Pipe(duplex=True)
        process = context.Process(
            target=main, args=(config, theirs, os.getpid()), name=f"resilin-data-{config.number}", daemon=True
        )
        try:
            with self._readers.forking():
                process.start()
        except BaseException:
            ours.close()
            raise
        finally:
            theirs.close()
        self._workers.append(_Worker(process, ours))

    def __len__(self) -> int:
        return len(self._workers)

    @property
    def pids(self) -> list[int]:
        """Process ids of the workers, by number."""
        return [worker.process.pid for worker in self._workers]

    def begin(self, base_seed: int) -> None:
        """Start a new pass: results still under way are dropped, streams start over, worker n is seeded base_seed+n."""
        self._epoch += 1
        for number in range(len(self._workers)):
            self._send(number, Begin(self._epoch, base_seed))

    def request(self, number: int, index: Any) -> None:
        """Ask worker `number` for the batch of `index`."""
        self._send(number, Fetch(self._epoch, index))

    def result(self, number: int, timeout_s: float | None) -> Result:
        """The next answer of worker `number` in this pass.

        Raises: ResilinError when the worker died, or did not answer within `timeout_s`; the error of the worker's own
        code, with its traceback as a note, when it failed.
        """
        deadline = Deadline(timeout_s)
        while True:
            result = self._receive(number, deadline)
            if result.epoch == self._epoch:
                if result.error is not None:
                    _raise(result.error, number, self._workers[number].process.pid)
                return result

    def _send(self, number: int, message: Any) -> None:
        worker = self._workers[number]
        try:
            messages.send(worker.connection, message, worker.process.pid)
        except (BrokenPipeError, ConnectionResetError):
            raise self._death(number) from None

    def _receive(self, number: int, deadline: Deadline) -> Result:
        worker = self._workers[number]
        ready = wait([worker.connection, worker.process.sentinel], deadline.left())
        if not ready:
            self._grace_s = 0.0
            raise ResilinError(
                f"DataLoader: worker {number} (pid {worker.process.pid}) gave no batch within "
                f"timeout={deadline.seconds} s; raise the timeout, or look at what its data set waits for"
            )
        if worker.connection not in ready and not worker.connection.poll():
            raise self._death(number)
        try:
            result: Result = messages.receive(worker.connection)
        except (EOFError, OSError):
            raise self._death(number) from None
        return result

    def _death(self, number: int) -> ResilinError:
        process = self._workers[number].process
        process.join(_STOP_S)
        code = process.exitcode
        how = (
            f"was killed by signal {-code} ({_signal_name(-code)})" if code and code < 0 else f"exited with code {code}"
        )
        hint = "; often the kernel's out-of-memory killer: use fewer workers or smaller batches" if code == -9 else ""
        return ResilinError(f"DataLoader: worker {number} (pid {process.pid}) {how} while batches were wanted{hint}")

    def close(self) -> None:
        """End all workers: ask, wait for the batch at hand, then kill. Safe to call twice, and in a forked child."""
        workers, self._workers = self._workers, []
        if os.getpid() != self._owner_pid:  # a fork's copy: the processes belong to the parent
            return
        for worker in workers:
            with suppress(OSError):
                messages.send(worker.connection, None, worker.process.pid)
        deadline = Deadline(self._grace_s)
        for worker in workers:
            self._end(worker, deadline)
        self._readers.close()

    @staticmethod
    def _end(worker: _Worker, deadline: Deadline) -> None:
        # closing before the join unblocks a worker that is sending a result nobody will read
        worker.connection.close()
        worker.process.join(deadline.left())
        if worker.process.is_alive():
            worker.process.kill()
            worker.process.join()
        worker.process.close()


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return "unknown"


def _raise(failure: WorkerError, number: int, pid: int) -> None:
    """Raise the worker's error here: its own type and arguments, the worker's traceback attached as a note."""
    where = f"in DataLoader worker {number} (pid {pid}):\n{failure.text.rstrip()}"
    if failure.error is None:
        raise ResilinError(f"error {where}")
    if isinstance(failure.error, StopIteration):  # raised by a __next__ it would end the loop
        raise stopped(f"setting up worker {number}") from failure.error
    failure.error.add_note(f"raised {where}")
    raise failure.error
