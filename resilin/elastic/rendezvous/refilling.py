"""Put a job's last generation back into a store that has taken the place of a lost one, unless another node has.

One transaction, on what was read: there is still no generation, or still the one of a start that has hardly trained,
and no node of that has said anything since. So of several nodes one does it, and the others go on from what it wrote.
Nodes of that generation get the time of a lease to come back: their last records stand there as long.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Sequence
from dataclasses import dataclass, replace

from resilin._base import log
from resilin.elastic import records
from resilin.elastic.membership import succession
from resilin.elastic.membership.succession import Verdict
from resilin.elastic.membership.view import Seen
from resilin.elastic.records import Closed, Generation, Keys, Node, Wanted
from resilin.elastic.rendezvous import store_executor
from resilin.elastic.rendezvous.retry_queue import RETRY_S
from resilin.errors import RendezvousError, StoreAmbiguous, StoreError, StoreTimeout
from resilin.store.base import Compare, KeyValue, Lease, Op, Store, TxnResult

_log = log.logger("elastic.rendezvous")
_MOST_HELD = 100  # other nodes' records: an etcd takes 128 operations in a transaction


@dataclass(frozen=True, kw_only=True)
class Before:
    """What a node knows of its job, of the store that was lost. `nodes`: all of the last roster."""

    own: Node
    holds_state: bool
    generation: Generation | None
    wanted: Wanted | None
    nodes: Sequence[Seen]


@dataclass(frozen=True, kw_only=True)
class _Found:
    """What stands in the new store."""

    generation: Generation | None
    closed: Closed | None
    entries: dict[str, KeyValue]
    nodes: dict[str, Node]

    def revision(self, key: str) -> int:
        return self.entries[key].mod_revision if key in self.entries else 0


class Refilling:
    """Of one node. `ttl_s`: how long others have to come back."""

    def __init__(self, store: Store, keys: Keys, call: store_executor.Caller, ttl_s: float) -> None:
        self._store, self._keys, self._call, self._ttl_s = store, keys, call, ttl_s
        self._held: set[asyncio.Task[None]] = set()

    async def settle(self, before: Before, lease: Lease) -> Verdict:
        """Put back what `before` says, if that is due; "join", "yield", "refuse": see `succession`.

        lease: this node's own, in the new store. StoreError when it does not answer.
        """
        last = before.generation
        if last is None:
            return "join"  # it has taken part in nothing
        while True:
            found = await self._look()
            names = found.generation.nodes if found.generation is not None else ()
            there = [found.nodes[name] for name in names if name in found.nodes]
            holds = before.holds_state
            verdict = succession.judge(last, found.generation, found.closed, holds_state=holds, there=there)
            if verdict != "refill":
                return verdict
            with contextlib.suppress(StoreAmbiguous):  # the next look says what has become of it
                if await self._write(before, last, found, lease):
                    return "join"

    async def _look(self) -> _Found:
        entries, _ = await self._call(lambda: self._store.range(self._keys.job))
        known = {entry.key: entry for entry in entries}
        generation, closed = known.get(self._keys.generation), known.get(self._keys.closed)
        nodes: dict[str, Node] = {}
        for entry in entries:
            if entry.key.startswith(self._keys.nodes):
                with contextlib.suppress(RendezvousError):  # said by whoever leads
                    nodes[entry.key.removeprefix(self._keys.nodes)] = records.node(entry.key, entry.value)
        return _Found(
            generation=records.generation(generation.key, generation.value) if generation is not None else None,
            closed=records.closed(closed.key, closed.value) if closed is not None else None,
            entries=known,
            nodes=nodes,
        )

    async def _write(self, before: Before, last: Generation, found: _Found, lease: Lease) -> bool:
        keys = self._keys
        guarded = [keys.generation, keys.closed, keys.wanted]
        guarded += [f"{keys.nodes}{name}" for name in (found.generation.nodes if found.generation is not None else ())]
        conditions = [Compare(key, "mod", "=", found.revision(key)) for key in guarded]
        new = succession.refill(last, lease.id)
        puts = [Op.put(keys.generation, records.to_bytes(new))]
        puts += [Op.put(f"{keys.nodes}{before.own.id}", records.to_bytes(before.own), lease)]
        if before.wanted is not None and keys.wanted not in found.entries:
            puts.append(Op.put(keys.wanted, records.to_bytes(before.wanted)))
        absent = [
            seen.node
            for seen in before.nodes
            if seen.node.id not in (*found.nodes, before.own.id) and not seen.node.leaving
        ][:_MOST_HELD]
        held = await self._call(lambda: self._store.lease(self._ttl_s)) if absent else None
        puts += [
            Op.put(f"{keys.nodes}{node.id}", records.to_bytes(replace(node, put_back=True)), held) for node in absent
        ]
        if held is not None:
            task = asyncio.get_running_loop().create_task(self._let_go(held))
            self._held.add(task)
            task.add_done_callback(self._held.discard)
        result: TxnResult = await self._call(lambda: self._store.txn(conditions, puts))
        if result.succeeded:
            log.event(_log, 20, "the store had lost this job's records: they are put back", generation=new.number)
        return result.succeeded

    async def _let_go(self, held: Lease) -> None:
        """End the lease of others' records, in time: who is back has a lease of its own."""
        await asyncio.sleep(self._ttl_s)
        while True:
            try:
                await self._call(held.revoke)
                return
            except (StoreTimeout, StoreAmbiguous):  # it is renewed until it is revoked
                await asyncio.sleep(RETRY_S)
            except StoreError as error:  # it has lost that lease, too
                log.event(_log, 10, "a lease of others' records was not ended", error=str(error))
                return

    def close(self) -> None:
        """Wait for nothing any more."""
        for task in self._held:
            task.cancel()
