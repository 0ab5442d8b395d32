"""Keep one agent's view of the job in step with the store: register the node, watch, propose generations.

Every agent follows `world/`; the one that leads follows `nodes/`, too, and tells the others (`leader`, `roster`).

Everything runs in the agent's loop. Single calls to the store leave it through `calls`, one after the other, so an
unreachable store delays membership changes and nothing else. A store that lives in this process is called directly.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import TypeVar

from resilin._base import log
from resilin._base.clock import SYSTEM, Clock
from resilin.elastic import records
from resilin.elastic.membership import scaling
from resilin.elastic.membership.view import View
from resilin.elastic.records import Closed, Generation, Live, Node, Recording
from resilin.elastic.rendezvous import store_executor
from resilin.elastic.rendezvous.job_cleanup import JobCleanup
from resilin.elastic.rendezvous.leader import Leader
from resilin.elastic.rendezvous.one_store import OneStore, StoreReplaced
from resilin.elastic.rendezvous.options import RendezvousOptions
from resilin.elastic.rendezvous.own_record import OwnRecord
from resilin.elastic.rendezvous.record_repair import Needed, RecordRepair
from resilin.elastic.rendezvous.refilling import Before, Refilling
from resilin.elastic.rendezvous.retry_queue import RETRY_S, Outage, RetryQueue, Work, passes
from resilin.elastic.rendezvous.roster import Roster
from resilin.elastic.rendezvous.watch_cache import WatchCache
from resilin.errors import (
    LeaseLost,
    ResilinError,
    StoreAmbiguous,
    StoreError,
    StoreRefused,
    UsageError,
)
from resilin.store.base import Compare, Event, KeyValue, Lease, Op, Store, Watch

_log = log.logger("elastic.rendezvous")
OVER_S = 0.5  # a new generation makes what is held back for so long needless: n nodes would tell n others
LEAVE_S = 5.0  # how long the calls under way may hold up a node that leaves
_T = TypeVar("_T")


class Rendezvous:
    """One node's membership of one job. `on_view` is called in the loop after every change of the view."""

    def __init__(
        self, store: Store, options: RendezvousOptions, on_view: Callable[[], None], clock: Clock = SYSTEM
    ) -> None:
        self._store = store = OneStore(store)
        self._options = options
        self._on_view = on_view
        self._clock = clock
        self._loop = asyncio.get_running_loop()
        self._keys = keys = records.Keys(options.job)
        self._live_key = f"{records.live_prefix(options.job)}{options.node_id}"
        self._watch_cache = WatchCache(keys, self._fits)
        self._showing = False  # a `show` is under way
        self._roster = Roster(keys.nodes, clock)
        self._known = False  # whether the leader has seen this node: what is older than that is not its business
        self._needed = Needed()
        self._view: View | None = None  # made of the above; None: not since the last change
        self._proposing: int | None = None  # the mod_revision a proposal under way is based on
        self._lease: Lease | None = None
        self._old_leases: list[Lease] = []  # may be alive after all, and hold what says that this node leads
        self._watch: Watch | None = None
        self._watches = 0  # begun so far
        self._call: store_executor.Caller = (
            store_executor.Inline() if options.direct else options.caller or store_executor.Threaded()
        )
        self._own = OwnRecord(store, f"{keys.nodes}{options.node_id}", self._call, lambda: self._lease)
        self._job_cleanup = JobCleanup(store, keys, self._own.key, self._call)
        self._leading = Leader(store, keys, self._roster, self._call, self, clock)
        self._record_repair = RecordRepair(store, keys, self._watch_cache, self._leading, self._call)
        self._refilling = Refilling(store, keys, self._call, options.lease_ttl_s)
        self._refills = 0  # of the generation
        self._moving = False  # another store has taken the place of the one that this node knew
        self.refused = False
        """Whether that one holds another beginning of the job, in which this node has no part."""
        self.holds_state: Callable[[], bool] = lambda: False
        """Says whether a worker here holds what has been trained."""
        self._inbox: deque[Sequence[Event]] = deque()  # filled by the store's threads
        self._task: asyncio.Task[None] | None = None
        self._retry_queue = RetryQueue(
            direct=options.direct,
            rejoin=self._rejoin,
            probe=self._own.probe,
            idle_s=options.lease_ttl_s,
            on_change=on_view,
            clock=clock,
        )

    # ------------------------------------------------------------------------------------------- life

    async def join(self, node: Node, outage_s: float = 0.0, on_outage: Callable[[str], object] = str) -> None:
        """Register and read the job. StoreError when the store refuses, or does not answer for `outage_s` seconds.

        on_outage: takes the error, when it does not answer for the first time.
        """
        told, begun = False, self._clock.monotonic()
        while True:
            try:
                await self._enter(node)
                break
            except (StoreError, UsageError) as error:
                if not passes(error) or self._clock.monotonic() - begun >= outage_s:
                    raise
                if not told:
                    told = True
                    on_outage(str(error))
                await asyncio.sleep(RETRY_S)
        if not self._options.direct:
            self._task = self._loop.create_task(self._retry_queue.run())

    async def _enter(self, node: Node) -> None:
        self._own.node = node
        entries, revision = await self._register_for_sure(node)
        while await self._job_cleanup.remove_of_earlier(entries):
            entries, revision = await self._register_for_sure(node)
        await self._end_old_leases()
        await self._follow(entries, revision)

    async def leave(self) -> None:
        """Withdraw the node at once; the last one to leave removes the job's records. Takes a few seconds at most.

        A second call does nothing.
        """
        if self._retry_queue.closing:
            return
        self._leading.end()
        self._refilling.close()
        self._retry_queue.close()
        with contextlib.suppress(StoreError, TimeoutError):
            if self._task is not None:
                await asyncio.wait_for(self._task, LEAVE_S)
            if self._watch is not None:
                self._watch.close()
            if self.outage is None and self.refusal is None:  # else our lease will run out
                await self._withdraw()
        self._call.close()

    async def _withdraw(self) -> None:
        # one that is not closed may go on: its generations keep counting, so that none is taken for an old one
        if self._watch_cache.closed is not None:
            await self._job_cleanup.remove_as_last()
        if self._lease is not None:
            with contextlib.suppress(LeaseLost):
                await self._own.write()  # that it was asked to go, say: others would take it for lost
            await self._call(self._lease.revoke)  # last: whoever serves the store may end as soon as we are gone

    async def _register_for_sure(self, node: Node) -> tuple[Sequence[KeyValue], int]:
        while True:
            try:
                return await self._register(node)
            except StoreReplaced:
                if self._moving:
                    raise
                self._store.accept()  # this node has no part in anything yet
            except (LeaseLost, StoreAmbiguous) as error:
                # this process stood still for longer than its lease; or an answer was lost
                log.event(_log, 10, "registering again", error=str(error))

    async def _register(self, node: Node) -> tuple[Sequence[KeyValue], int]:
        """Write this node's record, and lead if nobody does. What all follow, and the revision it was read at.

        In one call: when a thousand nodes come at once, the store answers each a thousand times.
        """
        keys = self._keys
        if self._lease is not None:
            self._old_leases.append(self._lease)
        lease = await self._call(lambda: self._store.lease(self._options.lease_ttl_s, self._on_lease_lost))
        self._lease, value = lease, records.to_bytes(node)
        always = (Op.put(self._own.key, value, lease), Op.range(keys.world))
        lead = Op.put(keys.leader, node.id.encode(), lease)
        nobody_leads = (Compare(keys.leader, "mod", "=", 0),)
        result = await self._call(lambda: self._store.txn(nobody_leads, (lead, *always), always))
        self._own.took(node, result.revision)
        return result.results[-1].kvs, result.revision

    async def _end_old_leases(self) -> None:
        while self._old_leases:
            await self._call(self._old_leases[-1].revoke)
            self._old_leases.pop()

    # ------------------------------------------------------------------------------------------- view

    @property
    def view(self) -> View:
        """The job as far as this node knows. Its own record is always the newest."""
        if self._view is None:
            self._view = scaling.adjusted(self._look())
        return self._view

    def _look(self) -> View:
        own, current = self._own.node, self._watch_cache.generation
        seen = [replace(one, node=own) if own and one.node.id == own.id else one for one in self._roster.seen()]
        self._known = self._known or any(own and one.node.id == own.id for one in seen)
        if self._own.lost_to(self._roster.node(self._options.node_id)):
            self._submit_unless_closing(self._own.write)
        if not self._known:
            return View(closed=self._watch_cache.closed, wanted=self._watch_cache.wanted)
        if current is not None:  # a record with fewer slots than its node has is none: as if it were not there
            needed = self._needed.of(current)
            seen = [one for one in seen if len(one.node.slots) >= needed.get(one.node.id, 0)]
        leader = self._watch_cache.leader
        if leader == self._options.node_id and not self._leading.active:
            leader = ""  # it has been elected, and has not looked around yet
        return View(
            nodes=tuple(seen),
            generation=current,
            closed=self._watch_cache.closed,
            wanted=self._watch_cache.wanted,
            elected=leader,
        )

    @property
    def leads(self) -> bool:
        """Return whether this node leads: what it proposes counts."""
        return self._leading.active

    @property
    def agreed(self) -> Generation | None:
        """The last generation that was heard of: what `view` says of it, without a look at all nodes' records."""
        return self._watch_cache.generation

    @property
    def outage(self) -> Outage | None:
        """Since when the store does not answer, if it does not."""
        return self._retry_queue.outage

    @property
    def refusal(self) -> ResilinError | None:
        """Return what the store answered, and would answer again: this node cannot go on."""
        return self._retry_queue.refusal

    @property
    def watched(self) -> bool:
        """Return whether somebody wants to see where the workers are (`show`)."""
        return self._watch_cache.entry(self._keys.watched) is not None

    @property
    def recording(self) -> Recording | None:
        """Return the last recording of spans that people wanted, if they ever did."""
        return self._watch_cache.recording

    def publish(self, node: Node) -> None:
        """Make `node` this node's record."""
        if node == self._own.node:
            return
        before, self._own.node, self._view = self._own.node, node, None
        self._leading.tell(gathering=self._watch_cache.generation is None)
        if before is not None and not self._options.direct and _but_over(node) == _but_over(before):
            self._loop.call_later(OVER_S, self._submit_unless_closing, self._own.write)
        else:
            self.submit(self._own.write)

    def propose(self, generation: Generation) -> None:
        """Write `generation`, as the leader, if the one it follows is still current.

        The outcome arrives as a change of the view.
        """
        revision = self._generation_revision
        if self._proposing != revision:
            self._proposing = revision
            self.submit(lambda: self._write_generation(revision, generation))

    @property
    def _generation_revision(self) -> int:
        return max(0, self._watch_cache.revision(self._keys.generation))

    def close_job(self, closed: Closed) -> None:
        """Write the job's end, as the leader, if there was no other one, and no other generation, before."""
        revision = self._generation_revision
        self.submit(lambda: self._leading.write(revision, closed))

    def probe(self) -> None:
        """See soon whether the store is there."""
        if not self._options.direct:
            self._submit_unless_closing(self._own.probe)

    def show(self, live: Live) -> None:
        """Let those who watch see where this node's workers are; left out while the last one is still under way."""
        if not self._showing and self.outage is None:
            self._showing = True
            self.submit(lambda: self._write_live(live))

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

    async def _write_generation(self, revision: int, generation: Generation) -> None:
        try:
            await self._leading.write(revision, generation)
        finally:
            self._proposing = None

    async def _stand(self) -> None:
        """Lead if nobody does."""
        if (
            self._lease is not None
            and self._watch_cache.entry(self._keys.leader) is None
            and not self._retry_queue.closing
        ):
            entry = await self._leading.stand(self._lease)
            if entry is not None:
                self.merge([entry])

    def _begin_again(self) -> None:
        self._leading.end()
        self._submit_unless_closing(self._look_around)

    async def _look_around(self) -> None:
        """Begin to lead, if it is still this node that shall."""
        entry, lease = self._watch_cache.entry(self._keys.leader), self._lease
        wanted = self._elected(entry) and not self._leading.active and not self._retry_queue.closing
        if wanted and entry is not None and lease is not None:
            await self._leading.begin(entry, lease)
            self._mend_if_due()
            self._leading.tell(gathering=self._watch_cache.generation is None)
            self._view = None
            self._on_view()

    def _elected(self, leader: KeyValue | None) -> bool:
        return (
            leader is not None
            and self._lease is not None
            and leader.lease == self._lease.id
            and not self._watch_cache.misled
        )

    def _fits(self, generation: Generation) -> bool:
        """Whether this node has the slots that a generation names."""
        own = self._own.node
        return own is None or all(m.slot < len(own.slots) for m in generation.members if m.node == own.id)

    async def _read(self) -> None:
        """Read what all follow, and follow it from there."""
        await self._follow(*await self._call(lambda: self._store.range(self._keys.world)))

    async def _follow(self, entries: Sequence[KeyValue], revision: int) -> None:
        if self._watch is not None:
            self._watch.close()
        self._replace(entries)  # before the watch starts: its events come after these
        number = self._watches + 1
        failed = partial(self._on_watch_error, number)
        self._watch = await self._call(lambda: self._store.watch(self._keys.world, self.heard, revision + 1, failed))
        self._watches = number  # not before: where the store does not answer, `_read_again` is to begin it once more

    async def _read_again(self, watch: int) -> None:
        if watch == self._watches:  # else another one was begun meanwhile, whose events are newer than what is read now
            await self._read()
            self._on_view()

    async def _rejoin(self) -> None:
        if self._own.node is None or self._retry_queue.closing or self.refused:
            return
        try:
            if not self._moving:
                await self._call(lambda: self._store.get(self._keys.generation))  # before anything is written there
                entries, _ = await self._register(self._own.node)
                self.merge(entries)  # first: what goes with an old lease was there when they were read
                await self._end_old_leases()
                await self._stand()
                return
        except StoreReplaced:
            self._moving = True
        await self._move(self._own.node)

    async def _move(self, own: Node) -> None:
        """Go on with the store that has taken the place of a lost one, or find that it is another beginning's."""
        if self._watch_cache.closed is not None:
            return  # the job has ended, and what is left to do needs no store
        self._leading.end()
        if self._watch is not None:
            self._watch.close()  # so that what is known is what is settled
        self._inbox.clear()
        self._store.accept()
        wanted, last = self._watch_cache.wanted, self._watch_cache.generation
        nodes, holds = self._roster.seen(), self.holds_state()
        before = Before(own=own, holds_state=holds, generation=last, wanted=wanted, nodes=nodes)
        lease = await self._call(lambda: self._store.lease(self._options.lease_ttl_s))
        self._old_leases.append(lease)
        self.refused = await self._refilling.settle(before, lease) == "refuse"
        found = (
            self._call(lambda: self._store.range(self._keys.world)) if self.refused else self._register_for_sure(own)
        )
        entries, revision = await found
        await self._end_old_leases()
        self._watch_cache.forget()
        await self._follow(entries, revision)
        self._moving = False
        self._on_view()

    def own(self) -> Node:
        """This node's record, the newest."""
        assert self._own.node is not None, "a node that leads has joined"
        return self._own.node

    def submit(self, work: Work) -> None:
        """Do `work` after what is under way."""
        self._retry_queue.submit(work)

    # ------------------------------------------- callbacks of the store, which may come from its threads

    def heard(self, events: Sequence[Event]) -> None:
        """Something has changed in the store."""
        self._inbox.append(events)
        self._in_loop(self._heed)

    def _on_watch_error(self, watch: int, error: Exception) -> None:
        log.event(_log, 20, "watch ended, reading the job again", error=str(error))
        self._in_loop(lambda: self._submit_unless_closing(lambda: self._read_again(watch)))

    def look_again(self, error: Exception) -> None:
        """Begin anew, as the leader: what has changed since the last look at the nodes cannot be had any more."""
        log.event(_log, 20, "watch ended, reading the nodes again", error=str(error))
        self._in_loop(self._begin_again)

    def _on_lease_lost(self) -> None:
        log.event(_log, 20, "this node's lease ended, registering again")
        self._in_loop(lambda: self._submit_unless_closing(self._rejoin))

    def _submit_unless_closing(self, work: Work) -> None:
        if not self._retry_queue.closing:
            self.submit(work)

    def _in_loop(self, call: Callable[[], object]) -> None:
        with contextlib.suppress(RuntimeError):  # the loop has ended: nobody is left to tell
            self._loop.call_soon_threadsafe(call)

    # ------------------------------------------------------------------------------- in the loop

    def _heed(self) -> None:
        """Take in whatever has come: one look at the job for all of it, and one before a record goes that is news."""
        changed: dict[str, KeyValue] = {}
        gone: dict[str, KeyValue] = {}
        while self._inbox:
            for event in self._inbox.popleft():
                if event.kind == "delete" and event.kv.key in changed:  # its last word may say why it goes
                    self.merge(list(changed.values()), list(gone.values()))
                    changed, gone = {}, {}
                here, there = (changed, gone) if event.kind == "put" else (gone, changed)
                here[event.kv.key] = event.kv
                there.pop(event.kv.key, None)
        if changed or gone:
            self.merge(list(changed.values()), list(gone.values()))

    def _replace(self, entries: Sequence[KeyValue]) -> None:
        self._view = None
        self._watch_cache.replace(entries)
        self._heed_world(entries)
        self._settle_leadership()

    def merge(self, changed: Sequence[KeyValue], gone: Sequence[KeyValue] = ()) -> None:
        """Take in entries that are news, and those that are gone."""
        fresh, dead = self._watch_cache.merge(changed, gone)
        self._heed_world(fresh)
        self._settle_leadership()
        if self._own.spoiled_by(changed):
            self._submit_unless_closing(self._own.write)
        self._mend_if_due()
        news = self._leading.active and self._roster.heed(*(_under(self._keys.nodes, kvs) for kvs in (changed, gone)))
        if news:
            self._leading.tell(gathering=self._watch_cache.generation is None)
        if fresh or dead or news:
            self._view = None
            self._on_view()

    def _heed_world(self, fresh: Sequence[KeyValue]) -> None:
        for entry in fresh:
            if entry.key == self._keys.generation:
                self._leading.tell(gathering=False)
                self._look_around_if_refilled()
            elif entry.key == self._keys.roster and not self._leading.active:
                self._roster.tell(entry)
            elif entry.key == self._keys.roster and not self._leading.told(entry) and not self._roster.is_roster(entry):
                self._leading.tell_again()

    def _look_around_if_refilled(self) -> None:
        """As the leader: read the records of the nodes that came with a generation, before it is taken for theirs."""
        current = self._watch_cache.generation
        refills = len(current.refills) if current is not None else 0
        known, self._refills = self._refills, refills
        if refills > known and self._leading.active:
            self._begin_again()

    def _settle_leadership(self) -> None:
        """Stand when nobody leads, look around when this node shall, end what is over."""
        leader = self._watch_cache.entry(self._keys.leader)
        elected = self._elected(leader)
        if self._leading.active and not (elected and self._leading.leads_by(leader)):
            self._leading.end()
            roster = self._watch_cache.entry(self._keys.roster)
            if roster is not None:
                self._roster.tell(roster)
        if leader is None:
            self._submit_unless_closing(self._stand)
        elif self._watch_cache.misled:
            self._mend_if_due()
        elif elected and not self._leading.active:
            self._submit_unless_closing(self._look_around)

    def _mend_if_due(self) -> None:
        if self._record_repair.due:
            self._submit_unless_closing(self._record_repair.mend)


def _under(prefix: str, entries: Sequence[KeyValue]) -> list[KeyValue]:
    return [entry for entry in entries if entry.key.startswith(prefix)]


def _but_over(node: Node) -> Node:
    """The record without what only matters when no new generation comes soon: which worlds workers know to be over."""
    return replace(node, slots=tuple(replace(slot, over=0) for slot in node.slots))
