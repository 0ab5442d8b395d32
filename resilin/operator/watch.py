"""Follows the objects of one kind: lists them, then watches from there, for ever.

A watch never dies silently: the server ends each after a while, a connection that says nothing beyond that counts as
dead, a line that is cut ends it, and every end begins it again, from the last version known or (410) from a new list.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from resilin._base import log
from resilin._base.clock import SYSTEM, Clock
from resilin.errors import ClusterError
from resilin.operator.api import Api, Raw
from resilin.operator.metrics import Metrics

_log = log.logger("operator")
_FIRST_RETRY_S, _MOST_RETRY_S = 0.05, 10.0
_LIST_AGAIN = 5  # failures in a row after which the place in the watch is given up
GONE = 410


@dataclass(frozen=True, kw_only=True)
class Followed:
    """What is followed, and who hears of it."""

    kind: str
    namespace: str | None
    selector: str
    on_list: Callable[[Sequence[Raw], int], None]
    on_event: Callable[[str, Raw], None]
    """Type of the event and the object."""


class Reflector:
    """Follows one kind. Run `run()` as a task; cancel it to end it."""

    def __init__(self, api: Api, what: Followed, metrics: Metrics, clock: Clock = SYSTEM) -> None:
        self._api = api
        self._what = what
        self._metrics = metrics
        self._clock = clock
        self._version: int | None = None
        self.synced = asyncio.Event()
        """Set once the first list is in."""
        self._heard: float | None = None  # when the server last said something or ended a watch in good order

    @property
    def silence_s(self) -> float:
        """Seconds since the server last said something, or since this runs; 0 before."""
        return 0.0 if self._heard is None else self._clock.monotonic() - self._heard

    async def run(self) -> None:
        """List and watch until cancelled."""
        self._heard = self._clock.monotonic()
        failures = 0
        while True:
            try:
                if self._version is None:
                    await self._list()
                await self._watch()
                failures = 0
                continue
            except ClusterError as error:
                failures = 0 if self._progressed else failures + 1
                wait_s = self._after(error, failures)
            await asyncio.sleep(wait_s)

    def _after(self, error: ClusterError, failures: int) -> float:
        """How long to wait after `error`, and whether the place is lost."""
        what = self._what.kind
        log.event(_log, logging.INFO, "watch begins again", kind=what, error=str(error), failures=failures)
        self._metrics.watch_restarted(what)
        if error.code == GONE or failures >= _LIST_AGAIN:
            self._version = None
        backed_off = min(_FIRST_RETRY_S * float(2 ** min(failures, 20)), _MOST_RETRY_S)
        return max(error.retry_after_s or 0.0, backed_off * random.uniform(0.5, 1.0))

    async def _list(self) -> None:
        self._progressed = False
        items, version = await self._api.list(self._what.kind, self._what.namespace, self._what.selector)
        self._what.on_list(items, version)
        self._version = version
        self._progressed = True
        self._heard = self._clock.monotonic()
        self.synced.set()

    _progressed = False

    async def _watch(self) -> None:
        assert self._version is not None
        self._progressed = False
        what = self._what
        async for event in self._api.watch(what.kind, what.namespace, what.selector, self._version):
            self._progressed = True
            self._heard = self._clock.monotonic()
            if event.type != "BOOKMARK":
                what.on_event(event.type, event.object)
            self._version = int(event.object["metadata"]["resourceVersion"])
        self._heard = self._clock.monotonic()
