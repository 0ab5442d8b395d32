"""Follow what all nodes follow in the store: the newest entry of each key under `world/`, parsed. No I/O."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from resilin._base import log
from resilin.elastic import records
from resilin.elastic.records import Closed, Generation, Recording, Wanted
from resilin.errors import RendezvousError
from resilin.store.base import KeyValue

_log = log.logger("elastic.rendezvous")


class WatchCache:
    """The entries under `keys.world` as far as this node has heard of them.

    Where one is no record of its kind, that is said, and the last one that was stands. `fits`: whether a generation
    can be one of this job.
    """

    def __init__(self, keys: records.Keys, fits: Callable[[Generation], bool] = lambda found: True) -> None:
        self._keys = keys
        self._fits = fits
        self._entries: dict[str, KeyValue] = {}
        self._deleted: dict[str, int] = {}  # at which revision: an answer that was read before it may come after it
        self._read: dict[str, tuple[Any, bytes]] = {}  # the last record of a key, and how it stood there
        self._readers: dict[str, Callable[[str, bytes], Any]] = {
            keys.generation: self._generation,
            keys.closed: records.closed,
            keys.wanted: records.wanted,
            keys.recording: records.recording,
            keys.leader: records.leader,
        }
        self.spoiled: dict[str, KeyValue] = {}
        """Entries that are no records."""

    @property
    def generation(self) -> Generation | None:
        """The current one."""
        found: Generation | None = self._record(self._keys.generation)
        return found

    @property
    def closed(self) -> Closed | None:
        """The job's end."""
        found: Closed | None = self._record(self._keys.closed)
        return found

    @property
    def wanted(self) -> Wanted | None:
        """Return what people asked for."""
        found: Wanted | None = self._record(self._keys.wanted)
        return found

    @property
    def recording(self) -> Recording | None:
        """Return the last one that people wanted."""
        found: Recording | None = self._record(self._keys.recording)
        return found

    @property
    def leader(self) -> str:
        """The id of who leads; empty: nobody."""
        entry = self._entries.get(self._keys.leader)
        return str(self._record(self._keys.leader) or "") if entry is not None and not self.misled else ""

    @property
    def misled(self) -> bool:
        """Return whether the record of who leads is none: it is not under a lease, or holds something else."""
        entry = self._entries.get(self._keys.leader)
        return entry is not None and (not entry.lease or self._keys.leader in self.spoiled)

    def entry(self, key: str) -> KeyValue | None:
        """The newest entry of `key`."""
        return self._entries.get(key)

    def revision(self, key: str) -> int:
        """Return when it was written; -1: there is none."""
        entry = self._entries.get(key)
        return entry.mod_revision if entry is not None else -1

    def last(self, key: str) -> bytes | None:
        """Return how the last record of `key` stood there."""
        found = self._read.get(key)
        return found[1] if found is not None else None

    def forget(self) -> None:
        """Another store counts its revisions anew: what was deleted in the one before says nothing of it."""
        self._deleted.clear()

    def replace(self, entries: Sequence[KeyValue]) -> None:
        """Know these and no others."""
        self._entries.clear()
        self.spoiled.clear()
        here = {entry.key for entry in entries}
        self._read = {key: found for key, found in self._read.items() if key in here}
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
            self._read.pop(kv.key, None)
            self.spoiled.pop(kv.key, None)
        for kv in fresh:
            self._take(kv)
        return fresh, dead

    def _record(self, key: str) -> Any:
        found = self._read.get(key)
        return found[0] if found is not None else None

    def _take(self, entry: KeyValue) -> None:
        self._entries[entry.key] = entry
        self.spoiled.pop(entry.key, None)
        reader = self._readers.get(entry.key)
        if reader is None:
            return
        try:
            self._read[entry.key] = reader(entry.key, entry.value), entry.value
        except RendezvousError as error:
            self.spoiled[entry.key] = entry
            log.event(_log, 40, "a record of this job is none", error=str(error))

    def _generation(self, key: str, value: bytes) -> Generation:
        found = records.generation(key, value)
        if not self._fits(found):
            raise records.misplaced(key, value, "a generation of this job, whose nodes have the slots that it names")
        return found
