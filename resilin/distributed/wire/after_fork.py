"""Close sockets that a forked child must not keep.

A peer's death is known by its sockets closing, so a copy in a child (a data loader's worker, say) would hide it, and a
copied listener would take connections that nobody answers. The child closes its copies; the parent's stay open.
"""

from __future__ import annotations

import os
import socket
import weakref

_OPEN: weakref.WeakSet[socket.socket] = weakref.WeakSet()


def track(sock: socket.socket) -> socket.socket:
    """Close `sock` in every child that this process forks from now on."""
    _OPEN.add(sock)
    return sock


def _close_in_child() -> None:
    for sock in list(_OPEN):
        sock.close()  # no shutdown: the connection belongs to the parent
    _OPEN.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_close_in_child)
