"""Keep what a worker waits for without a thread: replies to calls, and answers to what is told until it is heard."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any, Protocol, TypeVar

from resilin._base import trace
from resilin._base.clock import SYSTEM, spell
from resilin.distributed.work.future import Future
from resilin.errors import PeerLost, RpcTimeout
from resilin.rpc.agent.peers import Peer
from resilin.rpc.agent.stats import Counts
from resilin.rpc.agent.thread_pool import step_down
from resilin.rpc.serialization.messages import HEADER_BYTES, PROFILED
from resilin.rpc.tracing.remote_events import here
from resilin.rpc.transports.base import RpcMessage

RETRY_S = 0.25
"""Until something is told again; longer each time, at most LONGEST_RETRY_S."""
LONGEST_RETRY_S = 5.0
T = TypeVar("T")
monotonic = SYSTEM.monotonic


def late(what: str, to: str, limit_s: float | None) -> RpcTimeout:
    """Return what is raised for a call that took longer than `limit_s`."""
    shown = spell(limit_s) if limit_s is None or limit_s >= 1 else f"{limit_s * 1000:.0f} ms"
    return RpcTimeout(
        f"RPC ran for more than set timeout ({shown}) and will now be marked with an error: {what} to worker {to!r}"
    )


def _not_within(limit_s: float | None) -> RpcTimeout:
    return RpcTimeout(f"the result of a call did not arrive within {spell(limit_s)}, which this wait may take")


class Awaited(Protocol):
    """Something that a worker waits for."""

    peer: int
    at: float | None
    """When `expire` is called; None: never."""

    def arrived(self, kind: int, flags: int, message: RpcMessage) -> None:
        """Take the reply."""

    def lost(self, error: PeerLost) -> None:
        """Take that the peer is gone."""

    @property
    def again(self) -> bool:
        """Return whether the answer is waited for beyond `at`."""

    def expire(self) -> None:
        """Do what is due. Called once for each `at`."""


class CallFuture(Future[T]):
    """What a call will return. Who waits for it has another thread take the lead of its pool (`step_down`)."""

    _expired = staticmethod(_not_within)
    _refuse = staticmethod(step_down)


class PendingCall:
    """A call whose reply completes a future."""

    __slots__ = ("_same_host", "asked", "at", "begun", "counts", "future", "limit_s", "name", "peer", "read", "to")

    def __init__(
        self,
        peer: Peer,
        name: bytes,
        limit_s: float | None,
        counts: Counts,
        read: Callable[[int, int, RpcMessage], tuple[Any, BaseException | None]],
    ) -> None:
        self.peer, self.to, self._same_host = peer.id, peer.name, peer.same_host
        self.name, self.limit_s, self.counts, self.read = name, limit_s, counts, read
        self.asked = None if trace.recorder is None else here.asked
        self.future: Future[Any] = CallFuture()
        self.begun = monotonic()
        self.at = None if limit_s is None else self.begun + limit_s

    def arrived(self, kind: int, flags: int, message: RpcMessage) -> None:
        """See Awaited."""
        if not flags & PROFILED or self.asked is None:
            self._end(*self.read(kind, flags, message))
            return
        self.asked.take(message.parts[-1], self._same_host)
        with self.asked.callbacks():
            self._end(*self.read(kind, flags, message))

    def lost(self, error: PeerLost) -> None:
        """See Awaited."""
        self._end(None, PeerLost(f"{self.name.decode()}: {error}", error.ranks))

    def failed(self, error: BaseException) -> None:
        """Take that the call was not sent."""
        links: list[BaseException | None] = [error]
        while links:  # the frames of tracebacks would keep an RRef of the caller, which keeps the future that has them
            link = links.pop()
            if link is not None and link.__traceback__ is not None:
                link.__traceback__ = None
                links += [link.__cause__, link.__context__]
        self._end(None, error)

    @property
    def again(self) -> bool:
        """See Awaited."""
        return False

    def expire(self) -> None:
        """See Awaited."""
        self._end(None, late(self.name.decode(), self.to, self.limit_s))

    def _end(self, value: Any, error: BaseException | None) -> None:
        self.counts.add(monotonic() - self.begun, error is not None)
        self.future.settle(value, error)


class Tell:
    """Something that is told again until the peer answers, or is gone."""

    __slots__ = ("_heard", "_send", "_then", "_wait_s", "at", "peer")

    def __init__(
        self,
        peer: int,
        send: Callable[[], None],
        then: Callable[[BaseException | None], None],
        heard: Callable[[bytes], None] | None = None,
    ) -> None:
        self.peer, self._send, self._then, self._heard = peer, send, then, heard
        self._wait_s = RETRY_S
        self.at: float | None = monotonic() + RETRY_S

    def arrived(self, kind: int, flags: int, message: RpcMessage) -> None:
        """See Awaited."""
        if self._heard is not None:
            self._heard(bytes(memoryview(message.parts[0])[HEADER_BYTES:]))
        self._then(None)

    def lost(self, error: PeerLost) -> None:
        """See Awaited."""
        self._then(error)

    @property
    def again(self) -> bool:
        """See Awaited."""
        return True

    def expire(self) -> None:
        """See Awaited."""
        self._wait_s = min(self._wait_s * 1.5, LONGEST_RETRY_S)
        self.at = monotonic() + self._wait_s
        self._send()


class Table:
    """All that one worker waits for without a thread, by number."""

    def __init__(self, wake: Callable[[], None]) -> None:
        self._entries: dict[int, Awaited] = {}
        self._nearest = float("inf")  # guarded by _lock for writing: when `expire` has something to do
        self._lock = threading.Lock()
        self._wake = wake

    def __len__(self) -> int:
        return len(self._entries)

    def calls(self) -> list[tuple[int, PendingCall]]:
        """Return the calls that wait for their replies, by number."""
        return [(number, entry) for number, entry in list(self._entries.items()) if isinstance(entry, PendingCall)]

    def add(self, number: int, entry: Awaited) -> None:
        """Wait for the answer to `number`."""
        self._entries[number] = entry
        self._mind(entry)

    def _mind(self, entry: Awaited) -> None:
        if entry.at is not None and entry.at < self._nearest:
            with self._lock:
                self._nearest = min(self._nearest, entry.at)
            self._wake()

    def pop(self, number: int) -> Awaited | None:
        """Take what waited for the answer to `number`; None where nothing does."""
        return self._entries.pop(number, None)

    def lost(self, peer: int, error: PeerLost) -> None:
        """Tell everything that waits for `peer` that it is gone."""
        for number, entry in list(self._entries.items()):
            if entry.peer == peer and self.pop(number) is not None:
                entry.lost(error)

    def expire(self) -> float | None:
        """Do what is due; return when something is next, None: nothing is."""
        now = monotonic()
        if self._nearest <= now:
            for number, entry in self._due(now):
                if not entry.again and self.pop(number) is not None:
                    entry.expire()
                elif number in self._entries:
                    entry.expire()
                    self._mind(entry)
        return None if self._nearest == float("inf") else self._nearest

    def _due(self, now: float) -> list[tuple[int, Awaited]]:
        """Take what is due out of the reckoning of what is next."""
        with self._lock:
            self._nearest = float("inf")  # before the look: who adds an entry after it sees this, and waits for us
            timed = [(number, entry, entry.at) for number, entry in list(self._entries.items())]
            later = [at for _, _, at in timed if at is not None and at > now]
            self._nearest = min(later, default=float("inf"))
        return [(number, entry) for number, entry, at in timed if at is not None and at <= now]
