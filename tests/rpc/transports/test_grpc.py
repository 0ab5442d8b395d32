"""gRPC carries messages as every transport does, plain and by TLS; its health is told."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import ssl
from pathlib import Path
from typing import ClassVar

import grpc
import pytest

from resilin._base import host_port
from resilin._base.clock import Deadline
from resilin.errors import HandshakeError, PeerLost, UsageError
from resilin.rpc.transports.base import WorkerIdentity
from resilin.rpc.transports.grpc import GrpcTransport
from resilin.rpc.transports.introduction import NetworkAddress
from resilin.rpc.transports.thread_queues import ThreadQueues
from resilin.testing.check_rpc_transport import StrangersConformance, TransportConformance
from resilin.testing.job_secret import OTHER_SECRET, SECRET
from resilin.testing.patience import PATIENCE_S
from resilin.testing.rpc_peer import PeerProcess, Worker, spec

TLS = Path(__file__).parent / "tls"  # an authority, a worker of it for 127.0.0.1, and another one's; good until 2120
FILES = {"ca": str(TLS / "ca.pem"), "cert": str(TLS / "worker.pem"), "key": str(TLS / "worker.key")}


@pytest.fixture
def worker():
    """Makes workers that are closed after the test: `worker(id, options, **fields of its identity)`."""
    made = []

    def make(number, options, **fields):
        identity = WorkerIdentity(number, f"worker{number}", "group", **{"secret": SECRET, **fields})
        made.append(Worker(identity, GrpcTransport, ThreadQueues, options))
        return made[-1]

    yield make
    for one in made:
        one.close()


class TestPlain(TransportConformance, StrangersConformance):
    transport = GrpcTransport

    @pytest.fixture
    def doors(self):
        def of(transport):
            where = host_port.parse(NetworkAddress.parse(transport.address, "grpc").at, "address")
            return [lambda: socket.create_connection(where)]

        return of


class TestTls(TransportConformance, StrangersConformance):
    transport = GrpcTransport
    short = "a few"
    options: ClassVar = {"encrypt": True}
    needs_secret = True
    doors = TestPlain.doors


class TestTlsOfFiles(TransportConformance, StrangersConformance):
    transport = GrpcTransport
    short = "a few"
    options: ClassVar = {"tls": FILES}
    doors = TestPlain.doors


def test_a_certificate_of_another_authority_is_refused(worker):
    stranger = {"ca": FILES["ca"], "cert": str(TLS / "stranger.pem"), "key": str(TLS / "stranger.key")}
    one, other = worker(0, {"tls": FILES}), worker(1, {"tls": stranger})
    with pytest.raises(HandshakeError, match="of no authority here"):
        one.connect(other)
    with pytest.raises(PeerLost):  # who is refused by a server hears the end alone
        other.connect(one)
    assert one.losses == other.losses == []


def test_tls_needs_all_files(worker):
    for name in FILES:
        with pytest.raises(UsageError, match=f"none for {name}"):
            worker(0, {"tls": {key: path for key, path in FILES.items() if key != name}})
    with pytest.raises(UsageError, match="cannot read /nowhere"):
        worker(0, {"tls": {**FILES, "key": "/nowhere"}})


def test_beyond_loopback_it_is_tls_unless_told_otherwise(worker, monkeypatch):
    monkeypatch.setattr(GrpcTransport, "_bind", lambda self, address: 1)  # no such address is this host's
    for options, encrypted in (({}, True), ({"encrypt": False}, False)):
        card = NetworkAddress.parse(worker(0, options, host="192.0.2.1").transport.address, "grpc")
        assert card.encrypted is encrypted


def test_keys_need_a_secret(worker):
    with pytest.raises(UsageError, match="set RESILIN_SECRET"):
        worker(0, {"encrypt": True}, secret="")


def test_who_does_not_know_the_secret_has_no_tls_connection(worker):
    one, other = worker(0, {"encrypt": True}), worker(1, {"encrypt": True}, secret=OTHER_SECRET)
    for dialing, answering in ((one, other), (other, one)):
        with pytest.raises(HandshakeError, match="a wrong secret"):
            dialing.connect(answering)
    where = host_port.parse(NetworkAddress.parse(one.transport.address, "grpc").at, "address")
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    context.set_alpn_protocols(["h2"])
    heard = b""
    with (
        socket.create_connection(where, timeout=PATIENCE_S) as bare,
        context.wrap_socket(bare) as stranger,
        contextlib.suppress(ssl.SSLError, ConnectionError),  # he has no certificate to show
    ):
        stranger.sendall(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n")
        heard = stranger.recv(1 << 12)
    assert heard == b""
    assert one.losses == other.losses == []


def test_a_certificate_says_nothing_of_the_secret_to_who_does_not_know_the_mark(worker):
    one, other = worker(0, {"encrypt": True}), worker(1, {"encrypt": True})
    shown = [
        ssl.get_server_certificate(host_port.parse(NetworkAddress.parse(of.transport.address, "grpc").at, "address"))
        for of in (one, other)
    ]
    assert shown[0] != shown[1]


@pytest.mark.parametrize("options", [{}, {"encrypt": True}], ids=["plain", "tls"])
def test_a_stopped_process_with_full_buffers_is_slow_and_goes_on(worker, options):
    caller = worker(0, options)
    own = caller.queues.open()
    back = own.number.to_bytes(2, "little")
    peer = spec(WorkerIdentity(1, "worker1", "group", SECRET), GrpcTransport, ThreadQueues, options)
    with PeerProcess(peer) as process:
        caller.transport.connect(1, process.address, Deadline(PATIENCE_S))
        os.kill(process.pid, signal.SIGSTOP)
        sent = 0
        with contextlib.suppress(TimeoutError):
            for _ in range(256):
                caller.send(1, b"?", back, bytes(1 << 20), within_s=0.5)
                sent += 1
        assert 0 < sent < 256, "there was no end of room"
        assert caller.wait_for_losses(1, within_s=7.0) == []  # pings are due after 5 s
        os.kill(process.pid, signal.SIGCONT)
        assert len(caller.take(sent, own.number)) == sent
        assert caller.losses == []


def test_one_end_with_and_one_without_tls(worker):
    one, other = worker(0, {"tls": FILES}), worker(1, {})
    for dialing, answering in ((one, other), (other, one)):
        with pytest.raises(HandshakeError, match="same options"):
            dialing.connect(answering)


class TestHealth:
    """By bare grpc, as a probe asks."""

    def call(self, worker, path, request=b"", **more):
        with grpc.insecure_channel(NetworkAddress.parse(worker.transport.address, "grpc").at) as channel:
            return channel.unary_unary(path)(request, timeout=PATIENCE_S, **more)

    @pytest.mark.parametrize("service", ["", "resilin.rpc.Transport"])
    def test_a_probe_hears_that_it_serves(self, worker, service):
        answer = self.call(worker(0, {}), "/grpc.health.v1.Health/Check", encoded(service))
        assert answer == b"\x08\x01"  # field 1: SERVING

    def test_of_another_service_nothing_is_known(self, worker):
        with pytest.raises(grpc.RpcError) as caught:
            self.call(worker(0, {}), "/grpc.health.v1.Health/Check", encoded("another"))
        assert caught.value.code() is grpc.StatusCode.NOT_FOUND

    @pytest.mark.parametrize("request_", [b"\xff" * 10, b"\x0a\x7f", bytes(1 << 15)], ids=len)
    def test_what_is_no_request_is_refused(self, worker, request_):
        with pytest.raises(grpc.RpcError) as caught:
            self.call(worker(0, {}), "/grpc.health.v1.Health/Check", request_)
        assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT

    def test_who_watches_hears_the_end(self, worker):
        watched = worker(0, {})
        with grpc.insecure_channel(NetworkAddress.parse(watched.transport.address, "grpc").at) as channel:
            call = channel.unary_stream("/grpc.health.v1.Health/Watch")(b"", timeout=PATIENCE_S)
            assert next(call) == b"\x08\x01"
            watched.close()
            with pytest.raises(grpc.RpcError):
                next(call)

    def test_watchers_are_few(self, worker):
        watched = worker(0, {})
        with contextlib.ExitStack() as stack:
            calls, codes = [], []
            for _ in range(20):
                address = NetworkAddress.parse(watched.transport.address, "grpc").at
                options = [("grpc.use_local_subchannel_pool", 1)]
                channel = stack.enter_context(grpc.insecure_channel(address, options))
                calls.append(channel.unary_stream("/grpc.health.v1.Health/Watch")(b"", timeout=PATIENCE_S))
                try:
                    next(calls[-1])
                except grpc.RpcError as error:
                    codes.append(error.code())
            assert codes == [grpc.StatusCode.RESOURCE_EXHAUSTED] * 4


def encoded(service):
    return b"\x0a" + bytes([len(service)]) + service.encode() if service else b""
