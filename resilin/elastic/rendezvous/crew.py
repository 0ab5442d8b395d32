"""The live nodes of a job as one agent knows them: by the leader's roster or, as the leader, by their own records.

The leader alone follows `nodes/`. What it sees there it writes as one record, the roster, which every agent follows: so
a change of one node's record is one message to the leader and one from it to each node, however many write at once.
A roster has one line for each node: "<create_revision> <mod_revision> <record>", and is compressed (zlib): the
records are much alike, and what goes to all nodes is what a store of many nodes is busy with.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from resilin._base.clock import Clock
from resilin.elastic import records
from resilin.elastic.deciding.view import Seen
from resilin.elastic.records import Node
from resilin.errors import RendezvousError
from resilin.store.base import KeyValue


@dataclass(frozen=True, kw_only=True)
class _Record:
    """One node's record, and its line in a roster."""

    seen: Seen
    mod_revision: int
    line: bytes


class Crew:
    """The nodes. `prefix`: where their records stand in the store."""

    def __init__(self, prefix: str, clock: Clock) -> None:
        self._prefix = prefix
        self._clock = clock
        self._records: dict[str, _Record] = {}  # by key
        self._roster: KeyValue | None = None  # not looked into yet: the next one may come before anybody asks

    def __len__(self) -> int:
        return len(self._known())

    def seen(self) -> Sequence[Seen]:
        """All nodes, the oldest first."""
        return sorted((record.seen for record in self._known().values()), key=lambda seen: seen.create_revision)

    def node(self, node_id: str) -> tuple[Node, int] | None:
        """A node's record, and the revision that wrote it."""
        record = self._known().get(self._prefix + node_id)
        return (record.seen.node, record.mod_revision) if record is not None else None

    def tell(self, roster: KeyValue) -> None:
        """What the leader sees."""
        self._roster = roster

    def roster(self, own: Node) -> bytes:
        """What the leader tells all. `own`: its own record, which may be newer than what it wrote."""
        lines = []
        for record in self._known().values():
            mine = record.seen.node.id == own.id and record.seen.node != own
            lines.append(_line(record.seen.create_revision, 0, records.to_bytes(own)) if mine else record.line)
        return zlib.compress(b"\n".join(lines), level=1)

    def read(self, entries: Iterable[KeyValue]) -> None:
        """Every node's own record."""
        before, self._records = self._known(), {}
        for entry in entries:
            self._records[entry.key] = self._record(before.get(entry.key), entry)

    def heed(self, changed: Iterable[KeyValue], gone: Iterable[KeyValue]) -> bool:
        """What has changed since. Whether any of it was news."""
        news, known = False, self._known()
        for entry in gone:
            if entry.key in known and entry.mod_revision > known[entry.key].mod_revision:
                del known[entry.key]
                news = True
        for entry in changed:
            before = known.get(entry.key)
            if before is None or entry.mod_revision > before.mod_revision:
                known[entry.key] = self._record(before, entry)
                news = True
        return news

    def _known(self) -> dict[str, _Record]:
        roster, self._roster = self._roster, None
        if roster is not None:
            before, self._records = self._records, {}
            same = {record.line: key for key, record in before.items()}
            for line in _lines(roster):
                key = same.get(line)
                if key is not None:
                    self._records[key] = before[key]
                else:
                    create, mod, value = _parts(roster.key, line)
                    key = self._prefix + records.node(roster.key, value).id
                    self._records[key] = self._record(before.get(key), KeyValue(key, value, create, mod, 1))
        return self._records

    def _record(self, before: _Record | None, entry: KeyValue) -> _Record:
        again = before is not None and before.seen.create_revision == entry.create_revision
        first = before.seen.first_seen if before is not None and again else self._clock.monotonic()
        node = records.node(entry.key, entry.value)
        seen = Seen(node=node, create_revision=entry.create_revision, first_seen=first)
        line = _line(entry.create_revision, entry.mod_revision, entry.value)
        return _Record(seen=seen, mod_revision=entry.mod_revision, line=line)


def _line(create: int, mod: int, value: bytes) -> bytes:
    return b"%d %d %b" % (create, mod, value.replace(b"\n", b" "))  # in JSON a line's end is nothing but space


def _lines(roster: KeyValue) -> list[bytes]:
    try:
        return zlib.decompress(roster.value).splitlines()
    except zlib.error as error:
        raise _bad(roster.key, roster.value, "a compressed roster") from error


def _parts(key: str, line: bytes) -> tuple[int, int, bytes]:
    try:
        create, mod, value = line.split(b" ", 2)
        return int(create), int(mod), value
    except ValueError as error:
        raise _bad(key, line, "two revisions and a record") from error


def _bad(key: str, got: bytes, expected: str) -> RendezvousError:
    return RendezvousError(
        f"{key} in the store holds {got[:80]!r}, expected {expected}; do all nodes run the same version, and does "
        "nothing else use this job's name?"
    )
