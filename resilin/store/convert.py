"""Between the types of `store.base` and etcd's messages, both ways. Pure."""

from __future__ import annotations

from typing import Any, Literal

from resilin.errors import UsageError
from resilin.store.base import Compare, Event, KeyValue, Op, OpResult, to_bytes, to_text
from resilin.store.messages import new

# etcd's numbers
_RELATIONS: tuple[Literal["=", ">", "<", "!="], ...] = ("=", ">", "<", "!=")
_TARGETS: tuple[Literal["version", "create", "mod", "value", "lease"], ...] = (
    "version",
    "create",
    "mod",
    "value",
    "lease",
)
_OPERANDS = {
    "version": "version",
    "create": "create_revision",
    "mod": "mod_revision",
    "value": "value",
    "lease": "lease",
}
_SORT_KEYS = ("key", "version", "create_revision", "mod_revision", "value")
_PUT, _DELETE = 0, 1


def kv_to_wire(kv: KeyValue, keys_only: bool = False) -> Any:
    """An entry as a message."""
    return new(
        "KeyValue",
        key=to_bytes(kv.key),
        value=b"" if keys_only else kv.value,
        create_revision=kv.create_revision,
        mod_revision=kv.mod_revision,
        version=kv.version,
        lease=kv.lease,
    )


def kv_from_wire(kv: Any) -> KeyValue:
    """An entry from a message."""
    return KeyValue(to_text(kv.key), kv.value, kv.create_revision, kv.mod_revision, kv.version, kv.lease)


def event_to_wire(event: Event, with_previous: bool) -> Any:
    """A change as a message."""
    wire = new("Event", type=_PUT if event.kind == "put" else _DELETE, kv=kv_to_wire(event.kv))
    if with_previous and event.previous is not None:
        wire.prev_kv.CopyFrom(kv_to_wire(event.previous))
    return wire


def event_from_wire(event: Any) -> Event:
    """A change from a message."""
    previous = kv_from_wire(event.prev_kv) if event.HasField("prev_kv") else None
    return Event("put" if event.type == _PUT else "delete", kv_from_wire(event.kv), previous)


def compare_to_wire(condition: Compare) -> Any:
    """A comparison as a message."""
    return new(
        "Compare",
        key=to_bytes(condition.key),
        result=_RELATIONS.index(condition.relation),
        target=_TARGETS.index(condition.target),
        **{_OPERANDS[condition.target]: condition.operand},
    )


def compare_from_wire(condition: Any) -> Compare:
    """A comparison from a message; UsageError for what this store does not know."""
    if condition.range_end or not (0 <= condition.result < len(_RELATIONS) and 0 <= condition.target < len(_TARGETS)):
        raise UsageError("compare: expected a single key and a known relation and target")
    target = _TARGETS[condition.target]
    operand = getattr(condition, _OPERANDS[target])
    return Compare(to_text(condition.key), target, _RELATIONS[condition.result], operand)


def op_to_wire(op: Op) -> Any:
    """An operation as a RequestOp."""
    key, end = to_bytes(op.key), to_bytes(op.end)
    if op.kind == "range":
        request = new("RangeRequest", key=key, range_end=end, revision=op.revision, limit=op.limit)
        return new("RequestOp", request_range=request)
    if op.kind == "put":
        request = new("PutRequest", key=key, value=op.value, lease=op.lease, prev_kv=True)
        return new("RequestOp", request_put=request)
    return new("RequestOp", request_delete_range=new("DeleteRangeRequest", key=key, range_end=end, prev_kv=True))


def result_from_wire(response: Any) -> OpResult:
    """The result of one operation from a ResponseOp."""
    kind = response.WhichOneof("choice")
    if kind == "response_range":
        found = response.response_range
        return OpResult(tuple(map(kv_from_wire, found.kvs)), found.count)
    if kind == "response_put":
        put = response.response_put
        previous = (kv_from_wire(put.prev_kv),) if put.HasField("prev_kv") else ()
        return OpResult(previous, len(previous))
    deleted = response.response_delete_range
    return OpResult(tuple(map(kv_from_wire, deleted.prev_kvs)), deleted.deleted)


def range_from_wire(request: Any) -> Op:
    """A RangeRequest as an operation. Limits apply after sorting, so a sorted range reads everything."""
    limit = 0 if request.sort_order else request.limit
    return Op("range", to_text(request.key), to_text(request.range_end), revision=request.revision, limit=limit)


def range_to_wire(request: Any, result: OpResult, header: Any) -> Any:
    """The answer to a RangeRequest, sorted and cut as it asks."""
    kvs = list(result.kvs)
    if request.sort_order and 0 <= request.sort_target < len(_SORT_KEYS):
        name = _SORT_KEYS[request.sort_target]
        kvs.sort(
            key=lambda kv: to_bytes(kv.key) if name == "key" else getattr(kv, name), reverse=request.sort_order == 2
        )
    if request.limit:
        kvs = kvs[: request.limit]
    wire = [] if request.count_only else [kv_to_wire(kv, request.keys_only) for kv in kvs]
    return new("RangeResponse", header=header, kvs=wire, count=result.count, more=len(kvs) < result.count)


def put_from_wire(request: Any) -> Op:
    """A PutRequest as an operation."""
    if request.ignore_value or request.ignore_lease:
        raise UsageError("put: ignore_value and ignore_lease are not known here; send the value and the lease")
    return Op("put", to_text(request.key), value=request.value, lease=request.lease)


def put_to_wire(request: Any, result: OpResult, header: Any) -> Any:
    """The answer to a PutRequest."""
    response = new("PutResponse", header=header)
    if request.prev_kv and result.kvs:
        response.prev_kv.CopyFrom(kv_to_wire(result.kvs[0]))
    return response


def delete_from_wire(request: Any) -> Op:
    """A DeleteRangeRequest as an operation."""
    return Op("delete", to_text(request.key), to_text(request.range_end))


def delete_to_wire(request: Any, result: OpResult, header: Any) -> Any:
    """The answer to a DeleteRangeRequest."""
    previous = [kv_to_wire(kv) for kv in result.kvs] if request.prev_kv else []
    return new("DeleteRangeResponse", header=header, deleted=result.count, prev_kvs=previous)


def op_from_wire(request: Any) -> Op:
    """A RequestOp as an operation; UsageError for nested transactions."""
    kind = request.WhichOneof("choice")
    if kind == "request_range":
        return range_from_wire(request.request_range)
    if kind == "request_put":
        return put_from_wire(request.request_put)
    if kind == "request_delete_range":
        return delete_from_wire(request.request_delete_range)
    raise UsageError(f"transaction: expected range, put or delete operations, got {kind or 'an empty operation'}")


def result_to_wire(request: Any, result: OpResult, header: Any) -> Any:
    """The ResponseOp for one RequestOp."""
    kind = request.WhichOneof("choice")
    if kind == "request_range":
        return new("ResponseOp", response_range=range_to_wire(request.request_range, result, header))
    if kind == "request_put":
        return new("ResponseOp", response_put=put_to_wire(request.request_put, result, header))
    return new("ResponseOp", response_delete_range=delete_to_wire(request.request_delete_range, result, header))
