"""Say what gRPC's channels and servers are made with."""

from __future__ import annotations

from resilin._base import socket_owners
from resilin.rpc.transports import wire
from resilin.rpc.transports.grpc.handshake import INTRODUCTION_S

SERVICE = "resilin.rpc.Transport"
CONNECT = f"/{SERVICE}/Connect"
_PING_MS = 5_000  # of a stream on which nothing comes
# How long a process may leave a ping without an answer. It is stopped, as every transport lets it be, where the kernel
# can be asked whether its host still answers (`silence`); elsewhere that host may have gone.
_STOPPED_MS, _SILENT_MS = 3_600_000, 60_000


def _both() -> list[tuple[str, int]]:
    patience_ms = _STOPPED_MS if socket_owners.answers() else _SILENT_MS
    return [
        ("grpc.max_receive_message_length", wire.MAX_FRAME_BYTES),
        ("grpc.max_send_message_length", wire.MAX_FRAME_BYTES),
        ("grpc.max_metadata_size", 8 << 10),
        ("grpc.keepalive_time_ms", _PING_MS),
        ("grpc.keepalive_timeout_ms", patience_ms),  # also how long a full window may stay so (TCP_USER_TIMEOUT)
        ("grpc.http2.ping_timeout_ms", patience_ms),
        ("grpc.keepalive_permit_without_calls", 1),
        ("grpc.http2.max_pings_without_data", 0),
        ("grpc.http2.max_frame_size", wire.MAX_FRAME_BYTES),  # fewer headers for each chunk
        ("grpc.http2.lookahead_bytes", 4 << 20),
    ]


def server_options() -> list[tuple[str, int]]:
    """Of the server."""
    return [
        *_both(),
        ("grpc.so_reuseport", 0),
        ("grpc.max_concurrent_streams", 4),  # of a connection: a link needs one, a probe one
        ("grpc.max_connection_idle_ms", int(INTRODUCTION_S * 1000)),  # a connection without a stream
        ("grpc.server_handshake_timeout_ms", int(INTRODUCTION_S * 1000)),
        ("grpc.http2.min_recv_ping_interval_without_data_ms", 1_000),
    ]


def channel_options() -> list[tuple[str, int | str]]:
    """Of a channel, which is one link's."""
    return [
        *_both(),
        ("grpc.use_local_subchannel_pool", 1),  # a connection for each link
        ("grpc.enable_http_proxy", 0),
        ("grpc.enable_retries", 0),
    ]
