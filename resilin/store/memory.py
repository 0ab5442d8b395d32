"""A store in this process: for tests, for jobs of one process, and as the data behind the embedded server."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from functools import partial

from resilin._base.clock import SYSTEM, Clock
from resilin.errors import Compacted, StoreError
from resilin.store.base import (
    Compare,
    ErrorCallback,
    Event,
    EventsCallback,
    Lease,
    Op,
    Store,
    TxnResult,
    Watch,
    prefix_range,
)
from resilin.store.dispatch import Dispatcher
from resilin.store.shared_state import SharedState, Subscription
from resilin.store.state import HISTORY_BYTES, HISTORY_EVENTS, StoreState


class MemoryStore(Store):
    """A store in memory, shared by the threads of one process.

    `session()` gives another user of the same data, with watches and leases of its own, as a second client of a server
    would be. Time is `clock`'s, so a test with a FakeClock decides when leases end. A lease is held without renewals
    while its session is open (it cannot outlive this process anyway) and runs out `ttl_s` after the session was closed.
    """

    def __init__(
        self,
        clock: Clock = SYSTEM,
        history_events: int = HISTORY_EVENTS,
        history_bytes: int = HISTORY_BYTES,
        *,
        hub: SharedState | None = None,
    ) -> None:
        """A new, empty store; or, with `hub`, another view of data that somebody else owns and closes."""
        self.hub = hub or SharedState(clock, StoreState(history_events, history_bytes))
        self._owns_hub = hub is None
        self._lock = threading.Lock()
        self._dispatcher = Dispatcher("store-memory")
        self._watches: set[_MemoryWatch] = set()  # guarded by _lock
        self._leases: dict[int, _MemoryLease] = {}  # guarded by _lock
        self._closed = False  # guarded by _lock

    def session(self) -> MemoryStore:
        """Another user of this store's data. Close it before the store it came from."""
        return MemoryStore(hub=self.hub)

    def txn(self, compare: Sequence[Compare], then: Sequence[Op], orelse: Sequence[Op] = ()) -> TxnResult:
        """As `Store.txn`; never ambiguous."""
        self._check_open()
        return self.hub.txn(compare, then, orelse)

    def compact(self, revision: int) -> None:
        """Forget the history before `revision`: older watches and reads then raise Compacted."""
        self._check_open()
        self.hub.compact(revision)

    def lease(self, ttl_s: float, on_lost: Callable[[], None] | None = None) -> Lease:
        """As `Store.lease`."""
        lease = _MemoryLease(self, ttl_s, on_lost)
        with self._lock:
            self._check_open()
            self._dispatcher.start()
            lease.id = self.hub.grant(ttl_s, on_end=lease.ended, held=True)
            self._leases[lease.id] = lease
        return lease

    def watch(
        self,
        prefix: str,
        on_events: EventsCallback,
        start_revision: int | None = None,
        on_error: ErrorCallback | None = None,
    ) -> Watch:
        """As `Store.watch`."""
        watch = _MemoryWatch(self, on_events, on_error)
        with self._lock:
            self._check_open()
            self._dispatcher.start()
            try:
                watch.subscription = self.hub.subscribe(*prefix_range(prefix), start_revision, watch.enqueue)
            except Compacted as error:
                self._dispatcher.post(partial(watch.fail, error))
            self._watches.add(watch)
        return watch

    def post(self, call: Callable[[], None]) -> None:
        """Run `call` on this session's thread, after the callbacks that wait already."""
        with self._lock:
            self._dispatcher.start()
        self._dispatcher.post(call)

    def fail_watches(self, error: Exception) -> None:
        """End every watch of this session with `error`, as when its history is gone."""
        with self._lock:
            watches = list(self._watches)
        for watch in watches:
            self._dispatcher.post(partial(watch.fail, error))

    def close(self) -> None:
        """As `Store.close`; on the store itself (not a session) it also drops the data."""
        with self._lock:
            self._closed = True
            watches, self._watches = self._watches, set()
            leases, self._leases = self._leases, {}
        for watch in watches:
            watch.close()
        for lease in leases.values():
            lease.abandon()
        self._dispatcher.close()
        if self._owns_hub:
            self.hub.close()

    def _check_open(self) -> None:
        if self._closed:
            raise StoreError("the store is closed")

    def _forget_watch(self, watch: _MemoryWatch) -> None:
        if watch.subscription is not None:
            self.hub.unsubscribe(watch.subscription)
        with self._lock:
            self._watches.discard(watch)

    def _forget_lease(self, lease_id: int) -> None:
        with self._lock:
            self._leases.pop(lease_id, None)

    def __repr__(self) -> str:
        return f"<MemoryStore revision={self.hub.revision} {len(self._watches)} watches, {len(self._leases)} leases>"


class _MemoryWatch(Watch):
    def __init__(self, store: MemoryStore, on_events: EventsCallback, on_error: ErrorCallback | None) -> None:
        self._store = store
        self._on_events = on_events
        self._on_error = on_error
        self._closed = False
        self.subscription: Subscription | None = None

    def enqueue(self, events: tuple[Event, ...]) -> None:
        self._store._dispatcher.post(lambda: self._call(events))

    def _call(self, events: tuple[Event, ...]) -> None:
        if self._closed:
            return
        try:
            self._on_events(events)
        except Exception as error:  # noqa: BLE001 - user code on our thread: goes to its on_error
            self.fail(error)

    def fail(self, error: Exception) -> None:
        """End the watch; runs on the store's thread, which reports what is raised here."""
        if self._closed:
            return
        self.close()
        if self._on_error is None:
            raise error
        self._on_error(error)

    def close(self) -> None:
        self._closed = True
        self._store._forget_watch(self)


class _MemoryLease(Lease):
    def __init__(self, store: MemoryStore, ttl_s: float, on_lost: Callable[[], None] | None) -> None:
        self.id = 0
        self.ttl_s = ttl_s
        self._store = store
        self._on_lost = on_lost
        self._alive = True
        self._released = False  # revoked by its owner, or its session closed: no on_lost

    @property
    def alive(self) -> bool:
        return self._alive

    def revoke(self) -> None:
        if self._alive and not self._released:
            self._released = True
            self._store._check_open()
            self._store.hub.revoke(self.id)

    def abandon(self) -> None:
        """Its session closed: it runs out from now on."""
        self._released = True
        self._store.hub.let_run_out(self.id)

    def ended(self) -> None:
        """Called by the hub, under its lock."""
        self._alive = False
        self._store._dispatcher.post(self._after_end)

    def _after_end(self) -> None:
        self._store._forget_lease(self.id)
        if self._on_lost is not None and not self._released:
            self._on_lost()
