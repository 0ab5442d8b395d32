"""Write a node's own record to the store: when it changes, and again where somebody else has written there."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from resilin._base import log
from resilin.elastic import records
from resilin.elastic.records import Node
from resilin.elastic.rendezvous import store_executor
from resilin.errors import RendezvousError
from resilin.store.base import KeyValue, Lease, Store

_log = log.logger("elastic.rendezvous")


class OwnRecord:
    """The record of one node, which stands at `key`. `node`: the newest, which the store may not have yet."""

    def __init__(self, store: Store, key: str, call: store_executor.Caller, lease: Callable[[], Lease | None]) -> None:
        self.key = key
        self.node: Node | None = None
        self._store, self._call, self._lease = store, call, lease
        self._written: Node | None = None  # the last one that the store took
        self._written_at = 0  # its revision

    def took(self, node: Node, revision: int) -> None:
        """The store has it."""
        self._written, self._written_at = node, revision

    async def write(self) -> None:
        """Write the newest, unless it stands there."""
        node, lease = self.node, self._lease()
        if node is None or node == self._written or lease is None:
            return
        value = records.to_bytes(node)
        revision = await self._call(lambda: self._store.put(self.key, value, lease))
        self.took(node, revision)
        log.event(_log, 10, "node record written", revision=revision)

    async def probe(self) -> None:
        """See whether the store is there, and whether what stands there is what was written."""
        entry = await self._call(lambda: self._store.get(self.key))
        if self._written is not None and (entry is None or entry.value != records.to_bytes(self._written)):
            self._written = None  # somebody else has been there
            await self.write()

    def lost_to(self, found: tuple[Node, int] | None) -> bool:
        """Return whether another record is seen there than the last one: it is to be written again.

        So it is when a repetition of an earlier write came late: what others see is old.
        """
        if found is None or found[1] <= self._written_at or found[0] == self._written:
            return False
        self._written = None
        return True

    def spoiled_by(self, changed: Sequence[KeyValue]) -> bool:
        """Return whether somebody has written something there that is no record: it is to be written again."""
        for entry in changed:
            if entry.key == self.key and self._written is not None and entry.mod_revision > self._written_at:
                try:
                    records.node(entry.key, entry.value)
                except RendezvousError:
                    self._written = None
                    return True
        return False
