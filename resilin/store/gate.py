"""Who gets into an embedded store that has a secret: proofs, passwords and tokens of each connection.

Knows nothing of grpc. Wrong proofs are logged with their address, and make the next ones from there wait.
"""

from __future__ import annotations

import hmac
import logging
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol

from resilin._base import host_port, log
from resilin._base.clock import SYSTEM, Clock
from resilin._base.wrong_proofs import WrongProofs, place_of
from resilin.store import token
from resilin.store.service import Rejected

_log = log.logger("store.server")
MAX_WAITING, MAX_WAITING_OF_ALL = 16, 64  # proofs that wait, from one place and at all: each takes a thread
MAX_PASSWORDS = 64  # tokens given for a password that are kept
MAX_LINES, WITHIN_S = 10, 10.0  # of the log


class Caller(Protocol):
    """Whose call it is: one connection."""

    given: token.Given
    closed: bool

    @property
    def address(self) -> tuple[str, int]:
        """Of the other end."""
        ...

    @property
    def same_host(self) -> bool:
        """Whether the other end is on this host, so that nobody else hears what it sends."""
        ...

    def user(self) -> int | None:
        """The user at the other end, where this host's kernel names one."""
        ...


class Gate:
    """Lets calls in. Thread-safe. `at`: the server's address, for the log; `secret` None: whoever reaches it may."""

    def __init__(self, secret: str | None, at: str, clock: Clock = SYSTEM) -> None:
        self._secret = secret
        self._at = at
        self._clock = clock
        self._lock = threading.Lock()  # also guards every Caller.given
        self._by_password: dict[str, tuple[Caller, int | None, float]] = {}  # guarded by _lock: name -> of, user, until
        self._waiting: Counter[str] = Counter()  # guarded by _lock: proofs, by place
        self._wrong = WrongProofs(clock)
        self._lines = log.Ration(MAX_LINES, WITHIN_S, clock)

    def authenticate(self, caller: Caller, user: str, password: str) -> str:
        """The answer to etcd's Authenticate call. Rejected says why there is none."""
        if self._secret is None:
            raise Rejected("FAILED_PRECONDITION", "authentication is not enabled")
        if user == token.PROOF_USER and token.is_nonce(password):
            with self._lock:
                return token.challenge(caller.given, password, self._clock.monotonic())
        if user == token.PROOF_USER:
            return self._prove(caller, self._secret, password)
        if not caller.same_host:  # it is not even compared: the answer would be worth a guess
            raise Rejected(
                "PERMISSION_DENIED",
                "a password travels in clear text, so this store takes one from its own host alone: come through a "
                "tunnel or a TLS proxy that ends there",
            )
        with self._turn(caller):
            if user == token.PASSWORD_USER and hmac.compare_digest(password.encode(), self._secret.encode()):
                return self._let_in_by_password(caller)
        raise self._wrong_one(caller)

    def admit(self, caller: Caller, presented: str | None) -> str:
        """Let a call with this token pass, with the proof for its answer; or raise Rejected."""
        if presented is None:
            raise Rejected("INVALID_ARGUMENT", "user name is empty")  # etcd's words for a call without a token
        with self._lock:
            proof = token.admit(caller.given, presented, self._clock.monotonic())
            found = self._by_password.get(presented)
        if proof is None and found is not None and self._is_beside(caller, *found):
            return ""
        if proof is None:
            raise _stale()
        return proof

    def _let_in_by_password(self, caller: Caller) -> str:
        user, now = caller.user(), self._clock.monotonic()
        with self._lock:
            name = token.let_in_by_password(caller.given, now)
            good = {old: each for old, each in self._by_password.items() if now < each[2] and not each[0].closed}
            self._by_password = dict(list(good.items())[1 - MAX_PASSWORDS :])
            self._by_password[name] = caller, user, now + token.LIFE_S
        return name

    def _is_beside(self, caller: Caller, first: Caller, user: int | None, until: float) -> bool:
        """Whether it is the same user of this host that logged in on `first`, which is open.

        etcd's own clients have a connection for some calls (`etcdctl endpoint status`) beside that of the login.
        """
        fresh = not first.closed and self._clock.monotonic() < until
        return fresh and caller.same_host and user is not None and caller.user() == user

    def _prove(self, caller: Caller, secret: str, password: str) -> str:
        parts = token.parse_response(password)
        if parts is None:
            raise self._wrong_one(caller)
        nonce_c, nonce_s, proven = parts
        with self._lock:
            if not token.take_challenge(caller.given, nonce_c, nonce_s, self._clock.monotonic()):
                raise _stale()
        with self._turn(caller):
            if token.is_proven(secret, nonce_c, nonce_s, proven):
                with self._lock:
                    return token.let_in(caller.given, secret, (nonce_c, nonce_s), self._clock.monotonic())
        raise self._wrong_one(caller)

    @contextmanager
    def _turn(self, caller: Caller) -> Iterator[None]:
        """Nothing is said of a proof before its time, whether it is right or wrong."""
        place = _place(caller) if self._wrong else ""
        wait_s = self._wrong.wait_s(place) if place else 0.0
        if not wait_s:
            yield
            return
        with self._lock:
            if self._waiting[place] >= MAX_WAITING or self._waiting.total() >= MAX_WAITING_OF_ALL:
                raise Rejected("RESOURCE_EXHAUSTED", "too many requests: wrong proofs came from this address")
            self._waiting[place] += 1
        try:
            self._clock.sleep(wait_s)
            yield
        finally:
            with self._lock:
                self._waiting[place] -= 1
                self._waiting += Counter()  # drops those at zero

    def _wrong_one(self, caller: Caller) -> Rejected:
        count = self._wrong.note(_place(caller))
        if (held := self._lines.take()) is not None:
            host, port = caller.address
            fields = {
                "server": self._at,
                "address": host_port.join(host, port),
                "from_there": count,
                "lines_left_out": held,
            }
            log.event(_log, logging.WARNING, "a connection did not prove the job's secret", **fields)
        return Rejected("INVALID_ARGUMENT", "authentication failed, invalid user ID or password")


def _stale() -> Rejected:
    return Rejected("UNAUTHENTICATED", "invalid auth token")  # etcd's words; clients log in again


def _place(caller: Caller) -> str:
    return place_of(caller.address[0], caller.user)
