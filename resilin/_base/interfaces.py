"""Which of this host's addresses it tells its peers, where it has several network interfaces.

In this order: the address of the interface that RESILIN_IFNAME (or GLOO_SOCKET_IFNAME, which PyTorch reads) names;
RESILIN_HOST, which `elastic-run` sets; the address from which the way to the job's store starts.
"""

from __future__ import annotations

import fcntl
import os
import socket
import struct

from resilin._base import env, host
from resilin.errors import UsageError

_VARIABLES = ("RESILIN_IFNAME", "GLOO_SOCKET_IFNAME")
_SIOCGIFADDR = 0x8915
_IN6_TABLE = "/proc/net/if_inet6"
_LINK_LOCAL = 0x20  # a scope in that table


def own_address(server: tuple[str, int] | None = None) -> str:
    """The address at which peers reach this process; `server`: of the store that all ranks meet in, if it has one.

    Loopback where the store is on loopback, for then all ranks are on this host, or where nothing else is known.
    UsageError for an interface that is not there or has no address; OSError when there is no way to `server`.
    """
    if server is not None and host.is_on_loopback(server[0]):
        return "127.0.0.1"
    for variable in _VARIABLES:
        name = env.get(variable)
        if name is not None:
            return address_of(name, variable, ipv6=server is not None and ":" in server[0])
    given = env.get("RESILIN_HOST")
    if given is not None:
        return given
    return "127.0.0.1" if server is None else host.address_towards(*server)


def chosen_by() -> str:
    """The variable, with its value, that `own_address` follows here; empty when none is set."""
    return next((f"{name}={value}" for name in (*_VARIABLES, "RESILIN_HOST") if (value := env.get(name))), "")


def address_of(name: str, variable: str = "RESILIN_IFNAME", *, ipv6: bool = False) -> str:
    """The address of interface `name`: its IPv4 one, or with `ipv6` its IPv6 one, if it has both.

    Of IPv6 addresses a global one goes before one of the link, which ends in `%` and the interface's name.
    UsageError, which names `variable`: no such interface, or it has no address.
    """
    there = [known for _, known in socket.if_nameindex()]
    if name not in there:
        raise UsageError(f"{variable}={name}: this host has no such interface; it has {', '.join(there)}")
    found = [address for address in (_ipv4(name), _ipv6(name)) if address]
    if not found:
        raise UsageError(f"{variable}={name}: no address of it is known (is it up?); set RESILIN_HOST to one instead")
    return found[-1] if ipv6 else found[0]


def _ipv4(name: str) -> str | None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            answer = fcntl.ioctl(probe, _SIOCGIFADDR, struct.pack("256s", os.fsencode(name)[:15]))
        except OSError:  # it has none, or this is not Linux
            return None
    return socket.inet_ntoa(answer[20:24])


def _ipv6(name: str) -> str | None:
    """From the kernel's table: address, number, prefix, scope, flags, name."""
    try:
        with open(_IN6_TABLE, encoding="ascii") as table:
            rows = [line.split() for line in table]
    except OSError:
        return None
    own = sorted((int(scope, 16), bytes.fromhex(digits)) for digits, _, _, scope, _, device in rows if device == name)
    if not own:
        return None
    scope, packed = own[0]
    text = socket.inet_ntop(socket.AF_INET6, packed)
    return f"{text}%{name}" if scope == _LINK_LOCAL else text


def socket_address(address: str, port: int, own: str = "") -> tuple[str, int] | tuple[str, int, int, int]:
    """What `bind` and `connect` take for a numeric address.

    A peer's address of the link ends in the peer's name of it: here `own`'s counts, this process's address.
    """
    bare, _, scope = address.partition("%")
    scope = own.partition("%")[2] or scope
    return (bare, port, 0, socket.if_nametoindex(scope)) if "%" in address else (address, port)
