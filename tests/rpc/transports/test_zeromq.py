"""ZeroMQ carries messages as every transport does, over TCP and Unix sockets, plain and encrypted."""

from __future__ import annotations

import socket
from typing import ClassVar

import pytest

from resilin._base import host_port
from resilin._base.clock import SYSTEM, Deadline
from resilin.rpc.transports import loader
from resilin.rpc.transports.base import WorkerIdentity
from resilin.rpc.transports.introduction import NetworkAddress
from resilin.rpc.transports.native_queues import NativeQueues
from resilin.rpc.transports.thread_queues import ThreadQueues
from resilin.rpc.transports.zeromq import ZeroMQTransport, sockets, transport
from resilin.testing.check_rpc_transport import StrangersConformance, TransportConformance
from resilin.testing.job_secret import SECRET
from resilin.testing.patience import PATIENCE_S
from resilin.testing.rpc_peer import PeerProcess, Worker, spec


class TestNear(TransportConformance):
    transport = ZeroMQTransport
    short = "a few"


class TestTcp(TransportConformance, StrangersConformance):
    transport = ZeroMQTransport
    options: ClassVar = {"near": False}

    @pytest.fixture
    def doors(self):
        def of(transport):
            where = host_port.parse(NetworkAddress.parse(transport.address, "zeromq").at, "address")
            return [lambda: socket.create_connection(where)]

        return of


class TestLanes(TransportConformance):
    """Long messages over several connections, within a host."""

    transport = ZeroMQTransport
    options: ClassVar = {"near": False, "num_lanes": 4}


@pytest.mark.skipif(loader.native is None, reason="queues in shared memory need native code")
class TestIntoNativeQueues(TransportConformance):
    """As in every worker that has native code: what waits in its queues holds the senders back."""

    transport = ZeroMQTransport
    queues = NativeQueues
    short = "a few"
    options: ClassVar = {"near": False}


class TestCurve(TransportConformance):
    transport = ZeroMQTransport
    short = "a few"
    options: ClassVar = {"near": False, "encrypt": True, "num_lanes": 3}
    needs_secret = True


def test_what_had_come_of_a_killed_peer_is_told_before_its_end():
    peer, *own = (WorkerIdentity(number, f"worker{number}", "group", SECRET) for number in (1, 0, 2))
    worker, witness = (Worker(identity, ZeroMQTransport, ThreadQueues, {}) for identity in own)
    try:
        with PeerProcess(spec(peer, ZeroMQTransport, ThreadQueues, {})) as process:
            for one in (worker, witness):
                one.transport.connect(1, process.address, Deadline(PATIENCE_S))
            replies = worker.queues.open()
            back = replies.number.to_bytes(2, "little")
            with replies._changed:  # the receiver has to wait with the first answer
                for number in range(10):  # no more than ZeroMQ keeps for a receiver that is late
                    worker.send(1, back, b"%d" % number)
                for _ in range(100):  # meanwhile the peer gives the others
                    witness.send(1, bytes(2), b"")
                    assert len(witness.take(1)) == 1
                process.kill()
                SYSTEM.sleep(0.1)
            worker.wait_for_losses(1)
            found = [bytes(message.parts[0]) for message in worker.take(10, replies.number, within_s=0.05)]
            assert found == [b"%d" % number for number in range(10)]
    finally:
        worker.close()
        witness.close()


def test_a_transport_closes_and_tells_of_all_who_have_gone_while_it_takes_what_one_of_them_left(monkeypatch):
    """The nudges for the second one and to stop come while the first is served."""
    monkeypatch.setattr(transport, "_QUIET_MS", 300)
    monkeypatch.setattr(transport, "_DRAIN_S", PATIENCE_S)
    worker = Worker(WorkerIdentity(0, "worker0", "gone", SECRET), ZeroMQTransport, ThreadQueues, {})
    told = []
    worker.transport._lose = lambda link, why: told.append(why)
    worker.transport._gone.append((None, "the first"))
    sockets.nudge_pull(worker.transport._context)
    until = Deadline(PATIENCE_S)
    while worker.transport._gone and not until.passed():  # it is taken in hand, then 300 ms must pass in silence
        SYSTEM.sleep(0.01)
    worker.transport._gone.append((None, "the second"))
    sockets.nudge_pull(worker.transport._context)
    worker.close()
    assert told == ["the first", "the second"]
