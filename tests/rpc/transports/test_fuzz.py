"""Whatever comes to a network transport's sockets: no crash, no growth, nothing in a queue without the secret.

Turns of all tests together: 5,000 in the short run, 100,000 in the long one.
"""

from __future__ import annotations

import contextlib
import random
import socket
import struct

import grpc
import pytest

from resilin._base import auth, host_port
from resilin._base.clock import Deadline
from resilin._base.framing import FrameError
from resilin.errors import PeerLost
from resilin.rpc.transports import introduction, wire
from resilin.rpc.transports.base import WorkerIdentity
from resilin.rpc.transports.grpc import GrpcTransport
from resilin.rpc.transports.grpc.settings import CONNECT
from resilin.rpc.transports.introduction import Greeting, NetworkAddress
from resilin.rpc.transports.thread_queues import ThreadQueues
from resilin.rpc.transports.wire import HEAD, FrameKind
from resilin.rpc.transports.zeromq import ZeroMQTransport, sockets
from resilin.testing.job_secret import OTHER_SECRET, SECRET
from resilin.testing.patience import PATIENCE_S
from resilin.testing.rpc_peer import Worker

MAX_GROWTH = 16 << 20
OPEN = 32  # connections at a time
_PAGE = 4096


@pytest.fixture
def worker():
    """Makes workers that are closed after the test: `worker(id, transport, **options)`."""
    made = []

    def make(number, transport, **options):
        made.append(
            Worker(WorkerIdentity(number, f"worker{number}", "group", SECRET), transport, ThreadQueues, options)
        )
        return made[-1]

    yield make
    for one in made:
        one.close()


def resident():
    """Bytes of this process's memory."""
    with open("/proc/self/statm", encoding="ascii") as file:
        return int(file.read().split()[1]) * _PAGE


@contextlib.contextmanager
def unharmed(victim, member):
    """Whatever happens within: the victim grows by little, no message reaches it, and a member gets in."""
    before = resident()
    yield
    assert resident() - before < MAX_GROWTH
    member.transport.connect(victim.identity.id, victim.transport.address, Deadline(PATIENCE_S))
    member.send(victim.identity.id, b"from a member")
    found = victim.take(1)
    assert [bytes(message.parts[0]) for message in found] == [b"from a member"]
    assert victim.take(1, within_s=0.01) == []
    assert victim.losses == []


def mangled(rng, data):
    """`data` as it may come from who means harm: cut, with flipped bits, doubled, longer, or nothing of it."""
    way = rng.randrange(6)
    if way == 0:
        return data[: rng.randrange(len(data) + 1)]
    if way == 1:
        changed = bytearray(data)
        for _ in range(rng.randrange(1, 9)):
            changed[rng.randrange(len(changed))] ^= 1 << rng.randrange(8)
        return bytes(changed)
    if way == 2:
        return data + data
    if way == 3:
        return data + rng.randbytes(rng.randrange(1, 5000))
    if way == 4:
        return rng.randbytes(rng.randrange(2000))
    return data


def knock(where, texts):
    """Say each text on a connection of its own, some of which are open at a time."""
    left = []
    for text in texts:
        sock = socket.create_connection(where, timeout=PATIENCE_S)
        sock.setblocking(False)
        with contextlib.suppress(OSError):  # it may have hung up, or take no more
            sock.send(text)
        left.append(sock)
        if len(left) == OPEN:
            left.pop(0).close()
    for sock in left:
        sock.close()


def recorded(card, secret=SECRET):
    """What a member has said at another introduction."""
    nonces = auth.new_nonce(), auth.new_nonce()
    hello = Greeting("group", 7, 1, "worker7", 1, card.describe(), introduction.new_ticket(), 1, nonces[0].hex())
    proof = auth.proof(secret, b"client", introduction.PURPOSE, *nonces, card.mark)
    return nonces[0], proof, introduction.sealed(secret, b"hello", nonces[1], hello)


# ------------------------------------------------------------------------------------------------ without a proof


def test_introductions(worker, turns):
    victim, member = worker(1, ZeroMQTransport), worker(0, ZeroMQTransport)
    card = NetworkAddress.parse(victim.transport.address, "zeromq")
    rng = random.Random(1)
    with unharmed(victim, member):
        texts = (
            mangled(rng, b"".join(recorded(card, rng.choice([SECRET, OTHER_SECRET]))))
            for _ in range(turns(short=1000, full=20_000))
        )
        knock(host_port.parse(card.at, "address"), texts)


def _greeting(mechanism=b"PLAIN", version=b"\x03\x00"):
    return b"\xff" + bytes(8) + b"\x7f" + version + mechanism.ljust(20, b"\0") + bytes(32)


def _command(name, body):
    text = bytes([len(name)]) + name + body
    return (bytes([4, len(text)]) if len(text) < 256 else b"\x06" + struct.pack(">Q", len(text))) + text


def _plain(password):
    return _command(b"HELLO", b"\x07resilin" + bytes([len(password)]) + password)


def _frame(data):
    return bytes([0, len(data)]) + data


@pytest.mark.parametrize("encrypt", [False, True], ids=["plain", "curve"])
def test_what_zeromq_hears_while_a_member_is_expected(worker, turns, encrypt):
    options = {"near": False, "encrypt": encrypt}
    victim, member, friend = (worker(number, ZeroMQTransport, **options) for number in (1, 0, 2))
    friend.connect(victim)
    link = victim.transport._links[2]
    used = sockets.credential(SECRET, link.ticket, 0, victim.transport._mark, encrypt)
    friend.transport.forget(1)
    victim.wait_for_losses(1)
    victim.losses.clear()
    ready = _command(b"INITIATE", b"\x0bSocket-Type" + struct.pack(">I", 4) + b"PUSH")
    whole = wire.head(FrameKind.WHOLE, link.number, 1, 0, 1) + struct.pack("<I", 3) + b"abc"
    conversations = [
        _greeting() + _plain(used[:64]) + ready + _frame(whole),
        _greeting() + _plain(b"guess") + ready + _frame(whole),
        _greeting() + ready + _frame(whole),
        _greeting(b"NULL") + _command(b"READY", ready) + _frame(whole),
        _greeting(b"CURVE", b"\x03\x01") + _command(b"HELLO", bytes(194)) + _frame(whole),
        _greeting(b"CURVE") + _command(b"HELLO", b"\x01\x00" + bytes(72) + used.ljust(120, b"\0")) + ready,
        _greeting(version=b"\x01\x00") + _frame(whole),
        _greeting() + b"\x06" + struct.pack(">Q", 1 << 62) + bytes(5000),
        _greeting() + b"\x06" + struct.pack(">Q", 1 << 31) + bytes(5000),
        _greeting() + b"\x06" + struct.pack(">Q", 1 << 20) + bytes(60_000),
        _greeting() + (b"\x01\xff" + bytes(255)) * 100,
    ]
    rng = random.Random(2)
    where = host_port.parse(
        NetworkAddress.parse(victim.transport.address, "zeromq").data.removeprefix("tcp://"), "address"
    )
    with unharmed(victim, member), victim.transport._gate:
        knock(where, (mangled(rng, rng.choice(conversations)) for _ in range(turns(short=500, full=10_000))))


def test_while_nobody_is_expected_zeromq_hears_nobody(worker):
    victim = worker(1, ZeroMQTransport)
    where = host_port.parse(
        NetworkAddress.parse(victim.transport.address, "zeromq").data.removeprefix("tcp://"), "address"
    )
    with pytest.raises(TimeoutError):
        socket.create_connection(where, timeout=0.2)
    with victim.transport._gate:
        socket.create_connection(where, timeout=PATIENCE_S).close()
    with pytest.raises(TimeoutError):
        socket.create_connection(where, timeout=0.2)


def test_http2(worker, turns):
    victim, member = worker(1, GrpcTransport), worker(0, GrpcTransport)
    preface = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
    settings = b"\0\0\0\4\0\0\0\0\0"
    headers = b"\0\0\x08\1\4\0\0\0\1" + b"\x83\x86\x84\x41\x8a\x08\x9d\x5c"
    data = b"\0\x40\0\0\0\0\0\0\1" + bytes(0x4000)
    rng = random.Random(3)
    conversations = [
        preface + settings + headers + data,
        preface + settings * 100,
        preface + b"\xff\xff\xff\0\0\0\0\0\1" + bytes(30_000),
        preface + settings + b"\0\0\x04\3\0\0\0\0\1\0\0\0\1" * 200,
        b"\x16\x03\x01\x02\x00\x01\x00" + bytes(500),
    ]
    with unharmed(victim, member):
        texts = (mangled(rng, rng.choice(conversations)) for _ in range(turns(short=500, full=10_000)))
        knock(host_port.parse(NetworkAddress.parse(victim.transport.address, "grpc").at, "address"), texts)


@pytest.mark.slow
def test_streams(worker, turns):
    victim, member = worker(1, GrpcTransport), worker(0, GrpcTransport)
    card = NetworkAddress.parse(victim.transport.address, "grpc")
    rng = random.Random(4)
    with unharmed(victim, member), grpc.insecure_channel(card.at) as channel:
        stub = channel.stream_stream(CONNECT)
        calls = []
        for _ in range(turns(short=500, full=10_000)):
            nonce, proof, hello = recorded(card, rng.choice([SECRET, OTHER_SECRET]))
            texts = rng.choice([[nonce, proof + hello], [nonce + proof, hello], [mangled(rng, nonce), proof + hello]])
            texts[-1] = mangled(rng, texts[-1])
            calls.append(stub(iter(texts), timeout=PATIENCE_S))
            if len(calls) == OPEN:
                calls.pop(0).cancel()
        for call in calls:
            call.cancel()


# --------------------------------------------------------------------------------------------------- after a proof


def bad_frames(rng, link, number):
    """Frames of which the last is none that a worker sends, for a link that has had `number` frames."""
    content = struct.pack("<2I", 3, 5) + b"abcdefgh"
    huge = struct.pack("<I3Q", 3, 1 << 40, 1 << 63, 5)
    whole_part = struct.pack("<IQ", 1, 10_000)
    chunk = bytes(10_000)

    def head(kind, more=0, queue=0, argument=0, place=0):
        return wire.head(kind, link, number + more, queue, argument, place)

    return rng.choice(
        [
            [head(FrameKind.WHOLE, argument=2) + content, head(FrameKind.WHOLE, argument=2) + content],  # replayed
            [head(FrameKind.WHOLE, more=5, argument=2) + content],  # some are missing
            [bytes([FrameKind.WHOLE, 9]) + head(FrameKind.WHOLE, argument=2)[2:] + content],  # another version
            [wire.head(FrameKind.WHOLE, link ^ wire.LANES, number, 0, 2) + content],  # of another connection
            [head(FrameKind.WHOLE, argument=2) + content[: rng.randrange(len(content))]],
            [head(FrameKind.WHOLE, argument=2) + content + rng.randbytes(rng.randrange(1, 99))],
            [head(FrameKind.WHOLE, argument=0xFFFFFFFF) + content],
            [head(FrameKind.BEGIN, argument=1) + huge],
            [head(FrameKind.BEGIN, argument=1) + struct.pack("<IQ", 1, 2 << 30), head(FrameKind.CHUNK, 1)],
            [head(FrameKind.BEGIN, argument=1) + struct.pack("<IQ", 1, 5) + b"abcde"],
            [head(FrameKind.BEGIN, argument=1) + struct.pack("<I", rng.randrange(2, 1 << 32))],
            [head(FrameKind.BEGIN, argument=1) + whole_part, head(FrameKind.BEGIN, 1, argument=1) + whole_part],
            [head(FrameKind.END, argument=1), head(FrameKind.END, 1, argument=1)],
            [head(FrameKind.END, queue=3, argument=1), head(FrameKind.BEGIN, 1, argument=1) + whole_part],
            [
                head(FrameKind.BEGIN, argument=1) + whole_part,
                head(FrameKind.CHUNK, 1, argument=1) + chunk,
                head(FrameKind.CHUNK, 2, argument=1) + chunk,
            ],
            [head(FrameKind.BEGIN, argument=1) + whole_part, head(FrameKind.CHUNK, 1, argument=1, place=1) + chunk],
            [head(FrameKind.BEGIN, argument=1) + whole_part, head(FrameKind.CHUNK, 1, argument=1) + chunk[1:]],
            [head(FrameKind.CHUNK, argument=rng.randrange(1 << 32)) + rng.randbytes(100)],
            [head(FrameKind.CANCEL, argument=rng.randrange(1 << 32))],
            [head(FrameKind.PAUSE) + b"more"],
            [bytes([rng.randrange(max(FrameKind) + 1, 256)]) + head(FrameKind.HELLO)[1:]],
            [rng.randbytes(rng.randrange(HEAD.size))],
            [rng.randbytes(rng.randrange(HEAD.size, 3000))],
        ]
    )


def assert_blamed(victim):
    """It has lost who sent such frames, and has taken what was right before."""
    ((_, error),) = victim.wait_for_losses(1)
    assert "sent what no worker sends" in str(error)
    victim.losses.clear()
    victim.requests.take(0, 99)


@pytest.mark.slow
def test_frames_of_a_member_over_zeromq(worker, turns):
    victim, bad, member = (worker(number, ZeroMQTransport) for number in (1, 2, 0))
    rng = random.Random(5)
    before = resident()
    for _ in range(turns(short=300, full=6_000)):
        bad.connect(victim)
        link = bad.transport._links[1]
        with link.main.lock:
            for frame in bad_frames(rng, link.main._theirs, link.main._sent):
                link.main.push.send(frame)
        assert [peer for peer, _ in bad.wait_for_losses(1)] == [1]
        assert_blamed(victim)
        bad.losses.clear()
    assert resident() - before < MAX_GROWTH
    member.connect(victim)
    member.send(1, b"from a member")
    assert [bytes(message.parts[0]) for message in victim.take(1)] == [b"from a member"]


@pytest.mark.parametrize("frames", [[b"x" * ((1 << 20) + 1)], [b"a", b"b", b"c"], [b"x" * 17, b"y"]], ids=len)
def test_what_zeromq_itself_takes_of_a_member_has_an_end(worker, frames):
    victim, bad = worker(1, ZeroMQTransport), worker(2, ZeroMQTransport)
    bad.connect(victim)
    link = bad.transport._links[1]
    with link.main.lock:
        link.main.push.send_multipart(frames)
    assert [peer for peer, _ in bad.wait_for_losses(1)] == [1]
    assert [peer for peer, _ in victim.wait_for_losses(1)] == [2]


@pytest.mark.slow
def test_frames_of_a_member_over_grpc(worker, turns):
    victim, bad, member = (worker(number, GrpcTransport) for number in (1, 2, 0))
    rng = random.Random(6)
    before = resident()
    for _ in range(turns(short=200, full=4_000)):
        bad.connect(victim)
        link = bad.transport._links[1]
        for frame in bad_frames(rng, link._theirs, link._lanes[0].count):
            link.say(frame)
        assert_blamed(victim)
        with contextlib.suppress(PeerLost):
            bad.send(1, b"x" * 10, within_s=0.01)
        bad.transport.forget(1)
    assert resident() - before < MAX_GROWTH
    member.connect(victim)
    member.send(1, b"from a member")
    assert [bytes(message.parts[0]) for message in victim.take(1)] == [b"from a member"]


class Taken:
    """What an assembler says of messages."""

    def __init__(self):
        self.found, self.waiting = [], [0, 0]

    def arrived(self, queue, parts, size):
        self.found.append((parts, size))

    def held(self, queue, count, size):
        self.waiting[0] += count
        self.waiting[1] += size


def sent(rng, link, lanes=1):
    """Frames of some messages, by lane, as they are sent, and the messages."""
    frames, messages = [[] for _ in range(lanes)], []

    def add(lane, kind, queue, argument, content, place=0):
        head = wire.head(kind, link + lane, len(frames[lane]), queue, argument, place)
        frames[lane].append(b"".join((head, *content)))

    for stream in range(rng.randrange(1, 4 * lanes)):
        parts = [rng.randbytes(rng.choice([0, 1, 100, 5000, 70_000])) for _ in range(rng.randrange(4))]
        message = wire.measured(parts, 1 << 20)
        messages.append(parts)
        if wire.is_short(message):
            add(0, FrameKind.WHOLE, 0, len(parts), wire.whole_content(message))
            continue
        begun = set()
        for place, chunk in enumerate(wire.chunks(message)):
            lane = rng.randrange(lanes)
            if lane not in begun:
                begun.add(lane)
                add(lane, FrameKind.BEGIN, 0, stream, wire.begin_content(message))
            add(lane, FrameKind.CHUNK, 0, stream, (chunk,), place)
        add(0, FrameKind.END, 0, stream, ())
    return frames, messages


def feed(assembler, frame):
    assembler.feed(wire.read_head(memoryview(frame)), memoryview(frame)[HEAD.size :])


def test_lanes_that_come_in_any_order_give_messages_in_the_order_of_their_ends(turns):
    rng = random.Random(8)
    for _ in range(turns(short=300, full=10_000)):
        lanes, taken = rng.randrange(1, 5), Taken()
        frames, messages = sent(rng, 64, lanes)
        assembler = wire.Assembler(64, 1 << 20, taken, lanes)
        while any(frames):
            feed(assembler, rng.choice([lane for lane in frames if lane]).pop(0))
        assert [[bytes(part) for part in parts] for parts, _ in taken.found] == messages
        assert assembler.streams == 0
        assert taken.waiting == [0, 0]


def test_a_stream_that_is_given_up_on_leaves_nothing(turns):
    rng = random.Random(9)
    content = wire.begin_content(wire.measured([bytes(3 << 20)], 4 << 20))
    chunk = bytes(wire.CHUNK_BYTES)
    for _ in range(turns(short=100, full=2_000)):
        taken = Taken()
        assembler = wire.Assembler(0, 4 << 20, taken, 4)
        frames = [[] for _ in range(4)]
        for lane in range(rng.randrange(1, 4)):
            head = [wire.head(kind, lane, number, 0, 7, lane) for number, kind in enumerate((3, 4, 5))]
            frames[lane] = [b"".join((head[0], *content)), head[1] + chunk, head[2]]
        while any(frames):
            feed(assembler, rng.choice([lane for lane in frames if lane]).pop(0))
        assert (assembler.streams, taken.found, taken.waiting) == (0, [], [0, 0])


def test_an_assembler_takes_what_is_right_and_nothing_longer(turns):
    rng = random.Random(7)
    for _ in range(turns(short=1500, full=40_000)):
        link = rng.randrange(1 << 32)
        (frames,), messages = sent(rng, link)
        taken = Taken()
        assembler = wire.Assembler(link, 1 << 20, taken)
        if rng.randrange(4):
            place = rng.randrange(len(frames))
            frames[place] = mangled(rng, frames[place])
        try:
            for frame in frames:
                feed(assembler, frame)
        except FrameError:
            pass
        else:
            assert len(taken.found) + assembler.streams >= len(messages) - 1  # a CANCEL, a HELLO may stand in its place
        for parts, size in taken.found:
            assert size == sum(len(part) for part in parts) <= 1 << 20
        assert len(taken.found) <= len(messages)
