"""What all nodes follow in the store: the newest entry of each key under `world/`, parsed. No I/O."""

from __future__ import annotations

from collections.abc import Sequence

from resilin.elastic import records
from resilin.elastic.records import Closed, Generation, Wanted
from resilin.store.base import KeyValue


class Followed:
    """The entries under `keys.world` as far as this node has heard of them."""

    def __init__(self, keys: records.Keys) -> None:
        self._keys = keys
        self._entries: dict[str, KeyValue] = {}
        self._deleted: dict[str, int] = {}  # at which revision: an answer that was read before it may come after it
        self.generation: Generation | None = None
        self.closed: Closed | None = None
        self.wanted: Wanted | None = None

    def entry(self, key: str) -> KeyValue | None:
        """The newest entry of `key`."""
        return self._entries.get(key)

    def revision(self, key: str) -> int:
        """When it was written; -1: there is none."""
        entry = self._entries.get(key)
        return entry.mod_revision if entry is not None else -1

    def replace(self, entries: Sequence[KeyValue]) -> None:
        """Know these and no others."""
        self._entries.clear()
        self.generation = self.closed = self.wanted = None
        for entry in entries:
            self._take(entry)

    def merge(self, changed: Sequence[KeyValue], gone: Sequence[KeyValue]) -> tuple[list[KeyValue], list[KeyValue]]:
        """Take in entries that are news, and those that are gone: which of them were, in either."""
        ours, deleted = ([kv for kv in kvs if kv.key.startswith(self._keys.world)] for kvs in (changed, gone))
        fresh = [kv for kv in ours if kv.mod_revision > max(self.revision(kv.key), self._deleted.get(kv.key, -1))]
        self._deleted.update((kv.key, kv.mod_revision) for kv in deleted)
        dead = [kv for kv in deleted if kv.key in self._entries and kv.mod_revision > self.revision(kv.key)]
        for kv in dead:
            del self._entries[kv.key]
            if kv.key == self._keys.generation:
                self.generation = None
            elif kv.key == self._keys.closed:
                self.closed = None
            elif kv.key == self._keys.wanted:
                self.wanted = None
        for kv in fresh:
            self._take(kv)
        return fresh, dead

    def _take(self, entry: KeyValue) -> None:
        self._entries[entry.key] = entry
        if entry.key == self._keys.generation:
            self.generation = records.generation(entry.key, entry.value)
        elif entry.key == self._keys.closed:
            self.closed = records.closed(entry.key, entry.value)
        elif entry.key == self._keys.wanted:
            self.wanted = records.wanted(entry.key, entry.value)
