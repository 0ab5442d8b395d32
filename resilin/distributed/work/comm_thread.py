"""Run a group's asynchronous collectives on one thread, in the order in which they were called."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable

from resilin._base.threads import OwnedThread

_here = threading.local()


def in_callback() -> bool:
    """Return whether the calling thread is a group's worker, of whichever group."""
    return getattr(_here, "works", False)


class CommThread:
    """Runs tasks one after the other; starts with the first. The group of the next generation goes on with it."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._tasks: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._thread: OwnedThread | None = None
        self._ident: int | None = None

    def put(self, task: Callable[[], None]) -> None:
        """Run `task`, which raises nothing, after those before it. One thread at a time may call this."""
        if self._thread is None:
            self._thread = OwnedThread(f"dist-worker-{self._name}", self._run)
        self._tasks.put(task)

    def inside(self) -> bool:
        """Return whether the caller is a task, or what a task calls."""
        return self._ident == threading.get_ident()

    def drain(self, timeout_s: float | None) -> bool:
        """Wait until all that was put before has run; False when it takes longer."""
        if self._thread is None:
            return True
        done = threading.Event()
        self._tasks.put(done.set)
        return done.wait(timeout_s)

    def close(self) -> None:
        """Run what is left and end."""
        self._tasks.put(None)
        if self._thread is not None:
            self._thread.join()

    def _run(self) -> None:
        self._ident = threading.get_ident()
        _here.works = True
        while (task := self._tasks.get()) is not None:
            task()
            del task  # its tensors are not kept until the next one comes
        self._ident = None  # another thread may get it
