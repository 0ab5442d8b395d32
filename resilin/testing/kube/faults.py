"""What goes wrong on demand: refusals, lost answers, watches that are cut. Thread-safe."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, field

from resilin.testing.kube.failures import Failure
from resilin.testing.kube.storage import Storage

_REASONS = {
    409: ("Conflict", "the object has been modified; please apply your changes to the latest version and try again"),
    410: ("Expired", "The provided continue parameter is too old to display a consistent list result"),
    429: ("TooManyRequests", "Too many requests, please try again later."),
    500: ("InternalError", "Internal error occurred"),
    503: ("ServiceUnavailable", "the server is currently unable to handle the request"),
    504: ("Timeout", "Timeout: request did not complete within the allotted timeout"),
}


@dataclass
class PlannedFault:
    """One kind of trouble. `code` 0 hangs up instead; `after`: when the request was carried out already."""

    code: int
    times: int = 1
    verb: str = ""  # get, list, watch, create, update, patch, delete; "": any
    plural: str = ""
    subresource: str | None = None  # None: any, "": the object itself
    retry_after: int = 0
    after: bool = False
    fired: int = field(default=0, init=False)

    def fits(self, verb: str, plural: str, subresource: str) -> bool:
        """Whether a request meets it."""
        fits = self.verb in ("", verb) and self.plural in ("", plural)
        return fits and self.subresource in (None, subresource) and self.fired < self.times

    def failure(self) -> Failure:
        """The refusal."""
        reason, text = _REASONS.get(self.code, ("Unknown", "an error on demand"))
        return Failure(self.code, reason, text, retry_after=self.retry_after)


class HangUp(Exception):
    """The connection is to be closed without an answer."""


class Faults:
    """The faults that a test has planned."""

    def __init__(self, storage: Storage) -> None:
        self._lock = threading.Lock()
        self._storage = storage
        self._planned: list[PlannedFault] = []  # guarded by _lock
        self._on_request: list[Callable[[str, str, str], None]] = []
        self.cuts = 0  # guarded by storage.lock, as below: watches that began before the last one are to end
        self.cut_midline = False
        self.events_to_cut = 0
        self.bookmarks = 0

    def plan(self, fault: PlannedFault) -> PlannedFault:
        """Have the next requests that fit meet `fault`; its `fired` counts them."""
        with self._lock:
            self._planned.append(fault)
        return fault

    def clear(self) -> None:
        """Forget what has not happened yet."""
        with self._lock:
            self._planned.clear()
        with self._storage.lock:
            self.events_to_cut = 0

    def on_request(self, hear: Callable[[str, str, str], None]) -> None:
        """Call `hear(verb, plural, subresource)` before each request; what it raises is answered."""
        self._on_request.append(hear)

    def meet(self, verb: str, plural: str, subresource: str, after: bool) -> None:
        """Raise what a request meets now: Failure or HangUp."""
        if not after:
            for hear in self._on_request:
                hear(verb, plural, subresource)
        with self._lock:
            fitting = (f for f in self._planned if f.after == after and f.fits(verb, plural, subresource))
            fault = next(fitting, None)
            if fault is None:
                return
            fault.fired += 1
        if fault.code == 0:
            raise HangUp
        raise fault.failure()

    def cut_watches(self, midline: bool = False) -> None:
        """End all watches that run now, with `midline` in the middle of a line."""
        with self._storage.changed:
            self.cuts += 1
            self.cut_midline = midline
            self._storage.changed.notify_all()

    def cut_events(self, times: int = 1) -> None:
        """Cut so many of the coming events in their middle; the connection of each ends with it."""
        with self._storage.changed:
            self.events_to_cut += times

    def send_bookmarks(self) -> None:
        """Send a bookmark on every watch that wants them, now."""
        with self._storage.changed:
            self.bookmarks += 1
            self._storage.changed.notify_all()
