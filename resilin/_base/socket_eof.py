"""Whether the peer of a connection has closed its end, without reading from it."""

from __future__ import annotations

import select
import socket

_CLOSED = getattr(select, "POLLRDHUP", 0) | select.POLLHUP | select.POLLERR
_TELLS = hasattr(select, "POLLRDHUP")  # Linux; elsewhere the end of the stream has to be looked at


def hung_up(sock: socket.socket, within_s: float = 0.0) -> bool:
    """Whether the peer has closed its end, or does so within `within_s`.

    Where the kernel has no event for it, a peer that sent something before it closed is not noticed.
    """
    poller = select.poll()
    poller.register(sock, _CLOSED if _TELLS else _CLOSED | select.POLLIN)
    found = poller.poll(within_s * 1000)
    if not found:
        return False
    return bool(found[0][1] & _CLOSED) or _at_end(sock)


def _at_end(sock: socket.socket) -> bool:
    try:
        return not sock.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT)
    except OSError as error:
        return not isinstance(error, BlockingIOError)
