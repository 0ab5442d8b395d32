"""Where a process can be reached by its peers, and the listener behind it: one per process, shared by all its groups.

A connection opens in three steps: the client says which group, generation, ranks and channel it means (capped, not
trusted), the server answers `ready` once this process has joined that group, then both prove the job's secret for
exactly that purpose (`_base.auth`). Strangers and old generations end here; a group never hears of them.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import secrets
import socket
import struct
import threading
from dataclasses import asdict, dataclass
from functools import partial

from resilin._base import auth, env, host, log
from resilin._base.clock import Deadline
from resilin._base.framing import recv_exactly
from resilin._base.threads import OwnedThread
from resilin.dist import loader
from resilin.dist.forked import track
from resilin.errors import DistNetworkError, HandshakeError, SecretRequired, UsageError

_LOG = log.logger("dist.endpoint")
_MAGIC = b"RSD1"
_HELLO = struct.Struct(">4sH")
_REFUSAL = struct.Struct(">BH")
_READY, _REFUSED = 1, 0
_CREDENTIALS = struct.Struct("3i")  # of the peer: process, user, group
_MAX_HELLO_BYTES = 1024
_HELLO_TIMEOUT_S = 10.0  # a stranger that says nothing is dropped after this
_PARK_TIMEOUT_S = 600.0  # a peer that is ahead of us waits this long for our `connect`
_MAX_VISITORS = 1024  # connections between accept and delivery; more are refused

CONTROL, DATA = 0, 1  # channels of one pair of ranks
Connections = dict[tuple[int, int], socket.socket]  # (rank, channel) -> connected, authenticated socket


@dataclass(frozen=True)
class Endpoint:
    """One process's address card. `describe()` and `parse()` convert to and from opaque text."""

    host: str
    """Equal on two processes that can share memory (`_base.host.host_id`)."""
    unix: str
    """Name of the abstract Unix socket, without the leading NUL; empty when there is none."""
    address: str
    """TCP address; empty when the process listens on Unix only."""
    port: int
    """TCP port."""
    shm: bool
    """Whether this process has the native code that shared memory needs."""

    def describe(self) -> str:
        """One line of text that `parse` reads."""
        return json.dumps(asdict(self), separators=(",", ":"))

    @staticmethod
    def parse(text: str) -> Endpoint:
        """The endpoint that `describe` wrote. UsageError shows the text when it is none."""
        try:
            fields = json.loads(text)
            return Endpoint(
                host=str(fields["host"]),
                unix=str(fields["unix"]),
                address=str(fields["address"]),
                port=int(fields["port"]),
                shm=bool(fields["shm"]),
            )
        except (ValueError, KeyError, TypeError):
            raise UsageError(f"not an endpoint of resilin.dist: {text[:200]!r}") from None

    def __str__(self) -> str:
        return f"{self.address}:{self.port}" if self.address else f"unix:{self.unix}"

    def near(self, other: Endpoint) -> bool:
        """Whether both ends can meet on a Unix socket."""
        return bool(self.host == other.host and self.unix and other.unix)


@dataclass(frozen=True)
class Hello:
    """What a client asks for. Not trusted until the handshake has proved it."""

    group: str
    generation: int
    source: int
    target: int
    channel: int

    def purpose(self) -> bytes:
        """What the handshake binds the proof to."""
        ranks = f"{self.source}>{self.target} #{self.channel}"
        return f"resilin dist group {self.group} generation {self.generation} {ranks}".encode()


class Expectation:
    """The connections one running `connect` waits for; filled by the listener's threads."""

    def __init__(self, group: str, generation: int, secret: str, rank: int, wanted: set[tuple[int, int]]) -> None:
        self.group = group
        self.generation = generation
        self.secret = secret
        self.rank = rank
        self.changed = threading.Condition()
        self.wanted = set(wanted)  # guarded by changed: still missing
        self.arrived: Connections = {}  # guarded by changed
        self.error: BaseException | None = None  # guarded by changed: set by Listener.interrupt
        self.wake: socket.socket | None = None  # closed to wake a `connect` that waits on its own dials

    def deliver(self, hello: Hello, sock: socket.socket) -> bool:
        """Take over `sock`, unless nobody waits for it (any more)."""
        key = (hello.source, hello.channel)
        with self.changed:
            if self.error is not None or key not in self.wanted:
                return False
            self.wanted.discard(key)
            self.arrived[key] = sock
            self.changed.notify_all()
            return True

    def fail(self, error: BaseException) -> None:
        """End the wait with `error`."""
        with self.changed:
            self.error = self.error or error
            self.changed.notify_all()
            if self.wake is not None:
                with contextlib.suppress(OSError):
                    self.wake.shutdown(socket.SHUT_RDWR)


class Listener:
    """Accepts the connections of this process's groups: an abstract Unix socket and a TCP port.

    Make one per process (it owns a thread), give `describe()` to the peers, and `close()` it after the groups.
    TCP beyond loopback needs the job's secret: SecretRequired otherwise. `unix=False` or `tcp=False` leave one out;
    `shm=False` keeps this process's groups off shared memory.
    """

    def __init__(
        self,
        advertise_host: str = "127.0.0.1",
        *,
        secret: str | None = None,
        unix: bool = True,
        tcp: bool = True,
        shm: bool = True,
    ) -> None:
        if tcp and not host.is_loopback(advertise_host) and not (secret or env.get("RESILIN_SECRET")):
            raise SecretRequired(
                f"dist would listen on {advertise_host}, beyond loopback, but the job has no secret: set "
                "RESILIN_SECRET to the same value on every host (`elastic-run` does) or advertise 127.0.0.1"
            )
        self._lock = threading.Condition()
        self._closed = False  # guarded by _lock
        self._expected: dict[str, list[Expectation]] = {}  # guarded by _lock: by group name
        self._over: tuple[int, BaseException | None] = (-1, None)  # guarded by _lock: generations ended by `interrupt`
        self._newest: dict[str, int] = {}  # guarded by _lock: highest generation joined, by group name
        self._visitors: dict[socket.socket, OwnedThread] = {}  # guarded by _lock: handshakes under way
        self._sockets: list[socket.socket] = []
        unix_name, port = "", 0
        try:
            if unix and hasattr(socket, "AF_UNIX"):
                unix_name = self._listen_unix()
            if tcp:
                port = self._listen_tcp(advertise_host)
        except OSError as error:
            for sock in self._sockets:
                sock.close()
            raise DistNetworkError(f"dist cannot listen on {advertise_host}: {error}") from error
        if not self._sockets:
            raise UsageError("Listener(unix=False, tcp=False): nothing left to listen on")
        self.endpoint = Endpoint(
            host.host_id(),
            unix_name,
            advertise_host if tcp else "",
            port,
            bool(shm and unix_name and loader.shared_memory),
        )
        self._threads = [OwnedThread("dist-accept", partial(self._accept, sock)) for sock in self._sockets]

    def _listen_unix(self) -> str:
        sock = track(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM))
        self._sockets.append(sock)
        name = f"resilin-{secrets.token_hex(12)}"
        try:
            sock.bind(b"\0" + name.encode())
        except OSError:  # abstract names are Linux's: elsewhere peers of one host meet on TCP
            self._sockets.remove(sock)
            sock.close()
            return ""
        sock.listen(socket.SOMAXCONN)
        return name

    def _listen_tcp(self, address: str) -> int:
        family = socket.AF_INET6 if ":" in address else socket.AF_INET
        sock = track(socket.socket(family, socket.SOCK_STREAM))
        self._sockets.append(sock)
        sock.bind((address, 0))
        sock.listen(socket.SOMAXCONN)
        return int(sock.getsockname()[1])

    def describe(self) -> str:
        """Opaque text that tells peers how to reach this process."""
        return self.endpoint.describe()

    def expect(self, expectation: Expectation) -> None:
        """Accept `expectation`'s connections from now on; older generations of its group are refused from now on."""
        with self._lock:
            if self._closed:
                raise DistNetworkError("this Listener is closed")
            self._expected.setdefault(expectation.group, []).append(expectation)
            newest = self._newest.get(expectation.group, -1)
            self._newest[expectation.group] = max(newest, expectation.generation)
            over, error = self._over
            self._lock.notify_all()
        if error is not None and expectation.generation <= over:
            expectation.fail(error)

    def forget(self, expectation: Expectation) -> None:
        """Stop accepting for `expectation`."""
        with self._lock:
            waiting = self._expected.get(expectation.group, [])
            if expectation in waiting:
                waiting.remove(expectation)
            if not waiting:
                self._expected.pop(expectation.group, None)

    def interrupt(self, error: BaseException, generation: int | None = None) -> None:
        """Make every `connect` that runs on this listener raise `error` at once. Thread-safe, never blocks.

        With `generation`: those of generations up to it, and also every later `connect` of such a generation.
        """
        with self._lock:
            if generation is not None and generation > self._over[0]:
                self._over = (generation, error)
            running = [
                expectation
                for waiting in self._expected.values()
                for expectation in waiting
                if generation is None or expectation.generation <= generation
            ]
        for expectation in running:
            expectation.fail(error)

    def close(self) -> None:
        """Stop listening and end every thread. Groups that exist are not touched."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
            self._lock.notify_all()
            visitors = list(self._visitors.items())
        self.interrupt(DistNetworkError("the Listener was closed"))
        for sock in [*self._sockets, *(sock for sock, _ in visitors)]:
            with contextlib.suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)
        for thread in [*self._threads, *(thread for _, thread in visitors)]:
            thread.join()
        for sock in self._sockets:
            sock.close()

    def __enter__(self) -> Listener:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<Listener {self.endpoint}{' closed' if self._closed else ''}>"

    def _accept(self, listening: socket.socket) -> None:
        while True:
            try:
                sock, _ = listening.accept()
            except OSError:
                if self._closed:
                    return
                raise
            with self._lock:
                if self._closed or len(self._visitors) >= _MAX_VISITORS:
                    sock.close()
                    continue
                self._visitors[track(sock)] = OwnedThread("dist-visitor", partial(self._visit, sock))

    def _visit(self, sock: socket.socket) -> None:
        kept = False
        try:
            kept = self._admit(sock)
        except (OSError, DistNetworkError) as error:
            log.event(_LOG, logging.DEBUG, "connection refused", error=str(error))
        finally:
            with self._lock:
                self._visitors.pop(sock, None)
            if not kept:
                sock.close()

    def _admit(self, sock: socket.socket) -> bool:
        _same_user(sock)
        hello = _read_hello(sock, Deadline(_HELLO_TIMEOUT_S))
        expectation = self._find(hello)
        if isinstance(expectation, str):
            reason = expectation.encode()[:_MAX_HELLO_BYTES]
            sock.sendall(_REFUSAL.pack(_REFUSED, len(reason)) + reason)
            return False
        sock.sendall(_REFUSAL.pack(_READY, 0))
        auth.prove_as_server(sock, expectation.secret, hello.purpose(), Deadline(_HELLO_TIMEOUT_S))
        return expectation.deliver(hello, sock)

    def _find(self, hello: Hello) -> Expectation | str:
        """The expectation that `hello` means, waiting for it if this process is behind; a reason if there is none."""
        park = Deadline(_PARK_TIMEOUT_S)
        with self._lock:
            while not self._closed:
                for expectation in self._expected.get(hello.group, ()):
                    same = expectation.generation == hello.generation and expectation.rank == hello.target
                    if same and (hello.source, hello.channel) in expectation.wanted:
                        return expectation
                newest = self._newest.get(hello.group, -1)
                if hello.generation < newest:
                    return (
                        f"group {hello.group!r} is at generation {newest} here, generation {hello.generation} is over"
                    )
                if park.passed():
                    return f"this process did not join group {hello.group!r} generation {hello.generation}"
                self._lock.wait(park.left())
        return "the listener was closed"


def dial(endpoint: Endpoint, me: Endpoint, hello: Hello, deadline: Deadline) -> socket.socket:
    """Connect to `endpoint` and say `hello`. The answer is read by `finish_dial` once the socket is readable."""
    if me.near(endpoint):
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        target: str | bytes | tuple[str, int] = b"\0" + endpoint.unix.encode()
    elif endpoint.address:
        sock = socket.socket(socket.AF_INET6 if ":" in endpoint.address else socket.AF_INET, socket.SOCK_STREAM)
        target = (endpoint.address, endpoint.port)
    else:
        raise DistNetworkError(f"{endpoint} listens on a Unix socket of another host only: no way to reach it")
    try:
        sock.settimeout(deadline.left())
        sock.connect(target)
        body = json.dumps(asdict(hello), separators=(",", ":")).encode()
        sock.sendall(_HELLO.pack(_MAGIC, len(body)) + body)
    except BaseException:
        sock.close()
        raise
    return sock


def finish_dial(sock: socket.socket, secret: str, hello: Hello, deadline: Deadline) -> None:
    """Read the server's answer and prove the secret. HandshakeError gives the server's reason."""
    answer, length = _REFUSAL.unpack(recv_exactly(sock, _REFUSAL.size, deadline))
    if answer != _READY:
        reason = recv_exactly(sock, min(length, _MAX_HELLO_BYTES), deadline).decode(errors="replace")
        raise HandshakeError(f"rank {hello.target} refused this process: {reason}")
    auth.prove_as_client(sock, secret, hello.purpose(), deadline)


def _same_user(sock: socket.socket) -> None:
    """On a Unix socket the kernel says whose process the peer is: other users are strangers, whatever they know."""
    if sock.family != socket.AF_UNIX or not hasattr(socket, "SO_PEERCRED"):
        return
    _, user, _ = _CREDENTIALS.unpack(sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size))
    if user not in (0, os.geteuid()):
        raise HandshakeError(f"a process of user {user} connected; this one belongs to user {os.geteuid()}")


def _read_hello(sock: socket.socket, deadline: Deadline) -> Hello:
    magic, length = _HELLO.unpack(recv_exactly(sock, _HELLO.size, deadline))
    if magic != _MAGIC or length > _MAX_HELLO_BYTES:
        raise HandshakeError(f"not a peer of resilin.dist: it opened with {magic!r} and {length} bytes")
    try:
        fields = json.loads(recv_exactly(sock, length, deadline))
        return Hello(
            group=str(fields["group"]),
            generation=int(fields["generation"]),
            source=int(fields["source"]),
            target=int(fields["target"]),
            channel=int(fields["channel"]),
        )
    except (ValueError, KeyError, TypeError) as error:
        raise HandshakeError(f"malformed hello: {error}") from error
