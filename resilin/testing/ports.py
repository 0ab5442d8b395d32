"""Ports for servers that other programs start: held from the moment they are chosen until nobody needs them.

A port that is bound, found out, and let go may be another program's before the server has it. Here a socket keeps it:
bound, and not listening, with SO_REUSEADDR, so that the kernel gives it to nobody who asks for any port, neither to
servers nor to clients, while a server that names it (with SO_REUSEADDR, as Go's, gRPC's, libuv's and Python's
`create_server` have it) may listen on it.
"""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Iterator


@contextlib.contextmanager
def held(count: int = 1, host: str = "127.0.0.1") -> Iterator[list[int]]:
    """`count` ports of `host`, a numeric address; others' until the block ends."""
    with contextlib.ExitStack() as stack:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        holders = [stack.enter_context(socket.socket(family)) for _ in range(count)]
        for one in holders:
            one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            one.bind((host, 0))
        yield [int(one.getsockname()[1]) for one in holders]
