"""Keep, at a reader, the latest version of what another worker publishes, and take over newer ones.

announced (any number of times) ──> one question at a time: have you something newer than mine? ──> the version, checked
                                    asked again until the answer is no: that tells the publisher what this one has
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from typing import NamedTuple

from resilin._base import log
from resilin._base.clock import Deadline
from resilin.distributed.wire.error_codec import copy_error
from resilin.distributed.work.future import Future
from resilin.errors import PeerLost, RpcError, RpcTimeout
from resilin.rpc.agent.agent import Agent
from resilin.rpc.agent.thread_pool import step_down
from resilin.rpc.published import stripes, versions
from resilin.rpc.published.announcement import Announcement
from resilin.rpc.published.versions import Version
from resilin.rpc.references.rref import RRef
from resilin.rpc.worker_info import WorkerInfo

_LOG = log.logger("rpc.published")


class HandedOver(NamedTuple):
    """A publisher's answer."""

    version: Version
    striped: RRef[stripes.Striped] | None
    """Whose stripes belong into the holes of the version's state; None: it is complete."""


Ask = Callable[[str, str, int], Future[HandedOver | None]]
"""Asks the publisher for a version of a name newer than one of an epoch."""


class Replica:
    """The latest version of `name` that worker `source` publishes."""

    def __init__(self, agent: Agent, source: WorkerInfo, name: str, ask: Ask) -> None:
        self._agent, self.source, self.name, self._ask = agent, source, name, ask
        self._lock = threading.Condition()
        self._version: Version | None = None  # guarded by _lock for writing
        self._heard = self._asked = 0  # guarded by _lock: announcements so far, and when the publisher was asked last
        self._asking = False  # guarded by _lock
        self._error: Exception | None = None  # guarded by _lock: why the newest is not here
        self._lost: PeerLost | None = None  # guarded by _lock

    @property
    def version(self) -> Version | None:
        """Return the latest version that is here whole."""
        return self._version

    @property
    def is_lost(self) -> bool:
        """Return whether the publisher is gone, and nobody has been heard of in its place."""
        return self._lost is not None

    def announced(self, said: Announcement) -> None:
        """Take that there is a version. Waits for room at the publisher at most."""
        with self._lock:
            self._lost = None
            known = self._version
            if known is not None and known.epoch == said.epoch and known.number >= said.number:
                return
            self._heard += 1
            if self._asking:
                return
            self._asking = True
        self._next()

    def found(self, said: Announcement) -> None:
        """Take what the publisher answered to a subscription: its number is 0 where it has no version yet."""
        if said.number:
            self.announced(said)
        else:
            with self._lock:
                self._lost = None

    def _next(self) -> None:
        with self._lock:
            known, self._asked = self._version, self._heard
        try:
            future = self._ask(self.name, "", 0) if known is None else self._ask(self.name, known.epoch, known.number)
        except Exception as error:  # noqa: BLE001 - whatever keeps the question from the publisher: who waits hears it
            self._ended(error)
            return
        future.when_done(self._answered)

    def _answered(self, done: Future[HandedOver | None]) -> None:
        """On a thread for replies, which may wait."""
        error = done.exception()
        if error is not None:
            self._ended(error)
            return
        try:
            version = self._whole(done.value())
        except Exception as error:  # noqa: BLE001 - what calls for stripes raise, or a checksum: who waits hears it
            self._ended(error)
            return
        if version is None:
            self._ended(None)
            return
        with self._lock:
            self._version, self._error = version, None
            self._lock.notify_all()
        self._next()

    def _ended(self, error: BaseException | None) -> None:
        """Take that the publisher has nothing newer, or that it could not be taken over."""
        if error is not None and not isinstance(error, PeerLost):
            what = "a published version could not be taken over"
            log.event(_LOG, logging.WARNING, what, name=self.name, source=self.source.name, exc_info=error)
        with self._lock:
            self._asking = self._heard != self._asked and not self._agent.is_closed
            again = self._asking
            if error is not None:
                self._error = error if isinstance(error, Exception) else RpcError(str(error))
            self._lock.notify_all()
        if again:
            self._next()

    def _whole(self, handed: HandedOver | None) -> Version | None:
        if handed is None:
            return None
        version, striped = handed
        if striped is not None:
            state = stripes.assembled(version.state, striped, self._agent.timeout_s)
            version = Version(version.epoch, version.number, state, version.checksum)
        versions.check(version, self.name, self.source.name)
        versions.protect(version.state)
        return version

    def lost(self, error: PeerLost) -> None:
        """Take that the publisher is gone: its last version stays."""
        with self._lock:
            self._lost = error
            self._lock.notify_all()

    def wait(self, number: int, limit_s: float | None) -> Version:
        """Return the latest version once it is `number` or newer. Raises RpcTimeout, PeerLost, what kept it away."""
        deadline = Deadline(limit_s)
        step_down()
        with self._lock:
            while True:
                found = self._version
                if found is not None and found.number >= number:
                    return found
                if self._lost is not None:
                    raise PeerLost(
                        f"no version {number} of {self.name!r} will come: {self._lost}; the last that is here is "
                        f"{0 if found is None else found.number}",
                        self._lost.ranks,
                    )
                if self._error is not None and not self._asking:
                    error, self._error = self._error, None  # told once: the next wait may see it come
                    raise copy_error(error)
                if self._agent.is_closed:
                    raise RpcError(f"no version {number} of {self.name!r} will come: RPC was shut down at this worker")
                if deadline.passed():
                    raise RpcTimeout(
                        f"no version {number} of {self.name!r} came from worker {self.source.name!r} within "
                        f"{limit_s:g} s; the last that is here is {0 if found is None else found.number}"
                    )
                self._lock.wait(deadline.left())

    def close(self) -> None:
        """Wake who waits: this worker ends."""
        with self._lock:
            self._lock.notify_all()
