"""How a client and the embedded server prove to each other that they know the job's secret. Pure.

The exchange travels in etcd's own Authenticate call, twice on one connection, so nothing is added to the protocol:

    client -> server   user "resilin+proof", password nonce_c
    server -> client   token  nonce_s
    client -> server   user "resilin+proof", password nonce_c "." nonce_s "." HMAC(secret, "client" | nonce_c | nonce_s)
    server -> client   token  name "." life_s "." HMAC(secret, "server" | nonce_c | nonce_s | name | life_s)
    every later call   metadata "token": name "." number
    its answer         metadata "resilin-proof": HMAC(HMAC(secret, "session" | nonce_c | nonce_s), "answer" | number)

HMAC-SHA256 (RFC 2104), everything in hexadecimal. The client proves first: a stranger gets 16 random bytes and nothing
that the secret went into. The server keeps, for each connection, the nonces it gave (each is good once, for some
seconds) and the names of tokens it gave (each is good for minutes): what was recorded on one connection is worth
nothing on another one. gRPC connects again where a connection breaks, without a word: so every answer proves that it
comes from whom the client logged in at, and is not looked at before.

Tools that know only user and password use user "resilin" with the secret as password (`etcdctl --user
resilin:SECRET`); that sends the secret in clear text, so it is taken from the server's own host alone, where a tunnel
or TLS may end. Such a token is good on further connections of the same user, as long as the first one is open.

Who is dialed can try guesses against the client's proof, as in SCRAM (RFC 5802): what keeps the secret is its 128
random bits (`_base.secret`).
"""

from __future__ import annotations

import hmac
import itertools
import re
import secrets
from collections.abc import Iterator
from dataclasses import dataclass, field

PROOF_USER = "resilin+proof"
PASSWORD_USER = "resilin"
PROOF_KEY = "resilin-proof"  # of an answer's metadata
LIFE_S = 300  # of a token; etcd's own live as long
CHALLENGE_S = 10.0  # between the two calls
KEPT = 8  # challenges and tokens of one connection: calls may be under way with older ones
_NONCE_CHARS = 32
_MAX_LIFE_S = 86400
_is_nonce = re.compile(rf"[0-9a-f]{{{_NONCE_CHARS}}}").fullmatch
_is_number = re.compile(r"[0-9]{1,20}").fullmatch


def new_nonce() -> str:
    """16 random bytes as hexadecimal text."""
    return secrets.token_hex(_NONCE_CHARS // 2)


def is_nonce(text: str) -> bool:
    """Whether `text` may be one."""
    return _is_nonce(text) is not None


def _mac(key: bytes, *words: str) -> bytes:
    return hmac.digest(key, "|".join(("store", *words)).encode(), "sha256")


def equal(given: str | bytes, expected: str) -> bool:
    """Whether both proofs are the same, in a time that does not tell where they differ."""
    return hmac.compare_digest(given.encode() if isinstance(given, str) else given, expected.encode())


def _equal(given: str, expected: bytes) -> bool:
    return equal(given, expected.hex())


class ClientProof:
    """The client's side of one login."""

    def __init__(self, secret: str) -> None:
        self._key = secret.encode()
        self.nonce = new_nonce()
        """The password of the first call."""
        self._nonces = (self.nonce, "")

    def respond(self, challenge: str) -> str | None:
        """The password of the second call; None when `challenge` is none."""
        if not is_nonce(challenge):
            return None
        self._nonces = (self.nonce, challenge)
        return ".".join((*self._nonces, _mac(self._key, "client", *self._nonces).hex()))

    def finish(self, answer: str) -> Session | None:
        """What the server let us in with; None when it did not prove that it knows the secret."""
        name, _, rest = answer.partition(".")
        life, _, proven = rest.partition(".")
        if not _equal(proven, _mac(self._key, "server", *self._nonces, name, life)) or not _is_number(life):
            return None
        return Session(name, _mac(self._key, "session", *self._nonces), min(int(life), _MAX_LIFE_S))


@dataclass
class Session:
    """What a client was let in with, on one connection.

    key: proves answers; None: the server (a real etcd) has no proofs. life_s: None: until it is refused.
    """

    name: str
    key: bytes | None = None
    life_s: float | None = None
    _numbers: Iterator[int] = field(default_factory=lambda: itertools.count(1))

    def present(self) -> tuple[str, str]:
        """The token of the next call, and the proof that its answer must bring; empty: none."""
        if self.key is None:
            return self.name, ""
        number = str(next(self._numbers))
        return f"{self.name}.{number}", _mac(self.key, "answer", number).hex()


@dataclass
class Given:
    """What the server has given on one connection. Its owner guards it."""

    challenges: dict[str, tuple[str, float]] = field(default_factory=dict)
    """nonce_s -> nonce_c, until when it is good"""
    tokens: dict[str, tuple[bytes | None, float]] = field(default_factory=dict)
    """name -> the key that proves answers, until when it is good"""


def challenge(given: Given, nonce_c: str, now: float) -> str:
    """The answer to a client's first call."""
    nonce_s = new_nonce()
    given.challenges[nonce_s] = nonce_c, now + CHALLENGE_S
    _keep(given.challenges)
    return nonce_s


def parse_response(password: str) -> tuple[str, str, str] | None:
    """Both nonces and the proof of a client's second call; None when it is none."""
    parts = password.split(".")
    if len(parts) != 3 or not all(map(is_nonce, parts[:2])):
        return None
    return parts[0], parts[1], parts[2]


def take_challenge(given: Given, nonce_c: str, nonce_s: str, now: float) -> bool:
    """Whether it was given on this connection, lately, and not answered yet: it is now."""
    found = given.challenges.pop(nonce_s, None)
    return found is not None and found[0] == nonce_c and now < found[1]


def is_proven(secret: str, nonce_c: str, nonce_s: str, proven: str) -> bool:
    """Whether a client's proof is right."""
    return _equal(proven, _mac(secret.encode(), "client", nonce_c, nonce_s))


def let_in(given: Given, secret: str, nonces: tuple[str, str], now: float) -> str:
    """The answer to a client that has proved the secret."""
    key = secret.encode()
    name, life = new_nonce(), str(LIFE_S)
    _add(given, name, _mac(key, "session", *nonces), now)
    return f"{name}.{life}.{_mac(key, 'server', *nonces, name, life).hex()}"


def let_in_by_password(given: Given, now: float) -> str:
    """The answer to a tool that has given the password."""
    name = new_nonce()
    _add(given, name, None, now)
    return name


def admit(given: Given, presented: str, now: float) -> str | None:
    """The proof for the answer to a call with this token (empty: it has none), or None: it is not let in."""
    name, _, number = presented.partition(".")
    found = given.tokens.get(name)
    if found is None or now >= found[1] or bool(number) != (found[0] is not None):
        return None
    if found[0] is None:
        return ""
    return _mac(found[0], "answer", number).hex() if _is_number(number) else None


def _add(given: Given, name: str, key: bytes | None, now: float) -> None:
    given.tokens[name] = key, now + LIFE_S
    _keep(given.tokens)


def _keep(kept: dict[str, tuple[str, float]] | dict[str, tuple[bytes | None, float]]) -> None:
    while len(kept) > KEPT:
        del kept[next(iter(kept))]
