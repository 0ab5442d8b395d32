"""Introduce two workers to each other, on a connection of its own, before anything else is opened between them.

    dials                                              listens
    proof of the job's secret, both ways (_base.auth), bound to the listener's mark
                                       <────────────   nonce
    Greeting, sealed with it              ────────────>
                                       <────────────   Answer, sealed with the Greeting's nonce

Sealed: followed by an HMAC over the role, the nonce and the text, so nobody on the way can change a name or an address
in it. The connection stays open as long as both live: its end says that the other one is gone, at once.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hmac
import json
import os
import socket
import struct
from dataclasses import asdict, dataclass
from typing import Any, TypeVar

from resilin._base import auth, host, host_port, json_text
from resilin._base.clock import Deadline
from resilin._base.framing import recv_exactly
from resilin._base.interfaces import socket_address
from resilin.distributed.wire.after_fork import track
from resilin.errors import DistNetworkError, HandshakeError, PeerLost, SecretRequired, UsageError
from resilin.rpc.transports import wire
from resilin.rpc.transports.base import WorkerIdentity

PURPOSE = b"resilin rpc"
MAX_BYTES = 8 << 10  # of a hello or an answer
TICKET_BYTES = 32
WELCOME, CROSSING, REFUSED = "welcome", "crossing", "refused"
_LENGTH = struct.Struct(">I")
_IDLE_S, _PROBE_S, _PROBES = 5, 2, 3  # of a peer whose host is silent: it is lost after 11 s
_TCP_USER_TIMEOUT = getattr(socket, "TCP_USER_TIMEOUT", None)


@dataclass(frozen=True)
class NetworkAddress:
    """How peers reach a worker, and what they compare with themselves. `describe()` and `parse()` convert to text."""

    transport: str
    host_id: str
    """Equal on two workers of one host (`_base.host.host_id`)."""
    at: str
    """Where it listens for introductions: a numeric address and a port."""
    data: str
    """Where its messages go."""
    near: str
    """The same for peers of its host; empty: as `data`."""
    mark: str
    """This worker's alone: what is proved to it proves nothing to another one."""
    encrypted: bool
    lanes: int
    """Connections for long messages that it opens to each peer, beside one for all others; 0: as is best there."""

    def describe(self) -> str:
        """One line of text that `parse` reads."""
        return json.dumps(asdict(self), separators=(",", ":"))

    @staticmethod
    def parse(text: str, transport: str) -> NetworkAddress:
        """The card that `describe` wrote. UsageError shows the text when it is none of this transport."""
        try:
            card = read_fields(NetworkAddress, text)
            if card.transport == transport and 0 <= card.lanes <= wire.MAX_LANES:
                return card
        except (ValueError, TypeError, KeyError):
            pass
        raise UsageError(f"expected an address of the RPC transport {transport!r}, got {text[:200]!a}") from None

    def reachable(self) -> bool:
        """Return whether a connection may be tried from this host."""
        there = host_port.parse(self.at, "an RPC address").host
        return not host.is_loopback(there) or self.host_id == host.host_id()


@dataclass(frozen=True)
class Greeting:
    """Who dials."""

    group: str
    source: int
    target: int
    """Whom it means to reach."""
    name: str
    pid: int
    card: str
    ticket: str
    """What lets the other end's connection for messages in here, once."""
    number: int
    """What frames to this end have to name."""
    nonce: str = ""


@dataclass(frozen=True)
class Answer:
    """What is said to a hello."""

    verdict: str
    reason: str = ""
    name: str = ""
    pid: int = 0
    ticket: str = ""
    number: int = 0


Text = TypeVar("Text")


def read_fields(kind: type[Text], text: str | bytes) -> Text:
    """The dataclass, of text, numbers and truths, that JSON holds. ValueError, TypeError: it is something else."""
    found = json_text.parse(text, finite=True)
    kinds: dict[str, Any] = {"str": str, "int": int, "bool": bool}
    wanted = {field.name: kinds[str(field.type)] for field in dataclasses.fields(kind)}  # type: ignore[arg-type]
    if not isinstance(found, dict) or set(found) != set(wanted):
        raise ValueError("other fields")
    if any(type(found[name]) is not wanted[name] for name in wanted):
        raise ValueError("fields of other types")
    return kind(**found)


def numeric_host(identity: WorkerIdentity) -> str:
    """The address that the worker's host stands for. SecretRequired beyond loopback without a secret."""
    bare = host_port.host(identity.host, "RPC listens on")
    if not identity.secret and not host.is_on_loopback(bare):
        raise SecretRequired(
            f"RPC would listen on {bare}, beyond loopback, but the job has no secret: set RESILIN_SECRET to the same "
            "value on every host (`elastic-run` does) or listen on 127.0.0.1"
        )
    found = [bare] if host_port.packed(bare) is not None else host.addresses_of(bare)
    if not found:
        raise DistNetworkError(f"RPC cannot listen on {bare}: no address is known under this name")
    return found[0]


def listen(address: str) -> socket.socket:
    """A TCP socket that listens on a free port of a numeric address."""
    sock = track(socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET, socket.SOCK_STREAM))
    try:
        sock.bind(socket_address(address, 0))
        sock.listen(socket.SOMAXCONN)
    except OSError as error:
        sock.close()
        raise DistNetworkError(f"RPC cannot listen on {address}: {error}") from error
    return sock


def dial(card: NetworkAddress, secret: str, hello: Greeting, deadline: Deadline) -> tuple[socket.socket, Answer]:
    """Dial the worker of that card, and hear what it says to the hello. The socket is the caller's.

    Raises: PeerLost, HandshakeError, SecretRequired, TimeoutError.
    """
    where = host_port.parse(card.at, "an RPC address")
    try:
        sock = track(socket.create_connection(socket_address(*where)[:2], timeout=deadline.left()))
    except OSError as error:
        raise _failed(hello, where, error, deadline) from error
    with contextlib.ExitStack() as undo:
        undo.callback(sock.close)
        try:
            prepare(sock)
            auth.prove_as_client(sock, secret, PURPOSE, deadline, card.mark)
            nonce = recv_exactly(sock, auth.WORD_BYTES, deadline)
            hello = dataclasses.replace(hello, nonce=auth.new_nonce().hex())
            sock.sendall(sealed(secret, b"hello", nonce, hello))
            answer = _receive(sock, Answer, secret, b"answer", bytes.fromhex(hello.nonce), deadline)
        except (HandshakeError, SecretRequired):
            raise
        except (OSError, DistNetworkError) as error:
            raise _failed(hello, where, error, deadline) from error
        undo.pop_all()
    return sock, answer


def _failed(hello: Greeting, where: object, error: Exception, deadline: Deadline) -> Exception:
    text = f"worker {hello.target} at {where} cannot be connected to: {error}"
    if deadline.passed() or isinstance(error, TimeoutError):
        return TimeoutError(text)
    return PeerLost(text, (hello.target,))


def prepare(sock: socket.socket) -> None:
    """Have short texts sent at once, and a peer noticed whose host has gone without a word."""
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, value in (("TCP_KEEPIDLE", _IDLE_S), ("TCP_KEEPINTVL", _PROBE_S), ("TCP_KEEPCNT", _PROBES)):
        if hasattr(socket, option):
            sock.setsockopt(socket.IPPROTO_TCP, getattr(socket, option), value)
    if _TCP_USER_TIMEOUT is not None:
        sock.setsockopt(socket.IPPROTO_TCP, _TCP_USER_TIMEOUT, 1000 * (_IDLE_S + _PROBE_S * _PROBES))


def hear(sock: socket.socket, secret: str, deadline: Deadline) -> Greeting:
    """Ask a peer that has proved the secret who it is. HandshakeError, DistNetworkError."""
    nonce = auth.new_nonce()
    sock.settimeout(deadline.left())
    prepare(sock)
    sock.sendall(nonce)
    hello = _receive(sock, Greeting, secret, b"hello", nonce, deadline)
    try:
        bytes.fromhex(hello.nonce)
    except ValueError:
        raise HandshakeError(f"no nonce: {hello.nonce[:200]!r}") from None
    return hello


def answer(sock: socket.socket, secret: str, hello: Greeting, said: Answer) -> None:
    """Answer a hello."""
    sock.sendall(sealed(secret, b"answer", bytes.fromhex(hello.nonce), said))


def _seal(secret: str, role: bytes, nonce: bytes, text: bytes) -> bytes:
    return hmac.digest(secret.encode(), b"|".join((PURPOSE, role, nonce, text)), "sha256")


def sealed(secret: str, role: bytes, nonce: bytes, what: Greeting | Answer) -> bytes:
    """A hello or an answer, as it travels."""
    text = json.dumps(asdict(what), separators=(",", ":")).encode()
    assert len(text) <= MAX_BYTES, text
    return _LENGTH.pack(len(text)) + text + _seal(secret, role, nonce, text)


def unsealed(kind: type[Text], secret: str, role: bytes, nonce: bytes, data: bytes) -> Text:
    """What `sealed` was given. HandshakeError: it is something else, or was changed on its way."""
    if len(data) < _LENGTH.size + auth.WORD_BYTES:
        raise HandshakeError(f"an introduction of {len(data)} bytes")
    text, seal = data[_LENGTH.size : -auth.WORD_BYTES], data[-auth.WORD_BYTES :]
    if not hmac.compare_digest(seal, _seal(secret, role, nonce, text)):
        raise HandshakeError("an introduction was changed on its way")
    try:
        return read_fields(kind, text.decode())
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        raise HandshakeError(f"no introduction: {text[:200]!a}") from error


def _receive(sock: socket.socket, kind: type[Text], secret: str, role: bytes, nonce: bytes, deadline: Deadline) -> Text:
    size = recv_exactly(sock, _LENGTH.size, deadline)
    (length,) = _LENGTH.unpack(size)
    if length > MAX_BYTES:
        raise HandshakeError(f"an introduction of {length} bytes, the limit is {MAX_BYTES}")
    return unsealed(kind, secret, role, nonce, size + recv_exactly(sock, length + auth.WORD_BYTES, deadline))


def derived(secret: str, use: str, ticket: str) -> bytes:
    """32 bytes that both ends of an introduction know, and nobody else: a ticket alone does not give them."""
    return hmac.digest(secret.encode(), f"resilin rpc {use}|{ticket}".encode(), "sha256")


def new_ticket() -> str:
    """Random text that lets one connection in."""
    return os.urandom(TICKET_BYTES).hex()
