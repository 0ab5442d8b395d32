"""Facts about this host that several packages must agree on."""

from __future__ import annotations

import os
import socket
from functools import cache

from resilin._base import host_port

_LOCAL_NAMES = ("localhost", "ip6-localhost", "ip6-loopback")
_V6_LOOPBACK = bytes(15) + b"\x01"


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
    """Whether `address`, numeric or a name that stands for loopback everywhere, can be reached from this host only.

    What other names stand for: `is_on_loopback`.
    """
    packed = host_port.packed(address)
    if packed is None:
        return address.lower() in _LOCAL_NAMES
    return packed == _V6_LOOPBACK or (len(packed) == 4 and packed[0] == 127)


def is_on_loopback(name: str) -> bool:
    """Whether all that `name`, or a numeric address, stands for here can be reached from this host only.

    No name of that kind is known: it is not.
    """
    if host_port.packed(name) is not None:
        return is_loopback(name)
    found = addresses_of(name)
    return is_loopback(name) if not found else all(map(is_loopback, found))


def addresses_of(name: str) -> list[str]:
    """The numeric addresses that `name` stands for here, the preferred one first; none when it is not known."""
    try:
        found = socket.getaddrinfo(name, None, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError):  # UnicodeError: a name that cannot be one
        return []
    return list(dict.fromkeys(str(each[4][0]) for each in found))


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


@cache
def memory_bytes() -> int:
    """Physical memory of this host: what others announce beyond it is no state that this process can take in."""
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def cpu_count() -> int:
    """Number of CPUs this process may run on (affinity respected)."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else (os.cpu_count() or 1)
