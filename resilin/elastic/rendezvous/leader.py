"""Do what the leader does beyond the others: follow every node's record, tell all nodes of all, write generations.

A node leads while the record `leader` names it, which stands under that node's lease: when the lease ends, the record
goes, and the first one that writes it anew leads. Whatever a leader writes is refused once that record is not its own.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, Protocol

from resilin._base.clock import Clock
from resilin.elastic import records
from resilin.elastic.records import Closed, Generation, Node
from resilin.elastic.rendezvous import store_executor
from resilin.elastic.rendezvous.roster import Roster
from resilin.errors import StoreError
from resilin.store.base import Compare, Event, KeyValue, Lease, Op, Store, Watch

PAUSE_S = 1e-4  # between rosters, for each node: the messages of all nodes together have one rate at any size
GATHER_S = 1e-2  # the same while there is no generation: nobody but people who wait look at the roster then


class LiveMember(Protocol):
    """The node that may lead."""

    def submit(self, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Have `work` done after what is under way."""

    def heard(self, events: Sequence[Event]) -> None:
        """Nodes' records have changed. From any thread."""

    def look_again(self, error: Exception) -> None:
        """Call `begin` anew: what changed since cannot be had any more. From any thread."""

    def merge(self, entries: Sequence[KeyValue]) -> None:
        """Take in what the store answered."""

    def own(self) -> Node:
        """This node's record, the newest."""


class Leader:
    """One node's leadership: `begin`, `end`, any number of times. In the agent's loop."""

    def __init__(
        self,
        store: Store,
        keys: records.Keys,
        roster: Roster,
        call: store_executor.Caller,
        member: LiveMember,
        clock: Clock,
    ) -> None:
        self._store, self._keys, self._roster, self._call, self._member = store, keys, roster, call, member
        self._clock = clock
        self._loop = asyncio.get_running_loop()
        self._entry: KeyValue | None = None  # the record that says that this node leads
        self._lease: Lease | None = None
        self._watch: Watch | None = None
        self._told = b""  # the last roster that the store took
        self._told_at = -math.inf
        self._timer: asyncio.TimerHandle | None = None
        self._gathering = True

    @property
    def active(self) -> bool:
        """Return whether this node leads, and has looked around."""
        return self._entry is not None

    def leads_by(self, entry: KeyValue | None) -> bool:
        """Return whether `entry` is the record by which this node leads, and not one of a later election."""
        mine = self._entry
        return mine is not None and entry is not None and entry.create_revision == mine.create_revision

    async def stand(self, lease: Lease) -> KeyValue | None:
        """Lead if nobody does. The record of whoever leads."""
        me = self._member.own().id.encode()
        _, entry = await self._call(lambda: self._store.compare_and_put(self._keys.leader, 0, me, lease))
        return entry

    async def begin(self, entry: KeyValue, lease: Lease) -> None:
        """Read every node's record, and follow them. `entry`: the record that says that this node leads."""
        if self._watch is not None:
            self._watch.close()
        entries, revision = await self._call(lambda: self._store.range(self._keys.nodes))
        self._roster.read(entries)
        self._entry, self._lease, self._told = entry, lease, b""
        self._told_at = self._clock.monotonic()  # what comes meanwhile goes with the first roster
        try:
            self._watch = await self._call(
                lambda: self._store.watch(self._keys.nodes, self._member.heard, revision + 1, self._member.look_again)
            )
        except StoreError:
            self.end()  # so that it is begun once more: nobody leads who does not hear of the others
            raise

    def end(self) -> None:
        """Another one leads, or this node goes. A second call does nothing."""
        self._entry = None
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._watch is not None:
            self._watch.close()
            self._watch = None

    async def write(self, revision: int, record: Generation | Closed) -> None:
        """Write a generation, or the job's end, and what it was decided on; `revision`: of the generation before.

        Nothing is written when that is not the last one any more, when another node leads, or when the job has ended.
        """
        entry, keys = self._entry, self._keys
        if entry is None:
            return
        key = keys.generation if isinstance(record, Generation) else keys.closed
        roster = self._roster.roster(self._member.own())
        conditions = (
            Compare(keys.generation, "mod", "=", revision),
            Compare(keys.closed, "mod", "=", 0),
            self._still(entry),
        )
        puts = (Op.put(key, records.to_bytes(record)), Op.put(keys.roster, roster, self._lease))
        gets = tuple(Op.get(one) for one in (keys.generation, keys.closed, keys.leader))
        result = await self._call(lambda: self._store.txn(conditions, (*puts, *gets), gets))
        if result.succeeded:
            self._told, self._told_at = roster, self._clock.monotonic()
        self._member.merge([kv for found in result.results[-len(gets) :] for kv in found.kvs])

    def tell(self, gathering: bool) -> None:
        """Nodes' records have changed: tell all soon. `gathering`: there is no generation."""
        if gathering < self._gathering and self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._gathering = gathering
        if self._entry is None or self._timer is not None or len(self._roster) < 2:
            return
        pause_s = (GATHER_S if gathering else PAUSE_S) * len(self._roster)
        wait_s = max(0.0, self._told_at + pause_s - self._clock.monotonic())
        self._timer = self._loop.call_later(wait_s, self._due)

    def told(self, entry: KeyValue) -> bool:
        """Return whether it is the last roster that this node wrote."""
        return entry.value == self._told

    def tell_again(self) -> None:
        """Something else stands where all nodes look for what the leader sees."""
        self._told = b""
        self.tell(self._gathering)

    def _due(self) -> None:
        self._timer = None
        self._member.submit(self._write_roster)

    async def _write_roster(self) -> None:
        entry = self._entry
        roster = self._roster.roster(self._member.own())
        if entry is None or roster == self._told:
            return
        put = Op.put(self._keys.roster, roster, self._lease)
        result = await self._call(lambda: self._store.txn((self._still(entry),), (put,), (Op.get(self._keys.leader),)))
        if result.succeeded:
            self._told, self._told_at = roster, self._clock.monotonic()
        else:
            self._member.merge(result.results[-1].kvs)

    def _still(self, entry: KeyValue) -> Compare:
        return Compare(self._keys.leader, "create", "=", entry.create_revision)
