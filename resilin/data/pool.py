"""The parent's side of a loader's worker processes: starts them, talks to them, ends them."""

from __future__ import annotations

import multiprocessing
import os
import pickle
import signal
import threading
import weakref
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from multiprocessing.context import BaseContext
from typing import Any, Protocol

from resilin._base.clock import Deadline
from resilin.core.machine import memory
from resilin.data import messages, worker_process
from resilin.data.exception_transport import WorkerError, restore
from resilin.data.worker import Begin, Fetch, FetchResult, WorkerConfig
from resilin.errors import ResilinError

STOP_S = 5.0  # how long a worker may take to finish its batch when asked to stop; then it is killed
_HURRIED_STOP_S = 0.3  # the same after a failure: it shall be known within a second

_HINTS = {
    signal.SIGKILL: "often the kernel's out-of-memory killer: use fewer workers or smaller batches",
    signal.SIGBUS: "often memory that the container's limit did not allow: use fewer workers or smaller batches",
}
_PICKLE_HINT = (
    "workers started by {!r} get the data set, collate_fn and worker_init_fn pickled: define them at a module's top, "
    "or use multiprocessing_context='fork'"
)
_SPAWN_HINT = "workers not forked import the main script, which must guard its start by `if __name__ == '__main__':`"


class Pool(Protocol):
    """Workers of one loader, processes or threads. Each answers its requests in order. Ended by `close()`."""

    usable: bool
    """Whether further requests make sense: no worker was lost, nothing was interrupted."""
    owner_pid: int
    """The process that has the workers. Its forks can ask them nothing: there are no threads, or the answers mix."""

    def __len__(self) -> int: ...

    def begin(self, base_seed: int) -> None:
        """Start a new pass: results still under way are dropped, streams start over, worker n is seeded base_seed+n."""
        ...

    def request(self, number: int, index: Any) -> None:
        """Ask worker `number` for the batch of `index`."""
        ...

    def result(self, numbers: Sequence[int], timeout_s: float | None) -> tuple[int, FetchResult]:
        """The next answer in this pass of one of the workers `numbers`, and whose it is.

        Its `error` is an exception of the worker's own code, to be raised. Raises: ResilinError when a worker died (of
        all, not only of `numbers`) or none of `numbers` answered within `timeout_s`; the latter may be tried again.
        """
        ...

    def close(self, hurry: bool = False) -> None:
        """End all workers, without waiting long for batches at hand when in a `hurry`. Safe to call twice."""
        ...


def no_answer(who: str, seconds: float | None) -> ResilinError:
    """The error for a worker that let the timeout pass."""
    return ResilinError(
        f"DataLoader: {who} gave no batch within timeout={seconds} s; raise the timeout, or look at what its data set "
        "waits for"
    )


@dataclass(frozen=True)
class _Worker:
    process: Any  # BaseProcess of the chosen context
    end: int  # a descriptor that is readable when the process has ended
    connection: Connection[Any, Any]
    inbox: messages.Inbox


# the parent's ends of all connections to workers, which a forked worker must not keep open
_parents_ends: weakref.WeakSet[messages.Inbox] = weakref.WeakSet()


def _main(*args: Any) -> None:
    for inbox in list(_parents_ends):
        inbox.close()
    worker_process.main(*args)


class WorkerPool:
    """Worker processes; see `Pool`."""

    def __init__(self, configs: Sequence[WorkerConfig], context: BaseContext | None) -> None:
        if multiprocessing.current_process().daemon:
            raise ResilinError(
                "DataLoader: this process is a daemonic one of multiprocessing, which may start no processes: start it "
                "with daemon=False, or use num_workers=0 or worker_method='thread'"
            )
        self._context: Any = context or multiprocessing.get_context()
        self.owner_pid = os.getpid()
        self._epoch = 0
        self._stop_s = STOP_S  # none while a worker is found stuck
        self._workers: list[_Worker] = []
        self._readers = memory.Readers()  # forked workers read the data set's tensors where they lie
        self.usable = True
        try:
            for config in configs:
                self._start(config)
        except BaseException as error:
            number = len(self._workers)
            self.close(hurry=True)
            if isinstance(error, OSError):
                raise ResilinError(
                    f"DataLoader: worker {number} of {len(configs)} cannot be started: {error}; use fewer workers, or "
                    "raise the limits of processes and open files (`ulimit -u`, `ulimit -n`)"
                ) from error
            raise

    def _start(self, config: WorkerConfig) -> None:
        ours, theirs = multiprocessing.Pipe(duplex=True)
        inbox = messages.Inbox(ours)
        _parents_ends.add(inbox)
        by_main_thread = threading.current_thread() is threading.main_thread()
        # not daemonic, so that its data set may use loaders with workers, too; they all end without that
        process = self._context.Process(
            target=_main,
            args=(config, theirs, os.getpid(), by_main_thread),
            name=f"resilin-data-{config.number}",
            daemon=False,
        )
        try:
            with self._readers.forking(), self._holding_signals():
                process.start()
        except BaseException as error:
            inbox.close()
            if isinstance(error, TypeError | AttributeError | pickle.PicklingError):
                error.add_note(_PICKLE_HINT.format(self._context.get_start_method()))
            raise
        finally:
            theirs.close()
        self._workers.append(_Worker(process, _end_of(process), ours, inbox))

    @contextmanager
    def _holding_signals(self) -> Iterator[None]:
        """Signals to all processes of the group reach a forked worker once it has its handlers, and this one after.

        Not where the child is another program: it would keep them blocked.
        """
        if self._context.get_start_method() != "fork":
            yield
            return
        before = signal.pthread_sigmask(signal.SIG_BLOCK, worker_process.LEFT)
        try:
            yield
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)

    def __len__(self) -> int:
        return len(self._workers)

    def begin(self, base_seed: int) -> None:
        """As `Pool.begin`. A message to each worker."""
        self._epoch += 1
        for number in range(len(self._workers)):
            self._send(number, Begin(self._epoch, base_seed))

    def request(self, number: int, index: Any) -> None:
        """As `Pool.request`."""
        self._send(number, Fetch(self._epoch, index))

    def result(self, numbers: Sequence[int], timeout_s: float | None) -> tuple[int, FetchResult]:
        """As `Pool.result`. Workers that have died are told at once."""
        deadline = Deadline(timeout_s)
        while True:
            number = self._answering(numbers, deadline)
            result = self._receive(number)
            if result.epoch == self._epoch:
                self._stop_s = STOP_S
                return number, result

    def _send(self, number: int, request: Begin | Fetch) -> None:
        worker = self._workers[number]
        try:
            messages.send(worker.connection, (worker.inbox.received, request))
        except (BrokenPipeError, ConnectionResetError):
            raise self._death(number) from None

    def _answering(self, numbers: Sequence[int], deadline: Deadline) -> int:
        """The first of `numbers` that has something to say."""
        connections = [self._workers[number].connection for number in numbers]
        ready = wait([*connections, *(worker.end for worker in self._workers)], deadline.left())
        for number, worker in enumerate(self._workers):
            if worker.end in ready:
                raise self._death(number)
        for number, connection in zip(numbers, connections, strict=True):
            if connection in ready:
                return number
        self._stop_s = 0.0
        late = ", ".join(f"{number} (pid {self._workers[number].process.pid})" for number in numbers)
        raise no_answer(f"worker {late}", deadline.seconds)

    def _receive(self, number: int) -> FetchResult:
        worker = self._workers[number]
        try:
            parts = worker.inbox.receive()
        except (EOFError, OSError):
            raise self._death(number) from None
        except ResilinError:
            self.usable = False  # what follows in the connection belongs to the message that was lost
            raise
        try:
            result: FetchResult = messages.unpack(parts)
        except Exception as error:  # noqa: BLE001 - the user's types may fail in any way: raised where the batch is due
            error.add_note(f"a batch of DataLoader worker {number} (pid {worker.process.pid}) cannot be unpickled here")
            return FetchResult(self._epoch, error=error)
        if isinstance(result.error, WorkerError):
            return FetchResult(result.epoch, error=restore(result.error, number, worker.process.pid))
        return result

    def _death(self, number: int) -> ResilinError:
        self.usable = False
        process = self._workers[number].process
        process.join(STOP_S)
        code, hint = process.exitcode, ""
        if code is None:
            how = "closed its connection"
        elif code < 0:
            how = f"was killed by signal {-code} ({_signal_name(-code)})"
            hint = _HINTS.get(-code, "")
        else:
            how = f"exited with code {code}"
            hint = "its data set, collate_fn or worker_init_fn called sys.exit(), or was interrupted"
            if self._context.get_start_method() != "fork" and self._workers[number].inbox.received == 0:
                hint = (
                    "spawned workers import the main script, which must guard its start by `if __name__ == '__main__':`"
                )
        text = f"DataLoader: worker {number} (pid {process.pid}) {how} while batches were wanted"
        return ResilinError(f"{text}; {hint}" if hint else text)

    def close(self, hurry: bool = False) -> None:
        """End all workers: ask, wait for the batch at hand, then kill. Does nothing in a forked child."""
        self.usable = False
        workers, self._workers = self._workers, []
        if os.getpid() != self.owner_pid:  # a fork's copy: the processes belong to the parent
            return
        for worker in workers:
            with suppress(OSError):
                messages.send(worker.connection, (worker.inbox.received, None))
        deadline = Deadline(min(self._stop_s, _HURRIED_STOP_S) if hurry else self._stop_s)
        for worker in workers:
            self._end(worker, deadline)
        self._readers.close()

    @staticmethod
    def _end(worker: _Worker, deadline: Deadline) -> None:
        # closing before the join unblocks a worker that is sending a result nobody will read
        worker.inbox.close()
        if not wait([worker.end], deadline.left()):
            worker.process.kill()
        worker.process.join()
        if worker.end != worker.process.sentinel:
            os.close(worker.end)
        with suppress(ValueError):  # it ended, but where SIGCHLD is ignored nobody learns how, and it counts as running
            worker.process.close()


def _end_of(process: Any) -> int:
    """A pidfd: multiprocessing's sentinel stays open as long as any process that the worker has forked."""
    try:
        return os.pidfd_open(process.pid)
    except (AttributeError, OSError):  # not Linux, or no such process any more
        return int(process.sentinel)


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return "unknown"
