"""Notice that a peer's host says nothing any more, although its stream is open.

    the peer's process stops     its kernel acknowledges what comes: it is slow, and may go on
    its host stops, or the way   nothing is acknowledged: it is lost

A PING of HTTP/2 is answered by the process, so gRPC itself cannot tell the two; the kernel of this end can. Its pings
are what is to be acknowledged where nothing else is sent.
"""

from __future__ import annotations

from resilin._base import socket_owners
from resilin._base.clock import SYSTEM
from resilin._base.socket_owners import Name

LOOK_S = 1.0
SILENT_S = 10.0
_TIMES = 3  # one or two lost packets are no silence


class Connection:
    """One TCP connection to another host."""

    def __init__(self, own: Name, peer: Name) -> None:
        self._own, self._peer = own, peer
        self._since: float | None = None

    def is_silent(self) -> bool:
        """Return whether nothing has been acknowledged for SILENT_S. Called every LOOK_S or so."""
        times = socket_owners.unanswered(self._own, self._peer)
        if not times:
            self._since = None
            return False
        if self._since is None:
            self._since = SYSTEM.monotonic()
        return times >= _TIMES and SYSTEM.monotonic() - self._since >= SILENT_S


def connection_to(peer: Name) -> Connection | None:
    """Return the connection of this process to `peer`, the newest; None where it is not found."""
    own = socket_owners.own_ends(peer)
    return Connection(own[-1], peer) if own else None
