"""Keep the store on a TCP port: one rank serves, all ranks are clients. Authenticated before a byte is interpreted.

A request is one frame with an operation's number and its fields, an answer one frame with a status and its fields; a
field is 4 bytes of length and the bytes. The server is a `HashStore` with one thread per client.

Without a secret only loopback is served, and only to processes of the same user (`_base.auth.require_same_user`).
"""

from __future__ import annotations

import contextlib
import errno
import socket
import struct
import threading
from collections.abc import Callable, Sequence
from datetime import timedelta
from numbers import Integral

from resilin._base import auth, env, host, host_port
from resilin._base import secret as job_secret
from resilin._base.clock import SYSTEM, Deadline, spell
from resilin._base.framing import recv_frame, send_frame
from resilin._base.wrong_proofs import WrongProofs
from resilin.distributed.connections.accept_loop import AcceptLoop, Refusals, Visit
from resilin.distributed.stores.base import DEFAULT_TIMEOUT_S, Store, Value, encode, paired, text, whole
from resilin.distributed.stores.hash import HashStore
from resilin.distributed.wire.after_fork import track
from resilin.errors import (
    DistError,
    DistNetworkError,
    DistStoreError,
    HandshakeError,
    SecretRequired,
    UsageError,
    UsageTypeError,
)

_PURPOSE = b"resilin dist key-value store"
_LENGTH = struct.Struct(">I")
_OK, _ERROR = 0, 1
_HANDSHAKE_S = 10.0
_ADVICE = {
    errno.EADDRINUSE: "choose another MASTER_PORT, or is another process rank 0, too?",
    errno.EADDRNOTAVAIL: "this host does not have the address: MASTER_ADDR has to be one of the host of rank 0",
    errno.EACCES: "ports below 1024 are the administrator's: choose another MASTER_PORT",
    socket.EAI_NONAME: "no address is known under this name: check MASTER_ADDR",
}
_RETRY_S = 0.02  # a client may start before the server: it knocks again after this
_OWN = "resilin/store/"  # keys of the store's own, which are not listed
_WORKERS_KEY = f"{_OWN}workers"
_REFUSALS_KEY = f"{_OWN}refusals"


class ServerGone(DistStoreError):
    """The server went away during a call: whether it was applied is unknown, and what it held is lost."""


def pack(code: int, fields: Sequence[bytes]) -> bytes:
    """One request or answer."""
    return bytes([code]) + b"".join(_LENGTH.pack(len(field)) + field for field in fields)


def unpack(message: bytes) -> tuple[int, list[bytes]]:
    """Read what `pack` made. DistNetworkError unless the lengths cover the message exactly."""
    fields, at = [], 1
    while at + _LENGTH.size <= len(message):
        (length,) = _LENGTH.unpack_from(message, at)
        at += _LENGTH.size
        fields.append(message[at : at + length])
        at += length
    if not message or at != len(message):
        raise DistNetworkError(f"malformed store message of {len(message)} bytes")
    return message[0], fields


def _text(fields: Sequence[bytes]) -> list[str]:
    return [field.decode() for field in fields]


def _wait(state: HashStore, timeout: bytes, *keys: bytes) -> list[bytes]:
    state.wait(_text(keys), float(timeout))
    return []


def _get(state: HashStore, timeout: bytes, *keys: bytes) -> list[bytes]:
    state.wait(_text(keys), float(timeout))
    return [state.get(key) for key in _text(keys)]


def _set(state: HashStore, *pairs: bytes) -> list[bytes]:
    for key, value in zip(pairs[::2], pairs[1::2], strict=True):
        state.set(key.decode(), value)
    return []


def _add(state: HashStore, key: bytes, amount: bytes) -> list[bytes]:
    return [str(state.add(key.decode(), int(amount))).encode()]


def _compare_set(state: HashStore, key: bytes, expected: bytes, desired: bytes) -> list[bytes]:
    return [state.compare_set(key.decode(), expected, desired)]


def _check(state: HashStore, *keys: bytes) -> list[bytes]:
    return [b"1" if state.check(_text(keys)) else b""]


def _append(state: HashStore, key: bytes, value: bytes) -> list[bytes]:
    state.append(key.decode(), value)
    return []


def _delete(state: HashStore, key: bytes) -> list[bytes]:
    return [b"1" if state.delete_key(key.decode()) else b""]


def _shift(state: HashStore, key: bytes) -> list[bytes]:
    found = state._shift(key.decode())
    return [] if found is None else [found]


def _peek(state: HashStore, key: bytes) -> list[bytes]:
    return [state._peek(key.decode())]


def _keys(state: HashStore) -> list[bytes]:
    return [key.encode() for key in state.list_keys()]


_OPERATIONS: tuple[Callable[..., list[bytes]], ...] = (
    _wait,
    _get,
    _set,
    _add,
    _compare_set,
    _check,
    _append,
    _delete,
    _keys,
    _shift,
    _peek,
)
_NUMBER = {operation: number for number, operation in enumerate(_OPERATIONS)}


def _check_address(host_name: str, port: int, is_master: bool) -> None:
    if not isinstance(host_name, str):
        raise UsageTypeError(f"TCPStore: host_name: expected the server's name or address, got {host_name!r}")
    lowest = 0 if is_master else 1  # 0: the server takes any free port
    if not isinstance(port, Integral) or not lowest <= port <= host_port.MAX_PORT:
        kind = UsageError if isinstance(port, Integral) else UsageTypeError
        raise kind(f"TCPStore: port: expected an integer from {lowest} to {host_port.MAX_PORT}, got {port!r}")


def require_secret(address: str, secret: str) -> None:
    """SecretRequired when `address` is beyond loopback and there is no secret."""
    if secret:
        return
    if not host.addresses_of(address):
        raise DistNetworkError(f"cannot resolve {address!r}: no address is known under this name")
    if not host.is_on_loopback(address):
        raise SecretRequired(
            f"the key-value store at {address} is beyond loopback, but the job has no secret: set RESILIN_SECRET to "
            "the same value on every host (`elastic-run` does), or use 127.0.0.1 on a single host"
        )


class TCPStore(Store):
    """A store served at `host_name:port` by the rank with `is_master=True`; port 0 there picks a free one (`.port`).

    With `wait_for_workers` the constructor returns when `world_size` stores have connected. `secret` defaults to
    RESILIN_SECRET; beyond loopback one is required. `timeout` limits connecting, `get` and `wait`. With `multi_tenant`
    stores of this process that serve at one place share the server, which the last to close ends. `master_listen_fd`:
    a bound socket to serve on, which the store owns from then on. `use_libuv` changes nothing.
    """

    def __init__(
        self,
        host_name: str,
        port: int,
        world_size: int | None = None,
        is_master: bool = False,
        timeout: timedelta | float = DEFAULT_TIMEOUT_S,
        wait_for_workers: bool = True,
        multi_tenant: bool = False,
        master_listen_fd: int | None = None,
        use_libuv: bool = True,
        *,
        secret: str | None = None,
    ) -> None:
        super().__init__(timeout)
        _check_address(host_name, port, is_master)
        self.host = host_name = host_port.host(host_name, "TCPStore: host_name")
        given = job_secret.from_environment() if secret is None else job_secret.checked(secret, "TCPStore: secret")
        self._secret = given or ""
        require_secret(host_name, self._secret)
        self._lock = threading.RLock()  # a signal handler may close the store while the same thread holds it
        self._sockets: list[socket.socket] = []  # guarded by _lock: idle connections
        self._all: list[socket.socket] = []  # guarded by _lock
        self._closed = False
        serve = _share if multi_tenant else _Server
        self._server = serve(host_name, port, self._secret, master_listen_fd) if is_master else None
        self.port = self._server.port if self._server else port
        try:
            self._release(self._connect())
            if world_size is not None:
                self.add(_WORKERS_KEY, 1)
                if wait_for_workers:
                    self._await_workers(world_size)
        except BaseException:
            self.close()
            raise

    def set(self, key: str, value: Value) -> None:
        """See Store."""
        self._call(_set, [text(key).encode(), encode(value)])

    def get(self, key: str) -> bytes:
        """See Store."""
        return self.multi_get([key])[0]

    def multi_get(self, keys: Sequence[str]) -> list[bytes]:
        """See Store: one round trip."""
        deadline = self._deadline()
        return self._call(_get, [_limit(deadline), *(text(key).encode() for key in keys)], deadline)

    def multi_set(self, keys: Sequence[str], values: Sequence[Value]) -> None:
        """See Store: one round trip."""
        self._call(_set, [field for key, value in paired(keys, values) for field in (key.encode(), value)])

    def add(self, key: str, amount: int) -> int:
        """See Store."""
        return int(self._call(_add, [text(key).encode(), str(whole(amount)).encode()])[0])

    def compare_set(self, key: str, expected: Value, desired: Value) -> bytes:
        """See Store."""
        return self._call(_compare_set, [text(key).encode(), encode(expected), encode(desired)])[0]

    def check(self, keys: Sequence[str]) -> bool:
        """See Store."""
        return bool(self._call(_check, [text(key).encode() for key in keys])[0])

    def wait(self, keys: Sequence[str], timeout: timedelta | float | None = None) -> None:
        """See Store."""
        deadline = self._deadline(timeout)
        self._call(_wait, [_limit(deadline), *(text(key).encode() for key in keys)], deadline)

    def append(self, key: str, value: Value) -> None:
        """See Store."""
        self._call(_append, [text(key).encode(), encode(value)])

    def delete_key(self, key: str) -> bool:
        """See Store."""
        return bool(self._call(_delete, [text(key).encode()])[0])

    def clone(self) -> TCPStore:
        """See Store: a client with connections of its own."""
        return TCPStore(self.host, self.port, timeout=self.timeout, secret=self._secret)

    def _shift(self, key: str) -> bytes | None:
        found = self._call(_shift, [text(key).encode()])
        return found[0] if found else None

    def _peek(self, key: str) -> bytes:
        return self._call(_peek, [text(key).encode()])[0]

    def num_keys(self) -> int:
        """See Store."""
        return len(self.list_keys())

    def list_keys(self) -> list[str]:
        """See Store."""
        return [key for key in _text(self._call(_keys, [])) if not key.startswith(_OWN)]

    def refusals(self) -> str:
        """See Store."""
        return self.get(_REFUSALS_KEY).decode() if self.check([_REFUSALS_KEY]) else ""

    def close(self) -> None:
        """Close the connections, and the server on the rank that has it."""
        with self._lock:
            self._closed = True
            sockets, self._all, self._sockets = self._all, [], []
        for sock in sockets:
            with contextlib.suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)
            sock.close()
        server, self._server = self._server, None
        if server is not None:
            server.leave()

    def __repr__(self) -> str:
        return f"<TCPStore {self._place()}{' serving' if self._server else ''}>"

    def _place(self) -> str:
        return host_port.join(self.host, self.port)

    def _await_workers(self, world_size: int) -> None:
        deadline = self._deadline()
        while (here := self.add(_WORKERS_KEY, 0)) < world_size:
            if deadline.passed():
                raise DistStoreError(
                    f"{self!r}: {here} of {world_size} workers connected within {spell(deadline.seconds)}"
                )
            SYSTEM.sleep(_RETRY_S)

    def _connect(self) -> socket.socket:
        """A fresh connection. A server that is not there yet, or goes away during the handshake, is asked again."""
        deadline = self._deadline()
        patience: Deadline | None = None  # with something that answers but closes: a server that ends, or no store
        while True:
            try:
                return self._knock(deadline)
            except (HandshakeError, SecretRequired):
                raise
            except (OSError, DistNetworkError) as error:
                if isinstance(error, DistNetworkError):
                    patience = patience or Deadline(_HANDSHAKE_S)
                if deadline.passed() or self._closed or (patience is not None and patience.passed()):
                    raise DistStoreError(
                        f"no key-value store answers at {self._place()} within {spell(deadline.seconds)} "
                        f"({error}); is rank 0 running, with the same MASTER_ADDR and MASTER_PORT?"
                    ) from None  # its text says what the last attempt met
            SYSTEM.sleep(_RETRY_S)

    def _knock(self, deadline: Deadline) -> socket.socket:
        left = deadline.left()  # 0 would be an attempt that does not wait for its answer
        sock = socket.create_connection((self.host, self.port), timeout=None if left is None else max(left, _RETRY_S))
        try:
            if sock.getsockname() == sock.getpeername():  # a free port of this host that was dialed from itself
                raise ConnectionRefusedError("nobody listens")
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            auth.prove_as_client(sock, self._secret, _PURPOSE, deadline)
        except BaseException:
            sock.close()
            raise
        with self._lock:
            self._all.append(track(sock))
        return sock

    def _take(self) -> socket.socket:
        with self._lock:
            if self._closed:
                raise DistStoreError(f"{self!r} is closed")
            if self._sockets:
                return self._sockets.pop()
        return self._connect()

    def _release(self, sock: socket.socket) -> None:
        with self._lock:
            self._sockets.append(sock)

    def _call(
        self, operation: Callable[..., list[bytes]], fields: Sequence[bytes], deadline: Deadline | None = None
    ) -> list[bytes]:
        limit = deadline or self._deadline()
        sock = self._take()
        grace = Deadline(None if limit.seconds is None else limit.seconds + _HANDSHAKE_S)
        try:
            sock.settimeout(grace.left())
            send_frame(sock, pack(_NUMBER[operation], fields))
            status, values = unpack(recv_frame(sock, grace))
        except (OSError, DistNetworkError) as error:
            sock.close()
            raise ServerGone(f"{self!r}: lost the server during {operation.__name__[1:]}: {error}") from error
        self._release(sock)
        if status != _OK:
            raise DistStoreError(f"{self!r}: {values[0].decode()}")
        return values


def _limit(deadline: Deadline) -> bytes:
    left = deadline.left()
    return repr(1e9 if left is None else left).encode()


class _Server:
    """Accepts clients and applies their requests to a HashStore."""

    def __init__(self, host_name: str, port: int, secret: str, listen_fd: int | None) -> None:
        self._secret = secret
        self._state = HashStore()
        self._wrong = WrongProofs()
        self._closed = False
        self._users = 1  # guarded by _TENANCY
        try:
            listening = socket.socket(fileno=listen_fd) if listen_fd is not None else _listening(host_name, port)
            track(listening).listen(socket.SOMAXCONN)
        except OSError as error:
            raise DistNetworkError(
                f"the key-value store cannot listen on {host_port.join(host_name, port)}: {error.strerror}; "
                f"{_ADVICE.get(error.errno or 0, 'choose another MASTER_ADDR or MASTER_PORT')}"
            ) from error
        self.port = int(listening.getsockname()[1])
        at = f"the key-value store at {host_port.join(host_name, self.port)}"
        inside = _reached_from_here_alone(host_name, at)
        if inside:
            self._state.set(_REFUSALS_KEY, inside)
        self._refusals = Refusals(
            at, lambda text: self._state.set(_REFUSALS_KEY, "; ".join(filter(None, (inside, text))))
        )
        self._accept_loop = AcceptLoop("dist-store", [listening], self._serve)

    def _serve(self, visit: Visit) -> None:
        visit.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        with self._refusals.noted():
            auth.prove_as_server(visit.sock, self._secret, _PURPOSE, Deadline(_HANDSHAKE_S), self._wrong)
        visit.admit()
        while True:
            number, fields = unpack(recv_frame(visit.sock, Deadline(None)))
            answer = self._answer(number, fields)
            if self._closed:  # not an answer but the end: the client sees that the server is gone
                return
            send_frame(visit.sock, answer)

    def _answer(self, number: int, fields: Sequence[bytes]) -> bytes:
        try:
            return pack(_OK, _OPERATIONS[number](self._state, *fields))
        except (DistError, ValueError, TypeError, IndexError) as error:
            return pack(_ERROR, [str(error).encode()])

    def enter(self, secret: str) -> bool:
        """Count another user, under _TENANCY; False when it has another secret."""
        same = secret == self._secret
        self._users += same
        return same

    def leave(self) -> None:
        """The last user's closes the server."""
        with _TENANCY:
            self._users -= 1
            if self._users:
                return
            for place in [place for place, server in _TENANTS.items() if server is self]:
                del _TENANTS[place]
        self._closed = True
        self._state.close()
        self._accept_loop.close()


def _reached_from_here_alone(name: str, at: str) -> str:
    """Why ranks of other hosts may not come, where a host's own name stands for loopback there; else an empty text."""
    if host.is_loopback(name) or host_port.packed(name) is not None or not host.is_on_loopback(name):
        return ""
    return (
        f"{at} listens on loopback alone, for which that name stands on its host (see /etc/hosts): if ranks are on "
        "several hosts, MASTER_ADDR has to be an address that all of them reach"
    )


_TENANCY = threading.RLock()  # a signal handler may close a store while the same thread holds it
_TENANTS: dict[tuple[str, int], _Server] = {}  # guarded by _TENANCY: servers that stores of this process may share


def _share(host_name: str, port: int, secret: str, listen_fd: int | None) -> _Server:
    """The server of this process at that place, or a new one."""
    with _TENANCY:
        there = _TENANTS.get((host_name, port))
        if there is None or not there.enter(secret):
            there = _Server(host_name, port, secret, listen_fd)
            _TENANTS[host_name, there.port] = there
        return there


def _listening(host_name: str, port: int) -> socket.socket:
    """A socket that listens there; on a port that elastic-run holds for this process, as its `MasterPort` allows."""
    family, kind, _, _, address = socket.getaddrinfo(host_name, port, type=socket.SOCK_STREAM)[0]
    sock = socket.socket(family, kind)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            sock.bind(address)
        except OSError as error:
            held = env.get("RESILIN_JOB") and env.get("MASTER_PORT") == str(port)
            if error.errno != errno.EADDRINUSE or not held:
                raise
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
            sock.bind(address)
        sock.listen(socket.SOMAXCONN)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 0)  # from here on it is this socket's alone
    except OSError:
        sock.close()
        raise
    return sock
