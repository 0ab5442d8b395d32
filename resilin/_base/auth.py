"""Proof of the job's secret, both ways, before anything else is read from a connection.

Challenge and response with HMAC-SHA256 (RFC 2104) over both nonces, the role and the purpose of the connection, so a
proof cannot be replayed, reflected or used for another purpose. Who knocks proves first: a stranger is given 32 random
bytes and nothing that the secret went into. Every message has 32 bytes; none is parsed:

    client -> server   nonce_c
    server -> client   nonce_s
    client -> server   HMAC(secret, "client" | purpose | nonce_c | nonce_s)
    server -> client   HMAC(secret, "server" | purpose | nonce_c | nonce_s), or 32 zero bytes: refused

`purpose` is a short byte string such as b"resilin dist group": ends with different purposes refuse each other. Where a
server has a mark of its own that its clients were told (`to`), that is bound, too: what is proved to one that took a
dead server's place cannot be passed on to another server of the job.
A client's proof can be tried against guesses by who is dialed, as with every such exchange: what keeps the secret is
that it has 128 random bits (`_base.secret`). After some wrong proofs the next ones from there wait (`wrong_proofs`).
Without a secret both ends use the empty key, which proves nothing; each then demands that the kernel names the same
user at the other end, or root (`require_same_user`).
"""

from __future__ import annotations

import hmac
import os
import secrets
import socket
import struct
from collections.abc import Iterable

from resilin._base import host_port, socket_owners
from resilin._base.clock import Deadline
from resilin._base.framing import recv_exactly
from resilin._base.socket_eof import hung_up
from resilin._base.wrong_proofs import WrongProofs, place_of
from resilin.errors import DistNetworkError, HandshakeError, SecretRequired

WORD_BYTES = 32  # of a nonce and of a proof
_REFUSAL = bytes(WORD_BYTES)
_CREDENTIALS = struct.Struct("3i")  # of the peer: process, user, group
_LOOKS = 50  # at tables of the kernel's that may skip rows while connections come and go
_MOMENT_S = 0.1  # the peer's socket may lose its owner before this end hears of it


def new_nonce() -> bytes:
    """32 random bytes."""
    return secrets.token_bytes(WORD_BYTES)


def proof(secret: str, role: bytes, purpose: bytes, nonce_c: bytes, nonce_s: bytes, to: str = "") -> bytes:
    """What `role` (b"client" or b"server") sends to prove that it knows `secret`. `to`: the server's own mark."""
    named = (purpose, to.encode())
    message = b"|".join((role, *(len(part).to_bytes(4, "big") + part for part in named), nonce_c, nonce_s))
    return hmac.digest(secret.encode(), message, "sha256")


def check_server(
    sock: socket.socket, secret: str, purpose: bytes, nonces: tuple[bytes, bytes], given: bytes, to: str = ""
) -> None:
    """The client's last step. HandshakeError unless `given` proves `secret`; without one see `require_same_user`."""
    if not hmac.compare_digest(given, proof(secret, b"server", purpose, *nonces, to)):
        what = "refused our proof" if given == _REFUSAL else "did not prove its own knowledge"
        why = "another job or a wrong secret" if secret else "it has one, or it is another user's: set RESILIN_SECRET"
        raise HandshakeError(f"{_peer(sock)} {what} of the job's secret for {purpose.decode()}: {why}")
    if not secret:
        require_same_user(sock)


def prove_as_client(sock: socket.socket, secret: str, purpose: bytes, deadline: Deadline, to: str = "") -> None:
    """Run the client's side on a connected socket.

    Raises: HandshakeError if the server does not know the secret; SecretRequired (see `require_same_user`);
    DistNetworkError if the server goes away or is late.
    """
    nonce_c = new_nonce()
    try:
        sock.settimeout(deadline.left())
        sock.sendall(nonce_c)
        nonces = nonce_c, recv_exactly(sock, WORD_BYTES, deadline)
        sock.sendall(proof(secret, b"client", purpose, *nonces, to))
        given = recv_exactly(sock, WORD_BYTES, deadline)
    except OSError as error:
        raise DistNetworkError(f"handshake for {purpose.decode()} with {_peer(sock)} failed: {error}") from error
    check_server(sock, secret, purpose, nonces, given, to)


def prove_as_server(
    sock: socket.socket,
    known: str | Iterable[str],
    purpose: bytes,
    deadline: Deadline,
    wrong: WrongProofs,
    own: str = "",
) -> str:
    """Run the server's side on an accepted socket; returns which of the `known` secrets the client proved.

    `wrong`: the server's memory of who was wrong; `own`: the mark of it that clients were told.

    Raises: HandshakeError if it proved none; SecretRequired (see `require_same_user`); DistNetworkError if it goes away
    or is late.
    """
    try:
        nonce_c = recv_exactly(sock, WORD_BYTES, deadline)
        nonces = nonce_c, new_nonce()
        sock.settimeout(deadline.left())
        sock.sendall(nonces[1])
        given = recv_exactly(sock, WORD_BYTES, deadline)
        _wait_for_turn(sock, wrong)
        for secret in [known] if isinstance(known, str) else known:
            if hmac.compare_digest(given, proof(secret, b"client", purpose, *nonces, own)):
                if not secret:
                    _require_or_refuse(sock)
                sock.sendall(proof(secret, b"server", purpose, *nonces, own))
                return secret
        name = _peer(sock)
        wrong.note(_place(sock))  # before the answer: who hears it may try again at once
        sock.sendall(_REFUSAL)
    except OSError as error:
        raise DistNetworkError(f"handshake for {purpose.decode()} with {_peer(sock)} failed: {error}") from error
    raise HandshakeError(f"{name} did not prove the job's secret for {purpose.decode()}")


def _wait_for_turn(sock: socket.socket, wrong: WrongProofs) -> None:
    """Nothing is said of a proof before its time, whether it is right or wrong."""
    wait_s = wrong.wait_s(_place(sock)) if wrong else 0.0
    if wait_s and hung_up(sock, wait_s):
        raise ConnectionResetError("it closed the connection")


def _place(sock: socket.socket) -> str:
    name = sock.getpeername()
    return place_of(str(name[0]) if isinstance(name, tuple) else "", lambda: peer_user(sock))


def _require_or_refuse(sock: socket.socket) -> None:
    try:
        require_same_user(sock)
    except (HandshakeError, SecretRequired):
        sock.sendall(_REFUSAL)
        raise


def require_same_user(sock: socket.socket) -> None:
    """Pass when the peer's socket belongs to this process's user or to root.

    Raises: HandshakeError when it is another user's; SecretRequired when the kernel does not say whose it is;
    DistNetworkError when that is because the peer has just left.
    """
    user = peer_user(sock)
    if user is None:
        if hung_up(sock, _MOMENT_S):
            raise DistNetworkError(f"{_peer(sock)} closed the connection during the handshake")
        raise SecretRequired(
            f"the job has no secret, and whose process {_peer(sock)} is cannot be known here: set RESILIN_SECRET to "
            "the same value for every rank (`elastic-run` does)"
        )
    refuse_other_user(user)


def refuse_other_user(user: int) -> None:
    """HandshakeError unless `user` is this process's user or root."""
    if user not in (0, os.geteuid()):
        raise HandshakeError(f"the peer is a process of user {user}; this one belongs to user {os.geteuid()}")


def peer_process(sock: socket.socket) -> int:
    """The process that made the other end of a Unix socket (for one that listens: that called `listen`)."""
    return int(_CREDENTIALS.unpack(sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size))[0])


def peer_user(sock: socket.socket) -> int | None:
    """User id of the process at the other end, as this host's kernel knows it; None when it does not.

    Unix sockets have it as SO_PEERCRED. For TCP the kernel is asked for the peer's own socket (`socket_owners`); one
    that nobody holds (closed, or not accepted yet) has no user.
    """
    if sock.family == getattr(socket, "AF_UNIX", None):
        if not hasattr(socket, "SO_PEERCRED"):
            return None
        return int(_CREDENTIALS.unpack(sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size))[1])
    try:
        theirs, ours = sock.getpeername(), sock.getsockname()
        for _ in range(_LOOKS):
            if hung_up(sock):
                return None
            user = socket_owners.owner_of(theirs, ours)
            if user is not None:
                return user
    except OSError:
        return None
    return None


def _peer(sock: socket.socket) -> str:
    try:
        name = sock.getpeername()
        return host_port.join(*name[:2]) if isinstance(name, tuple) else "a local peer"
    except OSError:
        return "a peer that already left"
