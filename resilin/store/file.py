"""A store in a shared folder: no server, no daemon. Works between the processes of one host and over NFS.

Every process replays one journal of commands (`store.journal`) into a replica of its own, so all of them pass through
the same states in the same order. A command is decided and appended under the folder's lock.

Leases: the owner counts up a number in a file of its own; everybody else measures, on its own monotonic clock, how
long that number has not moved. Whoever saw it stand still for the whole time to live ends the lease through the
journal. No clock of one host is ever compared with another's.

Watches poll the journal every `POLL_S`: inotify does not see what other hosts do over NFS, so here, and only here, the
store asks instead of being told.
"""

from __future__ import annotations

import logging
import math
import os
import secrets
import struct
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any

from resilin._base import log, private_files
from resilin._base.clock import SYSTEM, Clock, Deadline
from resilin._base.private_files import NotOurs
from resilin._base.threads import OwnedThread
from resilin.errors import Compacted, StoreError, StoreRefused, UsageError
from resilin.store import records
from resilin.store.base import Compare, ErrorCallback, Event, EventsCallback, Lease, Op, Store, TxnResult, Watch
from resilin.store.journal import Journal
from resilin.store.memory import MemoryStore
from resilin.store.shared_state import SharedState
from resilin.store.state import Batch, StoreState

_log = log.logger("store.file")
POLL_S = 0.02  # a look at an unchanged file costs about 10 us
TROUBLE_S = 1.0  # a folder that cannot be read for so long is worth a line: locks are busy now and then
ROTATE_BYTES = 4 << 20  # a journal that grew past this is replaced by a snapshot
BEATS = 4  # heartbeats, and looks at others' heartbeats, per time to live
_COUNTER = struct.Struct(">Q")


@dataclass(slots=True)
class _Sighting:
    """Somebody's heartbeat counter, and since when, on our clock, it stands there."""

    counter: int
    since: float


class FileStore(Store):
    """A store in `folder`, which is made if need be, and is one user's alone: who may write there steers the job.

    StoreRefused when folder or files are another user's, or others may write them.

    Slower than a server (a call locks and reads a file), and watches are late by up to `POLL_S`.
    """

    def __init__(self, folder: str, *, timeout_s: float = 5.0, clock: Clock = SYSTEM) -> None:
        self._timeout_s = timeout_s
        self._clock = clock
        self._changed = threading.Condition()  # also the lock of everything below
        self._journal = Journal(folder)
        self._set_state(StoreState())
        self._leases: dict[int, _FileLease] = {}
        self._sightings: dict[int, _Sighting] = {}  # of leases that other stores own
        self._look_at = 0.0  # when to look at heartbeats next
        self._thread: OwnedThread | None = None
        self._closed = False
        try:
            with self._synced(exclusive=True):
                if self._journal.size_bytes == 0:
                    self._journal.replace(records.snapshot(self._state))
        except BaseException:
            self.close()
            raise

    def txn(self, compare: Sequence[Compare], then: Sequence[Op], orelse: Sequence[Op] = ()) -> TxnResult:
        """As `Store.txn`; never ambiguous."""
        writes = any(op.kind != "range" for op in (*then, *orelse))
        with self._synced(exclusive=writes):
            _, ops = self._state.plan(compare, then, orelse)
            changing = [op for op in ops if self._changes(op)]
            if changing:
                self._append(records.write(changing))
            return self._shared_state.txn(compare, then, orelse)

    def lease(self, ttl_s: float, on_lost: Callable[[], None] | None = None) -> Lease:
        """As `Store.lease`."""
        if not 0 < ttl_s < 1e9:
            raise UsageError(f"lease: expected a positive time to live in seconds, got {ttl_s}")
        lease = _FileLease(self, secrets.randbits(62) + 1, ttl_s, on_lost)
        with self._synced(exclusive=True):
            self._write_beat(lease)
            self._append(records.grant(lease.id, ttl_s))
            self._shared_state.grant(ttl_s, lease.id, held=True)
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
        with self._synced(exclusive=False):
            watch = self._replica.watch(prefix, on_events, start_revision, on_error)
            self._start_thread()
            return watch

    def compact(self, revision: int) -> None:
        """As `Store.compact`."""
        with self._synced(exclusive=True):
            self._shared_state.compact(revision)  # first: it refuses what cannot be done
            self._append(records.compact(revision))

    def close(self) -> None:
        """As `Store.close`."""
        with self._changed:
            if self._closed:
                return
            self._closed = True
            self._changed.notify_all()
            thread = self._thread
        if thread is not None:
            thread.join()
        self._replica.close()
        self._shared_state.close()
        self._journal.close()

    def __repr__(self) -> str:
        return f"<FileStore {self._journal.folder} revision={self._state.revision}>"

    # -- replaying; all called with _changed held, and the journal locked

    def _set_state(self, state: StoreState) -> None:
        self._state = state
        self._shared_state = SharedState(self._clock, state)
        self._replica = MemoryStore(self._clock, hub=self._shared_state)

    @contextmanager
    def _synced(self, exclusive: bool, lock_s: float | None = None) -> Iterator[None]:
        """Hold the journal's lock with the replica up to date."""
        with self._changed:
            if self._closed:
                raise StoreError("the store is closed")
            try:
                deadline = Deadline(self._timeout_s if lock_s is None else lock_s)
                with self._journal.lock(deadline, exclusive):
                    for is_first, record in self._journal.read():
                        self._apply(is_first, record)
                    yield
            except NotOurs as error:
                raise StoreRefused(f"file store: {error}") from None
            except OSError as error:
                raise StoreError(f"file store {self._journal.folder}: {error.strerror or error}") from error
            if self._state.leases():
                self._start_thread()
            self._report_lost()

    def _apply(self, is_first: bool, record: dict[str, Any]) -> None:
        if is_first:
            self._apply_snapshot(record)
        elif "w" in record:
            self._shared_state.txn((), records.ops(record))
        elif "g" in record:
            lease_id, ttl_s = record["g"]
            self._shared_state.grant(ttl_s, lease_id, held=True)
        elif "x" in record:
            self._shared_state.revoke(record["x"])
        else:
            self._shared_state.compact(record["c"])

    def _apply_snapshot(self, snapshot: dict[str, Any]) -> None:
        """Catch up over a replaced journal: through its history if that reaches back to where we are."""
        history = records.history(snapshot)
        known = self._state.revision
        if known > 1 and known + 1 >= snapshot["first"]:
            self._replay(snapshot, [batch for batch in history if batch.revision > known])
            return
        if known > 1:
            message = f"file store {self._journal.folder}: changes since revision {known} are gone; list again"
            self._replica.fail_watches(Compacted(message, snapshot["first"]))
        state = StoreState()
        for lease_id, ttl_s in snapshot["leases"]:
            state.grant(lease_id, ttl_s, math.inf)
        state.restore(snapshot["revision"], snapshot["first"], records.entries(snapshot), history)
        self._set_state(state)

    def _replay(self, snapshot: dict[str, Any], missed: Sequence[Batch]) -> None:
        """Pass through the revisions missed. Their leases may be gone by now: they are granted for the while."""
        live = {lease_id: ttl_s for lease_id, ttl_s in snapshot["leases"]}
        named = {event.kv.lease for batch in missed for event in batch.events if event.kv.lease}
        for lease_id in (named | set(live)) - {record.id for record in self._state.leases()}:
            self._shared_state.grant(live.get(lease_id, 1.0), lease_id, held=True)
        for batch in missed:
            self._shared_state.txn((), [_as_op(event) for event in batch.events])
        for record in self._state.leases():
            if record.id not in live:
                self._shared_state.revoke(record.id)  # its keys went with the revisions above

    def _changes(self, op: Op) -> bool:
        return op.kind == "put" or (op.kind == "delete" and self._state.range(op.key, op.end, limit=1).count > 0)

    def _append(self, record: dict[str, Any]) -> None:
        if self._journal.size_bytes > ROTATE_BYTES:
            self._journal.replace(records.snapshot(self._state))
        self._journal.append(record)

    # -- leases

    def revoke(self, lease_id: int) -> None:
        """End a lease, ours or one that ran out."""
        with self._synced(exclusive=True):
            self._leases.pop(lease_id, None)
            self._end_lease(lease_id)

    def _end_lease(self, lease_id: int) -> None:
        if self._state.lease(lease_id) is not None:
            self._append(records.end(lease_id))
            self._shared_state.revoke(lease_id)
        self._sightings.pop(lease_id, None)
        with suppress(FileNotFoundError):  # another process cleaned up
            os.unlink(self._beat_path(lease_id))

    def _report_lost(self) -> None:
        for lease in list(self._leases.values()):
            if self._state.lease(lease.id) is None:
                del self._leases[lease.id]
                lease.end()
                if lease.on_lost is not None:
                    self._replica.post(lease.on_lost)

    def _beat_path(self, lease_id: int) -> str:
        return os.path.join(self._journal.folder, f"beat-{lease_id:x}")

    def _write_beat(self, lease: _FileLease) -> None:
        lease.counter += 1
        fd = private_files.open_file(self._beat_path(lease.id), os.O_WRONLY | os.O_CREAT, tighten=True)
        try:
            os.pwrite(fd, _COUNTER.pack(lease.counter), 0)
        finally:
            os.close(fd)  # over NFS, closing sends it
        lease.beat_at = self._clock.monotonic() + lease.ttl_s / BEATS

    def _read_beat(self, lease_id: int) -> int:
        try:
            with open(private_files.open_file(self._beat_path(lease_id), os.O_RDONLY, tighten=True), "rb") as file:
                data = file.read(_COUNTER.size)
        except FileNotFoundError:
            return -1
        return int(_COUNTER.unpack(data)[0]) if len(data) == _COUNTER.size else -1

    # -- the thread

    def _start_thread(self) -> None:
        if self._thread is None:
            self._thread = OwnedThread("store-file", self._run)

    def _run(self) -> None:
        told = False
        with self._changed:
            well = self._clock.monotonic()
            while not self._closed:
                now = self._clock.monotonic()
                try:
                    self.look()
                    well = now
                    if told:
                        told = False
                        log.event(_log, logging.WARNING, "the shared folder can be read again")
                except (StoreError, OSError) as error:  # a busy lock or a hiccup of the file system: look again
                    if not told and now >= well + TROUBLE_S:
                        told = True
                        log.event(_log, logging.WARNING, "the shared folder cannot be read", error=str(error))
                self._clock.wait(self._changed, self._clock.monotonic() + POLL_S)

    def look(self) -> None:
        """Read what is new, beat for our leases, end others that stood still: the thread does it every `POLL_S`."""
        with self._changed:
            if self._journal.changed():
                with self._synced(exclusive=False, lock_s=POLL_S):
                    pass  # reading is all there is to do: events go out as the replica passes through them
            now = self._clock.monotonic()
            for lease in self._leases.values():
                if lease.beat_at <= now:
                    self._write_beat(lease)
            if self._look_at <= now:
                self._observe(now)

    def _observe(self, now: float) -> None:
        """End the leases of other owners whose counters stood still for their whole time to live."""
        others = [record for record in self._state.leases() if record.id not in self._leases]
        self._look_at = now + min((record.ttl_s for record in others), default=1.0) / BEATS
        for record in others:
            counter = self._read_beat(record.id)
            sighting = self._sightings.get(record.id)
            if sighting is None or sighting.counter != counter:
                self._sightings[record.id] = _Sighting(counter, now)
            elif now - sighting.since >= record.ttl_s:
                with self._synced(exclusive=True):
                    if self._read_beat(record.id) == counter:
                        self._end_lease(record.id)


class _FileLease(Lease):
    def __init__(self, store: FileStore, lease_id: int, ttl_s: float, on_lost: Callable[[], None] | None) -> None:
        self.id = lease_id
        self.ttl_s = ttl_s
        self.on_lost = on_lost
        self.counter = 0
        self.beat_at = 0.0
        self._store = store
        self._alive = True

    @property
    def alive(self) -> bool:
        return self._alive

    def end(self) -> None:
        """The lease is over for us."""
        self._alive = False

    def revoke(self) -> None:
        if self._alive:
            self._alive = False
            self._store.revoke(self.id)


def _as_op(event: Event) -> Op:
    kv = event.kv
    return Op("put", kv.key, value=kv.value, lease=kv.lease) if event.kind == "put" else Op("delete", kv.key)
