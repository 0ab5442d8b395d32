"""What a loader's worker process does: receive indices, send batches, die with its parent."""

from __future__ import annotations

import ctypes
import multiprocessing
import os
import queue
import random
import signal
import sys
import threading
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from typing import Any

import numpy as np

from resilin.core import memory, rng, threads
from resilin.data import messages
from resilin.data.fetch import Exhausted, Fetcher, make_fetcher


@dataclass(frozen=True, kw_only=True)
class WorkerInfo:
    """Who a worker is; what `get_worker_info()` returns inside it."""

    id: int
    """Number of the worker, 0 to `num_workers` - 1."""
    num_workers: int
    """Workers of the loader."""
    seed: int
    """Seed of this worker's generators in this epoch."""
    dataset: Any
    """This worker's copy of the data set."""


@dataclass(frozen=True, kw_only=True)
class WorkerConfig:
    """What a worker is told when it starts."""

    number: int
    num_workers: int
    dataset: Any
    batched: bool
    collate_fn: Callable[[Any], Any]
    drop_last: bool
    worker_init_fn: Callable[[int], Any] | None
    started_by_main_thread: bool


@dataclass(frozen=True)
class Begin:
    """Parent to worker: a new pass starts; results of older passes are no longer wanted."""

    epoch: int
    base_seed: int


@dataclass(frozen=True)
class Fetch:
    """Parent to worker: send the batch of `index`."""

    epoch: int
    index: Any


@dataclass(frozen=True)
class Result:
    """Worker to parent: the batch, or the error, or the news that the stream has ended."""

    epoch: int
    batch: Any = None
    error: WorkerError | None = None
    exhausted: bool = False


@dataclass(frozen=True)
class WorkerError:
    """An error of a worker: the exception where it can be pickled, and its traceback as text."""

    error: Exception | None
    text: str


_PR_SET_PDEATHSIG = 1  # linux/prctl.h

_info: WorkerInfo | None = None


def get_worker_info() -> WorkerInfo | None:
    """Inside a loader's worker process: who it is. None everywhere else."""
    return _info


def main(config: WorkerConfig, connection: Connection[Any, Any], parent_pid: int) -> None:
    """The worker process: serve `connection` until it says stop (None) or the parent is gone."""
    # a signal to the whole process group is the parent's to act on; it ends its workers, or dies and they follow
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    signal.set_wakeup_fd(-1)  # a forked event loop's
    if config.started_by_main_thread:
        _die_with(parent_pid)
    threads.set_num_threads(1)  # workers are the parallelism; and a forked pool of threads has no threads
    memory.install()
    requests: queue.SimpleQueue[Any] = queue.SimpleQueue()
    reader = threading.Thread(target=_read, args=(connection, requests), name="resilin-data-reader", daemon=True)
    reader.start()
    serving = _Serving(config)
    try:
        while (request := requests.get()) is not None:
            if isinstance(request, Begin):
                serving.begin(request)
            else:
                messages.send_packed(connection, serving.answer(request), parent_pid)
    except (BrokenPipeError, ConnectionResetError):
        return  # the parent closed its end in the middle of a pass


def _die_with(parent_pid: int) -> None:
    """Let the kernel kill this process at once when its parent dies (Linux), even amid a long C call.

    Inherited sockets close with it, so that the parent's peers see the death without delay. The kernel means the
    thread that forked: only the main thread lives as long as its process. Elsewhere `_read` notices the parent's end.
    """
    if sys.platform != "linux" or os.getppid() != parent_pid:  # a fork server is not the parent meant
        return
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent_pid:  # it died before the call
        os._exit(1)


class _Serving:
    """The state of a worker between requests."""

    def __init__(self, config: WorkerConfig) -> None:
        self._config = config
        self._fetcher: Fetcher | None = None
        self._failure: WorkerError | None = None  # what setting up failed with; sent as the answer to each request
        self._started = False

    def begin(self, request: Begin) -> None:
        """Seed everything for a new pass, run the user's set-up once, start the stream over."""
        config = self._config
        global _info
        seed = request.base_seed + config.number
        _info = WorkerInfo(id=config.number, num_workers=config.num_workers, seed=seed, dataset=config.dataset)
        _seed_all(seed)
        self._failure = None
        try:
            if not self._started and config.worker_init_fn is not None:
                config.worker_init_fn(config.number)
            self._started = True
            self._fetcher = make_fetcher(config.dataset, config.batched, config.collate_fn, config.drop_last)
        except Exception as error:  # noqa: BLE001 - a request's top: the error is sent to the parent
            self._failure = _describe(error)

    def answer(self, request: Fetch) -> messages.Packed:
        """The answer to `request`, ready to be sent; never raises an error of the user's code."""
        result = self._fetch(request)
        try:
            return messages.pack(result)
        except Exception as error:  # noqa: BLE001 - a request's top: the error is sent to the parent
            error.add_note(
                f"a batch of type {type(result.batch).__name__} cannot be sent from a worker process to its parent, "
                "which needs it pickled: let the data set and collate_fn give tensors, arrays and plain values"
            )
            return messages.pack(Result(request.epoch, error=_describe(error)))

    def _fetch(self, request: Fetch) -> Result:
        if self._failure is not None or self._fetcher is None:
            return Result(request.epoch, error=self._failure)
        try:
            return Result(request.epoch, batch=self._fetcher(request.index))
        except Exhausted:
            return Result(request.epoch, exhausted=True)
        except Exception as error:  # noqa: BLE001 - a request's top: the error is sent to the parent
            return Result(request.epoch, error=_describe(error))


def _read(connection: Connection[Any, Any], requests: queue.SimpleQueue[Any]) -> None:
    """Move requests into the queue, so that the parent's sends never wait for a batch; end with the parent."""
    parent = multiprocessing.parent_process()
    assert parent is not None, "a worker always has a parent process"
    while True:
        ready = wait([connection, parent.sentinel])
        if connection not in ready:
            os._exit(1)  # the parent is dead: nobody wants the batch that the main thread may be stuck in
        try:
            request = messages.receive(connection)
        except (EOFError, OSError):
            request = None
        requests.put(request)
        if request is None:
            return


def _seed_all(seed: int) -> None:
    rng.manual_seed(seed)
    random.seed(seed)
    np.random.seed(seed % (1 << 32))


def _describe(error: Exception) -> WorkerError:
    text = "".join(traceback.format_exception(error))
    try:
        messages.check_picklable(error)
    except Exception:  # noqa: BLE001 - user-defined exceptions may fail to pickle in any way; their text is sent instead
        return WorkerError(None, text)
    return WorkerError(error, text)
