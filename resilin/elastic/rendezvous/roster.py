"""Know the live nodes of a job: by the leader's roster or, as the leader, by their own records.

The leader alone follows `nodes/`. What it sees there it writes as one record, the roster, which every agent follows: so
a change of one node's record is one message to the leader and one from it to each node, however many write at once.
A roster has one line for each node: "<create_revision> <mod_revision> <record>", and is compressed (zlib): the
records are much alike, and what goes to all nodes is what a store of many nodes is busy with.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from resilin._base import log
from resilin._base.clock import Clock
from resilin.elastic import records
from resilin.elastic.membership.view import Seen
from resilin.elastic.records import Node
from resilin.errors import RendezvousError
from resilin.store.base import KeyValue

_log = log.logger("elastic.rendezvous")
MAX_ROSTER_BYTES = 64 << 20  # unpacked: thousands of nodes that all tell of a failure
_MOST_TOLD = 100


@dataclass(frozen=True, kw_only=True)
class _Record:
    """One node's record, and its line in a roster."""

    seen: Seen
    mod_revision: int
    line: bytes


class Roster:
    """The nodes. `prefix`: where their records stand in the store."""

    def __init__(self, prefix: str, clock: Clock) -> None:
        self._prefix = prefix
        self._clock = clock
        self._records: dict[str, _Record] = {}  # by key
        self._told: set[str] = set()  # errors
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
        """Take in what the leader sees."""
        self._roster = roster

    def roster(self, own: Node) -> bytes:
        """Write what the leader tells all. `own`: its own record, which may be newer than what it wrote."""
        lines = []
        for record in self._known().values():
            mine = record.seen.node.id == own.id and record.seen.node != own
            lines.append(_line(record.seen.create_revision, 0, records.to_bytes(own)) if mine else record.line)
        return zlib.compress(b"\n".join(lines), level=1)

    def read(self, entries: Iterable[KeyValue]) -> None:
        """Every node's own record."""
        before, self._records = self._known(), {}
        for entry in entries:
            record = self._record_or_last(before.get(entry.key), entry)
            if record is not None:
                self._records[entry.key] = record

    def heed(self, changed: Iterable[KeyValue], gone: Iterable[KeyValue]) -> bool:
        """Take in what has changed since. Return whether any of it was news."""
        news, known = False, self._known()
        for entry in gone:
            if entry.key in known and entry.mod_revision > known[entry.key].mod_revision:
                del known[entry.key]
                news = True
        for entry in changed:
            before = known.get(entry.key)
            if before is None or entry.mod_revision > before.mod_revision:
                record = self._record_or_last(before, entry)
                if record is not None and record is not before:
                    known[entry.key] = record
                    news = True
        return news

    def is_roster(self, entry: KeyValue) -> bool:
        """Return whether an entry that should be a roster is one."""
        try:
            self._read_roster(entry)
        except RendezvousError as error:
            self._complain(error)
            return False
        return True

    def _known(self) -> dict[str, _Record]:
        roster, self._roster = self._roster, None
        if roster is not None:
            try:
                self._records = self._read_roster(roster)
            except RendezvousError as error:  # the last one stands
                self._complain(error)
        return self._records

    def _read_roster(self, roster: KeyValue) -> dict[str, _Record]:
        before, found = self._records, {}
        same = {record.line: key for key, record in before.items()}
        for line in _lines(roster):
            key = same.get(line)
            if key is not None:
                found[key] = before[key]
            else:
                create, mod, value = _parts(roster.key, line)
                key = self._prefix + records.node(roster.key, value).id
                found[key] = self._record(before.get(key), KeyValue(key, value, create, mod, 1))
        return found

    def _record_or_last(self, before: _Record | None, entry: KeyValue) -> _Record | None:
        """A node's record; where the entry is none, the last one stands until the node has written it again."""
        try:
            return self._record(before, entry)
        except RendezvousError as error:
            self._complain(error)
            return before

    def _complain(self, error: RendezvousError) -> None:
        if str(error) not in self._told:
            if len(self._told) >= _MOST_TOLD:
                self._told.clear()
            self._told.add(str(error))
            log.event(_log, 40, "a record of this job is none", error=str(error))

    def _record(self, before: _Record | None, entry: KeyValue) -> _Record:
        again = before is not None and before.seen.create_revision == entry.create_revision
        first = before.seen.first_seen if before is not None and again else self._clock.monotonic()
        node = records.node(entry.key, entry.value)
        if entry.key != self._prefix + node.id:
            raise records.misplaced(entry.key, entry.value, "the record of the node that the key names")
        seen = Seen(node=node, create_revision=entry.create_revision, first_seen=first)
        line = _line(entry.create_revision, entry.mod_revision, entry.value)
        return _Record(seen=seen, mod_revision=entry.mod_revision, line=line)


def _line(create: int, mod: int, value: bytes) -> bytes:
    return b"%d %d %b" % (create, mod, value.replace(b"\n", b" "))  # in JSON a line's end is nothing but space


def _lines(roster: KeyValue) -> list[bytes]:
    try:
        unpacker = zlib.decompressobj()
        text = unpacker.decompress(roster.value, MAX_ROSTER_BYTES)
    except zlib.error as error:
        raise records.misplaced(roster.key, roster.value, "a compressed roster") from error
    if not unpacker.eof:
        raise records.misplaced(roster.key, roster.value, f"a roster of at most {MAX_ROSTER_BYTES} bytes")
    return text.splitlines()


def _parts(key: str, line: bytes) -> tuple[int, int, bytes]:
    try:
        create, mod, value = line.split(b" ", 2)
        return int(create), int(mod), value
    except ValueError as error:
        raise records.misplaced(key, line, "two revisions and a record") from error
