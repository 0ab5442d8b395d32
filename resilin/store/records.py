"""The journal's records as JSON objects, both ways. Pure.

{"w": [operation, ...]}   one revision: ["p", key, value, lease] or ["d", key, end]
{"g": [id, ttl_s]}        a lease granted
{"x": id}                 a lease ended, with its keys
{"c": revision}           compacted
The first record of a file is a snapshot: revision, first, leases, entries and history of a `StoreState`.
Values are base64.
"""

from __future__ import annotations

from base64 import b64decode, b64encode
from collections.abc import Sequence
from typing import Any

from resilin.store.base import Event, KeyValue, Op
from resilin.store.state import Batch, StoreState

Record = dict[str, Any]


def write(ops: Sequence[Op]) -> Record:
    """The record of one revision's writes."""
    return {"w": [_op(op) for op in ops]}


def ops(record: Record) -> list[Op]:
    """The writes of such a record."""
    return [
        Op("put", first, value=b64decode(second), lease=rest[0]) if kind == "p" else Op("delete", first, second)
        for kind, first, second, *rest in record["w"]
    ]


def grant(lease_id: int, ttl_s: float) -> Record:
    """The record of a lease granted."""
    return {"g": [lease_id, ttl_s]}


def end(lease_id: int) -> Record:
    """The record of a lease's end."""
    return {"x": lease_id}


def compact(revision: int) -> Record:
    """The record of a compaction."""
    return {"c": revision}


def snapshot(state: StoreState) -> Record:
    """Everything that `state` holds."""
    return {
        "revision": state.revision,
        "first": state.first_revision,
        "leases": [[record.id, record.ttl_s] for record in state.leases()],
        "entries": [_kv(kv) for kv in state.entries()],
        "history": [[batch.revision, [_event(event) for event in batch.events]] for batch in state.history],
    }


def entries(record: Record) -> list[KeyValue]:
    """The entries of a snapshot."""
    return [_to_kv(fields) for fields in record["entries"]]


def history(record: Record) -> list[Batch]:
    """The history of a snapshot."""
    return [Batch(revision, tuple(_to_event(event) for event in events)) for revision, events in record["history"]]


def _op(op: Op) -> list[Any]:
    if op.kind == "put":
        return ["p", op.key, b64encode(op.value).decode(), op.lease]
    return ["d", op.key, op.end]


def _kv(kv: KeyValue) -> list[Any]:
    return [kv.key, b64encode(kv.value).decode(), kv.create_revision, kv.mod_revision, kv.version, kv.lease]


def _to_kv(fields: list[Any]) -> KeyValue:
    key, value, *numbers = fields
    return KeyValue(key, b64decode(value), *numbers)


def _event(event: Event) -> list[Any]:
    return [event.kind, _kv(event.kv), None if event.previous is None else _kv(event.previous)]


def _to_event(fields: list[Any]) -> Event:
    kind, kv, previous = fields
    return Event(kind, _to_kv(kv), None if previous is None else _to_kv(previous))
