"""Introduce two workers to each other at the beginning of a stream: two short texts until the secret is proved."""

from __future__ import annotations

import contextlib
import hmac
import os
import threading
from collections.abc import Generator, Iterator
from typing import Any
from urllib.parse import unquote

from resilin._base import auth, host_port, socket_owners
from resilin._base.clock import SYSTEM, Deadline
from resilin._base.wrong_proofs import WrongProofs, place_of
from resilin.errors import HandshakeError, SecretRequired
from resilin.rpc.transports import introduction
from resilin.rpc.transports.grpc.link import GrpcLink
from resilin.rpc.transports.grpc.loop import Loop
from resilin.rpc.transports.introduction import Answer, Greeting, NetworkAddress

INTRODUCTION_S = 10.0
"""A stranger that proves nothing is dropped after this."""
_MAX_STRANGERS = 128  # streams that have not proved themselves; a group's workers may all come at once


def say_hello(link: GrpcLink, card: NetworkAddress, call: Any, nonce: bytes, secret: str, hello: Greeting) -> Answer:
    """The client's side: prove the secret, have it proved, and hear what is said to the hello."""
    nonces = nonce, bytes(next(call))
    if len(nonces[1]) != auth.WORD_BYTES:
        raise HandshakeError(f"worker {link.peer} at {card.at} is none: it sent {len(nonces[1])} bytes")
    if not secret:
        _require_own_server(host_port.parse(card.at, "an RPC address"))
    proof = auth.proof(secret, b"client", introduction.PURPOSE, *nonces, card.mark)
    link.say(proof + introduction.sealed(secret, b"hello", nonces[1], hello))
    said = bytes(next(call))
    given, rest = said[: auth.WORD_BYTES], said[auth.WORD_BYTES :]
    expected = auth.proof(secret, b"server", introduction.PURPOSE, *nonces, card.mark)
    if not hmac.compare_digest(given, expected):
        raise HandshakeError(
            f"worker {link.peer} at {card.at} refused our proof of the job's secret, or did not prove its own "
            "knowledge: another job or a wrong secret"
        )
    return introduction.unsealed(Answer, secret, b"answer", nonce, rest)


class HelloListener:
    """The server's side, for all who come."""

    def __init__(self, secret: str, mark: str, own: tuple[str, int], loop: Loop) -> None:
        self._secret, self._mark, self._own, self._loop = secret, mark, own, loop
        self._wrong = WrongProofs()
        self._lock = threading.Lock()
        self._strangers: dict[Any, None] = {}  # guarded by _lock: streams that have proved nothing, oldest first

    def hear_hello(
        self, requests: Iterator[bytes], context: Any
    ) -> Generator[bytes, None, tuple[tuple[bytes, bytes], Greeting]]:
        """Send what the client needs, and return the nonces and its hello. HandshakeError, SecretRequired."""
        nonce_c = next(requests)
        if len(nonce_c) != auth.WORD_BYTES:
            raise HandshakeError(f"{context.peer()} sent {len(nonce_c)} bytes, expected {auth.WORD_BYTES}")
        nonces = nonce_c, auth.new_nonce()
        yield nonces[1]
        said = next(requests)
        if not auth.WORD_BYTES <= len(said) <= auth.WORD_BYTES + introduction.MAX_BYTES + auth.WORD_BYTES:
            raise HandshakeError(f"{context.peer()} sent {len(said)} bytes, which is no introduction")
        self._check_proof(said[: auth.WORD_BYTES], nonces, context)
        return nonces, introduction.unsealed(Greeting, self._secret, b"hello", nonces[1], said[auth.WORD_BYTES :])

    def _check_proof(self, given: bytes, nonces: tuple[bytes, bytes], context: Any) -> None:
        peer = address_of(context)
        place = place_of(peer[0], lambda: self._user(peer))
        if self._wrong and (wait_s := self._wrong.wait_s(place)):
            SYSTEM.sleep(wait_s)  # nothing is said of a proof before its time
        expected = auth.proof(self._secret, b"client", introduction.PURPOSE, *nonces, self._mark)
        if not hmac.compare_digest(given, expected):
            self._wrong.note(place)
            raise HandshakeError(f"{context.peer()} did not prove the job's secret for {introduction.PURPOSE.decode()}")
        if self._secret:
            return
        user = self._user(peer)
        if user is None:
            raise SecretRequired(
                f"the job has no secret, and whose process {context.peer()} is cannot be known here: set "
                "RESILIN_SECRET to the same value for every rank (`elastic-run` does)"
            )
        auth.refuse_other_user(user)

    def answer(self, nonces: tuple[bytes, bytes], said: Answer) -> bytes:
        """What is sent to a client that has proved itself."""
        proof = auth.proof(self._secret, b"server", introduction.PURPOSE, *nonces, self._mark)
        return proof + introduction.sealed(self._secret, b"answer", nonces[0], said)

    def _user(self, peer: tuple[str, int]) -> int | None:
        with contextlib.suppress(OSError):
            return socket_owners.owner_of(peer, self._own)
        return None

    @contextlib.contextmanager
    def as_stranger(self, context: Any) -> Iterator[None]:
        """Have few streams in this block at a time, each for a short time."""
        with self._lock:
            oldest = next(iter(self._strangers)) if len(self._strangers) >= _MAX_STRANGERS else None
            self._strangers.pop(oldest, None)
            self._strangers[context] = None
        if oldest is not None:
            oldest.cancel()
        try:
            with self._loop.in_time(context, Deadline(INTRODUCTION_S), context.cancel):
                yield
        finally:
            with self._lock:
                self._strangers.pop(context, None)


def address_of(context: Any) -> tuple[str, int]:
    """Host and port of a client, which gRPC calls `ipv4:127.0.0.1:40001` or `ipv6:%5B::1%5D:40001`."""
    found = host_port.parse(unquote(context.peer().partition(":")[2]), "gRPC's name of a peer")
    return found.host, found.port


def _require_own_server(where: host_port.HostPort) -> None:
    """Without a secret: whoever listens there has to be of this user, or root's."""
    try:
        users = socket_owners.listening_users(*where)
    except OSError as error:
        raise SecretRequired(f"whose process listens at {where} cannot be known here: set RESILIN_SECRET") from error
    for user in users or {-1}:
        if user not in (0, os.geteuid()):
            raise HandshakeError(f"the process at {where} is another user's: set RESILIN_SECRET")
