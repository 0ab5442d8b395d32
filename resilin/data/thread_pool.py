"""Worker threads of a loader: the same protocol as worker processes, in this process. For data sets that let go of the
interpreter's lock (files, decompression, numpy) or that cannot be forked or pickled."""

from __future__ import annotations

import os
import queue
import threading
import warnings
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

from resilin._base.clock import Deadline
from resilin._base.threads import OwnedThread
from resilin.core.machine import memory
from resilin.data.pool import STOP_S, no_answer
from resilin.data.worker import Begin, Fetch, FetchResult, Serving, WorkerConfig


class ThreadPool:
    """Worker threads; see `resilin.data.pool.Pool`. They share the data set with the loop and with one another."""

    def __init__(self, configs: Sequence[WorkerConfig], seed_all: Callable[[WorkerConfig, int], None]) -> None:
        self.owner_pid = os.getpid()
        self._seed_all = seed_all
        self._epoch = 0
        self._stop_s = STOP_S  # none while a worker is found stuck
        self.usable = True
        self._news = threading.Condition()
        self._results: list[deque[FetchResult]] = [deque() for _ in configs]  # guarded by _news
        self._requests: list[queue.SimpleQueue[Begin | Fetch | None]] = [queue.SimpleQueue() for _ in configs]
        self._threads = [
            OwnedThread(f"data-prefetch-{config.number}", lambda config=config: self._serve(config))  # type: ignore[misc]
            for config in configs
        ]

    def __len__(self) -> int:
        return len(self._requests)

    def begin(self, base_seed: int) -> None:
        """As `Pool.begin`. Answers of the pass before are dropped."""
        with self._news:
            self._epoch += 1
            for results in self._results:
                results.clear()
        for requests in self._requests:
            requests.put(Begin(self._epoch, base_seed))

    def request(self, number: int, index: Any) -> None:
        """As `Pool.request`."""
        self._requests[number].put(Fetch(self._epoch, index))

    def result(self, numbers: Sequence[int], timeout_s: float | None) -> tuple[int, FetchResult]:
        """As `Pool.result`. Threads do not die: only the timeout is an error."""
        deadline = Deadline(timeout_s)
        with self._news:
            if not self._news.wait_for(lambda: any(self._results[number] for number in numbers), deadline.left()):
                self._stop_s = 0.0
                raise no_answer(f"worker thread {', '.join(map(str, numbers))}", timeout_s)
            self._stop_s = STOP_S
            number = next(number for number in numbers if self._results[number])
            return number, self._results[number].popleft()

    def close(self, hurry: bool = False) -> None:
        """Ask all threads to end and wait for the batches at hand; a thread cannot be stopped amid one."""
        self.usable = False
        if os.getpid() != self.owner_pid:  # a fork's copy has no threads
            return
        with self._news:
            self._epoch += 1  # queued requests and results under way are of no use any more
        for requests in self._requests:
            requests.put(None)
        deadline = Deadline(0.0 if hurry else self._stop_s)
        threads, self._threads = self._threads, []
        for thread in threads:
            try:
                thread.join(deadline.left())
            except TimeoutError:
                warnings.warn(
                    f"DataLoader: thread {thread.name} is still busy in the data set; it ends with the batch at hand",
                    RuntimeWarning,
                    stacklevel=2,
                )

    def _serve(self, config: WorkerConfig) -> None:
        memory.install()
        serving = Serving(config, self._seed_all, catches=BaseException)  # also a SystemExit is the loop's to see
        while (request := self._requests[config.number].get()) is not None:
            if request.epoch != self._epoch:
                continue
            if isinstance(request, Begin):
                serving.begin(request)
            else:
                self._deliver(config.number, serving.fetch(request))

    def _deliver(self, number: int, result: FetchResult) -> None:
        with self._news:
            if result.epoch == self._epoch:
                self._results[number].append(result)
                self._news.notify_all()
