"""Remove what a job leaves in the store when it has ended, and say who does it, and when."""

from __future__ import annotations

from collections.abc import Sequence

from resilin.elastic.records import Keys
from resilin.elastic.rendezvous import store_executor
from resilin.store.base import Compare, KeyValue, Op, Store, prefix_range


class JobCleanup:
    """Know what is under nobody's lease, as one node sees it. `own_key`: where this node's record stands."""

    def __init__(self, store: Store, keys: Keys, own_key: str, call: store_executor.Caller) -> None:
        self._store, self._keys, self._own_key, self._call = store, keys, own_key, call

    async def remove_as_last(self) -> None:
        """Remove the job's records when no other node is there: this job is over, and so are they."""
        if await self._others_are_gone():
            await self._call(lambda: self._store.txn((), [Op.delete(key) for key in self._keys.lasting]))

    async def remove_of_earlier(self, entries: Sequence[KeyValue]) -> bool:
        """Of a job of the same name that has ended, and that nobody serves any more.

        entries: what all follow, as it was read. Returns whether there was something: it is to be read again.
        """
        closed = next((kv for kv in entries if kv.key == self._keys.closed), None)
        if closed is None or not await self._others_are_gone(closed.mod_revision):
            return False
        left = [kv for kv in entries if kv.key in self._keys.lasting]
        guards = [Compare(kv.key, "mod", "=", kv.mod_revision) for kv in left]
        await self._call(lambda: self._store.txn(guards, [Op.delete(kv.key) for kv in left]))
        return True

    async def _others_are_gone(self, since: int = 0) -> bool:
        """`since`: those that have come after this revision do not count."""
        look = Op("range", *prefix_range(self._keys.nodes), limit=0 if since else 2)  # when all leave, each sees two
        found = await self._call(lambda: self._store.txn((), (look,)))
        return all(kv.key == self._own_key or 0 < since < kv.create_revision for kv in found.results[0].kvs)
