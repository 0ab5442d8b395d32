"""Which address of this machine others can reach. Asks the kernel for routes; sends nothing."""

from __future__ import annotations

import socket

from resilin._base.host import addresses_of, is_loopback
from resilin.errors import UsageError

# addresses reserved for documentation (RFC 5737, RFC 3849): only the default route leads there
_ELSEWHERE = ((socket.AF_INET, "198.51.100.1"), (socket.AF_INET6, "2001:db8::1"))
_ANY = ("0.0.0.0", "::")  # a server may listen there, but nobody can be told to connect to it


def outward() -> str:
    """The address of the default route's interface, else the one that this host's name stands for.

    UsageError when neither is there or both are loopback: the user has to name one.
    """
    for family, target in _ELSEWHERE:
        try:
            with socket.socket(family, socket.SOCK_DGRAM) as probe:
                probe.connect((target, 9))
                return str(probe.getsockname()[0])
        except OSError:  # no such route
            continue
    name = socket.gethostname()
    for address in addresses_of(name):
        if not is_loopback(address):
            return address
    raise UsageError(
        f"this node's address is unknown: there is no default route, and its name {name!r} stands for no address "
        "beyond loopback. Give the address at which the other nodes reach it: --local-addr ADDRESS"
    )


def check_own(host: str) -> None:
    """UsageError unless `host`, given as --local-addr, is an address of this node or a name that stands for one."""
    if not (found := addresses_of(host)):
        raise UsageError(f"--local-addr: {host!r} is no address, and no name that stands for one")
    if found[0] in _ANY or not is_own(host):
        raise UsageError(
            f"--local-addr {host}: expected an address of this node, at which others reach it (`ip address` shows "
            "them); leave the flag out to use the one towards the endpoint"
        )


def is_loopback_name(host: str) -> bool:
    """Whether `host` is a machine's name, not localhost or an address, that stands for loopback here.

    Debian's /etc/hosts makes a machine's own name so; the name stands for another address everywhere else.
    """
    if host.partition(".")[0] in ("localhost", "ip6-localhost", "ip6-loopback"):
        return False
    found = addresses_of(host)
    return bool(found) and is_loopback(found[0]) and not _is_literal(host)


def address_of(host: str) -> str:
    """The address that `host`, a known name, stands for here."""
    return addresses_of(host)[0]


def is_own(host: str) -> bool:
    """Whether `host` names an address of this machine."""
    try:
        family, kind, _, _, address = socket.getaddrinfo(host, 0, type=socket.SOCK_STREAM)[0]
        with socket.socket(family, kind) as probe:
            probe.bind(address)
        return True
    except (OSError, UnicodeError):  # UnicodeError: no name at all
        return False


def _is_literal(host: str) -> bool:
    try:
        socket.getaddrinfo(host, None, flags=socket.AI_NUMERICHOST)
        return True
    except (OSError, UnicodeError):
        return False
