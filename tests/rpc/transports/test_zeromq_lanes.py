"""Long messages of ZeroMQ go over several connections: whole or not at all, in order, and never before short ones."""

from __future__ import annotations

import contextlib
import dataclasses
import selectors
import socket
import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from resilin._base import host_port
from resilin._base.clock import Deadline
from resilin.errors import PeerLost, UsageError
from resilin.rpc.transports import backlog
from resilin.rpc.transports.base import WorkerIdentity
from resilin.rpc.transports.introduction import NetworkAddress
from resilin.rpc.transports.thread_queues import ThreadQueues
from resilin.rpc.transports.zeromq import ZeroMQTransport
from resilin.testing.job_secret import SECRET
from resilin.testing.patience import PATIENCE_S
from resilin.testing.rpc_peer import Worker

MIB = 1 << 20
LANES = 3
BULK = 256 << 10  # bytes after which a connection is one for long messages


class Way:
    """What lies between the sender and the receiver's data port: passes on, and stalls or cuts what carries bulk."""

    def __init__(self, to):
        self._to = to
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.port = self._listening.getsockname()[1]
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._listening, selectors.EVENT_READ)
        self._passed = {}  # by socket of a sender: the receiver's, and bytes
        self._stalled = []
        self._end = False
        self.stalls = lambda number: False  # whether the connection, the n-th that carries bulk, is stalled now
        self._bulk = {}
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    @property
    def bulk(self):
        """How many connections carry bulk."""
        return len(self._bulk)

    def cut(self, number):
        """Cut the n-th connection that carries bulk."""
        sender = next(each for each, which in self._bulk.items() if which == number)
        sender.shutdown(socket.SHUT_RDWR)
        self._passed[sender][0].shutdown(socket.SHUT_RDWR)

    def _run(self):
        while not self._end:
            for key, _ in self._selector.select(0.002):
                if key.fileobj is self._listening:
                    self._connect()
                else:
                    self._pass(key.fileobj, key.data)
            for sender in [each for each in self._stalled if not self.stalls(self._bulk[each])]:
                self._stalled.remove(sender)
                self._selector.register(sender, selectors.EVENT_READ, True)
        for sender, (receiver, _) in self._passed.items():
            sender.close()
            receiver.close()
        self._listening.close()

    def _connect(self):
        sender, _ = self._listening.accept()
        receiver = socket.create_connection(self._to, timeout=PATIENCE_S)
        self._passed[sender] = [receiver, 0]
        self._selector.register(sender, selectors.EVENT_READ, True)
        self._selector.register(receiver, selectors.EVENT_READ, sender)

    def _pass(self, source, towards):
        """From a sender (towards is True), or back to the sender that is given."""
        try:
            data = source.recv(64 << 10)
            if data and towards is True:
                self._passed[source][0].sendall(data)
                self._passed[source][1] += len(data)
            elif data:
                towards.sendall(data)
        except OSError:
            data = b""
        if not data:
            self._selector.unregister(source)
            return
        is_bulk = towards is True and self._passed[source][1] > BULK
        if is_bulk and self.stalls(self._bulk.setdefault(source, len(self._bulk))):
            self._selector.unregister(source)
            self._stalled.append(source)

    def close(self):
        self._end = True
        self._thread.join()


@pytest.fixture(params=[False, True], ids=["plain", "curve"])
def between(request):
    """A sender, a receiver, and the way between."""
    options = {"near": False, "num_lanes": LANES, "encrypt": request.param}
    sender, receiver = (
        Worker(WorkerIdentity(number, f"worker{number}", "group", SECRET), ZeroMQTransport, ThreadQueues, options)
        for number in (0, 1)
    )
    card = NetworkAddress.parse(receiver.transport.address, "zeromq")
    way = Way(tuple(host_port.parse(card.data.removeprefix("tcp://"), "address")))
    changed = dataclasses.replace(card, data=f"tcp://127.0.0.1:{way.port}")
    sender.transport.connect(1, changed.describe(), Deadline(PATIENCE_S))
    yield sender, receiver, way
    way.stalls = lambda number: False
    sender.close()
    receiver.close()
    way.close()


def content(size, seed=0):
    return np.random.default_rng(seed).bytes(size)


def test_a_long_message_is_striped_over_all_lanes(between):
    sender, receiver, way = between
    for turn in range(3):
        sender.send(1, content(12 * MIB, turn))
        assert bytes(receiver.take(1)[0].parts[0]) == content(12 * MIB, turn)
    assert way.bulk == LANES


def test_short_messages_pass_while_no_lane_brings_anything(between):
    sender, receiver, way = between
    way.stalls = lambda number: True
    other = receiver.queues.open()
    with ThreadPoolExecutor(1) as pool:
        sending = pool.submit(sender.send, 1, content(64 * MIB))
        for turn in range(100):
            sender.send(1, b"%d" % turn)  # also to the queue of the long one, which is not sent yet
            sender.send(1, b"%d" % turn, queue=other.number)
        assert [bytes(each.parts[0]) for each in receiver.take(100)] == [b"%d" % turn for turn in range(100)]
        assert len(receiver.take(100, other.number)) == 100
        assert not sending.done()
        way.stalls = lambda number: False
        sending.result(PATIENCE_S)
    assert bytes(receiver.take(1)[0].parts[0]) == content(64 * MIB)


def test_what_is_sent_after_a_long_message_waits_for_its_last_lane(between):
    sender, receiver, way = between
    sender.send(1, content(12 * MIB))  # all lanes have carried bulk
    receiver.take(1)
    other = receiver.queues.open()
    way.stalls = lambda number: number == 0
    with ThreadPoolExecutor(1) as pool:
        sending = pool.submit(
            sender.send, 1, content(2 * MIB, 1)
        )  # so little that the kernel takes it of a stalled lane
        sending.result(PATIENCE_S)
        for turn in range(10):
            sender.send(1, b"%d" % turn)
        sender.send(1, content(MIB, 2))
        sender.send(1, b"free", queue=other.number)
        assert [bytes(each.parts[0]) for each in receiver.take(1, other.number)] == [b"free"]
        early = receiver.take(12, within_s=0.2)
        way.stalls = lambda number: False
        found = [bytes(each.parts[0]) for each in [*early, *receiver.take(12 - len(early))]]
    assert found == [content(2 * MIB, 1), *(b"%d" % turn for turn in range(10)), content(MIB, 2)]


def test_what_waits_for_a_lane_holds_its_senders_back(between, monkeypatch):
    sender, receiver, way = between
    sender.send(1, content(12 * MIB))
    receiver.take(1)
    monkeypatch.setattr(backlog, "MOST_MESSAGES", 100)
    monkeypatch.setattr(backlog, "FEW_MESSAGES", 20)
    way.stalls = lambda number: True
    sender.send(1, content(MIB, 1))
    sent = 0
    with contextlib.suppress(TimeoutError):
        while sent < 10_000:
            sender.send(1, b"%d" % sent, within_s=0.3)
            sent += 1
    assert 100 <= sent < 10_000
    way.stalls = lambda number: False
    found = [bytes(each.parts[0]) for each in receiver.take(1 + sent)]
    assert found == [content(MIB, 1), *(b"%d" % turn for turn in range(sent))]
    sender.send(1, b"after")
    assert [bytes(each.parts[0]) for each in receiver.take(1)] == [b"after"]


@pytest.mark.parametrize("number", range(LANES))
def test_a_lost_lane_is_a_lost_peer_and_no_part_of_a_message_is_seen(between, number):
    sender, receiver, way = between
    sender.send(1, content(12 * MIB))
    receiver.take(1)
    way.stalls = lambda which: True
    with ThreadPoolExecutor(1) as pool:
        sending = pool.submit(sender.send, 1, content(64 * MIB))
        way.cut(number)
        with pytest.raises(PeerLost, match="worker1"):
            sending.result(PATIENCE_S)
    assert [peer for peer, _ in sender.wait_for_losses(1)] == [1]
    assert [peer for peer, _ in receiver.wait_for_losses(1)] == [0]
    assert receiver.take(1, within_s=0.05) == []


def test_who_gives_up_amid_a_long_message_leaves_nothing_behind(between):
    sender, receiver, way = between
    way.stalls = lambda number: True
    with pytest.raises(TimeoutError):
        sender.send(1, content(64 * MIB), within_s=0.3)
    way.stalls = lambda number: False
    for turn in range(3):
        sender.send(1, content(12 * MIB, turn))
    assert [bytes(each.parts[0]) for each in receiver.take(3)] == [content(12 * MIB, turn) for turn in range(3)]
    link = receiver.transport._links[0]
    deadline = Deadline(PATIENCE_S)
    while link.assembler.streams and not deadline.passed():
        sender.send(1, b"x")
        receiver.take(1)
    assert link.assembler.streams == 0
    assert sender.losses == receiver.losses == []


@pytest.mark.parametrize("lanes", [0, 17, -1])
def test_how_many_lanes_there_may_be(lanes):
    with pytest.raises(UsageError, match="expected 1 to 16"):
        ZeroMQTransport(
            WorkerIdentity(0, "worker0", "group", SECRET), ThreadQueues(), lambda peer, error: None, num_lanes=lanes
        )


@pytest.mark.parametrize("lanes", [(1, 16), (5, 2)], ids=str)
def test_each_end_has_as_many_as_it_wants(lanes):
    workers = [
        Worker(
            WorkerIdentity(number, f"worker{number}", "group", SECRET),
            ZeroMQTransport,
            ThreadQueues,
            {"num_lanes": own},
        )
        for number, own in enumerate(lanes)
    ]
    workers[0].connect(workers[1])
    for one, other in (workers, workers[::-1]):
        one.send(other.identity.id, content(20 * MIB))
        assert bytes(other.take(1)[0].parts[0]) == content(20 * MIB)
    for worker in workers:
        worker.close()
