"""Let workers know one another through a key-value store: static worlds, and groups whose members come and go.

    group           a text that only this group has: connections of other groups are refused
    worker/ID       the record of that worker (JSON); a replacement writes it anew
    read/ID         static worlds: that worker has read the records of all
    members         dynamic groups: the ids, as JSON, changed by compare-and-set

In a static world all wait until all records are there, and once more until all have read them. In a dynamic group a
worker enters the list, and tells the others; who misses that finds the newcomer in the store.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import timedelta
from typing import Any

from resilin._base import host
from resilin._base.clock import Deadline
from resilin.distributed.stores import Store
from resilin.distributed.stores.tcp import ServerGone
from resilin.errors import DistStoreError, RpcError, UsageError
from resilin.rpc.membership import rounds
from resilin.rpc.worker_info import WorkerInfo

_LEAVE_S = 1.0
_REFUSED_S = 5.0  # for others to read that a world cannot be
VERSION = 2
"""Of the messages: workers of another one are refused."""


@dataclass(frozen=True)
class WorkerRecord:
    """What a worker tells the others of itself."""

    id: int
    name: str
    addresses: Mapping[str, str]
    """Of its transports, by name; in the order in which it prefers them."""
    channels: Mapping[str, str]
    """What its tensor channels `describe`, by name."""
    incarnation: str
    """Of this process: a replacement has another one."""
    allows_closures: bool = False
    device_maps: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    """worker -> device here -> device there."""
    devices: tuple[str, ...] = ()
    device_counts: Mapping[str, int] = field(default_factory=dict)
    """How many devices of a type it has, as far as it knows."""
    max_message_bytes: int = 0
    host: str = field(default_factory=host.host_id)
    at: str = "127.0.0.1"
    """Where it is, for people."""
    pid: int = field(default_factory=os.getpid)
    turn: int = 0
    """How many processes have had this id before."""
    version: int = VERSION

    def encoded(self) -> str:
        """Return the record."""
        return json.dumps(asdict(self))

    def described(self) -> str:
        """Return who it is, for errors."""
        return f"worker {self.name!r} (id {self.id}, host {self.at}, pid {self.pid})"


_NO_RECORD = b"none"  # what is compared with a record, so that nothing is put there


def decoded(record: bytes) -> WorkerRecord:
    """Return what a record tells. RpcError for one of another version."""
    try:
        found: dict[str, Any] = json.loads(record)
        if found.get("version") != VERSION:
            raise RpcError(
                f"worker {found.get('name')!r} speaks version {found.get('version')} of RPC, this one {VERSION}: "
                "install the same version of resilin everywhere"
            )
        member = WorkerRecord(**{**found, "devices": tuple(found["devices"])})
        WorkerInfo(member.name, member.id)
    except (ValueError, TypeError, KeyError) as error:
        raise RpcError(f"the store holds what is no record of a worker: {record!r:.80}: {error}") from None
    return member


class Membership:
    """One worker's part in a group. The store is the caller's."""

    def __init__(self, store: Store, name: str, rank: int, world_size: int | None) -> None:
        self._store, self._world_size = store, world_size
        self._me = WorkerInfo(name, rank)
        own = os.urandom(8).hex()
        self.group = store.compare_set("group", "", own).decode()

    def turn(self) -> int:
        """Return how many processes have come with this id before. Called once."""
        return self._store.add(f"turn/{self._me.id}", 1) - 1

    @property
    def is_static(self) -> bool:
        """Return whether the number of workers is fixed."""
        return self._world_size is not None

    def join(self, me: WorkerRecord, check: Callable[[Sequence[WorkerRecord]], None]) -> list[WorkerRecord]:
        """Enter the group; return its members, this one included. RpcError when the name or the id is not unique.

        check: of a static world, refuses members that do not fit together, by UsageError.
        """
        return self._join_static(me, check) if self._world_size is not None else self._join_dynamic(me)

    def _join_static(self, me: WorkerRecord, check: Callable[[Sequence[WorkerRecord]], None]) -> list[WorkerRecord]:
        assert self._world_size is not None
        world = range(self._world_size)
        try:
            self._store.set(f"worker/{me.id}", me.encoded())
            members = _named(self._store.multi_get([f"worker/{id}" for id in world]))
            check(members)
            self._store.set(f"read/{me.id}", "1")
            self._store.wait([f"read/{id}" for id in world])
        except ServerGone:
            raise
        except (RpcError, UsageError):  # all read the same, and are refused
            self._end_refused(me.id, world)
            raise
        except BaseException:
            with contextlib.suppress(DistStoreError):  # others wait until this one comes again
                for key in (f"worker/{me.id}", f"read/{me.id}"):
                    self._store.delete_key(key)
            raise
        return members

    def _end_refused(self, me: int, world: Iterable[int]) -> None:
        """End a round in which nobody may take part, once all have read why: one of them may serve the store."""
        with contextlib.suppress(DistStoreError):  # that one has ended since
            rounds.end(self._store)
            self._store.set(f"read/{me}", "1")
            self._store.wait([f"read/{id}" for id in world], _REFUSED_S)

    def _join_dynamic(self, me: WorkerRecord) -> list[WorkerRecord]:
        others = self._present(self._ids())
        for member in others:
            if member.name == me.name and member.id != me.id:
                raise RpcError(f"RPC worker name {me.name} is not unique: {member.described()} has it.")
            if member.id == me.id and member.name != me.name:
                raise RpcError(f"RPC worker id {me.id} is not unique: {member.described()} has it.")
        self._store.set(f"worker/{me.id}", me.encoded())
        members = self._present(self._change({me.id}, set()))
        if sum(member.name == me.name for member in members) > 1:
            self._change(set(), {me.id})
            raise RpcError(f"RPC worker name {me.name} is not unique: another worker came with it at the same time.")
        return members

    def leave(self, deadline: Deadline) -> None:
        """Leave a dynamic group. The store, which may be lost, has until `deadline`, and a moment."""
        if not self.is_static:
            left = deadline.left()
            if left is not None:
                self._store.set_timeout(timedelta(seconds=max(left, _LEAVE_S)))
            self._change(set(), {self._me.id})
            self._store.delete_key(f"worker/{self._me.id}")

    def current(self) -> list[WorkerRecord] | None:
        """Return who is in a dynamic group now; None of a static world."""
        return None if self.is_static else self._present(self._ids())

    def record(self, id: int) -> WorkerRecord | None:
        """Return the present record of worker `id`; None when there is none, or the store is gone."""
        try:
            return next(iter(self._present([id])), None)
        except DistStoreError:
            return None

    def _present(self, ids: Iterable[int]) -> list[WorkerRecord]:
        """Return the records of those that are there now. `get` would wait for one that has just left."""
        found = [self._store.compare_set(f"worker/{id}", _NO_RECORD, _NO_RECORD) for id in ids]
        return [decoded(record) for record in found if record not in (b"", _NO_RECORD)]

    def _ids(self) -> list[int]:
        return _parsed(self._store.compare_set("members", "", "[]"))

    def _change(self, come: set[int], gone: set[int]) -> list[int]:
        before = self._store.compare_set("members", "", "[]")
        while True:
            wanted = sorted((set(_parsed(before)) | come) - gone)
            after = json.dumps(wanted).encode()
            found = self._store.compare_set("members", before, after)
            if found == after:
                return wanted
            before = found


def _named(records: Iterable[bytes]) -> list[WorkerRecord]:
    """Return what the records of a static world tell. RpcError where two have one name."""
    members = [decoded(record) for record in records]
    names: dict[str, int] = {}
    for member in members:
        if names.setdefault(member.name, member.id) != member.id:
            raise RpcError(
                f"RPC worker name {member.name} is not unique. Workers {names[member.name]} and {member.id} "
                "have the same name."
            )
    return members


def _parsed(text: bytes) -> list[int]:
    ids = json.loads(text)
    if not isinstance(ids, list) or not all(type(id) is int for id in ids):
        raise UsageError(f"the store's list of RPC workers is {text!r:.80}")
    return ids
