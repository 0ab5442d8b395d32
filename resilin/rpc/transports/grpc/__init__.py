"""Carry messages over gRPC. Start in `transport.py`."""

from resilin.rpc.transports.grpc.transport import GrpcTransport

__all__ = ["GrpcTransport"]
