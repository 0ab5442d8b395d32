"""Set the options of every TCP connection between ranks."""

from __future__ import annotations

import socket

UNREACHABLE_S = 60
"""A peer whose host answers nothing for this long is lost, however long the timeout of a call: a host without power, a
cut link. A process that is merely stopped or busy is not, for its kernel answers. Shorter cuts are healed by TCP."""
_PROBES = 6
_WAKE_BYTES = 512 << 10
_PACKET_BYTES = 64 << 10


def tune(sock: socket.socket) -> None:
    """Send at once; find out when the peer's host is unreachable. An unknown option leaves the system's own limit."""
    if sock.family == getattr(socket, "AF_UNIX", None):
        return
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    pause = max(1, UNREACHABLE_S // _PROBES)
    for name, value in (
        ("TCP_KEEPIDLE", pause),
        ("TCP_KEEPINTVL", pause),
        ("TCP_KEEPCNT", _PROBES - 1),
        ("TCP_USER_TIMEOUT", UNREACHABLE_S * 1000),  # the same while data is on the way, when no probe is sent
    ):
        if hasattr(socket, name):
            sock.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)


def fair(left: int) -> int:
    """Return how many bytes a receiver that sleeps is woken for while `left` are to come: half a mebibyte, or all the
    rest.

    Not for every packet: that doubles the processor time of a large message. What one packet may hold wakes at once.
    """
    if left >= 2 * _WAKE_BYTES:
        return _WAKE_BYTES
    return left if left >= _PACKET_BYTES else 1


class Least:
    """Set how many bytes must have come before `poll` calls a TCP socket readable; 1 at first."""

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        self._now = 1 if sock.family == socket.AF_INET or sock.family == socket.AF_INET6 else 0

    def set(self, count: int) -> None:
        """From now on `count`. No more than will come."""
        if self._now not in (0, count):
            self._sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, count)
            self._now = count
