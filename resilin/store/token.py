"""How a client and the embedded server prove to each other that they know the job's secret. Pure.

The exchange travels in etcd's own Authenticate call, so nothing is added to the protocol:

    client -> server   name "resilin+hmac", password nonce_c
    server -> client   token  nonce_s "." HMAC(secret, "server" | nonce_c | nonce_s)
    every later call   token  nonce_c "." nonce_s "." HMAC(secret, "client" | nonce_c | nonce_s)

HMAC-SHA256 (RFC 2104), everything in hexadecimal. The server keeps nothing: a token is its own proof, and stays good
over a restart of the server. Tools that know only user and password use user "resilin" with the secret as password
(`etcdctl --user resilin:SECRET`); that sends the secret in clear text, so use it on loopback or through TLS.
"""

from __future__ import annotations

import hmac
import secrets

HMAC_USER = "resilin+hmac"
PASSWORD_USER = "resilin"
_NONCE_CHARS = 32


def new_nonce() -> str:
    """16 random bytes as hexadecimal text."""
    return secrets.token_hex(_NONCE_CHARS // 2)


def proof(secret: str, role: str, nonce_c: str, nonce_s: str) -> str:
    """The HMAC over role and both nonces, as hexadecimal text."""
    return hmac.digest(secret.encode(), f"store|{role}|{nonce_c}|{nonce_s}".encode(), "sha256").hex()


def challenge_answer(secret: str, nonce_c: str) -> str | None:
    """The server's answer to a client's nonce; None when it is no nonce."""
    if len(nonce_c) != _NONCE_CHARS:
        return None
    nonce_s = new_nonce()
    return f"{nonce_s}.{proof(secret, 'server', nonce_c, nonce_s)}"


def make_token(secret: str, nonce_c: str, nonce_s: str) -> str:
    """The token that proves knowledge of the secret."""
    return f"{nonce_c}.{nonce_s}.{proof(secret, 'client', nonce_c, nonce_s)}"


def token_from_answer(secret: str, nonce_c: str, answer: str) -> str | None:
    """The client's token after the server's answer; None when the server did not prove that it knows the secret."""
    nonce_s, _, proven = answer.partition(".")
    if not hmac.compare_digest(proven.encode(), proof(secret, "server", nonce_c, nonce_s).encode()):
        return None
    return make_token(secret, nonce_c, nonce_s)


def is_valid(secret: str, token: str) -> bool:
    """Whether `token` proves knowledge of the secret."""
    parts = token.split(".")
    if len(parts) != 3:
        return False
    nonce_c, nonce_s, proven = parts
    return hmac.compare_digest(proven.encode(), proof(secret, "client", nonce_c, nonce_s).encode())
