"""Who may talk to a job, and what those who may not can do to it."""

import os
import resource
import socket
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor

import other_user
import pytest

from resilin._base import auth
from resilin._base.clock import Deadline
from resilin.distributed.connections import handshake as wire
from resilin.distributed.connections.handshake import Hello
from resilin.distributed.connections.listener import Listener
from resilin.distributed.group.process_group import connect
from resilin.distributed.stores import FileStore, TCPStore
from resilin.errors import CollectiveTimeout, DistStoreError, HandshakeError, SecretRequired
from resilin.testing.job_secret import OTHER_SECRET, SECRET
from resilin.testing.patience import PATIENCE_S

NOBODY = other_user.UID

OTHER_USER = f"""
import os, sys
from resilin.distributed.stores import TCPStore
from resilin.errors import HandshakeError
TCPStore("127.0.0.1", int(sys.argv[1]), timeout=5.0).close()  # loads what it needs, as root
os.setgroups([]); os.setgid({NOBODY}); os.setuid({NOBODY})
try:
    print(TCPStore("127.0.0.1", int(sys.argv[1]), timeout=5.0).list_keys())
except HandshakeError as error:
    print("refused", error)
"""

FEW_DESCRIPTORS = """
import resource, socket, sys
from resilin.distributed.stores import TCPStore
soft = 64
resource.setrlimit(resource.RLIMIT_NOFILE, (soft, soft))
store = TCPStore("127.0.0.1", 0, None, True, 5.0, secret="a secret for tests alone")
print(store.port, flush=True)
sys.stdin.readline()
with TCPStore("127.0.0.1", store.port, None, False, 10.0, secret="a secret for tests alone") as other:
    other.set("key", "value")
    print(store.get("key").decode(), flush=True)
"""


@pytest.fixture
def no_secret(monkeypatch):
    monkeypatch.delenv("RESILIN_SECRET", raising=False)


@pytest.fixture
def room():
    """Enough descriptors for thousands of connections."""
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    if before[0] < 4096:
        if before[1] < 4096:
            pytest.skip(f"at most {before[1]} open files here")
        resource.setrlimit(resource.RLIMIT_NOFILE, (4096, before[1]))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, before)


def until(fact):
    """Poll `fact` for at most 5 s."""
    deadline, pause = Deadline(5.0), threading.Event()
    while not fact():
        assert not deadline.passed()
        pause.wait(0.01)


@pytest.mark.parametrize("address", ["127.0.0.1", "::1"])
def test_the_kernel_names_the_user_at_the_other_end_of_a_loopback_connection(address):
    with socket.create_server((address, 0), family=socket.AF_INET6 if ":" in address else socket.AF_INET) as server:
        client = socket.create_connection(server.getsockname()[:2])
        assert auth.peer_user(client) is None  # nobody has accepted yet: the socket has no owner
        accepted, _ = server.accept()
        with client, accepted:
            assert auth.peer_user(client) == auth.peer_user(accepted) == os.geteuid()
            client.close()
            assert auth.peer_user(accepted) is None


def test_an_ipv4_client_of_an_ipv6_server_has_a_user():
    server = socket.create_server(("::", 0), family=socket.AF_INET6, dualstack_ipv6=True)
    with server, socket.create_connection(("127.0.0.1", server.getsockname()[1])) as client:
        accepted, _ = server.accept()
        with accepted:
            assert auth.peer_user(accepted) == auth.peer_user(client) == os.geteuid()


@pytest.mark.multiproc
@other_user.needs_root
def test_without_a_secret_another_user_of_this_host_is_refused(no_secret):
    with TCPStore("127.0.0.1", 0, None, True, 10.0) as store:
        store.set("secret", "not for you")
        done = subprocess.run(
            [sys.executable, "-c", OTHER_USER, str(store.port)], capture_output=True, text=True, timeout=60
        )
        assert done.stdout.startswith("refused"), done.stderr
        assert "set RESILIN_SECRET" in done.stdout


def test_without_a_secret_a_server_of_another_user_is_not_believed(no_secret, monkeypatch):
    monkeypatch.setattr(auth, "peer_user", lambda sock: NOBODY)
    with pytest.raises(HandshakeError, match="set RESILIN_SECRET"):
        TCPStore("127.0.0.1", 0, None, True, 5.0)


def test_without_a_secret_an_unknown_user_is_asked_for_one(no_secret, monkeypatch):
    here, there = socket.socketpair()
    monkeypatch.setattr(auth, "peer_user", lambda sock: None)
    with here, there, pytest.raises(SecretRequired, match="set RESILIN_SECRET"):
        auth.require_same_user(here)


def test_with_a_secret_users_do_not_matter(monkeypatch):
    monkeypatch.setattr(auth, "peer_user", lambda sock: NOBODY)
    with TCPStore("127.0.0.1", 0, None, True, 5.0, secret=SECRET) as store:
        store.set("key", "value")
        assert store.get("key") == b"value"


def prove(endpoint, secret=SECRET, hello=None):
    """An authenticated connection that has said `hello`."""
    sock = socket.create_connection(("127.0.0.1", endpoint.port))
    auth.prove_as_client(sock, secret, wire.PURPOSE, Deadline(5.0), endpoint.mark)
    if hello is not None:
        sock.sendall(hello.pack())
    return sock


def test_a_thousand_silent_strangers_do_not_keep_peers_out(room):
    with Listener(secret=SECRET) as zero, Listener(secret=SECRET) as one:
        strangers = [socket.create_connection(("127.0.0.1", zero.endpoint.port)) for _ in range(1100)]
        endpoints = [zero.describe(), one.describe()]
        join = {"group_name": "g", "secret": SECRET, "timeout_s": 10.0}
        other = threading.Thread(target=lambda: connect(zero, endpoints, 0, **join).close())
        other.start()
        connect(one, endpoints, 1, **join).close()
        other.join()
        assert zero._accept_loop.counts()[0] <= 128
        for stranger in strangers:
            stranger.close()


def test_a_rank_with_another_secret_is_named_as_refused_by_the_rank_that_waits_for_it(caplog):
    with Listener() as zero, Listener() as one, ThreadPoolExecutor(1) as pool:
        endpoints = [zero.describe(), one.describe()]
        waiting = pool.submit(connect, zero, endpoints, 0, group_name="g", secret=SECRET, timeout_s=0.5)
        with pytest.raises(HandshakeError, match="refused our proof of the job's secret"):
            connect(one, endpoints, 1, group_name="g", secret=OTHER_SECRET, timeout_s=5.0)
        with pytest.raises(
            CollectiveTimeout,
            match=r"rank 1 did not join within 0.5 s; [12] connections? to the dist listener .* refused, the last "
            r"because .* did not prove the job's secret for resilin dist group; check that",
        ):
            waiting.result(PATIENCE_S)
    assert "did not prove the job's secret" in caplog.text


def test_a_peer_that_hangs_up_while_it_waits_for_us_is_forgotten():
    with Listener(secret=SECRET) as listener:
        waiting = prove(listener.endpoint, hello=Hello("later", 0, 1, 0, 0))
        until(lambda: listener._accept_loop.counts() == (0, 1))
        waiting.close()
        until(lambda: listener._accept_loop.counts() == (0, 0))


@pytest.mark.parametrize(
    "body", [b"[" * 1024, b'{"group":"g","generation":1e999,"source":0,"target":1,"channel":0}', b"\xff", b"{}"]
)
def test_a_malformed_hello_ends_its_connection_only(body):
    with Listener(secret=SECRET) as listener, prove(listener.endpoint) as sock:
        sock.settimeout(5.0)
        sock.sendall(wire.HEADER.pack(len(body)) + body)
        assert sock.recv(100) == b""


@pytest.mark.multiproc
def test_a_server_without_descriptors_serves_again_when_strangers_are_dropped():
    server = subprocess.Popen(
        [sys.executable, "-c", FEW_DESCRIPTORS],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    with server:
        port = int(server.stdout.readline())
        strangers = [socket.create_connection(("127.0.0.1", port)) for _ in range(80)]
        out, err = server.communicate("go\n", timeout=60)
        for stranger in strangers:
            stranger.close()
        assert out == "value\n", err


def test_a_port_where_something_else_answers_is_given_up_with_the_reason(monkeypatch):
    monkeypatch.setattr("resilin.distributed.stores.tcp._HANDSHAKE_S", 0.2)
    with socket.create_server(("127.0.0.1", 0)) as server:
        closing = threading.Event()

        def answer():
            server.settimeout(0.05)
            while not closing.is_set():
                try:
                    server.accept()[0].close()
                except TimeoutError:
                    continue

        thread = threading.Thread(target=answer)
        thread.start()
        with pytest.raises(DistStoreError, match=r"handshake|closed|reset"):
            TCPStore("127.0.0.1", server.getsockname()[1], timeout=30.0, secret=SECRET)
        closing.set()
        thread.join()


def test_a_file_store_that_others_can_read_is_refused(tmp_path):
    path = tmp_path / "store"
    path.touch(0o644)
    path.chmod(0o644)
    with pytest.raises(DistStoreError, match="mode 644, expected"):
        FileStore(path, timeout=1.0)
