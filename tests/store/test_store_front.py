"""What strangers can and cannot do to a store server by connecting to it."""

import os
import socket
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from resilin import store
from resilin._base.clock import Deadline
from resilin.store import MemoryStore, front_proxy
from resilin.store.server import StoreServer
from resilin.testing.job_secret import SECRET
from resilin.testing.patience import PATIENCE_S

SETTINGS = bytes([0, 0, 0, 4, 0, 0, 0, 0, 0])
WORDS = {"nothing": b"", "half a preface": front_proxy.PREFACE[:14], "a preface": front_proxy.PREFACE + SETTINGS}


@pytest.fixture
def state():
    with MemoryStore() as state:
        yield state


@pytest.fixture
def strangers():
    """`strangers(server, count, words)` connects."""
    opened = []

    def come(server, count, words=b""):
        for _ in range(count):
            opened.append(socket.create_connection(("127.0.0.1", server.port), timeout=PATIENCE_S))
            if words:
                opened[-1].send(words)
        return opened[-count:]

    yield come
    for sock in opened:
        sock.close()


def until(fact):
    deadline, pause = Deadline(PATIENCE_S), threading.Event()
    while not fact():
        assert not deadline.passed()
        pause.wait(0.01)


def left(sock):
    """Whether the server has hung up on a connection."""
    sock.setblocking(False)
    try:
        while sock.recv(4096):
            pass
    except BlockingIOError:
        return False
    except OSError:
        pass
    return True


@pytest.mark.parametrize("words", WORDS.values(), ids=WORDS)
@pytest.mark.parametrize("secret", [SECRET, None])
def test_with_all_places_taken_by_strangers_members_come_in_and_the_oldest_strangers_go(
    state, strangers, monkeypatch, words, secret
):
    monkeypatch.setattr(front_proxy, "MAX_STRANGERS", 16)
    with StoreServer(state, secret=secret) as server, store.connect(server.url, secret=secret) as before:
        socks = strangers(server, 40, words)
        with store.connect(server.url, secret=secret) as client:
            client.put("a", b"1")
            before.put("b", b"2")
            assert server._front.counts()[0] <= 16
            until(lambda: sum(map(left, socks)) >= 40 - 16)
            assert left(socks[0])


@pytest.mark.parametrize("words", WORDS.values(), ids=WORDS)
def test_a_stranger_does_not_stay_and_a_member_that_says_nothing_does(state, strangers, monkeypatch, words):
    monkeypatch.setattr(front_proxy, "STRANGER_S", 0.3)
    with StoreServer(state, secret=SECRET) as server, store.connect(server.url, secret=SECRET) as member:
        known = server._front.counts()[1]
        (sock,) = strangers(server, 1, words)
        until(lambda: left(sock))
        assert server._front.counts() == (0, known)
        member.put("a", b"1")


def test_one_byte_at_a_time_buys_no_time(state, strangers, monkeypatch):
    monkeypatch.setattr(front_proxy, "STRANGER_S", 0.3)
    with StoreServer(state) as server:
        (sock,) = strangers(server, 1)
        pause = threading.Event()
        for byte in front_proxy.PREFACE:
            try:
                sock.send(bytes([byte]))
            except OSError:
                break
            pause.wait(0.1)
        else:
            pytest.fail("it was let say all of it, in 2.4 s")


@pytest.mark.parametrize("words", [b"GET / HTTP/1.1\r\n\r\n", b"\0" * 24, b"PRI * HTTP/1.0\r\n", os.urandom(4096)])
def test_what_is_no_http2_ends_at_the_door(state, strangers, words):
    with StoreServer(state) as server:
        (sock,) = strangers(server, 1, words)
        until(lambda: left(sock))
        assert server._front.counts() == (0, 0)


def test_strangers_that_send_much_are_cut_off(state, strangers, monkeypatch):
    monkeypatch.setattr(front_proxy, "MAX_STRANGE_BYTES", 1 << 16)
    with StoreServer(state, secret=SECRET) as server:
        (sock,) = strangers(server, 1, front_proxy.PREFACE)
        frame = (1 << 14).to_bytes(3, "big") + bytes([0xEE, 0, 0, 0, 0, 0]) + bytes(1 << 14)  # of a kind to be ignored
        with pytest.raises(ConnectionError):
            sock.sendall(frame * 1000)


def test_of_many_that_send_much_together_the_greediest_goes(state, strangers, monkeypatch):
    monkeypatch.setattr(front_proxy, "MAX_STRANGE_BYTES_OF_ALL", 1 << 16)
    settings = bytes(3) + bytes([4, 0, 0, 0, 0, 0])
    frame = (1 << 14).to_bytes(3, "big") + bytes([0xEE, 0, 0, 0, 0, 0]) + bytes(1 << 14)
    with StoreServer(state, secret=SECRET) as server:
        greedy, modest = strangers(server, 2, front_proxy.PREFACE + settings + frame)
        greedy.sendall(frame)
        until(lambda: server._front._strange_bytes > 3 << 14)
        modest.sendall(frame)
        until(lambda: left(greedy))
        assert not left(modest)


def test_large_answers_pass_a_reader_that_is_slow(state, strangers):
    with StoreServer(state) as server, store.connect(server.url) as client:
        for number in range(8):
            client.put(f"k{number}", bytes(1 << 20))
        seen, gate = [], threading.Event()

        def slow(events):
            gate.wait(PATIENCE_S)
            seen.extend(events)

        with client.watch("k", slow, start_revision=1):
            assert len(client.range("k")[0]) == 8
            gate.set()
            until(lambda: len(seen) == 8)


FEW_DESCRIPTORS = """
import os, resource, sys
from resilin import store
from resilin.store import MemoryStore
from resilin.store.server import StoreServer
resource.setrlimit(resource.RLIMIT_NOFILE, (160, 160))
with MemoryStore() as state, StoreServer(state, secret="a secret for tests alone") as server:
    member = store.connect(server.url, secret="a secret for tests alone")
    held = [open(os.devnull) for _ in range(int(sys.argv[1]))]  # what else the process has open
    print(server.port, flush=True)
    sys.stdin.readline()
    late = store.connect(server.url, secret="a secret for tests alone", timeout_s=20.0)
    late.put("a", b"1")
    member.put("b", b"1")
    pipes = [os.pipe() for _ in range(8)]  # for replacements of eight workers
    print("went on", flush=True)
    os._exit(0)
"""


@pytest.mark.multiproc
@pytest.mark.parametrize("held", [0, 60])
def test_descriptors_are_left_however_many_strangers_there_are(held):
    command = [sys.executable, "-c", FEW_DESCRIPTORS, str(held)]
    process = subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    port = int(process.stdout.readline())
    socks = [socket.create_connection(("127.0.0.1", port), timeout=PATIENCE_S) for _ in range(300)]
    told, errors = process.communicate("\n", timeout=PATIENCE_S)
    assert told == "went on\n", errors
    assert "connections were dropped" in errors
    for sock in socks:
        sock.close()


@pytest.mark.slow
def test_large_values_pass_whole_where_the_reader_is_slow(state):
    """More than the buffers of sockets hold, for a server that many call at once, and back."""
    values = [os.urandom(64) * (48 << 10) for _ in range(4)]  # 3 MiB

    def there_and_back(number):
        for _ in range(6):
            with store.connect(f"embedded://127.0.0.1:{server.port}", timeout_s=PATIENCE_S) as client:
                client.put(f"large/{number}", values[number])
                assert client.get(f"large/{number}").value == values[number]

    with StoreServer(state) as server, ThreadPoolExecutor(len(values)) as pool:
        list(pool.map(there_and_back, range(len(values))))
