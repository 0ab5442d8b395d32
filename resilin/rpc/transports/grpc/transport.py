"""Carry messages over gRPC: where only HTTP/2 passes, or connections have to be TLS.

    dials ──── one call, a stream both ways ────> serves      nonce, proof and Greeting; then frames
                                       <────────              nonce, proof and Answer; then frames

Messages are cut into frames of 1 MiB at most (`wire`), so no limit of gRPC's on messages matters. Until the secret is
proved a stream may bring two short texts; streams that prove nothing are few and do not stay. The end of the call is
the end of the peer: it is never made again under the same link.

Without TLS, the default on loopback, messages are authenticated only as the connection is: who can change what passes
between the hosts can change them. With TLS both ends show a certificate (`credentials`). Health is told by
`grpc.health.v1`, as probes need it: that the process serves, nothing else; with TLS to who has a certificate.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from typing import Any, ClassVar

from resilin._base import auth, host, host_port
from resilin._base.clock import Deadline
from resilin._base.framing import FrameError
from resilin._base.socket_owners import Name
from resilin._base.threads import OwnedThread
from resilin.core.machine import memory
from resilin.distributed.connections.accept_loop import Refusals
from resilin.errors import DistNetworkError, HandshakeError, PeerLost, SecretRequired, UsageError
from resilin.rpc.transports import introduction, network, wire
from resilin.rpc.transports.backlog import LOOK_S
from resilin.rpc.transports.base import Lost, Queues, WorkerIdentity
from resilin.rpc.transports.grpc import credentials, handshake, health, settings, silence
from resilin.rpc.transports.grpc.link import GrpcLink
from resilin.rpc.transports.grpc.loop import Loop
from resilin.rpc.transports.introduction import Answer, NetworkAddress
from resilin.rpc.transports.network import NetworkTransport
from resilin.rpc.transports.wire import FrameKind
from resilin.store.grpc_quiet import grpc
from resilin.store.pool import DaemonPool
from resilin.store.transport import Tls

_LINGER_S = 5.0  # at the end: so long a peer may take for what was sent to it
_STOP_S = 5.0
_NOT_TRUSTED = "CERTIFICATE_VERIFY_FAILED"  # BoringSSL's word, in what gRPC says of it
_GONE = "closed the connection: it has ended, or was killed"


class GrpcTransport(NetworkTransport[GrpcLink]):
    """Carry messages over gRPC.

    encrypt: TLS, also on one host; None: where this worker listens beyond loopback; False: nowhere. Keys and
    certificates are made from the job's secret. tls: other ones, in files, PEM: this worker's certificate and key, and
    the authorities that peers' have to be signed by. All workers of a group have the same of both. Figures:
    `python -m benchmarks.rpc_transport_nets`.
    """

    name: ClassVar[str] = "grpc"

    def __init__(
        self,
        identity: WorkerIdentity,
        queues: Queues,
        lost: Lost,
        *,
        tls: Tls | Mapping[str, str] | None = None,
        encrypt: bool | None = None,
    ) -> None:
        address = introduction.numeric_host(identity)
        files = Tls(**tls) if isinstance(tls, Mapping) else tls
        encrypted = files is not None or network.default_encryption(address, encrypt)
        if encrypted and files is None and not identity.secret:
            raise UsageError(
                "GrpcTransport(encrypt=True): keys are made from the job's secret, which is empty; set RESILIN_SECRET, "
                "or give files (tls=)"
            )
        super().__init__(identity, queues, lost, encrypted)
        self._credentials: credentials.Credentials | None = None
        if encrypted:
            made = credentials.OfFiles(files) if files is not None else credentials.OfSecret(self._secret, self._mark)
            self._credentials = made
        self._pool = DaemonPool("rpc-grpc-server")
        self._server: Any = grpc.server(self._pool, options=settings.server_options())
        self._server.add_generic_rpc_handlers((_Router(self),))
        port = self._bind(address)
        self._own: Name = (address, port)
        text = host_port.join(address, port)
        self._card = NetworkAddress(self.name, host.host_id(), text, text, "", self._mark, self._encrypted, 0)
        self._refusals = Refusals(f"the RPC transport at {text}")
        self._loop = Loop("rpc-grpc-loop", self._look, self._fail)
        self._listener = handshake.HelloListener(self._secret, self._mark, (address, port), self._loop)
        self._server.start()

    def _bind(self, address: str) -> int:
        """Have the server listen at a free port of the address; return the port."""
        at = f"{host_port.in_url(address)}:0"
        try:
            if self._credentials is None:
                return int(self._server.add_insecure_port(at))
            return int(self._server.add_secure_port(at, self._credentials.of_server()))
        except RuntimeError as error:
            raise DistNetworkError(f"RPC cannot listen on {address}: {error}") from None

    def close(self) -> None:
        """See Transport."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
            links = list(self._links.values())
            self._changed.notify_all()
        until = Deadline(_LINGER_S)
        for link in links:
            if link.up and link.error is None:
                link.post(FrameKind.BYE, 0)
        with self._lock:  # a peer hangs up once it has taken what was sent before
            self._changed.wait_for(lambda: not any(link.up for link in self._incoming.values()), until.left())
            for link in list(self._incoming.values()):
                self._end(link, "was left: this worker's transport is closed", tell=False)
        stopped = self._server.stop(0).wait(_STOP_S)
        self._loop.close()
        self._pool.shutdown()
        if not stopped:
            raise TimeoutError(f"the gRPC server at {self._card.at} did not stop within {_STOP_S:g} s")

    # -------------------------------------------------------------------------------------------- dialing

    def _make_link(self, peer: int, number: int, card: NetworkAddress, dialed: bool) -> GrpcLink:
        return GrpcLink(peer, number, dialed)

    def _introduce(self, link: GrpcLink, card: NetworkAddress, deadline: Deadline) -> bool:
        channel = self._channel(card)
        nonce = auth.new_nonce()
        link.say(nonce)
        call = channel.stream_stream(settings.CONNECT)(link.outgoing())
        link.is_active = call.is_active

        def hang_up() -> None:
            call.cancel()
            channel.close()

        link.hang_up = hang_up
        try:
            with self._loop.in_time(call, deadline, call.cancel):
                answer = handshake.say_hello(link, card, call, nonce, self._secret, self._hello(link))
        except grpc.RpcError as error:
            raise _failed(link, card, error, deadline) from None
        except StopIteration:
            raise HandshakeError(f"worker {link.peer} at {card.at} ended the introduction") from None
        except TimeoutError:
            raise link.unconnected(deadline) from None
        if not self._check_welcome(link, card, answer):
            return False
        link.open(answer.number)
        self._watch(link, card, lambda: silence.connection_to(tuple(host_port.parse(card.at, "an RPC address"))))
        self._come_up(link)
        OwnedThread("rpc-grpc-reader", lambda: self._read(link, call))
        return True

    def _channel(self, card: NetworkAddress) -> Any:
        where = host_port.parse(card.at, "an RPC address")
        target = f"{'ipv6' if ':' in where.host else 'ipv4'}:{card.at}"
        options = settings.channel_options()
        if self._credentials is None:
            return grpc.insecure_channel(target, options)
        made, name = self._credentials.to_peer(card)
        return grpc.secure_channel(target, made, [*options, ("grpc.ssl_target_name_override", name)])

    def _watch(self, link: GrpcLink, card: NetworkAddress, connection: Callable[[], silence.Connection | None]) -> None:
        """Have it noticed when another host falls silent."""
        if card.host_id != self._card.host_id:
            link.connection = connection()
            self._look_soon()

    # -------------------------------------------------------------------------------------------- serving

    @property
    def serves(self) -> bool:
        """Return whether it takes connections."""
        return not self._closed

    def serve(self, requests: Iterator[bytes], context: Any) -> Iterator[bytes]:
        """One call of Connect: on a thread of the server's."""
        try:
            with self._listener.as_stranger(context):
                nonces, hello = yield from self._listener.hear_hello(requests, context)
        except (HandshakeError, SecretRequired) as error:
            with contextlib.suppress(HandshakeError, SecretRequired), self._refusals.noted():
                raise error
            yield bytes(auth.WORD_BYTES)
            return
        except (StopIteration, TimeoutError):
            return
        judged = self._judge(hello)
        if isinstance(judged, Answer):
            yield self._listener.answer(nonces, judged)
            return
        link, card, welcome = judged
        link.is_active, link.hang_up = context.is_active, context.cancel
        link.say(self._listener.answer(nonces, welcome))  # before all frames
        link.open(hello.number)
        self._watch(link, card, lambda: silence.Connection(self._own, handshake.address_of(context)))
        try:
            self._come_up(link)
        except (PeerLost, UsageError):  # it was forgotten, or this worker closes
            return
        reader = OwnedThread("rpc-grpc-reader", lambda: self._read(link, requests))
        if not context.add_callback(lambda: self._lose(link, _GONE)):
            self._lose(link, _GONE)
        try:
            yield from link.outgoing()
        finally:
            context.cancel()
            self._lose(link, _GONE)
            reader.join()

    # ------------------------------------------------------------------------------------------ receiving

    def _read(self, link: GrpcLink, frames: Iterator[bytes]) -> None:
        """On a thread of the link's: take what comes."""
        memory.install()
        why = _GONE
        try:
            for frame in frames:
                view = memoryview(frame)
                head = wire.read_head(view)
                link.assembler.feed(head, view[wire.HEAD.size :])
                if head.kind >= FrameKind.PAUSE:
                    self._note(link, head)
                if link.error is not None:
                    return
        except grpc.RpcError as error:
            why = f"is lost: {said}" if (said := _details(error)) else _GONE
        except (FrameError, MemoryError) as error:
            why = f"sent what no worker sends: {error}"
        self._lose(link, why)

    # -------------------------------------------------------------------------------------------- the loop

    def _post(self, call: Callable[[], None]) -> None:
        self._loop.post(call)

    def _look(self) -> float | None:
        """On the loop's thread, after everything that it does."""
        self._resume()
        with self._lock:
            far = [link for link in self._incoming.values() if link.up and link.connection is not None]
        for link in far:
            if link.connection is not None and link.connection.is_silent():
                self._lose(link, f"is lost: its host has acknowledged nothing for {silence.SILENT_S:g} s")
        return LOOK_S if self._backlog.full else silence.LOOK_S if far else None

    def _dispose(self, link: GrpcLink, error: PeerLost | None) -> None:
        if error is not None:
            self._lost(link.peer, error)
        link.hang_up()


class _Router(grpc.GenericRpcHandler):  # type: ignore[misc]  # grpc has no type hints
    """Finds the handler of a method. Handlers take and give raw bytes."""

    def __init__(self, transport: GrpcTransport) -> None:
        told = health.HealthService(settings.SERVICE, lambda: transport.serves)
        self._methods = {
            settings.CONNECT: grpc.stream_stream_rpc_method_handler(transport.serve),
            health.CHECK: grpc.unary_unary_rpc_method_handler(told.check),
            health.WATCH: grpc.unary_stream_rpc_method_handler(told.watch),
        }

    def service(self, handler_call_details: Any) -> Any:
        return self._methods.get(handler_call_details.method)


def _details(error: Any) -> str:
    return str(error.details() or error.code().name) if hasattr(error, "details") else str(error)


def _failed(link: GrpcLink, card: NetworkAddress, error: Any, deadline: Deadline) -> Exception:
    text = f"worker {link.peer} at {card.at} cannot be connected to: {_details(error)}"
    if deadline.passed():
        return TimeoutError(text)
    if _NOT_TRUSTED in text:
        return HandshakeError(f"{text}; the certificate is another job's, of a wrong secret, or of no authority here")
    code = error.code()
    if code in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.CANCELLED, grpc.StatusCode.UNKNOWN):
        return PeerLost(text, (link.peer,))
    return HandshakeError(text)
