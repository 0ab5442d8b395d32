"""Calls to a store over gRPC: several endpoints, failover, deadlines, tokens. No grpc exception leaves this file's
callers.

Unary calls and streams use separate connections, so a burst of events never delays a call.
"""

from __future__ import annotations

import math
import os
import random
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from resilin._base import host_port, socket_owners
from resilin._base.clock import SYSTEM, Clock, Deadline
from resilin._base.host import is_on_loopback
from resilin.errors import ResilinError, StoreAmbiguous, StoreError, StoreRefused, StoreTimeout, UsageError
from resilin.store import token
from resilin.store.failures import RetryVerdict, judge, to_error
from resilin.store.grpc_quiet import grpc
from resilin.store.messages import METHODS, cls, new, path

MAX_MESSAGE_BYTES = 64 << 20  # a range over every key of a large job
TRIES = 4  # a try gets this part of the deadline: three dead endpoints leave time for a fourth
BACKOFF_S = (0.01, 0.3)  # first and longest pause between rounds over the endpoints, halved at random
LOGINS = 3
RENEW_PART = 0.5  # of a token's life
AGAIN_S = 5.0  # after a renewal that failed while the old token is good
STREAMS = ("Watch", "LeaseKeepAlive")

_OPTIONS = (
    ("grpc.keepalive_time_ms", 10_000),  # a dead peer of an idle watch is noticed after 13 s; etcd allows one in 5 s
    ("grpc.keepalive_timeout_ms", 3_000),
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.max_pings_without_data", 0),
    ("grpc.initial_reconnect_backoff_ms", 50),
    ("grpc.min_reconnect_backoff_ms", 1_000),  # also the longest a connection attempt may take
    ("grpc.max_reconnect_backoff_ms", 1_000),
    ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
    ("grpc.use_local_subchannel_pool", 1),  # else channels to one address share one connection
    ("grpc.enable_http_proxy", 0),
    ("grpc.http2.bdp_probe", 0),  # its pings beside large answers make an etcd close the connection: too_many_pings
)

Ask = Callable[[str, str], str]
"""One call of Authenticate, with user and password, on one connection: the answer's token."""
Login = Callable[[Ask], token.Session]
"""Gets in on one connection; StoreRefused when the server does not prove that it knows the secret."""
_REFUSAL = "the store did not prove that it knows the job's secret: another job's store, or a wrong secret"


@dataclass(frozen=True, kw_only=True)
class Tls:
    """Files of a TLS connection, PEM."""

    ca: str | None = None
    """Certificates to trust; None: the system's."""
    cert: str | None = None
    """Our certificate, for servers that ask for one."""
    key: str | None = None
    """Our certificate's key."""
    server_name: str | None = None
    """Expect this name in the server's certificate instead of the endpoint's."""

    def credentials(self) -> Any:
        """grpc's form; UsageError names a file that cannot be read."""
        return grpc.ssl_channel_credentials(_read(self.ca), _read(self.key), _read(self.cert))


def _read(file: str | None) -> bytes | None:
    if file is None:
        return None
    try:
        with open(file, "rb") as opened:
            return opened.read()
    except OSError as error:
        raise UsageError(f"TLS: cannot read {file}: {error.strerror}") from None


def login_with_secret(secret: str) -> Login:
    """Prove the secret without sending it, and make the server prove it too (see `store.token`)."""

    def login(ask: Ask) -> token.Session:
        mine = token.ClientProof(secret)
        response = mine.respond(ask(token.PROOF_USER, mine.nonce))
        session = None if response is None else mine.finish(ask(token.PROOF_USER, response))
        if session is None:
            raise StoreRefused(_REFUSAL)
        return session

    return login


def login_with_password(user: str, password: str) -> Login:
    """etcd's own users."""
    return lambda ask: token.Session(ask(user, password))


def require_own_server(address: str, *, answered: bool) -> None:
    """StoreRefused when the store at `address`, of loopback, is served by another user than this process's or root.

    answered: somebody has answered there, who has to be found.
    """
    host, port = host_port.parse(address, "store")
    own, advice = os.geteuid(), "give the store and all that use it one secret (RESILIN_SECRET or --secret-file)"
    try:
        users = socket_owners.listening_users(host, port)
    except OSError as error:
        if answered:
            raise StoreRefused(f"{address}: whose store it is cannot be known here ({error}): {advice}") from None
        return
    if answered and not users:
        raise StoreRefused(f"{address}: whose store it is cannot be known here: {advice}")
    if users - {0, own}:
        other = min(users - {0, own})
        raise StoreRefused(
            f"{address}: a process of user {other} listens there; this one, of user {own}, joins a store without a "
            f"secret only where its own user or root serves it: choose another port, or {advice}"
        )


class BrokenStream(StoreError):
    """A stream broke; open it again."""


class _Ticket(NamedTuple):
    """What a call presents, and the proof that its answer has to bring; empty: none."""

    metadata: list[tuple[str, str]]
    proof: str = ""
    session: token.Session | None = None

    def proven(self, metadata: Any) -> bool:
        """Whether an answer with this metadata comes from whom the client logged in at."""
        given = next((value for key, value in metadata or () if key == token.PROOF_KEY), "")
        return not self.proof or token.equal(given, self.proof)


class _Connection:
    """One channel to an endpoint, with what it was let in with. Made on first use."""

    def __init__(self, make: Callable[[], Any]) -> None:
        self.session: token.Session | None = None  # set under login_lock
        self.renew_at = self.ends_at = math.inf
        self.login_lock = threading.Lock()  # one login at a time
        self._make = make
        self._lock = threading.Lock()
        self._channel: Any = None  # guarded by _lock
        self._closed = False  # guarded by _lock
        self._stubs: dict[str, Any] = {}

    def stub(self, method: str) -> Any:
        stub = self._stubs.get(method)
        if stub is None:
            _, request, response = METHODS[method]
            channel = self._open()
            make = channel.stream_stream if method in STREAMS else channel.unary_unary
            stub = make(path(method), cls(request).SerializeToString, cls(response).FromString)
            self._stubs[method] = stub
        return stub

    def let_in(self, session: token.Session, begun: float) -> None:
        """begun: when the login was, at the latest: we take its end for earlier than the server does."""
        life_s = math.inf if session.life_s is None else session.life_s
        self.renew_at, self.ends_at = begun + life_s * RENEW_PART, begun + life_s
        self.session = session

    def drop(self, ticket: _Ticket) -> None:
        """What this call presented is not good any more."""
        if self.session is ticket.session:
            self.session = None

    def _open(self) -> Any:
        with self._lock:
            if self._channel is None:
                if self._closed:
                    raise ValueError("the channel is closed")
                self._channel = self._make()
            return self._channel

    def close(self) -> None:
        with self._lock:
            self._closed = True
            if self._channel is not None:
                self._channel.close()


class _Endpoint:
    """One address with its two connections."""

    def __init__(self, address: str, credentials: Any, server_name: str | None) -> None:
        self.address = address
        self.host = host_port.parse(address, "store endpoint").host
        self.failure = "not tried"
        self.answered = False  # whether the last call got an answer
        self.calls, self.watching = _Connection(self._channel), _Connection(self._channel)
        self._lock = threading.Lock()
        self._credentials = credentials
        self._server_name = server_name
        self._streams: set[Any] = set()  # guarded by _lock; open calls

    def _channel(self) -> Any:
        options: list[tuple[str, Any]] = list(_OPTIONS)
        if self._credentials is None:
            return grpc.insecure_channel(self.address, options)
        if self._server_name:
            options.append(("grpc.ssl_target_name_override", self._server_name))
        return grpc.secure_channel(self.address, self._credentials, options)

    def keep(self, stream: Any) -> None:
        with self._lock:
            self._streams.add(stream)

    def drop(self, stream: Any) -> None:
        with self._lock:
            self._streams.discard(stream)

    def cut_streams(self) -> None:
        """Whoever found this endpoint dead says it to the streams: an idle one would notice after 13 s only."""
        with self._lock:
            streams, self._streams = self._streams, set()
        for stream in streams:
            stream.cancel()

    def close(self) -> None:
        self.calls.close()
        self.watching.close()


class Transport:
    """Sends calls to whichever endpoint answers, starting with a random one. Thread-safe; owns its connections."""

    def __init__(
        self,
        endpoints: Sequence[str],
        timeout_s: float,
        login: Login | None = None,
        tls: Tls | None = None,
        own_only: bool = False,
        clock: Clock = SYSTEM,
    ) -> None:
        """own_only: a store of loopback has to be this user's, or root's. clock: for the life of tokens."""
        if not endpoints:
            raise UsageError("store: expected at least one endpoint host:port")
        self.timeout_s = timeout_s
        self._clock = clock
        credentials, server_name = (None, None) if tls is None else (tls.credentials(), tls.server_name)
        self._endpoints = [_Endpoint(address, credentials, server_name) for address in endpoints]
        self._current = random.randrange(len(endpoints))  # spreads clients over the endpoints
        self._own_only = own_only
        self._login = login
        self._closed = threading.Event()
        self.cluster = 0
        """Which store gave the last answer: one that was replaced counts its revisions anew. 0: none has answered."""

    @property
    def addresses(self) -> str:
        """The endpoints, for messages."""
        return ", ".join(endpoint.address for endpoint in self._endpoints)

    @property
    def closed(self) -> bool:
        """Whether `close` was called: errors from then on are its owner's own doing."""
        return self._closed.is_set()

    def call(self, method: str, request: Any, *, repeatable: bool, timeout_s: float | None = None) -> Any:
        """The answer to one unary call.

        `repeatable`: executing it twice does no harm. Otherwise it is sent only to an endpoint that has just
        answered, and StoreAmbiguous says that its outcome is unknown.
        """
        deadline = Deadline(self.timeout_s if timeout_s is None else timeout_s)
        if not repeatable and not self._endpoints[self._current].answered:
            self._call("Status", new("StatusRequest"), deadline, repeatable=True)
        return self._call(method, request, deadline, repeatable=repeatable)

    def stream(self, method: str, requests: Iterator[Any], timeout_s: float | None = None) -> Iterator[Any]:
        """The answers of a two-way stream at the current endpoint, until it breaks or ends.

        Raises BrokenStream when another try may do better (at another endpoint, or with a new token), StoreRefused and
        other StoreErrors when none would.
        """
        self._check_open()
        endpoint = self._endpoints[self._current]
        self._check_whose(endpoint)
        ticket, proven = _Ticket([]), True
        try:
            ticket = self._ticket(endpoint.watching, Deadline(self.timeout_s))
            metadata = [*ticket.metadata, ("hasleader", "true")]
            call = endpoint.watching.stub(method)(requests, timeout=timeout_s, metadata=metadata)
        except (grpc.RpcError, ValueError) as failure:  # ValueError: the channel was closed under us
            raise self._stream_error(method, endpoint, ticket, proven, failure) from None
        endpoint.keep(call)
        try:
            proven = not ticket.proof or ticket.proven(call.initial_metadata())  # waits for them
            if proven:
                yield from call
            else:
                next(call, None)  # the error, mostly: the token is not good there
                endpoint.watching.drop(ticket)
                raise BrokenStream(f"{method} at {endpoint.address}: {_REFUSAL}")
        except grpc.RpcError as failure:
            raise self._stream_error(method, endpoint, ticket, proven, failure) from None
        finally:
            endpoint.drop(call)
            call.cancel()  # nothing to a call that has ended

    def pause(self, attempt: int, deadline: Deadline | None = None) -> None:
        """Wait before try number `attempt`: longer each time, at random, cut short by `close` and the deadline."""
        first, longest = BACKOFF_S
        pause_s = min(longest, first * 2 ** min(attempt, 10)) * random.uniform(0.5, 1.0)
        left = None if deadline is None else deadline.left()
        self._closed.wait(pause_s if left is None else min(pause_s, left))

    def close(self) -> None:
        """Cut every call and free the connections."""
        self._closed.set()
        for endpoint in self._endpoints:
            endpoint.close()

    # -- inside

    def _call(self, method: str, request: Any, deadline: Deadline, *, repeatable: bool) -> Any:
        logins = attempt = 0
        while True:
            self._check_open()
            endpoint = self._endpoints[self._current]
            self._check_whose(endpoint)
            ticket: _Ticket | None = None
            try:
                ticket = self._ticket(endpoint.calls, deadline)
                limit, stub = self._try_s(deadline, repeatable), endpoint.calls.stub(method)
                answer, call = stub.with_call(request, timeout=limit, metadata=ticket.metadata)
            except (grpc.RpcError, ValueError) as failure:  # ValueError: the channel was closed under us
                self._check_open()
                code, details = _status(failure)
                verdict = self._judge(code, details, ticket is None or ticket.proven(_trailing(failure)))
            else:
                if ticket.proven(call.trailing_metadata()):
                    self._check_whose(endpoint, answered=True)
                    endpoint.answered, self.cluster = True, answer.header.cluster_id
                    return answer
                code, details, verdict = "UNAUTHENTICATED", _REFUSAL, RetryVerdict.STALE_TOKEN
            if verdict is RetryVerdict.STALE_TOKEN:
                logins += 1
                if ticket is not None:
                    endpoint.calls.drop(ticket)
                if logins < LOGINS:
                    continue
            if verdict in (RetryVerdict.FINAL, RetryVerdict.STALE_TOKEN):
                raise to_error("Authenticate" if ticket is None else method, endpoint.address, code, details)
            self._leave(endpoint, f"{code} {details}")
            if ticket is not None and verdict is RetryVerdict.UNKNOWN and not repeatable:
                raise StoreAmbiguous(
                    f"{method} at {endpoint.address}: sent, but the answer was lost ({code} {details}); it may or may "
                    "not have happened: read the key again before repeating it"
                )
            attempt += 1
            if attempt % len(self._endpoints) == 0:
                self.pause(attempt // len(self._endpoints), deadline)
            if deadline.passed():
                raise StoreTimeout(self._describe_timeout(method, deadline))

    def _check_whose(self, endpoint: _Endpoint, *, answered: bool = False) -> None:
        """Before the first call to an endpoint, and after it; both again after each that got no answer."""
        if self._own_only and not endpoint.answered and is_on_loopback(endpoint.host):
            require_own_server(endpoint.address, answered=answered)

    def _judge(self, code: str, details: str, proven: bool) -> RetryVerdict:
        """proven: it was said by whom we logged in at, or by grpc itself."""
        verdict = judge(code, details)
        if verdict is RetryVerdict.FINAL and not proven:  # another one may listen there now: the next login tells
            return RetryVerdict.STALE_TOKEN
        if verdict is RetryVerdict.STALE_TOKEN and self._login is None:
            return RetryVerdict.FINAL
        return verdict

    def _stream_error(
        self, method: str, endpoint: _Endpoint, ticket: _Ticket, proven: bool, failure: Exception
    ) -> ResilinError:
        code, details = _status(failure)
        verdict = self._judge(code, details, proven)
        if verdict is RetryVerdict.FINAL:
            return to_error(method, endpoint.address, code, details)
        if verdict is RetryVerdict.STALE_TOKEN:
            endpoint.watching.drop(ticket)
        else:
            self._leave(endpoint, f"{code} {details}")
        return BrokenStream(f"{method} at {endpoint.address}: {code} {details}")

    def _try_s(self, deadline: Deadline, repeatable: bool) -> float | None:
        left = deadline.left()
        if left is None or len(self._endpoints) == 1:
            return left
        # A lost answer of an unrepeatable call costs the caller a re-read: give a slow election twice the time.
        share = (deadline.seconds or 0.0) / (TRIES if repeatable else TRIES / 2)
        return min(left, max(share, 0.05))

    def _ticket(self, connection: _Connection, deadline: Deadline) -> _Ticket:
        """For a call on `connection`; logs in where that is due. RpcError when it fails, StoreRefused: no proof."""
        if self._login is None:
            return _Ticket([])
        session = connection.session
        if session is None or self._clock.monotonic() >= connection.renew_at:
            with connection.login_lock:
                session = connection.session
                if session is None or self._clock.monotonic() >= connection.renew_at:
                    session = self._log_in(self._login, session, connection, deadline)
        presented, proof = session.present()
        return _Ticket([("token", presented)], proof, session)

    def _log_in(
        self, login: Login, old: token.Session | None, connection: _Connection, deadline: Deadline
    ) -> token.Session:
        """A new session. Where it cannot be had just now, the old one, as long as that is good."""

        def ask(user: str, password: str) -> str:
            request = new("AuthenticateRequest", name=user, password=password)
            return str(connection.stub("Authenticate")(request, timeout=self._try_s(deadline, True)).token)

        begun = self._clock.monotonic()
        try:
            session = login(ask)
        except grpc.RpcError as failure:
            now = self._clock.monotonic()
            if old is None or now >= connection.ends_at or judge(*_status(failure)) is RetryVerdict.FINAL:
                raise
            connection.renew_at = now + AGAIN_S
            return old
        connection.let_in(session, begun)
        return session

    def _leave(self, endpoint: _Endpoint, failure: str) -> None:
        endpoint.answered = False
        endpoint.failure = failure
        if self._endpoints[self._current] is endpoint:
            self._current = (self._current + 1) % len(self._endpoints)
        endpoint.cut_streams()

    def _check_open(self) -> None:
        if self._closed.is_set():
            raise StoreError("the store is closed")

    def _describe_timeout(self, method: str, deadline: Deadline) -> str:
        tried = "; ".join(f"{endpoint.address}: {endpoint.failure}" for endpoint in self._endpoints)
        return (
            f"{method}: no endpoint of the store answered within {deadline.seconds:g} s ({tried}). "
            "Is the store running, and can this host reach it?"
        )


def _trailing(failure: Any) -> Any:
    return failure.trailing_metadata() if hasattr(failure, "trailing_metadata") else ()


def _status(failure: Any) -> tuple[str, str]:
    if isinstance(failure, ResilinError) or not isinstance(failure, grpc.RpcError) or not hasattr(failure, "code"):
        return "UNAVAILABLE", f"is closed: {failure}"
    return failure.code().name, failure.details() or ""
