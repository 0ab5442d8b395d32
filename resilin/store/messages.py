"""The messages of etcd v3's public gRPC API, built at import from one table: no generated code, no .proto file.

Generated code ties a package to one protobuf runtime; these classes work with every protobuf from 4 on. They live in a
private descriptor pool, so another etcd client in the process that registers `rpc.proto` does no harm. Field numbers
and names: etcd's api/etcdserverpb/rpc.proto, api/mvccpb/kv.proto. Fields that nobody here reads are left out.
"""

from __future__ import annotations

from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

_PACKAGE = "etcdserverpb"

# Message: number type name. `*` marks a repeated field, `|` one of a choice; an indented line continues the one before.
_SCHEMA = """
KeyValue: 1 bytes key, 2 int64 create_revision, 3 int64 mod_revision, 4 int64 version, 5 bytes value, 6 int64 lease
Event: 1 int32 type, 2 KeyValue kv, 3 KeyValue prev_kv
ResponseHeader: 1 uint64 cluster_id, 2 uint64 member_id, 3 int64 revision, 4 uint64 raft_term

RangeRequest: 1 bytes key, 2 bytes range_end, 3 int64 limit, 4 int64 revision, 5 int32 sort_order, 6 int32 sort_target,
 7 bool serializable, 8 bool keys_only, 9 bool count_only
RangeResponse: 1 ResponseHeader header, 2 *KeyValue kvs, 3 bool more, 4 int64 count
PutRequest: 1 bytes key, 2 bytes value, 3 int64 lease, 4 bool prev_kv, 5 bool ignore_value, 6 bool ignore_lease
PutResponse: 1 ResponseHeader header, 2 KeyValue prev_kv
DeleteRangeRequest: 1 bytes key, 2 bytes range_end, 3 bool prev_kv
DeleteRangeResponse: 1 ResponseHeader header, 2 int64 deleted, 3 *KeyValue prev_kvs
RequestOp: 1 |RangeRequest request_range, 2 |PutRequest request_put, 3 |DeleteRangeRequest request_delete_range,
 4 |TxnRequest request_txn
ResponseOp: 1 |RangeResponse response_range, 2 |PutResponse response_put, 3 |DeleteRangeResponse response_delete_range
Compare: 1 int32 result, 2 int32 target, 3 bytes key, 4 |int64 version, 5 |int64 create_revision, 6 |int64 mod_revision,
 7 |bytes value, 8 |int64 lease, 64 bytes range_end
TxnRequest: 1 *Compare compare, 2 *RequestOp success, 3 *RequestOp failure
TxnResponse: 1 ResponseHeader header, 2 bool succeeded, 3 *ResponseOp responses
CompactionRequest: 1 int64 revision, 2 bool physical
CompactionResponse: 1 ResponseHeader header

WatchCreateRequest: 1 bytes key, 2 bytes range_end, 3 int64 start_revision, 4 bool progress_notify, 5 *int32 filters,
 6 bool prev_kv, 7 int64 watch_id, 8 bool fragment
WatchCancelRequest: 1 int64 watch_id
WatchProgressRequest:
WatchRequest: 1 |WatchCreateRequest create_request, 2 |WatchCancelRequest cancel_request,
 3 |WatchProgressRequest progress_request
WatchResponse: 1 ResponseHeader header, 2 int64 watch_id, 3 bool created, 4 bool canceled, 5 int64 compact_revision,
 6 string cancel_reason, 7 bool fragment, 11 *Event events

LeaseGrantRequest: 1 int64 TTL, 2 int64 ID
LeaseGrantResponse: 1 ResponseHeader header, 2 int64 ID, 3 int64 TTL, 4 string error
LeaseRevokeRequest: 1 int64 ID
LeaseRevokeResponse: 1 ResponseHeader header
LeaseKeepAliveRequest: 1 int64 ID
LeaseKeepAliveResponse: 1 ResponseHeader header, 2 int64 ID, 3 int64 TTL
LeaseTimeToLiveRequest: 1 int64 ID, 2 bool keys
LeaseTimeToLiveResponse: 1 ResponseHeader header, 2 int64 ID, 3 int64 TTL, 4 int64 grantedTTL, 5 *bytes keys
LeaseLeasesRequest:
LeaseStatus: 1 int64 ID
LeaseLeasesResponse: 1 ResponseHeader header, 2 *LeaseStatus leases

AuthenticateRequest: 1 string name, 2 string password
AuthenticateResponse: 1 ResponseHeader header, 2 string token
AlarmRequest:
AlarmResponse: 1 ResponseHeader header
StatusRequest:
StatusResponse: 1 ResponseHeader header, 2 string version, 3 int64 dbSize, 4 uint64 leader, 5 uint64 raftIndex,
 6 uint64 raftTerm
"""

# method: (service, request, response)
METHODS = {
    "Range": ("KV", "RangeRequest", "RangeResponse"),
    "Put": ("KV", "PutRequest", "PutResponse"),
    "DeleteRange": ("KV", "DeleteRangeRequest", "DeleteRangeResponse"),
    "Txn": ("KV", "TxnRequest", "TxnResponse"),
    "Compact": ("KV", "CompactionRequest", "CompactionResponse"),
    "LeaseGrant": ("Lease", "LeaseGrantRequest", "LeaseGrantResponse"),
    "LeaseRevoke": ("Lease", "LeaseRevokeRequest", "LeaseRevokeResponse"),
    "LeaseKeepAlive": ("Lease", "LeaseKeepAliveRequest", "LeaseKeepAliveResponse"),
    "LeaseTimeToLive": ("Lease", "LeaseTimeToLiveRequest", "LeaseTimeToLiveResponse"),
    "LeaseLeases": ("Lease", "LeaseLeasesRequest", "LeaseLeasesResponse"),
    "Watch": ("Watch", "WatchRequest", "WatchResponse"),
    "Authenticate": ("Auth", "AuthenticateRequest", "AuthenticateResponse"),
    "Alarm": ("Maintenance", "AlarmRequest", "AlarmResponse"),
    "Status": ("Maintenance", "StatusRequest", "StatusResponse"),
}


def _add_field(message: Any, text: str) -> None:
    kinds = descriptor_pb2.FieldDescriptorProto
    number, kind, name = text.split()
    field = message.field.add(name=name, number=int(number), label=kinds.LABEL_OPTIONAL)
    if kind.startswith("*"):
        field.label = kinds.LABEL_REPEATED
    elif kind.startswith("|"):
        if not message.oneof_decl:
            message.oneof_decl.add(name="choice")
        field.oneof_index = 0
    kind = kind.lstrip("*|")
    if kind[0].isupper():
        field.type, field.type_name = kinds.TYPE_MESSAGE, f".{_PACKAGE}.{kind}"
    else:
        field.type = getattr(kinds, f"TYPE_{kind.upper()}")


def _build() -> dict[str, Any]:
    file = descriptor_pb2.FileDescriptorProto(name="resilin_store.proto", package=_PACKAGE, syntax="proto3")
    for line in filter(None, _SCHEMA.replace("\n ", " ").splitlines()):
        name, _, fields = line.partition(":")
        message = file.message_type.add(name=name)
        for text in filter(None, (field.strip() for field in fields.split(","))):
            _add_field(message, text)
    pool = descriptor_pool.DescriptorPool()
    pool.AddSerializedFile(file.SerializeToString())
    return {
        message.name: message_factory.GetMessageClass(pool.FindMessageTypeByName(f"{_PACKAGE}.{message.name}"))
        for message in file.message_type
    }


_CLASSES = _build()


def cls(name: str) -> Any:
    """The message class called `name`."""
    return _CLASSES[name]


def new(name: str, /, **fields: Any) -> Any:
    """A new message of class `name`."""
    return _CLASSES[name](**fields)


def path(method: str) -> str:
    """The gRPC path of `method`, e.g. "/etcdserverpb.KV/Range"."""
    return f"/{_PACKAGE}.{METHODS[method][0]}/{method}"
