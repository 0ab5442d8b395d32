"""Keeps one agent's view of the job in step with the store: registers the node, watches, proposes generations.

Everything runs in the agent's loop. Single calls to the store leave it through `calls`, one after the other, so an
unreachable store delays membership changes and nothing else. A store that lives in this process is called directly.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from resilin._base import log
from resilin._base.clock import SYSTEM, Clock
from resilin.elastic import calls, records, sizing
from resilin.elastic.records import Closed, Generation, Live, Node, Wanted
from resilin.elastic.view import Seen, View
from resilin.errors import (
    LeaseLost,
    ResilinError,
    StoreAmbiguous,
    StoreError,
    StoreRefused,
    StoreTimeout,
    UsageError,
)
from resilin.store.base import Compare, Event, KeyValue, Lease, Op, Store, Watch

_log = log.logger("elastic.rendezvous")
RETRY_S = 0.5  # pause between attempts while the store is away
OVER_S = 0.5  # a new generation makes what is held back for so long needless: n nodes would tell n others
LEAVE_S = 5.0  # how long the calls under way may hold up a node that leaves
_T = TypeVar("_T")


@dataclass(frozen=True, kw_only=True)
class Options:
    """How a node takes part. `direct`: the store is memory of this process, calls never block."""

    job: str
    node_id: str
    lease_ttl_s: float = 5.0
    direct: bool = False
    caller: calls.Caller | None = None
    """How calls reach a store that is elsewhere; None: by a thread of its own."""


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
        self._wanted_key, self._watched_key = f"{self._prefix}wanted", f"{self._prefix}watched"
        self._live_key = f"{records.live_prefix(options.job)}{options.node_id}"
        self._entries: dict[str, KeyValue] = {}
        self._generation: Generation | None = None  # the parsed entry
        self._closed: Closed | None = None  # the parsed entry
        self._wanted: Wanted | None = None  # the parsed entry
        self._showing = False  # a `show` is under way
        self._nodes: dict[str, Seen] = {}  # by key
        self._view: View | None = None  # made of the above; None: not since the last change
        self._own: Node | None = None
        self._written: Node | None = None  # the last own record that the store took
        self._written_at = 0  # its revision
        self._proposing: int | None = None  # the mod_revision a proposal under way is based on
        self._lease: Lease | None = None
        self._watch: Watch | None = None
        self._call: calls.Caller = calls.Inline() if options.direct else options.caller or calls.Threaded()
        self._work: asyncio.Queue[_Work | None] = asyncio.Queue()
        self._inbox: deque[Sequence[Event]] = deque()  # filled by the store's threads
        self._closing = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self.outage: Outage | None = None
        self.refusal: ResilinError | None = None  # the store has answered, and would answer so again

    # ------------------------------------------------------------------------------------------- life

    async def join(self, node: Node) -> None:
        """Register and read the job. StoreError when the store does not answer."""
        self._own = node
        await self._remove_remains()
        while self._written is None:
            with contextlib.suppress(LeaseLost):  # this process stood still for longer than its lease
                await self._register(node)
        await self._read()
        if not self._options.direct:
            self._task = self._loop.create_task(self._run())

    async def leave(self) -> None:
        """Withdraw the node at once; the last one to leave removes the job's records. Takes a few seconds at most.

        A second call does nothing.
        """
        if self._closing.is_set():
            return
        self._closing.set()
        self._work.put_nowait(None)
        with contextlib.suppress(StoreError, TimeoutError):
            if self._task is not None:
                await asyncio.wait_for(self._task, LEAVE_S)
            if self._watch is not None:
                self._watch.close()
            if self.outage is None and self.refusal is None:  # else our lease will run out
                await self._withdraw()
        self._call.close()

    async def _withdraw(self) -> None:
        nodes, _ = await self._call(lambda: self._store.range(f"{self._prefix}nodes/"))
        # one that is not closed may go on: its generations keep counting, so that none is taken for an old one
        if self._closed is not None and all(kv.key == self._own_key for kv in nodes):
            await self._call(
                lambda: self._store.txn(
                    (), [Op.delete(key) for key in (self._generation_key, self._closed_key, self._wanted_key)]
                )
            )
        if self._lease is not None:
            await self._call(self._lease.revoke)  # last: whoever serves the store may end as soon as we are gone

    async def _remove_remains(self) -> None:
        """Of a job of the same name that has ended, and that nobody serves any more."""
        entries, _ = await self._call(lambda: self._store.range(self._prefix))
        served = any(kv.key.startswith(f"{self._prefix}nodes/") for kv in entries)
        if not served and any(kv.key == self._closed_key for kv in entries):
            guards = [Compare(kv.key, "mod", "=", kv.mod_revision) for kv in entries]
            await self._call(lambda: self._store.txn(guards, [Op.delete(kv.key) for kv in entries]))

    async def _register(self, node: Node) -> None:
        lease = await self._call(lambda: self._store.lease(self._options.lease_ttl_s, self._on_lease_lost))
        self._lease, value = lease, records.to_bytes(node)
        self._written_at = await self._call(lambda: self._store.put(self._own_key, value, lease))
        self._written = node

    # ------------------------------------------------------------------------------------------- view

    @property
    def view(self) -> View:
        """The job as far as this node knows. Its own record is always the newest."""
        if self._view is None:
            nodes = sorted(self._nodes.values(), key=lambda seen: seen.create_revision)
            own = self._own
            if own is not None:
                nodes = [replace(seen, node=own) if seen.node.id == own.id else seen for seen in nodes]
            view = View(nodes=tuple(nodes), generation=self._generation, closed=self._closed, wanted=self._wanted)
            self._view = sizing.adjusted(view)
        return self._view

    @property
    def watched(self) -> bool:
        """Whether somebody wants to see where the workers are (`show`)."""
        return self._watched_key in self._entries

    def publish(self, node: Node) -> None:
        """Make `node` this node's record."""
        if node == self._own:
            return
        before, self._own, self._view = self._own, node, None
        if before is not None and not self._options.direct and _but_over(node) == _but_over(before):
            self._loop.call_later(OVER_S, self._submit_unless_closing, self._write_own)
        else:
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

    def show(self, live: Live) -> None:
        """Let those who watch see where this node's workers are; left out while the last one is still under way."""
        if not self._showing and self.outage is None:
            self._showing = True
            self._submit(lambda: self._write_live(live))

    async def aside(self, call: Callable[[Store, Lease | None], _T]) -> _T:
        """`call(store, this node's lease)`, for keys that nobody follows. StoreError when the store is away."""
        lease = self._lease
        return await self._call(lambda: call(self._store, lease))

    # ---------------------------------------------------------------------------------- store calls

    async def _write_live(self, live: Live) -> None:
        lease = self._lease
        try:
            await self._call(lambda: self._store.put(self._live_key, records.to_bytes(live), lease))
        except StoreRefused as error:  # an etcd's user may be confined to the job's own keys: the job needs no others
            log.event(_log, 30, "the store takes no steps for `resilin top`", error=str(error))
            return
        except LeaseLost:
            self._showing = False
            raise
        self._showing = False

    async def _write_own(self) -> None:
        node, lease = self._own, self._lease
        if node is None or node == self._written or lease is None:
            return
        value = records.to_bytes(node)
        revision = await self._call(lambda: self._store.put(self._own_key, value, lease))
        self._written, self._written_at = node, revision
        log.event(_log, 10, "node record written", revision=revision)

    async def _compare_and_put(self, key: str, revision: int, value: bytes) -> None:
        try:
            _, entry = await self._call(lambda: self._store.compare_and_put(key, revision, value))
        finally:
            self._proposing = None
        if entry is not None:
            self._merge([entry])

    async def _read(self) -> None:
        """Read everything, and follow it from there."""
        if self._watch is not None:
            self._watch.close()
        entries, revision = await self._call(lambda: self._store.range(self._prefix))
        self._replace(entries)  # before the watch starts: its events come after these
        self._watch = await self._call(
            lambda: self._store.watch(self._prefix, self._on_events, revision + 1, self._on_watch_error)
        )

    async def _read_again(self) -> None:
        await self._read()
        self._on_view()

    async def _rejoin(self) -> None:
        if self._own is not None and not self._closing.is_set():
            await self._register(self._own)

    async def _probe(self) -> None:
        await self._call(lambda: self._store.get(self._own_key))

    def _submit(self, work: _Work) -> None:
        """Do `work` after what is under way; at once, when the store is memory of this process."""
        if not self._options.direct:
            self._work.put_nowait(work)
            return
        try:
            calls.finish(work())
        except LeaseLost:
            calls.finish(self._rejoin())

    async def _run(self) -> None:
        while (work := await self._next_work()) is not None:
            while not self._closing.is_set():
                try:
                    await work()
                    self._set_outage(None)
                    break
                except LeaseLost:
                    work = self._rejoin
                except (StoreError, UsageError) as error:
                    if not _passes(error):
                        self._refuse(error)
                        return
                    self._set_outage(str(error))
                    with contextlib.suppress(TimeoutError):
                        await asyncio.wait_for(self._closing.wait(), RETRY_S)

    async def _next_work(self) -> _Work | None:
        try:
            return await asyncio.wait_for(self._work.get(), self._options.lease_ttl_s)
        except TimeoutError:  # nothing to do for a while: is the store still there?
            return self._probe

    def _refuse(self, error: ResilinError) -> None:
        if not self._closing.is_set():
            log.event(_log, 40, "the store refuses a call", error=str(error))
            self.refusal = error
            self._on_view()

    def _set_outage(self, error: str | None) -> None:
        if (error is None) == (self.outage is None):
            return
        self.outage = Outage(since=self._clock.monotonic(), error=error) if error is not None else None
        # the agent says it to people, in its own words
        log.event(_log, 20, "store does not answer" if error is not None else "store is back", detail=error or "")
        self._on_view()

    # ------------------------------------------- callbacks of the store, which may come from its threads

    def _on_events(self, events: Sequence[Event]) -> None:
        self._inbox.append(events)
        self._in_loop(self._heed)

    def _on_watch_error(self, error: Exception) -> None:
        log.event(_log, 20, "watch ended, reading the job again", error=str(error))
        self._in_loop(lambda: self._submit_unless_closing(self._read_again))

    def _on_lease_lost(self) -> None:
        log.event(_log, 20, "this node's lease ended, registering again")
        self._in_loop(lambda: self._submit_unless_closing(self._rejoin))

    def _submit_unless_closing(self, work: _Work) -> None:
        if not self._closing.is_set():
            self._submit(work)

    def _in_loop(self, call: Callable[[], object]) -> None:
        with contextlib.suppress(RuntimeError):  # the loop has ended: nobody is left to tell
            self._loop.call_soon_threadsafe(call)

    # ------------------------------------------------------------------------------- in the loop

    def _heed(self) -> None:
        """Take in whatever has come: one look at the job for all of it."""
        changed: dict[str, KeyValue] = {}
        gone: dict[str, KeyValue] = {}
        while self._inbox:
            for event in self._inbox.popleft():
                here, there = (changed, gone) if event.kind == "put" else (gone, changed)
                here[event.kv.key] = event.kv
                there.pop(event.kv.key, None)
        if changed or gone:
            self._merge(list(changed.values()), list(gone.values()))

    def _replace(self, entries: Sequence[KeyValue]) -> None:
        self._entries.clear()
        self._generation = self._closed = self._view = self._wanted = None
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
            elif kv.key == self._wanted_key:
                self._wanted = None
        for kv in fresh:
            self._take(kv, self._nodes)
        if fresh or dead:
            self._view = None
            self._on_view()

    def _take(self, entry: KeyValue, known: dict[str, Seen]) -> None:
        self._entries[entry.key] = entry
        if entry.key == self._generation_key:
            self._generation = records.generation(entry.key, entry.value)
        elif entry.key == self._closed_key:
            self._closed = records.closed(entry.key, entry.value)
        elif entry.key == self._wanted_key:
            self._wanted = records.wanted(entry.key, entry.value)
        elif entry.key.startswith(f"{self._prefix}nodes/"):
            before = known.get(entry.key)
            again = before is not None and before.create_revision == entry.create_revision
            seen_at = before.first_seen if before is not None and again else self._clock.monotonic()
            node = records.node(entry.key, entry.value)
            if entry.key == self._own_key and entry.mod_revision > self._written_at and node != self._written:
                self._written = None  # a repetition of an earlier write came late: what others see is old
                self._submit_unless_closing(self._write_own)
            self._nodes[entry.key] = Seen(node=node, create_revision=entry.create_revision, first_seen=seen_at)

    def _revision_of(self, key: str) -> int:
        entry = self._entries.get(key)
        return entry.mod_revision if entry is not None else -1


def _but_over(node: Node) -> Node:
    """The record without what only matters when no new generation comes soon: which worlds workers know to be over."""
    return replace(node, slots=tuple(replace(slot, over=0) for slot in node.slots))


def _passes(error: ResilinError) -> bool:
    """Whether a call that failed so may succeed later: nobody answered, or a shared folder had trouble."""
    return isinstance(error, (StoreTimeout, StoreAmbiguous)) or isinstance(error.__cause__, OSError)
