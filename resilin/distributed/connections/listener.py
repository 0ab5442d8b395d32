"""Say where peers reach a process, and listen there: one listener per process, shared by all its groups.

A connection opens in three steps: both ends prove the job's secret (`_base.auth`), the client says which group,
generation, ranks and channel it means (`hello`), the server answers `ready` once this process has joined that group.
Strangers and old generations end here; a group never hears of them.
"""

from __future__ import annotations

import contextlib
import json
import secrets
import socket
import threading
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass

from resilin._base import auth, host, host_port, json_text
from resilin._base import secret as job_secret
from resilin._base.clock import Deadline
from resilin._base.framing import recv_exactly
from resilin._base.interfaces import chosen_by, socket_address
from resilin._base.wrong_proofs import WrongProofs
from resilin.distributed.connections import handshake
from resilin.distributed.connections.accept_loop import AcceptLoop, Refusals, Visit
from resilin.distributed.connections.handshake import Hello
from resilin.distributed.wire import loader
from resilin.distributed.wire.after_fork import track
from resilin.distributed.wire.error_codec import encode_reason
from resilin.distributed.wire.frames import HEADER as FRAME_HEADER
from resilin.distributed.wire.frames import Frame
from resilin.errors import DistNetworkError, HandshakeError, SecretRequired, UsageError

_HANDSHAKE_TIMEOUT_S = 10.0  # a stranger that proves nothing is dropped after this
_PARK_TIMEOUT_S = 600.0  # a peer that is ahead of us waits this long for our `connect`
_MARK_BYTES = 8  # random ones: no two listeners of a job have the same
_LOOK_S = 1.0  # how often a parked peer is asked whether it is still there

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
    """TCP address, numeric; empty when the process listens on Unix only."""
    port: int
    """TCP port."""
    shm: bool
    """Whether this process has the native code that shared memory needs."""
    mark: str = ""
    """This listener's alone: what is proved to it proves nothing to another one."""

    def describe(self) -> str:
        """One line of text that `parse` reads."""
        return json.dumps(asdict(self), separators=(",", ":"))

    @staticmethod
    def parse(text: str) -> Endpoint:
        """The endpoint that `describe` wrote. UsageError shows the text when it is none."""
        try:
            fields = json_text.parse(text, finite=True)
            return Endpoint(
                host=str(fields["host"]),
                unix=str(fields["unix"]),
                address=str(fields["address"]),
                port=int(fields["port"]),
                shm=bool(fields["shm"]),
                mark=str(fields["mark"]),
            )
        except (ValueError, KeyError, TypeError):
            raise UsageError(f"not an endpoint of resilin.distributed: {text[:200]!r}") from None

    def __str__(self) -> str:
        return host_port.join(self.address, self.port) if self.address else f"unix:{self.unix}"

    def near(self, other: Endpoint) -> bool:
        """Return whether both ends can meet on a Unix socket."""
        return bool(self.host == other.host and self.unix and other.unix)


def check_addresses(endpoints: Sequence[str]) -> None:
    """UsageError, the same on every rank, when ranks are on several hosts and one gave an address of loopback."""
    cards = [Endpoint.parse(text) for text in endpoints]
    inside = [rank for rank, card in enumerate(cards) if card.address and host.is_loopback(card.address)]
    if len({card.host for card in cards}) == 1 or not inside:
        return
    names = ", ".join(f"rank {rank} ({cards[rank]})" for rank in inside)
    chosen = f" (here {chosen_by()} is set)" if chosen_by() else ""
    raise UsageError(
        f"ranks are on several hosts, but {names} gave an address of loopback, which only its own host reaches: there "
        "set RESILIN_IFNAME (or GLOO_SOCKET_IFNAME) to the interface that leads to the other hosts, or RESILIN_HOST "
        f"to its address{chosen}"
    )


class Expectation:
    """The connections one running `connect` waits for; filled by the listener's threads."""

    def __init__(self, group: str, generation: int, secret: str, rank: int, wanted: set[tuple[int, int]]) -> None:
        self.group = group
        self.generation = generation
        self.secret = secret
        self.rank = rank
        self.changed = threading.RLock()  # a signal handler may interrupt while the same thread holds it
        self.wanted = set(wanted)  # guarded by changed: still missing
        self.arrived: Connections = {}  # guarded by changed
        self.error: BaseException | None = None  # guarded by changed: set by Listener.interrupt
        self.refusals: Callable[[], str] = lambda: ""  # set by Listener.expect: whom it did not let in, for errors
        self.wake: socket.socket | None = None  # a byte is sent to wake the `connect` at every change

    def deliver(self, hello: Hello, sock: socket.socket) -> bool:
        """Take over `sock`, unless nobody waits for it (any more)."""
        key = (hello.source, hello.channel)
        with self.changed:
            if self.error is not None or key not in self.wanted:
                return False
            self.wanted.discard(key)
            self.arrived[key] = sock
            self._wake()
            return True

    def fail(self, error: BaseException) -> None:
        """End the wait with `error`."""
        with self.changed:
            self.error = self.error or error
            self._wake()

    def _wake(self) -> None:
        if self.wake is not None:
            with contextlib.suppress(OSError):  # full: it wakes anyway; broken: it has been given up
                self.wake.send(b"!")


class Listener:
    """Accepts the connections of this process's groups: an abstract Unix socket and a TCP port.

    Make one per process (it owns a thread), give `describe()` to the peers, and `close()` it after the groups.
    Of a name the first address is taken, here, once: peers may know the name by another one. TCP beyond loopback needs
    the job's secret: SecretRequired otherwise. `unix=False` or `tcp=False` leave one out;
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
        advertise_host = _numeric(advertise_host) if tcp else ""
        own = job_secret.checked(secret or "", "Listener: secret") or job_secret.from_environment()
        if tcp and not host.is_loopback(advertise_host) and not own:
            raise SecretRequired(
                f"dist would listen on {advertise_host}, beyond loopback, but the job has no secret: set "
                "RESILIN_SECRET to the same value on every host (`elastic-run` does) or advertise 127.0.0.1"
            )
        self._lock = threading.RLock()  # not the condition, whose methods are no single step for an interrupt
        self._news = threading.Condition(self._lock)  # notified when something is expected, wanted or over
        self._closed = False  # guarded by _lock
        self._expected: dict[str, list[Expectation]] = {}  # guarded by _lock: by group name
        self._over: tuple[int, BaseException | None] = (-1, None)  # guarded by _lock: generations ended by `interrupt`
        self._newest: dict[str, int] = {}  # guarded by _lock: highest generation joined, by group name
        self._open = not own  # secrets come with the groups only: until then users are told apart by the kernel
        self._secrets = {own} if own else set()  # guarded by _lock: every one that a group here uses
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
            advertise_host,
            port,
            bool(shm and unix_name and loader.shared_memory),
            secrets.token_hex(_MARK_BYTES),
        )
        self._mark = self.endpoint.mark
        self._wrong = WrongProofs()
        self._refusals = Refusals(f"the dist listener {self.endpoint}")
        self._accept_loop = AcceptLoop("dist", self._sockets, self._visit)

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
        sock.bind(socket_address(address, 0))
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
            self._secrets.add(expectation.secret)
            newest = self._newest.get(expectation.group, -1)
            self._newest[expectation.group] = max(newest, expectation.generation)
            expectation.refusals = self._refusals.text
            over, error = self._over
            self._news.notify_all()
        if error is not None and expectation.generation <= over:
            expectation.fail(error)

    def want(self, expectation: Expectation, more: set[tuple[int, int]]) -> None:
        """Accept `more` connections for `expectation`, whose peers may have come before."""
        with self._lock:
            with expectation.changed:
                expectation.wanted |= more
            self._news.notify_all()

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
            self._news.notify_all()
        self.interrupt(DistNetworkError("the Listener was closed"))
        self._accept_loop.close()

    def __enter__(self) -> Listener:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<Listener {self.endpoint}{' closed' if self._closed else ''}>"

    def _visit(self, visit: Visit) -> None:
        sock = visit.sock
        user = auth.peer_user(sock) if self._open or sock.family == getattr(socket, "AF_UNIX", None) else None
        if user is not None:
            auth.refuse_other_user(user)  # whatever they know
        known = self._known(visit)
        with self._refusals.noted():
            secret = auth.prove_as_server(
                sock, known, handshake.PURPOSE, Deadline(_HANDSHAKE_TIMEOUT_S), self._wrong, self._mark
            )
        visit.admit()
        hello = _read_hello(sock, Deadline(_HANDSHAKE_TIMEOUT_S))
        expectation = self._find(hello, secret, visit)
        sock.settimeout(_HANDSHAKE_TIMEOUT_S)
        if isinstance(expectation, str):
            reason = expectation.encode()[: handshake.MAX_BYTES]
            sock.sendall(handshake.ANSWER.pack(handshake.REFUSED, len(reason)) + reason)
            return
        sock.sendall(handshake.ANSWER.pack(handshake.READY, 0))
        visit.kept = expectation.deliver(hello, sock)
        if not visit.kept and hello.channel == CONTROL and expectation.error is not None:  # it takes this for made
            text = encode_reason(expectation.error, expectation.rank).encode()
            sock.sendall(FRAME_HEADER.pack(Frame.ABORT, 0, len(text)) + text)

    def _known(self, visit: Visit) -> list[str]:
        """The secrets that a peer may prove; waits for the first, when a peer is ahead of this process."""
        park = Deadline(_PARK_TIMEOUT_S)
        with self._lock:
            while not self._secrets:
                self._park(visit, park)
            return list(self._secrets)

    def _park(self, visit: Visit, park: Deadline) -> None:
        """Wait (with the lock held) for news, or for the moment to look again. HandshakeError when it is pointless."""
        if self._closed or park.passed() or visit.hung_up():
            raise HandshakeError("the peer left, or this process joined no group that it could mean")
        self._news.wait(min(_LOOK_S, park.left() or 0.0))

    def _find(self, hello: Hello, secret: str, visit: Visit) -> Expectation | str:
        """The expectation that `hello` means, waiting for it if this process is behind; a reason if there is none."""
        park = Deadline(_PARK_TIMEOUT_S)
        with self._lock:
            while not self._closed:
                for expectation in self._expected.get(hello.group, ()):
                    same = expectation.generation == hello.generation and expectation.rank == hello.target
                    if same and (hello.source, hello.channel) in expectation.wanted:
                        if expectation.secret != secret:
                            return f"group {hello.group!r} has another secret than the one that was proved"
                        return expectation
                newest = self._newest.get(hello.group, -1)
                if hello.generation < newest:
                    return (
                        f"group {hello.group!r} is at generation {newest} here, generation {hello.generation} is over"
                    )
                if park.passed():
                    return f"this process did not join group {hello.group!r} generation {hello.generation}"
                self._park(visit, park)
        return "the listener was closed"


def _numeric(name: str) -> str:
    """The address that `name`, or a numeric address in any form, stands for."""
    bare = host_port.host(name, "dist listens on")
    found = [bare] if host_port.packed(bare) is not None else host.addresses_of(bare)
    if not found:
        raise DistNetworkError(f"dist cannot listen on {bare}: no address is known under this name")
    return found[0]


def _read_hello(sock: socket.socket, deadline: Deadline) -> Hello:
    (length,) = handshake.HEADER.unpack(recv_exactly(sock, handshake.HEADER.size, deadline))
    if length > handshake.MAX_BYTES:
        raise HandshakeError(f"a hello of {length} bytes, the limit is {handshake.MAX_BYTES}")
    return Hello.parse(recv_exactly(sock, length, deadline))
