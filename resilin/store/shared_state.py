"""A `StoreState` behind a lock: subscribers are pushed every batch in order, one thread ends leases that ran out.

`MemoryStore` puts the `Store` interface on top of it, `StoreServer` etcd's wire protocol.
"""

from __future__ import annotations

import math
import secrets
import threading
from collections.abc import Callable, Sequence
from dataclasses import replace

from resilin._base.clock import Clock
from resilin._base.threads import OwnedThread
from resilin.errors import StoreError
from resilin.store.base import Compare, Event, Op, TxnResult
from resilin.store.state import Batch, StoreState

Sink = Callable[[tuple[Event, ...]], None]


class Subscription:
    """Events of one key range, delivered to `sink` under the hub's lock: `sink` only enqueues."""

    __slots__ = ("end", "key", "sink")

    def __init__(self, key: str, end: str, sink: Sink) -> None:
        self.key = key
        self.end = end
        self.sink = sink


class SharedState:
    """Shared by every user of one in-process store. Leases that ran out end before each call, or by the thread."""

    def __init__(self, clock: Clock, state: StoreState | None = None) -> None:
        self.clock = clock
        self.id = secrets.randbits(63)  # tells this store's data from a restarted, empty one
        self._changed = threading.Condition()  # also the lock
        self._state = state or StoreState()  # guarded by _changed
        self._pushed = self._state.revision  # guarded by _changed; the last revision that subscribers saw
        self._subscriptions: list[Subscription] = []  # guarded by _changed
        self._on_lease_end: dict[int, Callable[[], None]] = {}  # guarded by _changed
        self._expiry: OwnedThread | None = None  # guarded by _changed
        self._closed = False  # guarded by _changed

    @property
    def revision(self) -> int:
        """The store's revision."""
        with self._changed:
            return self._state.revision

    def txn(self, compare: Sequence[Compare], then: Sequence[Op], orelse: Sequence[Op] = ()) -> TxnResult:
        """As `StoreState.txn`, pushed to subscribers before it returns."""
        with self._changed:
            self._enter()
            result = self._state.txn(compare, then, orelse)
            self._push()
            return replace(result, store=self.id)

    def compact(self, revision: int) -> None:
        """As `StoreState.compact`."""
        with self._changed:
            self._enter()
            self._state.compact(revision)

    def subscribe(self, key: str, end: str, start_revision: int | None, sink: Sink) -> Subscription:
        """Deliver events of [key, end) from `start_revision` on (None: from now). Raises Compacted."""
        subscription = Subscription(key, end, sink)
        with self._changed:
            self._enter()
            if start_revision is not None:
                for batch in self._state.since(start_revision):
                    _deliver(subscription, batch)
            # A start in the future waits for its revision: older batches are none of its business.
            first = 0 if start_revision is None else start_revision
            if first > self._state.revision + 1:
                subscription.sink = _from_revision(first, sink)
            self._subscriptions.append(subscription)
        return subscription

    def unsubscribe(self, subscription: Subscription) -> None:
        """End a subscription; one that ended already is no error."""
        with self._changed:
            if subscription in self._subscriptions:
                self._subscriptions.remove(subscription)

    # -- leases

    def grant(
        self, ttl_s: float, lease_id: int = 0, on_end: Callable[[], None] | None = None, held: bool = False
    ) -> int:
        """Make a lease and return its id (random when `lease_id` is 0).

        `held`: it does not run out, because its owner lives in this process. `on_end` is called under the hub's lock
        when the lease ended, however that came.
        """
        with self._changed:
            self._enter()
            lease_id = lease_id or secrets.randbits(62) + 1
            self._state.grant(lease_id, ttl_s, math.inf if held else self.clock.monotonic() + ttl_s)
            if on_end is not None:
                self._on_lease_end[lease_id] = on_end
            self._watch_expiry()
            return lease_id

    def renew(self, lease_id: int) -> float:
        """Give a lease its full time again; returns that time in seconds, 0 when the lease is gone."""
        with self._changed:
            self._enter()
            record = self._state.lease(lease_id)
            if record is None:
                return 0.0
            if record.expires_at != math.inf:
                self._state.renew(lease_id, self.clock.monotonic() + record.ttl_s)
            return record.ttl_s

    def let_run_out(self, lease_id: int) -> None:
        """Stop holding a lease: it ends its full time from now on."""
        with self._changed:
            record = self._state.lease(lease_id)
            if record is not None and not self._closed:
                self._state.renew(lease_id, self.clock.monotonic() + record.ttl_s)
                self._watch_expiry()

    def revoke(self, lease_id: int) -> bool:
        """End a lease; whether it was there."""
        with self._changed:
            self._enter()
            return self._end(lease_id)

    def time_to_live(self, lease_id: int) -> tuple[float, float, list[str]] | None:
        """(seconds left, seconds granted, attached keys) of a lease; None when it is gone."""
        with self._changed:
            self._enter()
            record = self._state.lease(lease_id)
            if record is None:
                return None
            left = min(record.ttl_s, record.expires_at - self.clock.monotonic())
            return left, record.ttl_s, sorted(record.keys)

    def leases(self) -> list[int]:
        """The ids of all leases."""
        with self._changed:
            self._enter()
            return [record.id for record in self._state.leases()]

    def close(self) -> None:
        """End the thread; later calls raise StoreError."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
            thread, self._expiry = self._expiry, None
        if thread is not None:
            thread.join()

    # -- inside; all called with the lock held

    def _enter(self) -> None:
        if self._closed:
            raise StoreError("the store is closed")
        self._expire()

    def _expire(self) -> None:
        for lease_id in self._state.expired(self.clock.monotonic()):
            self._end(lease_id)

    def _end(self, lease_id: int) -> bool:
        there = self._state.revoke(lease_id)
        self._push()
        on_end = self._on_lease_end.pop(lease_id, None)
        if there and on_end is not None:
            on_end()
        return there

    def _push(self) -> None:
        if self._state.revision == self._pushed:
            return
        for batch in self._state.since(self._pushed + 1):
            for subscription in tuple(self._subscriptions):
                _deliver(subscription, batch)
        self._pushed = self._state.revision

    def _watch_expiry(self) -> None:
        if self._expiry is None:
            self._expiry = OwnedThread("store-expiry", self._run_expiry)
        self._changed.notify_all()

    def _run_expiry(self) -> None:
        with self._changed:
            while not self._closed:
                self._expire()
                due = self._state.next_expiry()
                self.clock.wait(self._changed, None if due == math.inf else due)


def _deliver(subscription: Subscription, batch: Batch) -> None:
    events = batch.matching(subscription.key, subscription.end)
    if events:
        subscription.sink(events)


def _from_revision(first: int, sink: Sink) -> Sink:
    def late_sink(events: tuple[Event, ...]) -> None:
        if events[0].kv.mod_revision >= first:
            sink(events)

    return late_sink
