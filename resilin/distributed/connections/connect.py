"""Dial a connection between two ranks, in steps that never block: many run in one thread."""

from __future__ import annotations

import os
import selectors
import socket
from collections.abc import Generator
from errno import EAGAIN, EINPROGRESS

from resilin._base import auth
from resilin._base.interfaces import socket_address
from resilin.distributed.connections import handshake
from resilin.distributed.connections.handshake import Hello
from resilin.distributed.connections.listener import Endpoint
from resilin.errors import DistNetworkError, HandshakeError

AGAIN = 0  # nothing to wait for: step again in a moment
_Steps = Generator[int, None, None]
_Target = bytes | tuple[str, int] | tuple[str, int, int, int]
_ANSWER_S = 2.0


def answers(endpoint: Endpoint, me: Endpoint) -> bool:
    """Return whether a process listens at `endpoint`, seen from `me`. Blocks for 2 s at most."""
    try:
        sock, target = way(endpoint, me)
    except DistNetworkError:
        return False
    with sock:
        sock.settimeout(_ANSWER_S)
        return sock.connect_ex(target) in (0, EAGAIN)  # EAGAIN: the backlog of a Unix socket is full


def way(endpoint: Endpoint, me: Endpoint) -> tuple[socket.socket, _Target]:
    """A fresh socket and the address to connect it to. DistNetworkError when `me` has no way to `endpoint`."""
    if me.near(endpoint):
        return socket.socket(socket.AF_UNIX, socket.SOCK_STREAM), b"\0" + endpoint.unix.encode()
    if endpoint.address:
        family = socket.AF_INET6 if ":" in endpoint.address else socket.AF_INET
        return socket.socket(family, socket.SOCK_STREAM), socket_address(endpoint.address, endpoint.port, me.address)
    raise DistNetworkError(f"{endpoint} listens on a Unix socket of another host only: no way to reach it")


def _reach(sock: socket.socket, code: int) -> _Steps:
    """The rest of a connect that answered `code`. OSError when nobody is there."""
    if code == EINPROGRESS:
        yield selectors.EVENT_WRITE
        code = sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
    if code:
        raise OSError(code, os.strerror(code))


class Probe:
    """Asks whether a process still listens at `endpoint`, without a word to it. Steps as of a Dial."""

    def __init__(self, endpoint: Endpoint, me: Endpoint) -> None:
        self.sock, target = way(endpoint, me)
        self.sock.setblocking(False)
        code = self.sock.connect_ex(target)
        self._steps = _reach(self.sock, 0 if code == EAGAIN else code)

    def step(self) -> int | None:
        """Go on as a Dial does: None when somebody listens, OSError when nobody does."""
        return next(self._steps, None)


class Dial:
    """One connection on its way. Call `step` whenever its socket has had the event that the last step asked for.

    `sock` belongs to the caller from the start. Once `introduced`, the peer may take the connection for made.
    """

    def __init__(self, endpoint: Endpoint, me: Endpoint, hello: Hello, secret: str) -> None:
        self.sock, target = way(endpoint, me)
        self.sock.setblocking(False)
        self.hello = hello
        self.connected = False
        self.introduced = False
        self._mark = endpoint.mark
        self._steps = self._converse(target, secret)

    def step(self) -> int | None:
        """Go on: the selectors event (or AGAIN) to wait for, or None once the peer is ready.

        Raises: HandshakeError with the peer's reason; SecretRequired; OSError or DistNetworkError when it is gone.
        """
        return next(self._steps, None)

    def _converse(self, target: _Target, secret: str) -> _Steps:
        while (code := self.sock.connect_ex(target)) == EAGAIN:  # the backlog of a Unix socket is full
            yield AGAIN
        yield from _reach(self.sock, code)
        self.connected = True
        user = auth.peer_user(self.sock) if self.sock.family == getattr(socket, "AF_UNIX", None) else None
        if user is not None:
            auth.refuse_other_user(user)  # the name of a listener that has ended may be anybody's
        nonce_c = auth.new_nonce()
        yield from self._send(nonce_c)
        nonces = nonce_c, (yield from self._receive(auth.WORD_BYTES))
        yield from self._send(auth.proof(secret, b"client", handshake.PURPOSE, *nonces, self._mark))
        given = yield from self._receive(auth.WORD_BYTES)
        auth.check_server(self.sock, secret, handshake.PURPOSE, nonces, given, self._mark)
        yield from self._send(self.hello.pack())
        self.introduced = True
        answer, length = handshake.ANSWER.unpack((yield from self._receive(handshake.ANSWER.size)))
        if answer != handshake.READY:
            reason = yield from self._receive(min(length, handshake.MAX_BYTES))
            raise HandshakeError(f"rank {self.hello.target} refused this process: {reason.decode(errors='replace')}")

    def _send(self, data: bytes) -> _Steps:
        while data:
            try:
                data = data[self.sock.send(data) :]
            except BlockingIOError:
                yield selectors.EVENT_WRITE

    def _receive(self, count: int) -> Generator[int, None, bytes]:
        data = b""
        while len(data) < count:
            try:
                chunk = self.sock.recv(count - len(data))
            except BlockingIOError:
                yield selectors.EVENT_READ
                continue
            if not chunk:
                raise DistNetworkError("it closed the connection")
            data += chunk
        return data
