"""Facts about this host that several packages must agree on."""

from __future__ import annotations

import os
import socket
from functools import cache


@cache
def host_id() -> str:
    """Equal for two processes exactly when they can share memory and Unix sockets: boot id + network namespace.

    Two network namespaces of one machine count as two hosts, because abstract Unix sockets do not cross them.
    """
    try:
        with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
            boot = file.read().strip()
        return f"{boot}-{os.stat('/proc/self/ns/net').st_ino}"
    except OSError:  # no /proc: another POSIX system, where the host's name is the best there is
        return socket.gethostname()


def is_loopback(address: str) -> bool:
    """Whether `address` (a name or a numeric address) can be reached from this host only."""
    return address in ("localhost", "::1", "ip6-localhost") or address.startswith("127.")


def address_towards(name: str, port: int) -> str:
    """This host's address on the way to `name` (a name or a numeric address). OSError when there is no way."""
    try:
        family, _, _, _, address = socket.getaddrinfo(name, port, type=socket.SOCK_DGRAM)[0]
    except UnicodeError as error:  # a label that no name can have
        raise OSError(f"no valid host name: {error}") from None
    with socket.socket(family, socket.SOCK_DGRAM) as probe:
        probe.connect(address)  # sends nothing: asks the routing table
        name, _, *rest = probe.getsockname()
    scope = rest[1] if rest else 0  # of an IPv6 address of the link: the interface's number
    return f"{name}%{socket.if_indextoname(scope)}" if scope and "%" not in name else str(name)


def cpu_count() -> int:
    """Number of CPUs this process may run on (affinity respected)."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else (os.cpu_count() or 1)
