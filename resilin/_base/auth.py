"""Proof of the job's secret, both ways, before anything else is read from a connection.

Challenge and response with HMAC-SHA256 (RFC 2104) over both nonces, the role and the purpose of the connection, so a
proof cannot be replayed, reflected or used for another purpose:

    client -> server   nonce_c (32)
    server -> client   nonce_s (32) + HMAC(secret, "server" | purpose | nonce_c | nonce_s)
    client -> server                 HMAC(secret, "client" | purpose | nonce_c | nonce_s)

`purpose` is a short byte string such as b"group dp generation 7": ends with different purposes refuse each other.
Without a secret (loopback only) both ends use the empty key: the exchange still separates jobs and generations.
"""

from __future__ import annotations

import hmac
import secrets
import socket

from resilin._base.clock import Deadline
from resilin._base.framing import recv_exactly
from resilin.errors import HandshakeError

_NONCE_BYTES = 32
_PROOF_BYTES = 32


def new_secret() -> str:
    """A fresh job secret: 32 random bytes as hexadecimal text."""
    return secrets.token_hex(32)


def _proof(secret: str, role: bytes, purpose: bytes, nonce_c: bytes, nonce_s: bytes) -> bytes:
    message = b"|".join((role, len(purpose).to_bytes(4, "big"), purpose, nonce_c, nonce_s))
    return hmac.digest(secret.encode(), message, "sha256")


def prove_as_client(sock: socket.socket, secret: str, purpose: bytes, deadline: Deadline) -> None:
    """Run the client's side on a connected socket. Raises HandshakeError if the server does not know the secret."""
    nonce_c = secrets.token_bytes(_NONCE_BYTES)
    try:
        sock.settimeout(deadline.left())
        sock.sendall(nonce_c)
        nonce_s = recv_exactly(sock, _NONCE_BYTES, deadline)
        proof = recv_exactly(sock, _PROOF_BYTES, deadline)
        if not hmac.compare_digest(proof, _proof(secret, b"server", purpose, nonce_c, nonce_s)):
            raise HandshakeError(
                f"{_peer(sock)} did not prove the job's secret for {purpose!r}: another job, "
                "another generation, or a wrong secret"
            )
        sock.sendall(_proof(secret, b"client", purpose, nonce_c, nonce_s))
    except (OSError, HandshakeError) as error:
        raise _as_handshake_error(error, sock, purpose) from error


def prove_as_server(sock: socket.socket, secret: str, purpose: bytes, deadline: Deadline) -> None:
    """Run the server's side on an accepted socket. Raises HandshakeError if the client does not know the secret."""
    try:
        nonce_c = recv_exactly(sock, _NONCE_BYTES, deadline)
        nonce_s = secrets.token_bytes(_NONCE_BYTES)
        sock.settimeout(deadline.left())
        sock.sendall(nonce_s + _proof(secret, b"server", purpose, nonce_c, nonce_s))
        proof = recv_exactly(sock, _PROOF_BYTES, deadline)
        if not hmac.compare_digest(proof, _proof(secret, b"client", purpose, nonce_c, nonce_s)):
            raise HandshakeError(f"{_peer(sock)} did not prove the job's secret for {purpose!r}: refused")
    except (OSError, HandshakeError) as error:
        raise _as_handshake_error(error, sock, purpose) from error


def _as_handshake_error(error: Exception, sock: socket.socket, purpose: bytes) -> HandshakeError:
    if isinstance(error, HandshakeError):
        return error
    return HandshakeError(f"handshake for {purpose!r} with {_peer(sock)} failed: {error}")


def _peer(sock: socket.socket) -> str:
    try:
        return str(sock.getpeername() or "a local peer")
    except OSError:
        return "a peer that already left"
