"""Do what an agent has to do at the store, one thing after the other: repeated while the store is away, never when it
refuses.

A lease that ended is mended on the way: this node registers again, and what was under way is left out.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Any

from resilin._base import log
from resilin._base.clock import Clock
from resilin.elastic.rendezvous import store_executor
from resilin.errors import LeaseLost, ResilinError, StoreAmbiguous, StoreTimeout

_log = log.logger("elastic.rendezvous")
RETRY_S = 0.5  # pause between attempts while the store is away
Work = Callable[[], Coroutine[Any, Any, None]]


@dataclass(frozen=True, kw_only=True)
class Outage:
    """The store does not answer."""

    since: float
    """Monotonic, when the first call was begun that failed: it waits for some seconds."""
    error: str


class RetryQueue:
    """Everything is done in the loop; `run` does it, or `submit` at once when calls cannot block (`direct`).

    rejoin: registers this node again. probe: one call, made after idle_s without any. on_change: outage or refusal are
    not what they were.
    """

    def __init__(
        self, *, direct: bool, rejoin: Work, probe: Work, idle_s: float, on_change: Callable[[], None], clock: Clock
    ) -> None:
        self._direct, self._rejoin, self._probe, self._idle_s = direct, rejoin, probe, idle_s
        self._on_change = on_change
        self._clock = clock
        self._work: asyncio.Queue[Work | None] = asyncio.Queue()
        self._closing = asyncio.Event()
        self.outage: Outage | None = None
        self.refusal: ResilinError | None = None  # the store has answered, and would answer so again

    @property
    def closing(self) -> bool:
        """Return whether nothing new is begun."""
        return self._closing.is_set()

    def close(self) -> None:
        """Begin nothing new: `run` returns after the call that is under way."""
        self._closing.set()
        self._work.put_nowait(None)

    def submit(self, work: Work) -> None:
        """Do `work` after what is under way; at once, when the store is memory of this process."""
        if not self._direct:
            self._work.put_nowait(work)
            return
        try:
            store_executor.finish(work())
        except LeaseLost:
            store_executor.finish(self._rejoin())

    async def run(self) -> None:
        """Do what is submitted until `close`."""
        while (work := await self._next()) is not None:
            while not self._closing.is_set():
                begun = self._clock.monotonic()
                try:
                    await work()
                    self._set_outage(None, begun)
                    break
                except LeaseLost:
                    work = self._rejoin
                except ResilinError as error:
                    if not passes(error):
                        self._refuse(error)
                        return
                    self._set_outage(str(error), begun)
                    with contextlib.suppress(TimeoutError):
                        await asyncio.wait_for(self._closing.wait(), RETRY_S)

    async def _next(self) -> Work | None:
        try:
            return await asyncio.wait_for(self._work.get(), self._idle_s)
        except TimeoutError:  # nothing to do for a while: is the store still there?
            return self._probe

    def _refuse(self, error: ResilinError) -> None:
        if not self._closing.is_set():
            log.event(_log, 40, "the store refuses a call", error=str(error))
            self.refusal = error
            self._on_change()

    def _set_outage(self, error: str | None, begun: float) -> None:
        if (error is None) == (self.outage is None):
            return
        self.outage = Outage(since=begun, error=error) if error is not None else None
        # the agent says it to people, in its own words
        log.event(_log, 20, "store does not answer" if error is not None else "store is back", detail=error or "")
        self._on_change()


def passes(error: ResilinError) -> bool:
    """Return whether a call that failed so may succeed later: nobody answered, or a shared folder had trouble."""
    return isinstance(error, (StoreTimeout, StoreAmbiguous)) or isinstance(error.__cause__, OSError)
