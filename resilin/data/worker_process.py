"""A loader's worker process: receives indices, sends batches, dies with its parent."""

from __future__ import annotations

import multiprocessing
import os
import queue
import signal
import sys
import threading
from multiprocessing.connection import Connection, wait
from typing import Any

from resilin._base import parent_death
from resilin.core.machine import memory, threads
from resilin.data import messages
from resilin.data.collate import default_collate
from resilin.data.exception_transport import describe
from resilin.data.worker import Begin, Fetch, FetchResult, Serving, WorkerConfig, forget_forker, seed_process
from resilin.errors import ResilinError

LEFT = (signal.SIGINT, signal.SIGTERM)  # signals left to the parent


def main(config: WorkerConfig, connection: Connection[Any, Any], parent_pid: int, by_main_thread: bool) -> None:
    """The worker process: serve `connection` until it says stop (None) or the parent is gone.

    by_main_thread:  whether the parent's main thread started it.
    """
    signal.set_wakeup_fd(-1)  # a forked event loop's
    _leave_signals_to_parent()
    if by_main_thread:
        _die_with(parent_pid)
    forget_forker()
    threads.set_num_threads(1)  # workers are the parallelism; and a forked pool of threads has no threads
    memory.install()
    requests = _Requests(connection)
    # what default_collate made nobody else writes to; what other functions give may be a buffer that they use again
    outbox = messages.Outbox(connection, lends=config.batched and config.collate_fn is default_collate)
    serving = Serving(config, seed_process)
    try:
        while (request := requests.next(outbox)) is not None:
            if isinstance(request, Begin):
                serving.begin(request)
            else:
                _answer(outbox, serving.fetch(request))
    except (BrokenPipeError, ConnectionResetError):
        return  # the parent closed its end in the middle of a pass


def _leave_signals_to_parent() -> None:
    """Do nothing on signals to the whole process group: the parent ends its workers, or dies and they follow.

    By a handler: programs that the data set starts would inherit that a signal is ignored, and could not be ended.
    """
    for number in LEFT:
        signal.signal(number, _do_nothing)
        signal.siginterrupt(number, False)
    if hasattr(signal, "pthread_sigmask"):  # a parent that forks holds them back until now
        _let_signals()
    if hasattr(os, "register_at_fork"):  # whoever starts a process inside the data set may end it
        os.register_at_fork(before=_hold_signals, after_in_parent=_let_signals, after_in_child=_take_signals_again)


def _do_nothing(number: int, frame: Any) -> None:
    pass


def _hold_signals() -> None:
    """Before a fork: what is sent to the child before it has its handlers must not be lost."""
    signal.pthread_sigmask(signal.SIG_BLOCK, LEFT)


def _let_signals() -> None:
    signal.pthread_sigmask(signal.SIG_UNBLOCK, LEFT)


def _take_signals_again() -> None:
    if signal.getsignal(signal.SIGINT) is _do_nothing:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    if signal.getsignal(signal.SIGTERM) is _do_nothing:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
    _let_signals()


def _die_with(parent_pid: int) -> None:
    """Let the kernel kill this process at once when its parent dies (Linux), even amid a long C call.

    Inherited sockets close with it, so that the parent's peers see the death without delay. Elsewhere `_Requests`
    notices the end.
    """
    if sys.platform == "linux" and os.getppid() == parent_pid:  # a fork server is not the parent meant
        parent_death.die_with(parent_pid)


class _Requests:
    """What the parent asks. A thread takes it in, so that the parent's sends never wait for a batch."""

    def __init__(self, connection: Connection[Any, Any]) -> None:
        self._connection = connection
        self._queue: queue.SimpleQueue[Any] = queue.SimpleQueue()  # (messages the parent has received, request)
        self._newest = 0  # the pass that the parent is in
        threading.Thread(target=self._read, name="resilin-data-reader", daemon=True).start()

    def next(self, outbox: messages.Outbox) -> Begin | Fetch | None:
        """The next request of the parent's current pass, once there is one; None: stop."""
        while True:
            received, request = self._queue.get()
            outbox.release(received)
            if not (isinstance(request, Fetch) and request.epoch < self._newest):
                return request  # type: ignore[no-any-return]

    def _read(self) -> None:
        parent = multiprocessing.parent_process()
        assert parent is not None, "a worker always has a parent process"
        while True:
            ready = wait([self._connection, parent.sentinel])
            if self._connection not in ready:
                os._exit(1)  # the parent is dead: nobody wants the batch that the main thread may be stuck in
            try:
                request = messages.receive(self._connection)
            except (EOFError, OSError):
                os._exit(1)  # it would have said stop
            if isinstance(request[1], Begin):
                self._newest = request[1].epoch
            self._queue.put(request)
            if request[1] is None:
                break
        wait([parent.sentinel])
        os._exit(1)


def _answer(outbox: messages.Outbox, result: FetchResult) -> None:
    """Send `result`, or the error with which it cannot be sent."""
    if result.error is not None:
        _send_error(outbox, result, result.error)
        return
    try:
        parts = messages.pack(result)
    except Exception as error:  # noqa: BLE001 - a request's top: the error is sent to the parent
        error.add_note(
            f"a batch of type {type(result.batch).__name__} cannot be sent from a worker process to its parent, "
            "which needs it pickled: let the data set and collate_fn give tensors, arrays and plain values"
        )
        _send_error(outbox, result, error)
        return
    try:
        outbox.send(parts)
    except (BrokenPipeError, ConnectionResetError):
        raise
    except (OSError, MemoryError) as error:
        full = ResilinError(
            f"there is no shared memory for a batch of {sum(part.nbytes for part in parts)} bytes: {error}; look at "
            "the process's limits (open files, file size) and the container's memory; smaller batches, a lower "
            "prefetch_factor or fewer workers need less"
        )
        _send_error(outbox, result, full)


def _send_error(outbox: messages.Outbox, result: FetchResult, error: Exception) -> None:
    outbox.send(messages.pack(FetchResult(result.epoch, error=describe(error))))
