"""Put records back where somebody has written something else in their place."""

from __future__ import annotations

import contextlib

from resilin.elastic import records
from resilin.elastic.records import Generation
from resilin.elastic.rendezvous import store_executor
from resilin.elastic.rendezvous.leader import Leader
from resilin.elastic.rendezvous.watch_cache import WatchCache
from resilin.errors import StoreAmbiguous
from resilin.store.base import Compare, KeyValue, Op, Store


class RecordRepair:
    """Of what stands under `world/`, as one node sees it; a node's own record is that node's business."""

    def __init__(
        self, store: Store, keys: records.Keys, followed: WatchCache, leading: Leader, call: store_executor.Caller
    ) -> None:
        self._store, self._keys, self._watch_cache, self._leading, self._call = store, keys, followed, leading, call

    @property
    def due(self) -> bool:
        """Return whether there is something to mend."""
        return self._watch_cache.misled or (self._leading.active and bool(self._watch_cache.spoiled))

    async def mend(self) -> None:
        """Put back what records were; where that is not known, delete what stands there.

        Any node removes what names no leader, for then nobody leads. The rest is the leader's.
        """
        followed, leader = self._watch_cache, self._watch_cache.entry(self._keys.leader)
        if followed.misled and leader is not None:
            await self._put_back(leader, Op.delete(leader.key))
        for entry in list(followed.spoiled.values()) if self._leading.active else ():
            last = followed.last(entry.key)
            await self._put_back(entry, Op.delete(entry.key) if last is None else Op.put(entry.key, last))

    async def _put_back(self, entry: KeyValue, op: Op) -> None:
        unchanged = Compare(entry.key, "mod", "=", entry.mod_revision)
        with contextlib.suppress(StoreAmbiguous):  # what has become of it is heard
            await self._call(lambda: self._store.txn((unchanged,), (op,)))


class Needed:
    """Say how many slots a node must have to be what a generation says of it. Remembered for the last one."""

    def __init__(self) -> None:
        self._generation: Generation | None = None
        self._slots: dict[str, int] = {}

    def of(self, generation: Generation) -> dict[str, int]:
        """By node that it names."""
        if self._generation is not generation:
            self._generation, self._slots = generation, {}
            for member in generation.members:
                self._slots[member.node] = max(member.slot + 1, self._slots.get(member.node, 0))
        return self._slots
