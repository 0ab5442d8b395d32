"""The host transport: what every transport does, and what shared memory adds: kills, corruption, wake-ups."""

from __future__ import annotations

import fcntl
import itertools
import mmap
import os
import random
import resource
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack

import pytest

from resilin._base import auth
from resilin._base.clock import Deadline
from resilin.errors import HandshakeError, PeerLost, RpcError, UsageError
from resilin.rpc.transports import host_handshake, loader
from resilin.rpc.transports.base import REQUESTS, RpcMessage, WorkerIdentity
from resilin.rpc.transports.host import HostTransport
from resilin.rpc.transports.host_handshake import Greeting, HostAddress
from resilin.rpc.transports.native_queues import NativeQueues
from resilin.rpc.transports.thread_queues import ThreadQueues
from resilin.testing.check_rpc_transport import StrangersConformance, TransportConformance, content
from resilin.testing.job_secret import SECRET
from resilin.testing.patience import PATIENCE_S
from resilin.testing.rpc_peer import PeerProcess, Worker, spec

# resilin/rpc/native/ring.hpp: a ring's words, then its bytes; the one for requests comes first
TAIL, ORIGIN, HEAD, WANTED, BYTES = 0, 8, 64, 128, 4096
RECORD = struct.Struct("<IHHII")  # size, queue, kind, parts, unused
WHOLE, FIRST, MORE, SKIP = 1, 2, 3, 4
GROUP = "group"


def door(transport):
    sock = socket.socket(socket.AF_UNIX)
    sock.connect(b"\0" + HostAddress.parse(transport.address).unix.encode())
    return sock


class TestHost(TransportConformance, StrangersConformance):
    transport = HostTransport
    queues = NativeQueues

    @pytest.fixture
    def doors(self):
        return lambda transport: [lambda: door(transport)]


@pytest.fixture
def make():
    made = []

    def make(number):
        made.append(Worker(WorkerIdentity(number, f"worker{number}", GROUP, SECRET), HostTransport, NativeQueues, {}))
        return made[-1]

    yield make
    for worker in made:
        worker.close()


@pytest.fixture
def start():
    with ExitStack() as stack:

        def start(number):
            identity = WorkerIdentity(number, f"worker{number}", GROUP, SECRET)
            return stack.enter_context(PeerProcess(spec(identity, HostTransport, NativeQueues, {})))

        yield start


def mappings():
    with open("/proc/self/maps", encoding="ascii") as file:
        return sum("resilin-rpc-rings" in line for line in file)


def ask(worker, peer, own, *parts):
    worker.send(peer, own.number.to_bytes(2, "little"), *parts)


# ------------------------------------------------------------------------------------------------------- deaths


def test_a_process_killed_amid_a_long_message_leaves_nothing_of_it(make, start):
    worker, process, other = make(0), start(1), start(2)
    before = mappings()
    for peer, end in ((1, process), (2, other)):
        worker.transport.connect(peer, end.address, Deadline(PATIENCE_S))
    own = worker.queues.open()
    ask(worker, 1, own, bytes(100 << 20))  # more than its ring holds: it waits in the middle of its answer
    deadline = Deadline(PATIENCE_S)
    while _in_memory() < 30 << 20 and not deadline.passed():
        time.sleep(0.001)
    process.kill()
    ((peer, error),) = worker.wait_for_losses(1)
    assert peer == 1
    for part in ("worker1", "id 1", "127.0.0.1", f"pid {process.pid}", "ended"):
        assert part in str(error)
    assert own.take(0) == []
    ask(worker, 2, own, b"still there")
    assert [bytes(message.parts[0]) for message in worker.take(1, own.number)] == [b"still there"]
    assert mappings() - before == 2  # of the one that is left: what it sends into, and what it is sent


@pytest.mark.parametrize("turn", range(5))
def test_a_kill_at_any_moment_is_heard_of_and_cuts_no_message(make, start, turn):
    dice = random.Random(turn)
    sizes = [dice.choice([10, 3000, 200_000, 30 << 20]) for _ in range(400)]
    worker, process = make(0), start(1)
    worker.transport.connect(1, process.address, Deadline(PATIENCE_S))
    own = worker.queues.open()
    data = {size: content(size) for size in set(sizes)}

    def send():
        with pytest.raises(PeerLost):  # noqa: PT012
            for size in itertools.cycle(sizes):
                ask(worker, 1, own, data[size])

    with ThreadPoolExecutor(1) as pool:
        sending = pool.submit(send)
        threading.Timer(dice.random() * 0.1, process.kill).start()
        got = []
        while not worker.losses:
            got += own.take(0.05)
        sending.result(PATIENCE_S)
    got += worker.take(1000, own.number, within_s=0.01)
    assert all(bytes(message.parts[0]) == data[len(message.parts[0])] for message in got)
    assert [len(message.parts[0]) for message in got] == list(itertools.islice(itertools.cycle(sizes), len(got)))


def test_a_death_is_heard_of_within_milliseconds(make, start):
    worker, took = make(0), []
    for number in range(1, 4):
        process = start(number)
        worker.transport.connect(number, process.address, Deadline(PATIENCE_S))
        heard = threading.Event()
        worker._note = lambda peer, error, heard=heard: heard.set()
        worker.transport._lost = worker._note
        began = time.monotonic()
        os.kill(process.pid, signal.SIGKILL)
        assert heard.wait(PATIENCE_S)
        took.append(time.monotonic() - began)
    assert min(took) < 0.5  # milliseconds, of which others who share the cores make more; deadlines are seconds


def test_what_a_peer_sent_before_it_ended_is_there_when_its_end_is_told(make):
    worker, peer = make(0), make(1)
    own = worker.queues.open()
    peer.connect(worker)
    found = []
    worker.transport._lost = lambda *_: found.append(own.take(0, 1000))
    for number in range(300):
        peer.send(0, b"%d" % number, queue=own.number)
    peer.close()
    deadline = Deadline(PATIENCE_S)
    while not found and not deadline.passed():
        time.sleep(0.001)
    assert [int(message.parts[0]) for message in found[0]] == list(range(300))


# --------------------------------------------------------------------------------------------------- corruption


class Impostor:
    """A member of the job that writes into its rings whatever it likes."""

    def __init__(self, worker, number, *, descriptors=None, **fields):
        native = loader.native
        card = HostAddress.parse(worker.transport.address)
        self.sock = host_handshake.dial(card, Deadline(PATIENCE_S))
        auth.prove_as_client(self.sock, SECRET, host_handshake.PURPOSE, Deadline(PATIENCE_S), card.mark)
        self.inbox, self.link = native.Inbox(), native.Link(0, 1 << 20, native.Waker())
        told = {
            "version": host_handshake.VERSION, "group": GROUP, "source": number, "target": worker.identity.id,
            "name": f"impostor{number}", "host": "127.0.0.1", "pid": os.getpid(), "mark": f"mark{number}",
            "most": 1 << 20,
        }  # fmt: skip
        given = [self.inbox.fd, self.link.fd] if descriptors is None else descriptors
        host_handshake.tell(self.sock, Greeting(**told | fields), given, Deadline(PATIENCE_S))
        with host_handshake.heard(self.sock, Deadline(PATIENCE_S)) as (self.answer, found):
            if found:
                self.bells, self.rings = mmap.mmap(found[0], 0), mmap.mmap(found[1], 0)
                self.sock.sendall(host_handshake.READY)

    def word(self, at, value):
        self.rings[at : at + 8] = struct.pack("<Q", value % (1 << 64))

    def write(self, data, at=0):
        self.rings[BYTES + at : BYTES + at + len(data)] = data

    def close(self):
        self.sock.close()
        if hasattr(self, "rings"):
            self.rings.close()
            self.bells.close()


@pytest.fixture
def impostor():
    with ExitStack() as stack:

        def make(*args, **fields):
            made = Impostor(*args, **fields)
            stack.callback(made.close)
            return made

        yield make


def record(size, kind=WHOLE, queue=REQUESTS, parts=0):
    return RECORD.pack(size, queue, kind, parts, 0)


HUGE = (1 << 32) - 1
BROKEN = {
    "more than fits": (b"", 1 << 40),
    "not aligned": (record(8), 24),
    "a record beyond what was sent": (record(1000), 32),
    "a record beyond the ring": (record(HUGE), 32 << 20),
    "no kind": (record(0, 0), 16),
    "another kind": (record(0, 77), 16),
    "parts without sizes": (record(16, WHOLE, parts=3), 32),
    "more parts than there may be": (record(16, WHOLE, parts=HUGE), 32),
    "parts longer than the message": (record(16, parts=1) + struct.pack("<Q", 9) + bytes(8), 32),
    "parts shorter than the message": (record(16, parts=1) + struct.pack("<Q", 7) + bytes(8), 32),
    "a part of 2^64 bytes": (record(16, parts=2) + struct.pack("<QQ", (1 << 64) - 8, 8), 32),
    "a long message without its length": (record(4, FIRST), 32),
    "longer than what is taken": (record(16, FIRST, parts=1) + struct.pack("<QQ", 3 << 30, 0), 32),
    "a length below its sizes": (record(16, FIRST, parts=4) + struct.pack("<QQ", 16, 0), 32),
    "a part of no message": (record(16, MORE), 32),
    "more than its length": (record(32, FIRST, parts=1) + struct.pack("<QQ", 16, 8) + bytes(16), 48),
    "skips too little": (record(0, SKIP), 16),
    "skips too much": (record(48 << 20, SKIP), 32 << 20),
}


def take_until_lost(worker):
    deadline = Deadline(PATIENCE_S)
    found = []
    while not worker.losses and not deadline.passed():
        found += worker.requests.take(0.01)
    return found


@pytest.mark.parametrize("case", BROKEN)
def test_a_broken_ring_ends_its_connection_and_no_other(make, impostor, case):
    worker, good = make(0), make(1)
    good.connect(worker)
    bad = impostor(worker, 7)
    data, tail = BROKEN[case]
    bad.write(data)
    bad.word(TAIL, tail)
    assert take_until_lost(worker) == []
    ((peer, error),) = worker.wait_for_losses(1)
    assert peer == 7
    assert "impostor7" in str(error)
    assert bad.sock.recv(10) == b""
    good.send(0, b"x")
    assert [message.source for message in worker.take(1)] == [1]


def test_random_bytes_in_a_ring_neither_hang_nor_crash_nor_grow(make, impostor):
    worker, dice = make(0), random.Random(1)
    for turn in range(120):
        bad = impostor(worker, turn + 1, mark=f"m{turn}")
        for _ in range(dice.randrange(1, 4)):
            if dice.random() < 0.7:
                size = dice.choice([0, 8, 16, 64, 1000, HUGE, dice.randrange(1 << 32)])
                kind, parts = dice.randrange(6), dice.choice([0, 1, 2, 5, dice.randrange(1 << 32)])
                bad.write(record(size, kind, 0, parts) + dice.randbytes(64))
            else:
                bad.write(dice.randbytes(4096))
            bad.word(ORIGIN, dice.choice([0, 0, 0, 16, dice.randrange(1 << 64)]))
            bad.word(TAIL, dice.choice([16, 32, 64, 4096, 1 << 20, dice.randrange(1 << 64)]))
            worker.requests.take(0)
        bad.close()
    assert [peer for peer, _ in worker.wait_for_losses(120)] == list(range(1, 121))
    good = make(1000)
    good.connect(worker)
    good.send(0, b"x")
    deadline = Deadline(PATIENCE_S)
    while not any(message.source == 1000 for message in worker.requests.take(1.0)):
        assert not deadline.passed()


def test_a_receiver_that_claims_to_have_read_too_much_is_lost(make, impostor):
    worker = make(0)
    bad = impostor(worker, 7)
    queue = bad.inbox.open(0)  # it takes messages
    rings = mmap.mmap(os.dup(bad.link.fd), 0)
    rings[HEAD : HEAD + 8] = struct.pack("<Q", 1 << 50)
    with pytest.raises(PeerLost):  # noqa: PT012
        for _ in range(100):
            worker.send(7, bytes(100_000))
    assert [peer for peer, _ in worker.wait_for_losses(1)] == [7]
    queue.close()
    rings.close()


def test_a_peer_that_writes_over_the_bells_delays_messages_but_stops_none(make, impostor):
    worker, good = make(0), make(1)
    good.connect(worker)
    own = worker.queues.open()
    bad, dice = impostor(worker, 7), random.Random(1)
    for turn in range(3):
        with ThreadPoolExecutor(2) as pool:
            taking = [pool.submit(worker.take, 10, queue) for queue in (REQUESTS, own.number)]
            for number in range(10):
                bad.bells[:128] = bytes(128) if turn == 0 else b"\xff" * 128 if turn == 1 else dice.randbytes(128)
                bad.bells[4] = bad.bells[68] = 1  # open
                good.send(0, b"%d" % number)
                good.send(0, b"%d" % number, queue=own.number)
            for one in taking:
                assert [int(message.parts[0]) for message in one.result(PATIENCE_S)] == list(range(10))


def memory(size, seals):
    descriptor = os.memfd_create("impostor", os.MFD_ALLOW_SEALING)
    os.ftruncate(descriptor, size)
    fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, seals)
    return descriptor


@pytest.mark.parametrize("wrong", ["none", "one", "a file", "unsealed", "too small", "exchanged"])
def test_memory_that_could_be_cut_short_is_never_mapped(make, impostor, tmp_path, wrong):
    worker, native = make(0), loader.native
    inbox, link = native.Inbox(), native.Link(0, 1 << 20, native.Waker())
    size = os.fstat(link.fd).st_size
    with ExitStack() as stack:
        file = stack.enter_context(open(tmp_path / "file", "w+b"))
        file.truncate(size)
        unsealed, small = memory(size, 0), memory(4096, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW)
        stack.callback(os.close, unsealed)
        stack.callback(os.close, small)
        descriptors = {
            "none": [], "one": [inbox.fd], "a file": [inbox.fd, file.fileno()], "unsealed": [inbox.fd, unsealed],
            "too small": [inbox.fd, small], "exchanged": [link.fd, inbox.fd],
        }[wrong]  # fmt: skip
        bad = impostor(worker, 7, descriptors=descriptors)
    assert bad.answer.verdict == host_handshake.REFUSED
    assert worker.losses == []
    with pytest.raises(UsageError):
        worker.send(7, b"x")


@pytest.mark.parametrize(
    "fields", [{"version": 99}, {"group": "x"}, {"target": 5}, {"source": 0}, {"source": -1}], ids=str
)
def test_who_is_not_of_this_group_is_refused(make, impostor, fields):
    assert impostor(make(0), 7, **fields).answer.verdict == host_handshake.REFUSED


def test_an_introduction_that_is_none_is_refused(make):
    worker = make(0)
    card = HostAddress.parse(worker.transport.address)
    for said in (b"\xff\xff\xff\xff", struct.pack(">I", 4) + b"{}  ", struct.pack(">I", 3) + b"\xff\xfe["):
        with host_handshake.dial(card, Deadline(PATIENCE_S)) as sock:
            auth.prove_as_client(sock, SECRET, host_handshake.PURPOSE, Deadline(PATIENCE_S), card.mark)
            sock.sendall(said)
            assert sock.recv(10) == b""


def test_what_is_said_after_the_introduction_ends_the_connection(make, impostor):
    worker = make(0)
    impostor(worker, 7).sock.sendall(b"GET / HTTP/1.1")
    ((peer, error),) = worker.wait_for_losses(1)
    assert peer == 7
    assert "no worker sends" in str(error)


# ----------------------------------------------------------------------------------------------------- wake-ups


def test_a_queue_is_looked_after_while_its_threads_wait_for_something(make):
    worker, peer = make(0), make(1)
    peer.connect(worker)
    enough, served, done = threading.Event(), [], threading.Event()

    def serve():
        while not done.is_set():
            for message in worker.requests.take(None, 1):
                if bytes(message.parts[0]) == b"wait":
                    enough.wait(PATIENCE_S)
                served.append(bytes(message.parts[0]))

    with ThreadPoolExecutor(4) as pool:
        serving = [pool.submit(serve) for _ in range(4)]
        for _ in range(3):
            peer.send(0, b"wait")
        for number in range(50):
            peer.send(0, b"%d" % number)
        deadline = Deadline(PATIENCE_S)
        while len(served) < 50 and not deadline.passed():
            time.sleep(0.001)
        assert sorted(map(int, served)) == list(range(50))  # three of four wait, and the other takes all
        enough.set()
        done.set()
        while not all(one.done() for one in serving):
            worker.requests.wake()
            time.sleep(0.001)


def test_a_thread_that_waits_for_a_reply_is_replaced_at_once(make):
    """Requests that call back, four deep, each on a thread that waits: none waits for another's turn."""
    one, other = make(0), make(1)
    one.connect(other)
    done = threading.Event()

    def serve(worker):
        own = worker.queues.open()
        while not done.is_set():
            for message in worker.requests.take(None, 1):
                depth, back = struct.unpack("<BH", message.parts[0])
                if depth:
                    worker.send(message.source, struct.pack("<BH", depth - 1, own.number))
                    assert len(worker.take(1, own.number)) == 1
                worker.send(message.source, b"done", queue=back)

    with ThreadPoolExecutor(8) as pool:
        serving = [pool.submit(serve, worker) for worker in (one, other) for _ in range(4)]
        mine = one.queues.open()
        for _ in range(20):
            one.send(1, struct.pack("<BH", 6, mine.number))
            assert len(one.take(1, mine.number)) == 1
        done.set()
        while not all(thread.done() for thread in serving):
            for worker in (one, other):
                worker.requests.wake()
            time.sleep(0.001)
        for thread in serving:
            thread.result()


def test_what_other_transports_put_is_taken_with_the_rest(make):
    worker, peer = make(0), make(1)
    peer.connect(worker)
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(worker.requests.take)
        worker.requests.put(RpcMessage(9, (b"local",)))
        assert [message.source for message in waiting.result(PATIENCE_S)] == [9]
    for number in range(10):
        worker.requests.put(RpcMessage(9, (b"%d" % number,)))
        peer.send(0, b"%d" % number)
    found = worker.take(20)
    for source in (1, 9):
        assert [int(message.parts[0]) for message in found if message.source == source] == list(range(10))


def test_take_returns_the_oldest_and_no_more_than_asked_for(make):
    worker, peer = make(0), make(1)
    peer.connect(worker)
    for number in range(10):
        peer.send(0, b"%d" % number)
    assert [len(worker.requests.take(PATIENCE_S, most)) for most in (1, 3, 64)] == [1, 3, 6]
    assert worker.requests.take(0) == []


def test_wake_ends_a_wait_or_the_next_one():
    queues = NativeQueues()
    queue = queues.open()
    queue.wake()
    assert queue.take(PATIENCE_S) == []
    with ThreadPoolExecutor(3) as pool:
        waiting = [pool.submit(queue.take) for _ in range(3)]
        deadline = Deadline(PATIENCE_S)
        while not all(one.done() for one in waiting) and not deadline.passed():
            queue.wake()
            time.sleep(0.001)
        assert [one.result(0) for one in waiting] == [[], [], []]
        waiting = [pool.submit(queue.take) for _ in range(3)]
        queue.close()
        assert [one.result(PATIENCE_S) for one in waiting] == [[], [], []]
    assert queue.closed
    queue.put(RpcMessage(0, ()))
    assert queue.take(PATIENCE_S) == []
    queues.close()


def test_numbers_of_queues_are_used_again():
    queues = NativeQueues()
    first = [queues.open() for _ in range(3)]
    assert [queue.number for queue in first] == [0, 1, 2]
    for _ in range(1 << 16):
        queue = queues.open()
        queue.close()
    assert queues.find(queue.number) is None
    assert queues.find(2) is first[2]
    assert queues.open().number not in (0, 1, 2)
    queues.close()


class Alarm(Exception):
    pass


@pytest.fixture
def alarm():
    def ring(*_):
        raise Alarm

    before = signal.signal(signal.SIGALRM, ring)
    yield lambda: signal.setitimer(signal.ITIMER_REAL, 0.05)
    signal.setitimer(signal.ITIMER_REAL, 0)
    signal.signal(signal.SIGALRM, before)


def test_a_signal_ends_a_wait_for_messages(alarm):
    queues = NativeQueues()
    queue = queues.open()
    alarm()
    with pytest.raises(Alarm):
        queue.take()
    queue.put(RpcMessage(0, ()))
    assert len(queue.take()) == 1
    queues.close()


def test_a_signal_ends_a_wait_for_room(make, alarm):
    worker, peer = make(0), make(1)
    peer.connect(worker)
    alarm()
    with pytest.raises(Alarm):
        peer.send(0, bytes(64 << 20))
    with ThreadPoolExecutor(1) as pool:
        sending = pool.submit(peer.send, 0, b"after")
        assert [bytes(message.parts[0]) for message in worker.take(1)] == [b"after"]
        sending.result(PATIENCE_S)


def test_a_worker_that_waits_uses_no_processor(make):
    worker, peer = make(0), make(1)
    peer.connect(worker)
    own = worker.queues.open()
    with ThreadPoolExecutor(5) as pool:
        waiting = [pool.submit(worker.requests.take, 0.6) for _ in range(4)] + [pool.submit(own.take, 0.6)]
        time.sleep(0.1)
        began = time.process_time()
        time.sleep(0.4)
        used = time.process_time() - began
        assert all(one.result() == [] for one in waiting)
    assert used < 0.4 * 0.05  # a hundredth of a core is promised: the test's own process is in it


# -------------------------------------------------------------------------------------------------------- whole


def test_many_workers_connect_to_each_other(make):
    workers = [make(number) for number in range(12)]
    pairs = list(itertools.permutations(workers, 2))
    random.Random(1).shuffle(pairs)
    with ThreadPoolExecutor(16) as pool:
        for done in [pool.submit(one.connect, other) for one, other in pairs]:
            done.result()
    for one, other in pairs:
        one.send(other.identity.id, b"x")
    for worker in workers:
        assert sorted(message.source for message in worker.take(11)) == [
            n for n in range(12) if n != worker.identity.id
        ]
        assert worker.losses == []
    names = [thread.name for thread in threading.enumerate()]
    assert sum("rpc-host" in name and "visitor" not in name for name in names) == 2 * len(workers)


def test_many_processes_send_to_one(make, start):
    worker, processes = make(0), [start(number) for number in range(1, 5)]
    own = worker.queues.open()
    for number, process in enumerate(processes, 1):
        worker.transport.connect(number, process.address, Deadline(PATIENCE_S))
    sizes = random.Random(1).choices([10, 5000, 300_000], [10, 5, 1], k=200)
    with ThreadPoolExecutor(1) as pool:
        sending = pool.submit(
            lambda: [
                ask(worker, number, own, b"%d" % turn, content(size))
                for turn, size in enumerate(sizes)
                for number in range(1, 5)
            ]
        )
        found = worker.take(800, own.number)
        sending.result(PATIENCE_S)
    for number in range(1, 5):
        mine = [message for message in found if message.source == number]
        assert [int(message.parts[0]) for message in mine] == list(range(200))
        assert [bytes(message.parts[1]) for message in mine] == [content(size) for size in sizes]


def test_a_slow_receiver_gives_its_memory_back(make):
    worker, peer = make(0), make(1)
    peer.connect(worker)
    for _ in range(20):
        peer.send(0, bytes(1 << 20))
    assert _in_memory() > 20 << 20
    assert len(worker.take(20)) == 20
    for _ in range(3):
        peer.send(0, bytes(20_000))
        worker.take(1)
    assert _in_memory() < 8 << 20


def _in_memory():
    """Bytes of this process's rings that lie in memory."""
    found, inside = 0, False
    with open("/proc/self/smaps", encoding="ascii") as file:
        for line in file:
            if "-" in line.split(" ")[0]:
                inside = "resilin-rpc-rings" in line
            elif inside and line.startswith("Rss:"):
                found = max(found, int(line.split()[1]) << 10)
    return found


def test_a_replaced_worker_that_is_not_known_to_be_dead_is_waited_for(make, start):
    worker, process = make(0), start(1)
    worker.transport.connect(1, process.address, Deadline(PATIENCE_S))
    os.kill(process.pid, signal.SIGKILL)
    replacement = start(1)
    worker.transport.connect(1, replacement.address, Deadline(PATIENCE_S))
    own = worker.queues.open()
    ask(worker, 1, own, b"x")
    assert len(worker.take(1, own.number)) == 1
    assert [peer for peer, _ in worker.wait_for_losses(1)] == [1]


def test_a_dialer_that_gives_up_is_not_lost_to_who_was_answering_it(make, monkeypatch):
    worker, peer = make(0), make(1)
    tell, answering, gave_up = host_handshake.tell, threading.Event(), threading.Event()

    def slow(sock, greeting, *rest):
        if greeting.verdict == host_handshake.WELCOME and not gave_up.is_set():
            answering.set()
            assert gave_up.wait(PATIENCE_S)
        tell(sock, greeting, *rest)

    monkeypatch.setattr(host_handshake, "tell", slow)
    with ThreadPoolExecutor(2) as pool:
        dialing = pool.submit(worker.transport.connect, 1, peer.transport.address, Deadline(0.3))
        assert answering.wait(PATIENCE_S)
        connecting = pool.submit(peer.transport.connect, 0, worker.transport.address, Deadline(PATIENCE_S))
        with pytest.raises(TimeoutError, match="did not answer within"):
            dialing.result(PATIENCE_S)
        gave_up.set()
        connecting.result(PATIENCE_S)
    peer.send(0, b"x")
    assert [bytes(message.parts[0]) for message in worker.take(1)] == [b"x"]
    assert worker.losses == peer.losses == []


def test_who_lets_the_other_in_does_not_dial_it_meanwhile(make, monkeypatch):
    worker, peer = make(0), make(1)
    keep, letting_in, go_on = worker.transport._keep, threading.Event(), threading.Event()

    def slow(connection):
        if not connection.ready:
            letting_in.set()
            assert go_on.wait(PATIENCE_S)
        return keep(connection)

    monkeypatch.setattr(worker.transport, "_keep", slow)
    with ThreadPoolExecutor(2) as pool:
        dialing = pool.submit(peer.transport.connect, 0, worker.transport.address, Deadline(PATIENCE_S))
        assert letting_in.wait(PATIENCE_S)
        with pytest.raises(TimeoutError, match="a connection to it was being made"):
            worker.transport.connect(1, peer.transport.address, Deadline(0.1))
        connecting = pool.submit(worker.transport.connect, 1, peer.transport.address, Deadline(PATIENCE_S))
        go_on.set()
        dialing.result(PATIENCE_S)
        connecting.result(PATIENCE_S)
    peer.send(0, b"x")
    worker.send(1, b"y")
    assert [bytes(receiver.take(1)[0].parts[0]) for receiver in (worker, peer)] == [b"x", b"y"]
    assert worker.losses == peer.losses == []


def test_an_id_that_lives_is_not_given_away(make):
    worker, peer, twin = make(0), make(1), make(1)
    peer.connect(worker)
    with pytest.raises(HandshakeError, match="connected already"):
        twin.connect(worker)
    peer.send(0, b"x")
    assert len(worker.take(1)) == 1


def test_a_forked_child_that_ends_closes_nothing_of_its_parent(make):
    worker, peer = make(0), make(1)
    peer.connect(worker)
    child = os.fork()
    if child == 0:
        worker.queues.close()
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    peer.send(0, b"x")
    assert len(worker.take(1)) == 1
    assert worker.losses == []


def test_without_descriptors_nobody_is_connected_and_the_reason_is_told(make):
    worker, peer = make(0), make(1)
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    with open(os.devnull) as probe:
        lowest_free = probe.fileno()
    resource.setrlimit(resource.RLIMIT_NOFILE, (lowest_free, limits[1]))
    try:
        with pytest.raises(RpcError, match="descriptors"):
            worker.connect(peer)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
    worker.connect(peer)
    worker.send(1, b"x")
    assert len(peer.take(1)) == 1


def test_another_host_is_not_reached(make):
    worker = make(0)
    card = HostAddress.parse(worker.transport.address)
    other = HostAddress("host", card.host + "x", card.unix, card.mark).describe()
    assert not worker.transport.reaches(other)
    with pytest.raises(UsageError, match="another host"):
        worker.transport.connect(1, other, Deadline(PATIENCE_S))


def test_its_queues_are_native_ones():
    with pytest.raises(UsageError, match="NativeQueues"):
        HostTransport(WorkerIdentity(0, "a", GROUP, SECRET), ThreadQueues(), lambda *_: None)


def test_without_native_code_it_says_why_it_is_absent():
    program = (
        "import sys; sys.modules['resilin.rpc._native'] = None\n"
        "from resilin.rpc.transports.host import HostTransport\n"
        "from resilin.rpc.transports.native_queues import NativeQueues\n"
        "assert not HostTransport.available()\n"
        "NativeQueues()"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=PATIENCE_S, check=False
    )
    assert f"{RpcError.__module__}.RpcError: queues in shared memory need native code" in done.stderr
