"""Make ZeroMQ's sockets for one worker, and guard the port at which peers' connections for messages come in."""

from __future__ import annotations

import contextlib
import ctypes
import os
import socket
import struct
import threading

import zmq
from zmq.utils import z85

from resilin._base import host_port
from resilin.distributed.wire.after_fork import track
from resilin.errors import HandshakeError
from resilin.rpc.transports import introduction, wire
from resilin.rpc.transports.introduction import NetworkAddress

USER = b"resilin"
HIGH_WATER = 16  # frames on their way in each of the two sockets, 16 MiB at most; all lanes of a sender share these
INTRODUCTION_S = 10.0  # a stranger that proves nothing is dropped after this, a half-made link, too
MAX_SOCKETS = 1 << 16  # of a worker: three for each lane of each peer
# For long messages, where nothing is said: on a wire that limits nothing 1 to 4 lanes are equally fast; where each
# connection has a share of the rate, 4 are two to three times as fast as 1, and soon opened (docs/design/rpc.md).
LANES_NEAR, LANES_FAR = 1, 4
IO_THREADS = 2  # of ZeroMQ: they share the lanes, and CURVE takes most of a core for a GB/s
END_EVENTS = (
    zmq.EVENT_DISCONNECTED
    | zmq.EVENT_CLOSED
    | zmq.EVENT_CONNECT_RETRIED
    | zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL
    | zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL
    | zmq.EVENT_HANDSHAKE_FAILED_AUTH
)
_NUDGES = "inproc://nudges"
_ATTACH_FILTER, _DETACH_FILTER = 26, 27  # SO_ATTACH_FILTER and SO_DETACH_FILTER (socket(7)), Linux


class Gate:
    """A listening socket at which the kernel drops whoever knocks, except while somebody is expected."""

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        self._lock = threading.Lock()
        self._expected = 0  # guarded by _lock
        self._filter = ctypes.create_string_buffer(struct.pack("=HBBI", 6, 0, 0, 0), 8)  # BPF: return 0, take nothing
        self._set(True)

    def _set(self, shut: bool) -> None:
        with contextlib.suppress(OSError):  # another kernel: it stays open, and passwords alone guard it
            if shut:
                program = struct.pack("@HP", 1, ctypes.addressof(self._filter))
                self._sock.setsockopt(socket.SOL_SOCKET, _ATTACH_FILTER, program)
            else:
                self._sock.setsockopt(socket.SOL_SOCKET, _DETACH_FILTER, 0)

    def __enter__(self) -> None:
        with self._lock:
            self._expected += 1
            if self._expected == 1:
                self._set(False)

    def __exit__(self, *exc_info: object) -> None:
        with self._lock:
            self._expected -= 1
            if not self._expected:
                self._set(True)

    def close(self) -> None:
        """Let go of the socket."""
        self._sock.close()


def lanes_of(card: NetworkAddress, here: str) -> int:
    """How many connections for long messages the worker of that card opens to one of the host `here`."""
    return card.lanes or (LANES_NEAR if card.host_id == here else LANES_FAR)


def _lane_key(secret: str, mark: str, ticket: str, lane: int) -> bytes:
    return introduction.derived(secret, f"client of {mark}", f"{ticket}/{lane}")


def credential(secret: str, ticket: str, lane: int, mark: str, encrypted: bool) -> bytes:
    """What the connection of this lane, with this ticket, is recognized by, at the worker of that mark."""
    made = _lane_key(secret, mark, ticket, lane)
    return zmq.curve_public(z85.encode(made)) if encrypted else made.hex().encode()


def _server_key(secret: str, mark: str) -> bytes:
    return z85.encode(introduction.derived(secret, "server key", mark))


def open_zap(context: zmq.Context[zmq.Socket[bytes]]) -> zmq.Socket[bytes]:
    """The socket that ZeroMQ asks whom to let in (its RFC 27)."""
    zap = context.socket(zmq.REP)
    zap.bind("inproc://zeromq.zap.01")
    return zap


def mechanism_of(request: list[bytes]) -> tuple[bytes, bytes]:
    """What a request of ZAP names: the mechanism, and what `credential` would have made; empty: nothing."""
    mechanism, *given = request[5:]
    if mechanism == b"PLAIN" and len(given) == 2 and given[0] == USER:
        return mechanism, given[1]
    if mechanism == b"CURVE" and len(given) == 1 and len(given[0]) == 32:
        return mechanism, z85.encode(given[0])
    return mechanism, b""


def open_pull(
    context: zmq.Context[zmq.Socket[bytes]], address: str, secret: str, mark: str, encrypted: bool
) -> tuple[zmq.Socket[bytes], str, Gate]:
    """The socket that all messages come to, the endpoint of it on TCP, and the gate before that."""
    pull = context.socket(zmq.PULL)
    for option, value in (
        (zmq.LINGER, 0),
        (zmq.RCVHWM, HIGH_WATER),
        (zmq.MAXMSGSIZE, wire.MAX_FRAME_BYTES),
        (zmq.HANDSHAKE_IVL, int(INTRODUCTION_S * 1000)),
        (zmq.IPV6, int(":" in address)),
    ):
        pull.setsockopt(option, value)
    pull.setsockopt(zmq.ZAP_DOMAIN, USER)
    if encrypted:
        pull.curve_server = 1
        pull.curve_secretkey = _server_key(secret, mark)
    else:
        pull.plain_server = 1
    pull.bind(_NUDGES)
    with introduction.listen(address) as data:
        endpoint = f"tcp://{host_port.join(address, int(data.getsockname()[1]))}"
        gate = Gate(track(socket.socket(fileno=os.dup(data.fileno()))))
        pull.setsockopt(zmq.USE_FD, data.fileno())
        pull.bind(endpoint)
        data.detach()  # it is ZeroMQ's now
    pull.setsockopt(zmq.USE_FD, -1)
    return pull, endpoint, gate


def nudge_pull(context: zmq.Context[zmq.Socket[bytes]]) -> None:
    """Have whoever reads the PULL socket get an empty frame, which is of no peer."""
    with context.socket(zmq.PUSH) as nudge:
        nudge.connect(_NUDGES)
        nudge.send(b"")


def open_push(
    context: zmq.Context[zmq.Socket[bytes]],
    card: NetworkAddress,
    secret: str,
    ticket: str,
    lane: int,
    high_water: int,
    near: bool,
) -> tuple[zmq.Socket[bytes], zmq.Socket[bytes]]:
    """A lane to the worker of that card, with that ticket of it: the socket, and one that tells of its end.

    HandshakeError: the card names no place that ZeroMQ knows.
    """
    push = context.socket(zmq.PUSH)
    for option, value in (
        (zmq.LINGER, 0),
        (zmq.SNDHWM, high_water),
        (zmq.RECONNECT_IVL, -1),
        (zmq.HANDSHAKE_IVL, int(INTRODUCTION_S * 1000)),
        (zmq.TCP_KEEPALIVE, 1),
        (zmq.IPV6, int("[" in card.data)),
    ):
        push.setsockopt(option, value)
    made = _lane_key(secret, card.mark, ticket, lane)
    if card.encrypted:
        push.curve_secretkey = own = z85.encode(made)
        push.curve_publickey = zmq.curve_public(own)
        push.curve_serverkey = zmq.curve_public(_server_key(secret, card.mark))
    else:
        push.plain_username, push.plain_password = USER, made.hex().encode()
    monitor = push.get_monitor_socket(END_EVENTS)
    place = card.near if near else card.data
    try:
        push.connect(place)
    except zmq.ZMQError as error:
        push.disable_monitor()
        for sock in (monitor, push):
            sock.close(0)
        raise HandshakeError(f"messages cannot be sent to {place[:200]!a}: {error}") from None
    return push, monitor
