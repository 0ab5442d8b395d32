"""The state machine of a store. Pure: no clock, no socket, no thread; the time is an argument.

Every change is one *batch* of events with one revision. Batches are kept in a bounded history: watches start from it,
and a read at an older revision undoes it from the present.
"""

from __future__ import annotations

import math
from bisect import bisect_left, insort
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

from resilin.errors import Compacted, LeaseLost, StoreError, UsageError
from resilin.store.base import Compare, Event, KeyValue, Op, OpResult, TxnResult, to_bytes

HISTORY_EVENTS = 10_000  # a membership store changes a few times a second at most: hours of history
HISTORY_BYTES = 32 << 20


class FutureRevision(StoreError):
    """A revision was asked for that the store has not reached."""


@dataclass(frozen=True, slots=True)
class Batch:
    """All changes of one revision."""

    revision: int
    events: tuple[Event, ...]

    def matching(self, key: str, end: str) -> tuple[Event, ...]:
        """The events in the key range [key, end)."""
        return tuple(event for event in self.events if in_range(event.kv.key, key, end))

    def size_bytes(self) -> int:
        """Bytes of keys and values held."""
        return sum(len(event.kv.key) + len(event.kv.value) for event in self.events)


@dataclass(slots=True)
class LeaseRecord:
    """One lease. `expires_at` is infinite while its owner shares the process and holds it."""

    id: int
    ttl_s: float
    expires_at: float
    keys: set[str] = field(default_factory=set)


def in_range(candidate: str, key: str, end: str) -> bool:
    """Whether `candidate` lies in [key, end) in etcd's notation."""
    if not end:
        return candidate == key
    raw = to_bytes(candidate)
    return raw >= to_bytes(key) and (end == "\0" or raw < to_bytes(end))


class StoreState:
    """Entries, leases and history of one store. Not thread-safe: its owner serializes the calls.

    Methods that change something append to `history`; the owner reads from there what to push to watchers.
    """

    def __init__(self, history_events: int = HISTORY_EVENTS, history_bytes: int = HISTORY_BYTES) -> None:
        self.revision = 1  # as etcd: an empty store is at revision 1, the first write makes 2
        self.first_revision = 1
        """The oldest revision that a watch may start from or a read may ask for."""
        self.history: deque[Batch] = deque()
        self._entries: dict[str, KeyValue] = {}
        self._order: list[bytes] = []  # the keys of _entries as bytes, sorted
        self._leases: dict[int, LeaseRecord] = {}
        self._soonest = math.inf  # no lease ends before this
        self._history_events = history_events
        self._history_bytes = history_bytes
        self._held_events = 0
        self._held_bytes = 0

    # -- reading and transactions

    def txn(self, compare: Sequence[Compare], then: Sequence[Op], orelse: Sequence[Op] = ()) -> TxnResult:
        """Run a transaction; everything is checked before anything is changed."""
        succeeded, ops = self.plan(compare, then, orelse)
        events: list[Event] = []
        results = tuple(self._run(op, events) for op in ops)
        self._commit(events)
        return TxnResult(succeeded, self.revision, results)

    def plan(
        self, compare: Sequence[Compare], then: Sequence[Op], orelse: Sequence[Op] = ()
    ) -> tuple[bool, Sequence[Op]]:
        """What `txn` would do now: whether the comparisons hold, and the operations to run, checked. Changes
        nothing."""
        succeeded = all(self._holds(condition) for condition in compare)
        ops = then if succeeded else orelse
        self._check(ops)
        return succeeded, ops

    def range(self, key: str, end: str, revision: int = 0, limit: int = 0) -> OpResult:
        """The entries in [key, end), as of `revision` (0: now)."""
        if revision and revision < self.revision:
            kvs = self._at(key, end, revision)
        else:
            kvs = [self._entries[name] for name in self._names(key, end)]
        return OpResult(tuple(kvs[:limit] if limit else kvs), len(kvs))

    def since(self, start_revision: int) -> list[Batch]:
        """The batches from `start_revision` on. Raises Compacted when some of them are gone."""
        if start_revision < self.first_revision:
            raise Compacted(
                f"watch from revision {start_revision}: the oldest still there is {self.first_revision}; list again",
                self.first_revision,
            )
        found: list[Batch] = []
        for batch in reversed(self.history):
            if batch.revision < start_revision:
                break
            found.append(batch)
        return found[::-1]

    def compact(self, revision: int) -> None:
        """Forget everything before `revision`, which stays readable. Errors are etcd's."""
        if revision > self.revision:
            raise FutureRevision(f"compact at revision {revision}: in the future, the store is at {self.revision}")
        if revision < self.first_revision:
            raise Compacted(f"compact at {revision}: already compacted to {self.first_revision}", self.first_revision)
        while self.history and self.history[0].revision < revision:
            self._forget_oldest()
        self.first_revision = revision

    # -- leases

    def grant(self, lease_id: int, ttl_s: float, expires_at: float) -> None:
        """Make a lease; UsageError when the id is taken or the time to live is no positive number."""
        if not (ttl_s > 0 and math.isfinite(ttl_s)):
            raise UsageError(f"lease: expected a positive time to live in seconds, got {ttl_s}")
        if lease_id in self._leases:
            raise UsageError(f"lease {lease_id:x} exists already")
        self._leases[lease_id] = LeaseRecord(lease_id, ttl_s, expires_at)
        self._soonest = min(self._soonest, expires_at)

    def renew(self, lease_id: int, expires_at: float) -> LeaseRecord | None:
        """Move a lease's end; None when it is gone."""
        record = self._leases.get(lease_id)
        if record is not None:
            record.expires_at = expires_at
            self._soonest = min(self._soonest, expires_at)
        return record

    def revoke(self, lease_id: int) -> bool:
        """End a lease and delete its keys as one revision; whether it was there."""
        record = self._leases.pop(lease_id, None)
        if record is None:
            return False
        events: list[Event] = []
        for key in sorted(record.keys, key=to_bytes):
            self._remove(key, events)
        self._commit(events)
        return True

    def lease(self, lease_id: int) -> LeaseRecord | None:
        """The lease with this id, or None."""
        return self._leases.get(lease_id)

    def leases(self) -> list[LeaseRecord]:
        """All leases, oldest first."""
        return list(self._leases.values())

    def expired(self, now: float) -> list[int]:
        """The ids of the leases whose end has come; the caller revokes them."""
        if now < self._soonest:  # asked before every call: looking at each lease would make n nodes cost n * n
            return []
        self._soonest = min((r.expires_at for r in self._leases.values() if r.expires_at > now), default=math.inf)
        return [record.id for record in self._leases.values() if record.expires_at <= now]

    def next_expiry(self) -> float:
        """No lease ends before this; infinity when none does at all."""
        return self._soonest

    # -- a copy of everything, for stores that write it down

    def entries(self) -> list[KeyValue]:
        """All entries in key order."""
        return list(self.range("\0", "\0").kvs)

    def restore(
        self, revision: int, first_revision: int, entries: Sequence[KeyValue], history: Sequence[Batch]
    ) -> None:
        """Become the state described; leases must have been granted before."""
        self.revision, self.first_revision = revision, first_revision
        for kv in entries:
            self._set(kv)
        for batch in history:
            self._remember(batch)

    # -- inside

    def _names(self, key: str, end: str) -> list[str]:
        if not end:
            return [key] if key in self._entries else []
        start = bisect_left(self._order, to_bytes(key))
        stop = len(self._order) if end == "\0" else bisect_left(self._order, to_bytes(end))
        return [raw.decode("utf-8", "surrogateescape") for raw in self._order[start:stop]]

    def _at(self, key: str, end: str, revision: int) -> list[KeyValue]:
        if revision < self.first_revision:
            raise Compacted(f"read at revision {revision}: compacted to {self.first_revision}", self.first_revision)
        found: dict[str, KeyValue | None] = {name: self._entries[name] for name in self._names(key, end)}
        for batch in reversed(self.history):
            if batch.revision <= revision:
                break
            for event in reversed(batch.matching(key, end)):
                found[event.kv.key] = event.previous
        return sorted((kv for kv in found.values() if kv is not None), key=lambda kv: to_bytes(kv.key))

    def _holds(self, condition: Compare) -> bool:
        kv = self._entries.get(condition.key)
        actual: int | bytes
        if condition.target == "value":
            if kv is None:
                return False
            actual = kv.value
        elif kv is None:
            actual = 0
        else:
            actual = {
                "version": kv.version,
                "create": kv.create_revision,
                "mod": kv.mod_revision,
                "lease": kv.lease,
            }[condition.target]
        return _related(actual, condition.relation, condition.operand)

    def _check(self, ops: Sequence[Op]) -> None:
        written: list[str] = []
        for op in ops:
            if not op.key:
                raise UsageError(f"{op.kind}: the key is empty")
            if op.kind == "put":
                if op.lease and op.lease not in self._leases:
                    raise LeaseLost(f"put {op.key!r}: lease {op.lease:x} does not exist: it expired or was revoked")
                written.append(op.key)
            elif op.kind == "range" and op.revision > self.revision:
                raise FutureRevision(f"revision {op.revision} lies in the future: the store is at {self.revision}")
        twice = len(set(written)) != len(written)
        if twice or any(in_range(name, op.key, op.end) for op in ops if op.kind == "delete" for name in written):
            raise UsageError(f"transaction: a key is written twice, expected once at most: {sorted(written)}")

    def _run(self, op: Op, events: list[Event]) -> OpResult:
        if op.kind == "range":
            return self.range(op.key, op.end, op.revision, op.limit)
        if op.kind == "put":
            previous = self._entries.get(op.key)
            self._put(op, previous, events)
            return OpResult(() if previous is None else (previous,), 0 if previous is None else 1)
        removed = tuple(self._remove(name, events) for name in self._names(op.key, op.end))
        return OpResult(removed, len(removed))

    def _put(self, op: Op, previous: KeyValue | None, events: list[Event]) -> None:
        revision = self.revision + 1
        created = revision if previous is None else previous.create_revision
        version = 1 if previous is None else previous.version + 1
        if previous is not None:
            self._detach(previous)
        kv = KeyValue(op.key, op.value, created, revision, version, op.lease)
        self._set(kv)
        events.append(Event("put", kv, previous))

    def _set(self, kv: KeyValue) -> None:
        if kv.key not in self._entries:
            insort(self._order, to_bytes(kv.key))
        self._entries[kv.key] = kv
        if kv.lease:
            self._leases[kv.lease].keys.add(kv.key)

    def _remove(self, key: str, events: list[Event]) -> KeyValue:
        previous = self._entries.pop(key)
        del self._order[bisect_left(self._order, to_bytes(key))]
        self._detach(previous)
        events.append(Event("delete", KeyValue(key, b"", 0, self.revision + 1, 0), previous))
        return previous

    def _detach(self, kv: KeyValue) -> None:
        record = self._leases.get(kv.lease)
        if record is not None:
            record.keys.discard(kv.key)

    def _commit(self, events: list[Event]) -> None:
        if events:
            self.revision += 1
            self._remember(Batch(self.revision, tuple(events)))

    def _remember(self, batch: Batch) -> None:
        self.history.append(batch)
        self._held_events += len(batch.events)
        self._held_bytes += batch.size_bytes()
        while len(self.history) > 1 and (
            self._held_events > self._history_events or self._held_bytes > self._history_bytes
        ):
            self._forget_oldest()
            self.first_revision = self.history[0].revision

    def _forget_oldest(self) -> None:
        batch = self.history.popleft()
        self._held_events -= len(batch.events)
        self._held_bytes -= batch.size_bytes()


def _related(actual: int | bytes, relation: Literal["=", "!=", "<", ">"], operand: int | bytes) -> bool:
    if relation == "=":
        return actual == operand
    if relation == "!=":
        return actual != operand
    below = actual < operand  # type: ignore[operator]  # Compare has checked that both have one type
    return below if relation == "<" else actual != operand and not below
