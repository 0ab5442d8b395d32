"""Carries out readiness probes as kubelets do: a connection, or gRPC's health check."""

from __future__ import annotations

import socket
from collections.abc import Mapping
from typing import Any

import grpc

from resilin._base import host_port

_TIMEOUT_S = 1.0


def is_ready(container: Mapping[str, Any], address: str) -> bool:
    """Carry out the readiness probe of a container; one without is ready."""
    probe = container.get("readinessProbe") or {}
    if "tcpSocket" in probe:
        try:
            with socket.create_connection((address, int(probe["tcpSocket"]["port"])), _TIMEOUT_S):
                return True
        except OSError:
            return False
    if "grpc" in probe:
        return _is_serving(host_port.join(address, int(probe["grpc"]["port"])))
    return True


def _is_serving(target: str) -> bool:
    with grpc.insecure_channel(target) as channel:
        check = channel.unary_unary("/grpc.health.v1.Health/Check")
        try:
            return bytes(check(b"", timeout=_TIMEOUT_S)) == b"\x08\x01"
        except grpc.RpcError:
            return False
