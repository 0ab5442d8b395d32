"""Keeps one agent's view of the job in step with the store: registers the node, watches, proposes generations.

Everything public runs in the agent's loop. Calls that may block are made by one owned thread, in order, so an
unreachable store delays membership changes and nothing else. A store that lives in this process is called directly.
"""

from __future__ import annotations

import asyncio
import contextlib
import queue
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

from resilin._base import log
from resilin._base.clock import SYSTEM, Clock
from resilin._base.threads import OwnedThread
from resilin.elastic import records
from resilin.elastic.membership import Seen, View
from resilin.elastic.records import Closed, Generation, Node
from resilin.errors import LeaseLost, ResilinError, StoreAmbiguous, StoreError, StoreTimeout, UsageError
from resilin.store.base import Compare, Event, KeyValue, Lease, Op, Store, Watch

_log = log.logger("elastic.rendezvous")
_T = TypeVar("_T")
RETRY_S = 0.5  # pause between attempts while the store is away


@dataclass(frozen=True, kw_only=True)
class Options:
    """How a node takes part. `direct`: the store is memory of this process, calls never block."""

    job: str
    node_id: str
    lease_ttl_s: float = 5.0
    direct: bool = False


@dataclass(frozen=True, kw_only=True)
class Outage:
    """The store does not answer."""

    since: float
    """Monotonic, of the first call that failed."""
    error: str


class Rendezvous:
    """One node's membership of one job. `on_view` is called in the loop after every change of the view."""

    def __init__(self, store: Store, options: Options, on_view: Callable[[], None], clock: Clock = SYSTEM) -> None:
        self._store = store
        self._options = options
        self._on_view = on_view
        self._clock = clock
        self._loop = asyncio.get_running_loop()
        self._prefix = f"/resilin/{options.job}/"
        self._own_key = f"{self._prefix}nodes/{options.node_id}"
        self._generation_key, self._closed_key = f"{self._prefix}generation", f"{self._prefix}closed"
        self._entries: dict[str, KeyValue] = {}
        self._generation: Generation | None = None  # the parsed entry
        self._closed: Closed | None = None  # the parsed entry
        self._nodes: dict[str, Seen] = {}  # by key
        self._own: Node | None = None
        self._written: Node | None = None  # the last own record handed to the store
        self._proposing: int | None = None  # the mod_revision a proposal under way is based on
        self._lease: Lease | None = None  # used by the store thread only, once joined
        self._watch: Watch | None = None
        self._work: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._closing = threading.Event()
        self._thread: OwnedThread | None = None
        self.outage: Outage | None = None
        self.refusal: ResilinError | None = None  # the store has answered, and would answer so again

    # ------------------------------------------------------------------------------------------- life

    async def join(self, node: Node) -> None:
        """Register and read the job. StoreError when the store does not answer."""
        self._own = self._written = node
        entries, revision = await self._call(lambda: self._enter(node))
        self._replace(entries)  # before the watch starts: its events come after these
        await self._call(lambda: self._watch_from(revision + 1))
        if not self._options.direct:
            self._thread = OwnedThread("rendezvous", self._run)

    async def _call(self, call: Callable[[], _T]) -> _T:
        return call() if self._options.direct else await self._loop.run_in_executor(None, call)

    def leave(self) -> None:
        """Withdraw the node at once; the last one to leave removes the job's records. Blocks at most a few seconds."""
        self._closing.set()
        self._work.put(None)
        with contextlib.suppress(StoreError, TimeoutError):
            if self._thread is not None:
                self._thread.join()
            if self._watch is not None:
                self._watch.close()
            if self.outage is not None or self.refusal is not None:
                return  # our lease will run out
            nodes, _ = self._store.range(f"{self._prefix}nodes/")
            if all(kv.key == self._own_key for kv in nodes):
                self._store.txn((), [Op.delete(self._generation_key), Op.delete(self._closed_key)])
            if self._lease is not None:
                self._lease.revoke()  # last: whoever serves the store may end as soon as we are gone

    def _enter(self, node: Node) -> tuple[list[KeyValue], int]:
        """Register, having removed the remains of a job of the same name that nobody serves any more."""
        entries, _ = self._store.range(self._prefix)
        if entries and not any(kv.key.startswith(f"{self._prefix}nodes/") for kv in entries):
            guards = [Compare(kv.key, "mod", "=", kv.mod_revision) for kv in entries]
            self._store.txn(guards, [Op.delete(kv.key) for kv in entries])
        self._register(node)
        return self._store.range(self._prefix)

    def _watch_from(self, revision: int) -> None:
        if self._watch is not None:
            self._watch.close()
        self._watch = self._store.watch(self._prefix, self._on_events, revision, self._on_watch_error)

    def _register(self, node: Node) -> None:
        self._lease = self._store.lease(self._options.lease_ttl_s, self._on_lease_lost)
        self._store.put(self._own_key, records.to_bytes(node), self._lease)

    # ------------------------------------------------------------------------------------------- view

    @property
    def view(self) -> View:
        """The job as far as this node knows. Its own record is always the newest."""
        nodes = sorted(self._nodes.values(), key=lambda seen: seen.create_revision)
        own = self._own
        if own is not None:
            nodes = [replace(seen, node=own) if seen.node.id == own.id else seen for seen in nodes]
        return View(nodes=tuple(nodes), generation=self._generation, closed=self._closed)

    def publish(self, node: Node) -> None:
        """Make `node` this node's record."""
        self._own = node
        self._submit(self._write_own)

    def propose(self, generation: Generation) -> None:
        """Write `generation` if the one it follows is still current; the outcome arrives as a change of the view."""
        base = self._entries.get(self._generation_key)
        revision = base.mod_revision if base else 0
        if self._proposing == revision:
            return
        self._proposing = revision
        self._submit(lambda: self._compare_and_put(self._generation_key, revision, records.to_bytes(generation)))

    def close_job(self, closed: Closed) -> None:
        """Write the job's end; the first one counts."""
        self._submit(lambda: self._compare_and_put(self._closed_key, 0, records.to_bytes(closed)))

    # ---------------------------------------------------------------------------------- store calls

    def _write_own(self) -> None:
        node = self._own
        if node is None or node == self._written or self._lease is None:
            return
        revision = self._store.put(self._own_key, records.to_bytes(node), self._lease)
        self._written = node
        log.event(_log, 10, "node record written", revision=revision)

    def _compare_and_put(self, key: str, revision: int, value: bytes) -> None:
        try:
            _, entry = self._store.compare_and_put(key, revision, value)
        finally:
            self._proposing = None
        if entry is not None:
            self._in_loop(lambda: self._merge([entry]))

    def _resync(self) -> None:
        entries, revision = self._store.range(self._prefix)
        self._in_loop(lambda: self._restart_watch(entries, revision))

    def _restart_watch(self, entries: Sequence[KeyValue], revision: int) -> None:
        self._replace(entries)
        self._submit(lambda: self._watch_from(revision + 1))
        self._on_view()

    def _rejoin(self) -> None:
        if self._own is not None and not self._closing.is_set():
            self._written = self._own
            self._register(self._own)

    def _submit(self, call: Callable[[], None]) -> None:
        if not self._options.direct:
            self._work.put(call)
            return
        try:
            call()
        except LeaseLost:
            self._rejoin()

    def _run(self) -> None:
        while True:
            call = self._next_call()
            if call is None:
                return
            while not self._closing.is_set():
                try:
                    call()
                    self._set_outage(None)
                    break
                except LeaseLost:
                    call = self._rejoin
                except (StoreError, UsageError) as error:
                    if not _passes(error):
                        self._refuse(error)
                        return
                    self._set_outage(str(error))
                    self._closing.wait(RETRY_S)

    def _next_call(self) -> Callable[[], None] | None:
        try:
            return self._work.get(timeout=self._options.lease_ttl_s)
        except queue.Empty:  # nothing to do for a while: is the store still there?
            return self._probe

    def _probe(self) -> None:
        self._store.get(self._own_key)

    def _refuse(self, error: ResilinError) -> None:
        if not self._closing.is_set():
            log.event(_log, 40, "the store refuses a call", error=str(error))
            self.refusal = error
            self._in_loop(self._on_view)

    def _set_outage(self, error: str | None) -> None:
        if (error is None) == (self.outage is None):
            return
        self.outage = Outage(since=self._clock.monotonic(), error=error) if error is not None else None
        # the agent says it to people, in its own words
        log.event(_log, 20, "store does not answer" if error is not None else "store is back", detail=error or "")
        self._in_loop(self._on_view)

    # ---------------------------------------------------------------------- callbacks of the store

    def _on_events(self, events: Sequence[Event]) -> None:
        changed = [event.kv for event in events if event.kind == "put"]
        gone = [event.kv for event in events if event.kind == "delete"]
        self._in_loop(lambda: self._merge(changed, gone))

    def _on_watch_error(self, error: Exception) -> None:
        if not self._closing.is_set():
            log.event(_log, 20, "watch ended, reading the job again", error=str(error))
            self._in_loop(lambda: self._submit(self._resync))

    def _on_lease_lost(self) -> None:
        if not self._closing.is_set():
            log.event(_log, 20, "this node's lease ended, registering again")
            self._in_loop(lambda: self._submit(self._rejoin))

    def _in_loop(self, call: Callable[[], object]) -> None:
        if self._options.direct and _running_loop() is self._loop:
            call()
        else:
            with contextlib.suppress(RuntimeError):  # the loop has ended: nobody is left to tell
                self._loop.call_soon_threadsafe(call)

    # ------------------------------------------------------------------------------- in the loop

    def _replace(self, entries: Sequence[KeyValue]) -> None:
        self._entries.clear()
        self._generation = self._closed = None
        known, self._nodes = self._nodes, {}
        for entry in entries:
            self._take(entry, known)

    def _merge(self, changed: Sequence[KeyValue], gone: Sequence[KeyValue] = ()) -> None:
        fresh = [kv for kv in changed if kv.mod_revision > self._revision_of(kv.key)]
        dead = [kv for kv in gone if kv.key in self._entries and kv.mod_revision > self._revision_of(kv.key)]
        for kv in dead:
            del self._entries[kv.key]
            self._nodes.pop(kv.key, None)
            if kv.key == self._generation_key:
                self._generation = None
            elif kv.key == self._closed_key:
                self._closed = None
        for kv in fresh:
            self._take(kv, self._nodes)
        if fresh or dead:
            self._on_view()

    def _take(self, entry: KeyValue, known: dict[str, Seen]) -> None:
        self._entries[entry.key] = entry
        if entry.key == self._generation_key:
            self._generation = records.generation(entry.key, entry.value)
        elif entry.key == self._closed_key:
            self._closed = records.closed(entry.key, entry.value)
        elif entry.key.startswith(f"{self._prefix}nodes/"):
            before = known.get(entry.key)
            again = before is not None and before.create_revision == entry.create_revision
            seen_at = before.first_seen if before is not None and again else self._clock.monotonic()
            node = records.node(entry.key, entry.value)
            self._nodes[entry.key] = Seen(node=node, create_revision=entry.create_revision, first_seen=seen_at)

    def _revision_of(self, key: str) -> int:
        entry = self._entries.get(key)
        return entry.mod_revision if entry is not None else -1


def _passes(error: ResilinError) -> bool:
    """Whether a call that failed so may succeed later: nobody answered, or a shared folder had trouble."""
    return isinstance(error, (StoreTimeout, StoreAmbiguous)) or isinstance(error.__cause__, OSError)


def _running_loop() -> asyncio.AbstractEventLoop | None:
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None
