"""Keeps objects and what has happened to them: one revision for each change, and watches from any that is kept.

An object in here is never changed, only replaced: who reads one may keep it. Thread-safe.
"""

from __future__ import annotations

import json
import threading
from collections import defaultdict, deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property

from resilin.testing.kube.failures import Json, expired

Kind = tuple[str, str]  # (group, plural): versions of one resource share their objects
Key = tuple[str, str]  # (namespace, name)


@dataclass(frozen=True)
class StoredObject:
    """An object, and its text in the version that it was written in."""

    value: Json

    @cached_property
    def encoded(self) -> bytes:
        """JSON without blanks."""
        return json.dumps(self.value, separators=(",", ":")).encode()


@dataclass(frozen=True)
class Change:
    """One revision of one object: what it is now (for DELETED: what it was last), and what it was before."""

    revision: int
    type: str  # ADDED, MODIFIED or DELETED
    new: StoredObject
    old: StoredObject | None


@dataclass
class _Log:
    changes: deque[Change] = field(default_factory=deque)
    forgotten: int = 0  # revisions up to this one cannot be watched from


class Storage:
    """All objects of one server."""

    def __init__(self, keep: int = 10_000) -> None:
        """`keep` changes of each kind can be watched; what is older is 410."""
        self.lock = threading.RLock()
        self.changed = threading.Condition(self.lock)
        self.revision = 1000  # guarded by lock, as all below; not 0, which means "any" in queries
        self._keep = keep
        self._objects: dict[Kind, dict[Key, StoredObject]] = defaultdict(dict)
        self._logs: dict[Kind, _Log] = defaultdict(_Log)
        self._owned: dict[str, set[tuple[Kind, Key]]] = defaultdict(set)  # by the owner's uid
        self._uids: dict[str, tuple[Kind, Key]] = {}

    def get(self, kind: Kind, key: Key) -> StoredObject | None:
        """One object."""
        with self.lock:
            return self._objects[kind].get(key)

    def all(self, kind: Kind, namespace: str = "") -> tuple[list[StoredObject], int]:
        """The objects of a kind, by namespace and name, and the revision that this is the state of."""
        with self.lock:
            keys = sorted(key for key in self._objects[kind] if not namespace or key[0] == namespace)
            return [self._objects[kind][key] for key in keys], self.revision

    def kinds(self) -> list[Kind]:
        """The kinds of which there are objects."""
        with self.lock:
            return [kind for kind, objects in self._objects.items() if objects]

    def with_uid(self, uid: str) -> tuple[Kind, Key] | None:
        """Where the object of that uid is."""
        with self.lock:
            return self._uids.get(uid)

    def owned_by(self, uid: str) -> list[tuple[Kind, Key]]:
        """The objects that name that owner."""
        with self.lock:
            return sorted(self._owned.get(uid, ()))

    def put(self, kind: Kind, key: Key, value: Json) -> StoredObject:
        """Keep `value`, which the caller gives away, under a new revision."""
        with self.changed:
            old = self._objects[kind].get(key)
            self.revision += 1
            value["metadata"]["resourceVersion"] = str(self.revision)
            new = StoredObject(value)
            self._objects[kind][key] = new
            self._index(kind, key, old, new)
            self._append(kind, Change(self.revision, "MODIFIED" if old else "ADDED", new, old))
            return new

    def remove(self, kind: Kind, key: Key) -> StoredObject:
        """Forget an object; its last state has the revision of the removal, as watches show it."""
        with self.changed:
            old = self._objects[kind].pop(key)
            self.revision += 1
            metadata = {**old.value["metadata"], "resourceVersion": str(self.revision)}
            last = StoredObject({**old.value, "metadata": metadata})
            self._index(kind, key, old, None)
            self._append(kind, Change(self.revision, "DELETED", last, old))
            return last

    def compact(self) -> None:
        """Forget all changes so far: watches from revisions before this one are 410."""
        with self.changed:
            self.revision += 1
            for kind in list(self._objects):
                self._logs[kind].changes.clear()
                self._logs[kind].forgotten = self.revision - 1
            self.changed.notify_all()

    def since(self, kind: Kind, revision: int) -> tuple[list[Change], int]:
        """What happened to a kind after `revision`, and the revision that this leads to. Failure 410: forgotten."""
        with self.lock:
            log = self._logs[kind]
            if revision < log.forgotten:
                raise expired(f"too old resource version: {revision} ({log.forgotten + 1})")
            return list(_after(log.changes, revision)), self.revision

    def _append(self, kind: Kind, change: Change) -> None:
        log = self._logs[kind]
        log.changes.append(change)
        while len(log.changes) > self._keep:
            log.forgotten = log.changes.popleft().revision
        self.changed.notify_all()

    def _index(self, kind: Kind, key: Key, old: StoredObject | None, new: StoredObject | None) -> None:
        for owner in _owners(old):
            self._owned[owner].discard((kind, key))
        for owner in _owners(new):
            self._owned[owner].add((kind, key))
        if new is None and old is not None:
            self._uids.pop(old.value["metadata"]["uid"], None)
        elif new is not None:
            self._uids[new.value["metadata"]["uid"]] = (kind, key)


def _owners(one: StoredObject | None) -> list[str]:
    return [] if one is None else [owner["uid"] for owner in one.value["metadata"].get("ownerReferences") or ()]


def _after(changes: deque[Change], revision: int) -> Iterator[Change]:
    recent: list[Change] = []
    for change in reversed(changes):
        if change.revision <= revision:
            break
        recent.append(change)
    return reversed(recent)
