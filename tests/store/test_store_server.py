"""The embedded server seen from outside: etcd's own tool, strangers, ports, and what it leaves behind."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import threading

import grpc
import pytest

from resilin import store
from resilin.errors import LeaseLost, SecretRequired, UsageError
from resilin.store import server as store_server
from resilin.store.memory import MemoryStore
from resilin.store.messages import cls, new, path
from resilin.store.pool import DaemonPool
from resilin.store.server import StoreServer
from resilin.testing import ports
from resilin.testing.etcd import find_etcdctl
from resilin.testing.job_secret import SECRET
from resilin.testing.patience import PATIENCE_S
from resilin.testing.recorder import Recorder


@pytest.fixture
def state():
    with MemoryStore() as state:
        yield state


@pytest.fixture
def server(state):
    with StoreServer(state, secret=SECRET) as server:
        yield server


@pytest.fixture
def etcdctl(server):
    """etcdctl(*arguments) -> its standard output, logged in as the manual says."""

    def run(*arguments: str, user: str = f"resilin:{SECRET}", text: str | None = None) -> str:
        command = [find_etcdctl(), "--endpoints", f"127.0.0.1:{server.port}", "--user", user, *arguments]
        done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S, input=text or "")
        assert done.returncode == 0, done.stderr
        return done.stdout

    return run


# -- etcdctl


def test_etcdctl_reads_and_writes_a_job(state, etcdctl):
    state.put("/resilin/job/nodes/a", b"here")
    assert etcdctl("get", "--prefix", "/resilin/") == "/resilin/job/nodes/a\nhere\n"
    assert etcdctl("put", "/resilin/job/x", "1") == "OK\n"
    assert state.get("/resilin/job/x").value == b"1"
    assert etcdctl("get", "--prefix", "/resilin/", "--keys-only").split() == ["/resilin/job/nodes/a", "/resilin/job/x"]
    assert etcdctl("get", "--prefix", "/", "--count-only", "-w", "fields").splitlines()[-1] == '"Count" : 2'
    assert etcdctl("del", "--prefix", "/resilin/") == "2\n"
    assert state.range("")[0] == []


def test_etcdctl_sorts_limits_and_reads_the_past(state, etcdctl):
    for name in ("b", "a", "c"):
        last = state.put(name, name.encode())
    newest_first = etcdctl("get", "--prefix", "", "--sort-by", "MODIFY", "--order", "DESCEND", "--print-value-only")
    assert newest_first.split() == ["c", "a", "b"]
    assert etcdctl("get", "--prefix", "", "--limit", "2", "--print-value-only").split() == ["a", "b"]
    state.delete_prefix("")
    assert etcdctl("get", "--prefix", "", "--rev", str(last - 1), "--print-value-only").split() == ["a", "b"]


def test_etcdctl_runs_transactions(state, etcdctl):
    text = 'mod("a") = "0"\n\nput a new\nget a\n\nget a\n\n'
    assert etcdctl("txn", text=text).split() == ["SUCCESS", "OK", "a", "new"]
    assert etcdctl("txn", text=text).split() == ["FAILURE", "a", "new"]


def test_etcdctl_watches_history_and_what_follows(state, server):
    state.put("a", b"1")
    state.delete("a")
    command = [find_etcdctl(), "--endpoints", f"127.0.0.1:{server.port}", "--user", f"resilin:{SECRET}"]
    command += ["watch", "a", "--rev", "2"]
    with subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True) as watching:
        try:
            lines = [watching.stdout.readline().strip() for _ in range(6)]
            state.put("a", b"2")
            lines += [watching.stdout.readline().strip() for _ in range(3)]
        finally:
            watching.kill()
    assert lines == ["PUT", "a", "1", "DELETE", "a", "", "PUT", "a", "2"]


def test_etcdctl_handles_leases(state, etcdctl):
    lease = etcdctl("lease", "grant", "60").split()[1]
    etcdctl("put", "--lease", lease, "a", "1")
    assert "attached keys([a])" in etcdctl("lease", "timetolive", lease, "--keys")
    assert lease in etcdctl("lease", "list")
    assert "keepalived with TTL(60)" in etcdctl("lease", "keep-alive", "--once", lease)
    etcdctl("lease", "revoke", lease)
    assert state.get("a") is None


def test_etcdctl_finds_the_server_healthy(server, etcdctl):
    (status,) = json.loads(etcdctl("endpoint", "status", "-w", "json"))
    assert status["Status"]["leader"] == status["Status"]["header"]["member_id"]
    etcdctl("endpoint", "health")


def test_etcdctl_with_a_wrong_password_is_refused(etcdctl):
    for user in ("resilin:nope", f"root:{SECRET}"):
        with pytest.raises(AssertionError, match="invalid user ID or password"):
            etcdctl("get", "a", user=user)


# -- strangers


def call(server, method, raw, metadata=()):
    # a connection of its own: one that grpc shares between channels adds up what strangers may send
    options = [("grpc.use_local_subchannel_pool", 1)]
    with grpc.insecure_channel(f"127.0.0.1:{server.port}", options) as channel:
        return channel.unary_unary(path(method))(raw, metadata=metadata, timeout=PATIENCE_S)


@pytest.mark.parametrize("presented", ["", "x", "a.b.c", "0" * 32, f"{'0' * 32}.1"])
def test_a_stranger_learns_nothing_not_even_whether_his_request_was_sound(server, presented):
    for raw in (b"", b"\xff\xff\xff"):
        for method in ("Range", "Put", "Txn", "LeaseGrant", "Status"):
            with pytest.raises(grpc.RpcError) as refused:
                call(server, method, raw, (("token", presented),) if presented else ())
            assert refused.value.code() in (grpc.StatusCode.UNAUTHENTICATED, grpc.StatusCode.INVALID_ARGUMENT)
            assert refused.value.details() in ("etcdserver: invalid auth token", "etcdserver: user name is empty")


@pytest.mark.parametrize("method", ["Watch", "LeaseKeepAlive"])
def test_a_stranger_opens_no_stream(server, method):
    with grpc.insecure_channel(f"127.0.0.1:{server.port}") as channel:
        stream = channel.stream_stream(path(method))(iter([b""]), metadata=(("token", "x"),), timeout=PATIENCE_S)
        with pytest.raises(grpc.RpcError, match="invalid auth token"):
            next(stream)


def test_garbage_is_answered_and_the_server_lives_on(state):
    with StoreServer(state) as server:
        for method in ("Range", "Put", "Txn", "LeaseGrant", "Authenticate"):
            with pytest.raises(grpc.RpcError) as refused:
                call(server, method, b"\xff\xff\xff")
            assert refused.value.code() is grpc.StatusCode.INVALID_ARGUMENT
        # more than sockets hold at once: where bytes are lost on the way, one of them ends otherwise
        for _ in range(20):
            with pytest.raises(grpc.RpcError) as refused:
                call(server, "Range", bytes(5 << 20))
            assert refused.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED, server._front._why
        assert call(server, "Status", b"")


# -- addresses


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.0.2.1"])
def test_without_a_secret_nothing_listens_beyond_loopback(state, host):
    with pytest.raises(SecretRequired, match="beyond loopback"):
        StoreServer(state, host)


def test_a_port_in_use_is_one_clear_error(state, capfd):
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        with pytest.raises(UsageError, match=rf"127\.0\.0\.1:{port}: Address already in use.*another one"):
            StoreServer(state, port=port)
    assert capfd.readouterr().err == ""


LOSES_THE_RACE = """
import os, socket
from resilin.store import server
from resilin.store.memory import MemoryStore
server._check_free = lambda host, port: [host]  # the port is taken a moment after the check
with socket.create_server(("127.0.0.1", 0)) as taken:
    try:
        server.StoreServer(MemoryStore(), "127.0.0.1", taken.getsockname()[1])
    except server.UsageError as error:
        print(error)
assert "GRPC_VERBOSITY" not in os.environ
"""


def test_a_lost_race_for_a_port_is_an_error_and_nothing_on_standard_error():
    command = [sys.executable, "-c", LOSES_THE_RACE]
    told = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S, check=True, env={**os.environ})
    assert told.stdout.startswith("the store cannot listen on 127.0.0.1:")
    assert told.stderr == ""


def test_two_servers_never_share_a_port(state):
    with StoreServer(state) as server, pytest.raises(UsageError, match=str(server.port)):
        StoreServer(state, port=server.port)


def test_an_address_that_is_not_ours_is_refused(state):
    with pytest.raises(UsageError, match=r"192\.0\.2\.1"):
        StoreServer(state, "192.0.2.1", secret=SECRET)


# -- what only the wire shows


def test_a_watch_can_be_cancelled_filtered_and_asked_for_progress(state):
    with StoreServer(state) as server, grpc.insecure_channel(f"127.0.0.1:{server.port}") as channel:
        create = new("WatchCreateRequest", key=b"a", range_end=b"b", watch_id=7, filters=[0])
        requests = [
            new("WatchRequest", create_request=create),
            new("WatchRequest", create_request=create),
            new("WatchRequest", progress_request=new("WatchProgressRequest")),
            new("WatchRequest", cancel_request=new("WatchCancelRequest", watch_id=7)),
        ]
        more = threading.Event()

        def send():
            yield from (request.SerializeToString() for request in requests[:1])
            more.wait(PATIENCE_S)
            yield from (request.SerializeToString() for request in requests[1:])

        answers = map(cls("WatchResponse").FromString, channel.stream_stream(path("Watch"))(send(), timeout=PATIENCE_S))
        assert next(answers).created
        state.put("a", b"1")
        state.delete("a")
        more.set()
        deleted = next(answers)
        assert [(event.type, event.kv.key) for event in deleted.events] == [(1, b"a")]  # puts are filtered out
        assert next(answers).cancel_reason == "mvcc: duplicate watch ID provided"
        assert next(answers).header.revision == 3
        assert next(answers).canceled


def test_a_client_that_reads_nothing_is_cut_off_and_resumes(state, monkeypatch):
    monkeypatch.setattr("resilin.store.watch_stream.MAX_QUEUED", 50)
    with StoreServer(state) as server, store.connect(server.url) as client:
        seen, gate = Recorder(), threading.Event()

        def slow(events):
            gate.wait(PATIENCE_S)
            seen.on_events(events)

        client.watch("k", slow, on_error=seen.on_error)
        payload = bytes(64 << 10)  # fills the connection's windows, so that responses wait in the server
        for number in range(400):
            state.put("k", b"%d " % number + payload)
        gate.set()
        events = seen.wait(400, timeout_s=PATIENCE_S)
        assert [int(event.kv.value.split()[0]) for event in events] == list(range(400))


def test_a_lease_that_is_gone_is_not_found(state):
    with StoreServer(state) as server, store.connect(server.url) as client:
        lease = client.lease(5.0)
        state.hub.revoke(lease.id)
        with pytest.raises(LeaseLost):
            client.put("a", b"", lease)


def test_closing_leaves_no_thread_and_frees_the_port(state):
    before = set(threading.enumerate())
    server = StoreServer(state, secret=SECRET)
    client = store.connect(server.url, secret=SECRET)
    seen = Recorder()
    client.watch("", seen.on_events)
    client.put("a", b"", client.lease(5.0))
    seen.wait(1)
    client.close()
    server.close()
    server.close()
    left = [one for one in set(threading.enumerate()) - before if one.name != "resilin-store-expiry"]  # the state's
    for thread in left:
        thread.join(PATIENCE_S)
    assert [thread.name for thread in left if thread.is_alive()] == []
    with socket.socket() as again:
        again.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        again.bind(("127.0.0.1", server.port))


def test_the_pool_runs_calls_at_once_and_reuses_idle_threads():
    pool, gate = DaemonPool("test"), threading.Barrier(11)
    waiting = [pool.submit(gate.wait, 5) for _ in range(10)]
    gate.wait(PATIENCE_S)  # all ten run at the same time
    assert len({future.result(PATIENCE_S) for future in waiting}) == 10
    assert pool.submit(lambda: threading.current_thread().daemon).result(PATIENCE_S)
    failing = pool.submit(lambda: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        failing.result(PATIENCE_S)
    pool.shutdown()
    with pytest.raises(RuntimeError, match="after shutdown"):
        pool.submit(print)


def test_who_looks_whether_a_port_is_free_is_in_nobodys_way(monkeypatch):
    """Of several servers that want it at once each would keep it from the others, and nobody would have it."""
    others = []

    class Probe(socket.socket):
        def __exit__(self, *error):
            others.append(socket.create_server(self.getsockname()))  # at the last moment at which that can fail
            super().__exit__(*error)

    with ports.held() as (port,), monkeypatch.context() as patched:
        patched.setattr(socket, "socket", Probe)
        assert store_server._check_free("127.0.0.1", port) == ["127.0.0.1"]
    others[0].close()


def test_a_name_whose_port_is_taken_at_one_of_its_addresses_is_refused_at_all(monkeypatch):
    """Else two servers of one name would share the clients between them."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        rows = [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (address, port)) for address in ("127.0.0.2", "127.0.0.1")]
        monkeypatch.setattr(socket, "getaddrinfo", lambda *args, **kwargs: rows)
        with MemoryStore() as state, pytest.raises(UsageError, match="in use"):
            StoreServer(state, "127.0.0.2", port)
        rows[1] = (socket.AF_INET, socket.SOCK_STREAM, 6, "", ("192.0.2.1", port))  # not this host's: left out
        with MemoryStore() as state, StoreServer(state, "127.0.0.2", port) as server:
            assert server.port == port
