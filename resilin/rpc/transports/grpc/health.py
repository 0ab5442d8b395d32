"""Tell health by grpc.health.v1. Its messages are built at import from a table: no generated code, no .proto file.

In a private descriptor pool, as the store's are (`resilin.store.messages`), so another health service in the process
does no harm. Field numbers and names: grpc-proto's grpc/health/v1/health.proto.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from google.protobuf.message import DecodeError

from resilin.store.grpc_quiet import grpc

PACKAGE = "grpc.health.v1"
CHECK, WATCH = f"/{PACKAGE}.Health/Check", f"/{PACKAGE}.Health/Watch"
SERVING, NOT_SERVING, SERVICE_UNKNOWN = 1, 2, 3
_MAX_WATCHERS = 16  # each takes a thread
_MAX_PROBE_BYTES = 1 << 10


def _build() -> tuple[Any, Any]:
    kinds = descriptor_pb2.FieldDescriptorProto
    file = descriptor_pb2.FileDescriptorProto(name="resilin_health.proto", package=PACKAGE, syntax="proto3")
    request = file.message_type.add(name="HealthCheckRequest")
    request.field.add(name="service", number=1, type=kinds.TYPE_STRING, label=kinds.LABEL_OPTIONAL)
    response = file.message_type.add(name="HealthCheckResponse")
    response.field.add(
        name="status",
        number=1,
        type=kinds.TYPE_ENUM,
        label=kinds.LABEL_OPTIONAL,
        type_name=f".{PACKAGE}.HealthCheckResponse.ServingStatus",
    )
    status = response.enum_type.add(name="ServingStatus")
    for number, name in enumerate(("UNKNOWN", "SERVING", "NOT_SERVING", "SERVICE_UNKNOWN")):
        status.value.add(name=name, number=number)
    pool = descriptor_pool.DescriptorPool()
    pool.AddSerializedFile(file.SerializeToString())
    found = [pool.FindMessageTypeByName(f"{PACKAGE}.{name}") for name in ("HealthCheckRequest", "HealthCheckResponse")]
    return message_factory.GetMessageClass(found[0]), message_factory.GetMessageClass(found[1])


Request, Response = _build()


class HealthService:
    """The health of one worker. service: another name that it is asked for by. serves: whether it does."""

    def __init__(self, service: str, serves: Callable[[], bool]) -> None:
        self._service, self._serves = service, serves
        self._lock = threading.Lock()
        self._watchers = 0  # guarded by _lock

    def check(self, raw: bytes, context: Any) -> bytes:
        """Answer grpc.health.v1.Health/Check."""
        try:
            if len(raw) > _MAX_PROBE_BYTES:
                raise DecodeError("too long")
            service = Request.FromString(raw).service
        except DecodeError:
            context.abort(grpc.StatusCode.INVALID_ARGUMENT, "no HealthCheckRequest")
        if service not in ("", self._service):
            context.abort(grpc.StatusCode.NOT_FOUND, "unknown service")
        found: bytes = Response(status=SERVING if self._serves() else NOT_SERVING).SerializeToString()
        return found

    def watch(self, raw: bytes, context: Any) -> Iterator[bytes]:
        """Answer grpc.health.v1.Health/Watch."""
        with self._lock:
            full = self._watchers == _MAX_WATCHERS
            self._watchers += not full
        if full:
            context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, "too many watch the health of this worker")
        gone = threading.Event()
        try:
            yield self.check(raw, context)
            if context.add_callback(gone.set):
                gone.wait()
        finally:
            with self._lock:
                self._watchers -= 1
