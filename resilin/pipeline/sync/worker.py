"""Threads that compute partitions of a pipeline side by side, as long as their owner is entered."""

from __future__ import annotations

import queue
from collections.abc import Callable, Mapping
from functools import partial
from operator import itemgetter
from typing import Any

from resilin._base.threads import OwnedThread
from resilin.core.autograd import surroundings
from resilin.core.machine import memory

_Task = tuple[int, Callable[[], Any]]
_Outcome = tuple[int, Any, BaseException | None]


class Workers:
    """`count` threads. Each computes what it is given as the thread that entered would: it records if that one records.

    Those that compute are waited for, in `run` and at the end: a thread cannot be ended from outside.
    """

    def __init__(self, count: int) -> None:
        self._inboxes: list[queue.SimpleQueue[_Task | None]] = [queue.SimpleQueue() for _ in range(count)]
        self._outcomes: queue.SimpleQueue[_Outcome] = queue.SimpleQueue()
        self._threads: list[OwnedThread] = []

    def __enter__(self) -> Workers:
        entered = surroundings.carried()
        for number, inbox in enumerate(self._inboxes):
            self._threads.append(OwnedThread(f"pipeline-{number}", partial(self._serve, inbox, entered)))
        return self

    def __exit__(self, *exc: object) -> None:
        for inbox in self._inboxes:
            inbox.put(None)
        for thread in self._threads:
            thread.join(None)
        self._threads.clear()

    def _serve(self, inbox: queue.SimpleQueue[_Task | None], entered: Callable[[], Any]) -> None:
        memory.install()
        with entered():
            while (task := inbox.get()) is not None:
                outcome = _computed(*task)
                del task  # what it holds must not outlast it while the next one is waited for
                self._outcomes.put(outcome)
                del outcome

    def run(self, tasks: Mapping[int, Callable[[], Any]]) -> dict[int, Any]:
        """Return what each of `tasks` returns, by its number: task k is computed by thread k modulo their count.

        Where some raise, all that were begun are waited for, and the error of the one with the lowest number is raised.
        """
        for number, compute in tasks.items():
            self._inboxes[number % len(self._inboxes)].put((number, compute))
        outcomes = sorted(self._all(len(tasks)), key=itemgetter(0))
        failed = next((error for _, _, error in outcomes if error is not None), None)
        if failed is None:
            return {number: value for number, value, _ in outcomes}
        del outcomes
        try:
            raise failed
        finally:
            del failed  # the error's traceback has this frame: with it here both, and the tensors of all, would linger

    def _all(self, count: int) -> list[_Outcome]:
        return [self._outcomes.get() for _ in range(count)]


def _computed(number: int, compute: Callable[[], Any]) -> _Outcome:
    try:
        return number, compute(), None
    except BaseException as error:  # noqa: BLE001 - a thread's top: raised by `run`
        return number, None, error
