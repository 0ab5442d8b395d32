"""Notice that another store has taken the place of the one that a node knows: its answers are not taken for that one's.

A store that is one process's memory is lost with it, and the next one at its address begins with nothing, its revisions
anew. It says that it is another one; an etcd that begins with an empty disk may not, but its revisions go back.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from resilin.errors import LeaseLost
from resilin.store.base import Compare, ErrorCallback, EventsCallback, Lease, Op, Store, TxnResult, Watch


class StoreReplaced(LeaseLost):
    """Another store answers: this node's lease is gone with the one before, and so is all that was read there."""


class OneStore(Store):
    """`store`, until another one answers in its place: then StoreReplaced, until `accept` takes that one for it."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._number = self._revision = 0

    def accept(self) -> None:
        """Whoever answers next is the store."""
        self._number = self._revision = 0

    def txn(self, compare: Sequence[Compare], then: Sequence[Op], orelse: Sequence[Op] = ()) -> TxnResult:
        """As `Store.txn`."""
        result = self._store.txn(compare, then, orelse)
        other = self._number and result.store and result.store != self._number
        if other or result.revision < self._revision:
            raise StoreReplaced("another store has taken the place of the one that this node knows")
        self._number, self._revision = result.store or self._number, result.revision
        return result

    def lease(self, ttl_s: float, on_lost: Callable[[], None] | None = None) -> Lease:
        """As `Store.lease`."""
        return self._store.lease(ttl_s, on_lost)

    def watch(
        self,
        prefix: str,
        on_events: EventsCallback,
        start_revision: int | None = None,
        on_error: ErrorCallback | None = None,
    ) -> Watch:
        """As `Store.watch`: of another store it says itself that it is another one."""
        return self._store.watch(prefix, on_events, start_revision, on_error)

    def compact(self, revision: int) -> None:
        """As `Store.compact`."""
        self._store.compact(revision)

    def close(self) -> None:
        """As `Store.close`."""
        self._store.close()
