"""A thread that does what is due: what others hand to it, and what has to end in time."""

from __future__ import annotations

import contextlib
import threading
from collections import deque
from collections.abc import Callable, Iterator

from resilin._base.clock import SYSTEM, Deadline, spell
from resilin._base.threads import OwnedThread

Regular = Callable[[], float | None]
"""Does what is to be done now and then; returns how many seconds later it is next, None: when it is woken."""


class Loop:
    """The thread. regular: is called after everything that it does. failed: with an error that ends it."""

    def __init__(self, name: str, regular: Regular, failed: Callable[[BaseException], None]) -> None:
        self._regular = regular
        self._changed = threading.Condition()
        self._calls: deque[Callable[[], None]] = deque()  # guarded by _changed
        self._stopping = False  # guarded by _changed
        self._due: dict[object, tuple[float, Callable[[], None]]] = {}  # guarded by _changed
        self._thread = OwnedThread(name, self._run, failed)

    def post(self, call: Callable[[], None]) -> None:
        """Have the thread call it."""
        with self._changed:
            self._calls.append(call)
            self._changed.notify_all()

    @contextlib.contextmanager
    def in_time(self, what: object, deadline: Deadline, late: Callable[[], None]) -> Iterator[None]:
        """Have `late` called unless the block ends in time. TimeoutError: another thread calls it."""
        if deadline.at is not None:
            with self._changed:
                self._due[what] = deadline.at, late
                self._changed.notify_all()
        try:
            yield
        finally:
            with self._changed:
                is_late = self._due.pop(what, None) is None and deadline.at is not None
        if is_late:
            raise TimeoutError(f"not done within {spell(deadline.seconds)}")

    def close(self) -> None:
        """End the thread, once it has done what was handed to it."""
        with self._changed:
            self._stopping = True
            self._changed.notify_all()
        self._thread.join()

    def _run(self) -> None:
        again = self._regular()
        while True:
            with self._changed:
                self._wait(again)
                calls, late = list(self._calls), self._take_late()
                self._calls.clear()
                if self._stopping and not calls:
                    return
            for call in (*calls, *late):
                call()
            again = self._regular()

    def _wait(self, again: float | None) -> None:
        """Under the lock: until there is something to do."""
        until = Deadline(again)
        while not self._calls and not self._stopping and not until.passed():
            nearest = min((at for at, _ in self._due.values()), default=None)
            left = until.left()
            if nearest is not None:
                due_in = nearest - SYSTEM.monotonic()
                if due_in <= 0:
                    return
                left = due_in if left is None else min(left, due_in)
            self._changed.wait(left)

    def _take_late(self) -> list[Callable[[], None]]:
        now = SYSTEM.monotonic()
        late = [(what, end) for what, (at, end) in self._due.items() if at <= now]
        for what, _ in late:
            del self._due[what]
        return [end for _, end in late]
