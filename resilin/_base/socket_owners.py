"""What the kernel says of TCP sockets of this host: whose they are, by user id, and whether the other end's answers.

Linux; of this network namespace.

The kernel is asked for the one socket (sock_diag(7): 15 us). Where it does not answer that, its tables are read
(/proc/net/tcp: 8 ms and more where memory is large, for they have a place for every connection that might be).
"""

from __future__ import annotations

import contextlib
import errno
import os
import socket
import struct
from functools import cache
from typing import Any

Name = tuple[Any, ...]  # an address and a port, and what else `getsockname` gives

_LISTENS = 10  # a state of a socket
_SENDS_AGAIN, _PROBES = 1, 4  # what its timer is for: unacknowledged bytes, a receiver that had no room
_SOCK_DIAG, _BY_FAMILY, _ERROR, _REQUEST = 4, 20, 2, 1  # of netlink
_HEAD = struct.Struct("=IHHII")  # of a message: length, kind, flags, number, sender
_ASKED = struct.Struct("=BBBBI")  # family, protocol, extensions, padding, states
_NAMES = struct.Struct("!HH16s16s")  # ports and addresses of both ends
_ANY = struct.pack("=I8s", 0, b"\xff" * 8)  # interface, cookie
_FOUND = struct.Struct("=BBBB48xIIIII")  # family, state, timer, retransmits, names; expires, queues, user, inode
_MAPPED = bytes(10) + b"\xff\xff"  # ::ffff:a.b.c.d, an IPv4 address on an IPv6 socket


def owner_of(end: Name, other: Name) -> int | None:
    """User id of the process that holds `end` of a connection to `other`. OSError: the kernel does not say.

    None: nobody (closed, or not accepted yet), or it was not seen: the tables may skip rows while connections come and
    go.
    """
    if not answers():
        return _read_owner(end, other)
    found = _ask(end, other)
    return None if found is None or found[0] == _LISTENS else found[1]


def listening_users(host: str, port: int) -> set[int]:
    """User ids of those who would be given a connection to `port` of an address of `host`, one of this host's.

    OSError: the kernel does not say, or there is no such name.
    """
    places: list[Name] = [name[:2] for *_, name in socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)]
    if not answers():
        return _read_listening([*places, ("0.0.0.0", port), ("::", port)])
    found = [_ask(place, ("::" if ":" in str(place[0]) else "0.0.0.0", 0)) for place in places]
    return {each[1] for each in found if each is not None and each[0] == _LISTENS and each[1] is not None}


def own_ends(other: Name) -> list[Name]:
    """This process's ends of connections to `other`."""
    found: list[Name] = []
    with contextlib.suppress(FileNotFoundError):
        for number in os.listdir("/proc/self/fd"):
            with contextlib.suppress(OSError), _copy(int(number)) as sock:  # it is none, or was closed meanwhile
                if sock.family in (socket.AF_INET, socket.AF_INET6) and _is_same(sock.getpeername(), other):
                    found.append(sock.getsockname())
    return found


def unanswered(end: Name, other: Name) -> int | None:
    """How often in a row the kernel has sent from `end` to `other` what that host has not acknowledged.

    0: all is acknowledged, also where the process there takes nothing: its kernel answers. None: there is no such
    connection, or this kernel does not say.
    """
    if not answers():
        return None
    found = _look(end, other)
    if found is None:
        return None
    _, _, timer, times, *_ = found
    return int(times) if timer in (_SENDS_AGAIN, _PROBES) else 0


def _copy(number: int) -> socket.socket:
    """Another descriptor of the socket that `number` is one of. OSError: it is no socket."""
    copy = os.dup(number)
    try:
        return socket.socket(fileno=copy)
    except OSError:
        os.close(copy)
        raise


def _is_same(name: Name, other: Name) -> bool:
    return name[1] == other[1] and _plain(name) == _plain(other)


@cache
def answers() -> bool:
    """Return whether the kernel answers questions for one socket: asked for one that is there."""
    with contextlib.suppress(OSError, AttributeError), socket.socket(socket.AF_INET) as sock:
        sock.bind(("127.0.0.1", 0))
        sock.listen(1)
        if _ask(sock.getsockname(), ("0.0.0.0", 0)) == (_LISTENS, os.geteuid()):
            return True
    return False


def _ask(end: Name, other: Name) -> tuple[int, int | None] | None:
    """State and user of the socket whose end this is, or that listens there. No user: it is in nobody's hands."""
    found = _look(end, other)
    if found is None:
        return None
    _, state, _, _, _, _, _, user, inode = found
    return state, user if inode else None


def _look(end: Name, other: Name) -> tuple[int, ...] | None:
    """What the kernel says of the socket whose end this is, or that listens there: the fields of _FOUND."""
    ends = [_plain(end), _plain(other)]
    family = socket.AF_INET if all(len(packed) == 4 for packed in ends) else socket.AF_INET6
    addresses = [packed.ljust(16, b"\0") for packed in ends]
    body = _ASKED.pack(family, socket.IPPROTO_TCP, 0, 0, 0xFFFFFFFF) + _NAMES.pack(end[1], other[1], *addresses) + _ANY
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_CLOEXEC, _SOCK_DIAG) as kernel:
        kernel.settimeout(1.0)
        kernel.send(_HEAD.pack(_HEAD.size + len(body), _BY_FAMILY, _REQUEST, 1, 0) + body)
        answer = kernel.recv(1 << 13)
    kind = _HEAD.unpack_from(answer)[1]
    if kind == _ERROR:
        (number,) = struct.unpack_from("=i", answer, _HEAD.size)
        if number == -errno.ENOENT:
            return None
        raise OSError(-number, os.strerror(-number))
    return _FOUND.unpack_from(answer, _HEAD.size)


def _plain(name: Name) -> bytes:
    """The address of `name`; an IPv4 address on an IPv6 socket is one of IPv4."""
    host = name[0].partition("%")[0]
    packed = socket.inet_pton(socket.AF_INET6 if ":" in host else socket.AF_INET, host)
    return packed[len(_MAPPED) :] if packed.startswith(_MAPPED) else packed


def _read_owner(end: Name, other: Name) -> int | None:
    for table, mapped in (("tcp", False), ("tcp6", True)):
        ends = [_table_address(end, mapped), _table_address(other, mapped)]
        if None in ends:
            continue
        with open(f"/proc/net/{table}", encoding="ascii") as rows:
            for words in map(str.split, rows):
                if words[1:3] == ends:
                    return None if words[9] == "0" else int(words[7])  # inode 0: the user shown is not one
    return None


def _read_listening(places: list[Name]) -> set[int]:
    users: set[int] = set()
    for table, mapped in (("tcp", False), ("tcp6", True)):
        wanted = {_table_address(name, mapped) for name in places} - {None}
        with contextlib.suppress(FileNotFoundError), open(f"/proc/net/{table}", encoding="ascii") as rows:
            listening = [w for w in map(str.split, rows) if w[3] == f"{_LISTENS:02X}" and w[1] in wanted]
            users.update(int(words[7]) for words in listening)
    return users


def _table_address(name: Name, ipv6: bool) -> str | None:
    """`name` as /proc/net shows it: native words in hexadecimal; None when it cannot be in that table."""
    packed = _plain(name)
    if ipv6 and len(packed) == 4:
        packed = _MAPPED + packed
    if len(packed) != (16 if ipv6 else 4):
        return None
    return "".join(f"{word:08X}" for (word,) in struct.iter_unpack("=I", packed)) + f":{name[1]:04X}"
