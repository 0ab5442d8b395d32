"""Hands out keys of jobs: each to one worker at a time, again after a while, later and later on errors."""

from __future__ import annotations

import asyncio
from collections.abc import Hashable
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)
FIRST_RETRY_S = 0.02
MOST_RETRY_S = 30.0


class WorkQueue(Generic[K]):
    """Of one event loop. A key that is added while it is worked on comes again afterwards; twice added is once."""

    def __init__(self, first_retry_s: float = FIRST_RETRY_S, most_retry_s: float = MOST_RETRY_S) -> None:
        self._first_s, self._most_s = first_retry_s, most_retry_s
        self._loop = asyncio.get_running_loop()
        self._ready: dict[K, None] = {}  # in order
        self._busy: set[K] = set()
        self._again: dict[K, bool] = {}  # added while they were worked on; whether that was urgent
        self._timers: dict[K, asyncio.TimerHandle] = {}
        self._failures: dict[K, int] = {}
        self._wake = asyncio.Event()

    def __len__(self) -> int:
        return len(self._ready)

    @property
    def idle(self) -> bool:
        """Whether nothing is to be done before a timer ends."""
        return not self._ready and not self._busy

    def add(self, key: K, *, urgent: bool = False) -> None:
        """Have `key` looked at as soon as possible; where it waits out an error only if that is `urgent`."""
        if key in self._busy:
            self._again[key] = urgent or self._again.get(key, False)
        elif urgent or not (key in self._timers and self._failures.get(key)):
            self._add_now(key)

    def _add_now(self, key: K) -> None:
        self._cancel(key)
        if key in self._busy:
            self._again.setdefault(key, False)
        else:
            self._ready[key] = None
            self._wake.set()

    def add_after(self, key: K, seconds: float) -> None:
        """Have `key` looked at in a while, or earlier when it is added meanwhile; of two times the earlier counts."""
        timer = self._timers.get(key)
        if timer is not None and timer.when() <= self._loop.time() + seconds:
            return
        self._cancel(key)
        self._timers[key] = self._loop.call_later(seconds, self._add_now, key)

    def retry(self, key: K, at_least_s: float = 0.0) -> float:
        """Have `key` looked at again after an error: each time twice as late. Returns the seconds.

        What was urgent while it was worked on stays so: it is looked at as soon as the worker is done with it.
        """
        count = self._failures.get(key, 0)
        self._failures[key] = count + 1
        seconds = max(at_least_s, min(self._first_s * float(2 ** min(count, 30)), self._most_s))
        self._cancel(key)
        self._timers[key] = self._loop.call_later(seconds, self._add_now, key)
        return seconds

    def succeeded(self, key: K) -> None:
        """The last look met no error."""
        self._failures.pop(key, None)

    async def get(self) -> K:
        """Wait for a key; `done` must follow."""
        while not self._ready:
            self._wake.clear()
            await self._wake.wait()
        key = next(iter(self._ready))
        del self._ready[key]
        self._busy.add(key)
        return key

    def done(self, key: K) -> None:
        """The worker has finished with `key`."""
        self._busy.discard(key)
        urgent = self._again.pop(key, None)
        if urgent is not None:
            self.add(key, urgent=urgent)

    def close(self) -> None:
        """Forget everything."""
        for timer in self._timers.values():
            timer.cancel()
        self._timers.clear()
        self._ready.clear()

    def _cancel(self, key: K) -> None:
        timer = self._timers.pop(key, None)
        if timer is not None:
            timer.cancel()
