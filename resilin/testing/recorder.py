"""Keeps what a watch of a store delivers, so that a test can wait for it."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence

from resilin._base.clock import Deadline
from resilin.store.base import Event
from resilin.testing.patience import PATIENCE_S


class Recorder:
    """Keeps what a watch delivers; `wait` blocks until enough came."""

    def __init__(self) -> None:
        self.calls: list[tuple[Event, ...]] = []
        self.errors: list[Exception] = []
        self._changed = threading.Condition()

    def on_events(self, events: Sequence[Event]) -> None:
        """For `Store.watch`."""
        with self._changed:
            self.calls.append(tuple(events))
            self._changed.notify_all()

    def on_error(self, error: Exception) -> None:
        """For `Store.watch`."""
        with self._changed:
            self.errors.append(error)
            self._changed.notify_all()

    @property
    def events(self) -> list[Event]:
        """All events so far."""
        with self._changed:
            return [event for call in self.calls for event in call]

    def wait(self, count: int, timeout_s: float = PATIENCE_S) -> list[Event]:
        """The events, once there are `count` of them; AssertionError after `timeout_s`."""
        self._wait_until(lambda: sum(map(len, self.calls)) >= count, timeout_s)
        return self.events

    def wait_error(self, timeout_s: float = PATIENCE_S) -> Exception:
        """The error, once there is one."""
        self._wait_until(lambda: bool(self.errors), timeout_s)
        return self.errors[0]

    def _wait_until(self, done: Callable[[], bool], timeout_s: float) -> None:
        deadline = Deadline(timeout_s)
        with self._changed:
            while not done():
                if deadline.passed():
                    raise AssertionError(f"within {timeout_s} s came only {self.calls} and errors {self.errors}")
                self._changed.wait(deadline.left())
