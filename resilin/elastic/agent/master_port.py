"""Hold a port for rank 0, so that it is nobody else's between the moment it is chosen and that rank 0 listens there.

A socket that is bound and does not listen keeps it from whoever asks for any port. Who names it is kept out by what the
socket allows, which counts for as long as it is bound (ip(7), socket(7)):

  SO_REUSEPORT   a process of this user that asks so may bind, too: rank 0 does, where it listens by `dist.TCPStore`.
  SO_REUSEADDR   anybody may who asks so. PyTorch and others ask for nothing else, so their programs need it; another
                 program may be faster then. Rank 0 fails in that case, and the next generation has another port.
"""

from __future__ import annotations

import errno
import socket

from resilin._base import socket_owners
from resilin.errors import StoreError

_UNUSED = "127.254.253.252"  # of this host, as all of 127.0.0.0/8, and nobody listens there alone


class MasterPort:
    """A held port of all addresses of this host; `int()` of it is its number. Its owner closes it.

    port: which, 0: any. address: where peers look for rank 0. ours: rank 0 listens by `dist.TCPStore` alone.
    StoreError when the port is in use.
    """

    def __init__(self, port: int = 0, address: str = "127.0.0.1", *, ours: bool = False) -> None:
        self._asked, self._address, self._ours = port, address, ours
        self._socket = self._hold(port)

    def __int__(self) -> int:
        return int(self._socket.getsockname()[1])

    def renew(self) -> str:
        """Take another port where somebody listens on this one, and return a line that says so; else an empty one.

        For a moment at which rank 0 does not run. A port that was asked for by its number stays.
        """
        try:
            users = set() if self._asked else socket_owners.listening_users(self._address, int(self))
        except OSError:  # the kernel does not say
            return ""
        if not users:
            return ""
        taken = int(self)
        former, self._socket = self._socket, self._hold(0)
        former.close()
        whose = ", ".join(str(user) for user in sorted(users))
        return f"a process of user {whose} took MASTER_PORT {taken} before rank 0 listened there: {int(self)} is next"

    def close(self) -> None:
        """Let the port go."""
        self._socket.close()

    def __enter__(self) -> MasterPort:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _hold(self, port: int) -> socket.socket:
        """A socket that holds `port`, or any for 0."""
        try:
            holder = _bound_for_us(port) if self._ours else None
            if holder is None:
                self._ours = False
                if port:
                    _refuse_another_holder(port)
                holder = _bound(port, reuse=True)
            return holder
        except OSError as error:
            why = "is in use" if error.errno == errno.EADDRINUSE else f"cannot be used: {error.strerror}"
            raise StoreError(f"--master-port {port} {why}; choose another one") from None


def _bound_for_us(port: int) -> socket.socket | None:
    """A socket that lets only processes of this user bind; None where the system does not let them in afterwards."""
    try:
        # without SO_REUSEADDR: where the first socket on a port has it, the kernel does not look again later
        holder = _bound(port, reuse=False)
    except OSError as error:
        if error.errno != errno.EADDRINUSE:
            raise
        # with it where connections of an earlier run are still closing (TIME_WAIT): their server has listened, and
        # from then on the kernel looks
        _refuse_another_holder(port)
        holder = _bound(port, reuse=True)
    holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, True)
    holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, False)
    try:
        with socket.socket() as rank_0:  # as `dist.TCPStore` does it
            rank_0.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, True)
            rank_0.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, True)
            rank_0.bind(("127.0.0.1", holder.getsockname()[1]))
    except OSError:  # a kernel that keeps to what a socket was when it was bound
        holder.close()
        return None
    return holder


def _bound(port: int, *, reuse: bool) -> socket.socket:
    holder = _socket()
    try:
        holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, reuse)
        holder.bind(("", port))
    except OSError:
        holder.close()
        raise
    return holder


def _refuse_another_holder(port: int) -> None:
    """OSError when somebody has `port` at all addresses; connections that are closing have it at one they used."""
    with socket.socket() as probe:
        probe.bind((_UNUSED, port))


def _socket() -> socket.socket:
    """A socket for both kinds of addresses, where there is IPv6."""
    try:
        with socket.socket(socket.AF_INET6, socket.SOCK_STREAM) as probe:
            probe.bind(("::1", 0))
    except OSError:
        return socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    holder = socket.socket(socket.AF_INET6, socket.SOCK_STREAM)
    holder.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
    return holder
