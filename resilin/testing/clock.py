"""A clock that stands still until a test moves it."""

from __future__ import annotations

import threading


class FakeClock:
    """A `resilin._base.clock.Clock` owned by a test.

    `advance` moves time and wakes every thread that waits through this clock. `sleep` moves time itself, so that code
    that sleeps runs through at once.
    """

    def __init__(self, monotonic: float = 1000.0, wall: float = 1_700_000_000.0) -> None:
        self._lock = threading.Lock()
        self._monotonic = monotonic  # guarded by _lock
        self._wall_offset = wall - monotonic
        self._waiting: list[threading.Condition] = []  # guarded by _lock

    def monotonic(self) -> float:
        """The fake monotonic time in seconds."""
        with self._lock:
            return self._monotonic

    def wall(self) -> float:
        """The fake wall time in seconds since the epoch; moves with the monotonic one."""
        return self.monotonic() + self._wall_offset

    def set_wall(self, wall: float) -> None:
        """Step the wall clock, as an administrator would; the monotonic clock does not notice."""
        self._wall_offset = wall - self.monotonic()

    def sleep(self, seconds: float) -> None:
        """Move time by `seconds` and return."""
        self.advance(seconds)

    def advance(self, seconds: float) -> None:
        """Move time by `seconds` and wake the threads that wait through this clock."""
        with self._lock:
            self._monotonic += seconds
            waiting, self._waiting = self._waiting, []
        for condition in waiting:
            with condition:
                condition.notify_all()

    def wait(self, condition: threading.Condition, until: float | None) -> None:
        """Wait on `condition` until it is notified or time is moved; returns at once when `until` has passed."""
        with self._lock:
            if until is not None and self._monotonic >= until:
                return
            self._waiting.append(condition)
        condition.wait()

    def __repr__(self) -> str:
        return f"<FakeClock at {self.monotonic():.3f} s>"
