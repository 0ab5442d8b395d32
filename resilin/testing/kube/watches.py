"""What a watch sends: the events of one resource after a revision, bookmarks, and an error when it is too old."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from resilin._base.clock import SYSTEM
from resilin.testing.kube.failures import Failure, Json
from resilin.testing.kube.faults import Faults, HangUp
from resilin.testing.kube.selectors import Predicate
from resilin.testing.kube.storage import Change, Kind, Storage, StoredObject

_INITIAL_END = {"k8s.io/initial-events-end": "true"}


@dataclass(frozen=True)
class Wanted:
    """What one watch is about."""

    kind: Kind
    api_version: str
    object_kind: str
    namespace: str
    selects: Predicate
    shown: Callable[[Json], Json]  # an object in the form that was asked for
    revision: str  # as in the query: "" and "0" begin with what there is
    bookmarks: bool = False
    initial: bool = False  # sendInitialEvents
    timeout_s: float = 3600.0


class Cut(Exception):
    """The connection ends here, after `part` of a line."""

    def __init__(self, part: bytes) -> None:
        super().__init__()
        self.part = part


class ObjectWatch:
    """One watch. Iterating gives its lines; it ends after its time, Cut when it is to break off."""

    def __init__(self, storage: Storage, faults: Faults, wanted: Wanted, every_s: float, closed: Callable[[], bool]):
        self._storage, self._faults, self._wanted = storage, faults, wanted
        self._every_s, self._closed = every_s, closed
        with storage.lock:  # now, for a client may have heard of its beginning when the first line is asked for
            self._told = (faults.cuts, faults.bookmarks)

    def lines(self) -> Iterator[bytes]:
        """The events, each a line."""
        wanted = self._wanted
        cuts, marks = self._told
        with self._storage.lock:
            begins = wanted.revision in ("", "0") or wanted.initial
            there, position = self._storage.all(wanted.kind, wanted.namespace) if begins else ([], 0)
        if begins:
            yield from (self._line("ADDED", one) for one in there if wanted.selects(one.value))
            if wanted.initial and wanted.bookmarks:
                yield self._bookmark(position, _INITIAL_END)
        else:
            position = int(wanted.revision)
        ends_at, bookmark_at = SYSTEM.monotonic() + wanted.timeout_s, SYSTEM.monotonic() + self._every_s
        while SYSTEM.monotonic() < ends_at:
            try:
                changes, reached = self._news(position, cuts, marks, min(ends_at, bookmark_at))
            except Failure as failure:
                yield _encoded("ERROR", failure.status())
                return
            lines = [line for change in changes for line in self._lines(change)]
            if self._faults.cuts != cuts:
                raise self._cut(lines, reached)
            for line in lines:
                self._maybe_cut(line)
                yield line
            position = reached
            if wanted.bookmarks and (marks != self._faults.bookmarks or SYSTEM.monotonic() >= bookmark_at):
                marks = self._faults.bookmarks
                yield self._bookmark(position)
            if SYSTEM.monotonic() >= bookmark_at:
                bookmark_at = SYSTEM.monotonic() + self._every_s

    def _news(self, position: int, cuts: int, marks: int, until: float) -> tuple[list[Change], int]:
        """What has happened, once something has or it is that late. Failure 410."""
        with self._storage.changed:
            while True:
                changes, reached = self._storage.since(self._wanted.kind, position)
                told = self._faults.cuts != cuts or self._faults.bookmarks != marks
                if changes or told or SYSTEM.monotonic() >= until:
                    return changes, max(reached, position)
                if self._closed():
                    raise HangUp
                SYSTEM.wait(self._storage.changed, until)

    def _lines(self, change: Change) -> Iterator[bytes]:
        """The event that a change is to this watch: what comes into the selection is added, what leaves it deleted."""
        new, old = change.new.value, None if change.old is None else change.old.value
        if self._wanted.namespace and new["metadata"].get("namespace") != self._wanted.namespace:
            return
        was = old is not None and self._wanted.selects(old)
        selected = change.type != "DELETED" and self._wanted.selects(new)
        if selected:
            yield self._line("MODIFIED" if was else "ADDED", change.new)
        elif was and old is not None:
            revision = {"resourceVersion": str(change.revision)}
            yield self._line("DELETED", StoredObject({**old, "metadata": {**old["metadata"], **revision}}))

    def _line(self, type_: str, one: StoredObject) -> bytes:
        shown = self._wanted.shown(one.value)
        if shown is one.value:
            return b'{"type":"%s","object":%s}\n' % (type_.encode(), one.encoded)
        return _encoded(type_, shown)

    def _bookmark(self, revision: int, annotations: Json | None = None) -> bytes:
        meta: Json = {"resourceVersion": str(revision)}
        if annotations:
            meta["annotations"] = annotations
        head = {"kind": self._wanted.object_kind, "apiVersion": self._wanted.api_version}
        return _encoded("BOOKMARK", {**head, "metadata": meta})

    def _maybe_cut(self, line: bytes) -> None:
        with self._storage.lock:
            if self._faults.events_to_cut <= 0:
                return
            self._faults.events_to_cut -= 1
        raise Cut(line[: len(line) // 2])

    def _cut(self, lines: list[bytes], revision: int) -> Cut:
        if not self._faults.cut_midline:
            return Cut(b"")
        line = lines[0] if lines else self._bookmark(revision)
        return Cut(line[: len(line) // 2])


def _encoded(type_: str, value: Json) -> bytes:
    return json.dumps({"type": type_, "object": value}, separators=(",", ":")).encode() + b"\n"
