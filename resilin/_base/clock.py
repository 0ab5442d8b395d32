"""Time is injected: everything that waits or measures takes a `Clock`, so tests can own time.

The only module that may call `time.time`, `time.sleep` and friends.
"""

from __future__ import annotations

import threading
import time
from typing import Protocol


class Clock(Protocol):
    """What the library may know of time. All values are seconds."""

    def monotonic(self) -> float:
        """Seconds on a clock that never goes back; the only one that durations and deadlines use."""
        ...

    def wall(self) -> float:
        """Seconds since the epoch. For timestamps shown to people; never compared between hosts."""
        ...

    def sleep(self, seconds: float) -> None:
        """Block the calling thread for `seconds`."""
        ...

    def wait(self, condition: threading.Condition, until: float | None) -> None:
        """Wait on `condition` (held by the caller) until it is notified or `monotonic()` reaches `until` (None: no
        limit).

        May return early, as conditions do: check what was waited for.
        """
        ...


class SystemClock:
    """The operating system's clocks."""

    monotonic = staticmethod(time.monotonic)  # itself: it is asked several times in each remote call
    wall = staticmethod(time.time)

    def sleep(self, seconds: float) -> None:
        """`time.sleep(seconds)`."""
        time.sleep(seconds)

    def wait(self, condition: threading.Condition, until: float | None) -> None:
        """`condition.wait` with what is left until `until`."""
        condition.wait(None if until is None else min(max(0.0, until - time.monotonic()), threading.TIMEOUT_MAX))


SYSTEM: Clock = SystemClock()


def spell(seconds: float | None) -> str:
    """A time for people, as in "0.5 s" or "1800 s": three digits, thousandths at the finest, never an exponent."""
    if seconds is None:
        return "any time"
    if seconds >= 100:
        return f"{seconds:.0f} s"
    digits = f"{seconds:.{1 if seconds >= 10 else 2 if seconds >= 1 else 3}f}"
    return f"{digits.rstrip('0').rstrip('.')} s"


class Deadline:
    """A point in time after which a wait gives up. `None` seconds: never."""

    __slots__ = ("_clock", "at", "seconds")

    def __init__(self, seconds: float | None, clock: Clock = SYSTEM) -> None:
        self._clock = clock
        self.seconds = seconds
        self.at = None if seconds is None else clock.monotonic() + seconds

    def left(self) -> float | None:
        """Seconds left (never negative), or None when there is no limit."""
        return None if self.at is None else max(0.0, self.at - self._clock.monotonic())

    def passed(self) -> bool:
        """Whether the deadline is behind us."""
        return self.at is not None and self._clock.monotonic() >= self.at
