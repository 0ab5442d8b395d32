"""Servers that restart, freeze, die or say nothing: no event lost or repeated, every call ends within its deadline."""

from __future__ import annotations

import itertools
import random
import socket
import threading
import time

import pytest

from resilin import store
from resilin.errors import Compacted, StoreAmbiguous, StoreRefused, StoreTimeout, UsageError
from resilin.store.client import ClientStore
from resilin.store.memory import MemoryStore
from resilin.store.server import StoreServer
from resilin.testing.etcd import EtcdCluster
from resilin.testing.job_secret import OTHER_SECRET, SECRET
from resilin.testing.patience import PATIENCE_S
from resilin.testing.recorder import Recorder


@pytest.fixture
def state():
    with MemoryStore() as state:
        yield state


@pytest.fixture
def silent():
    """An endpoint that takes connections and answers nothing."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen(16)
        yield f"127.0.0.1:{listener.getsockname()[1]}"


def test_a_call_during_a_restart_waits_for_the_server(state):
    server = StoreServer(state)
    with ClientStore([f"127.0.0.1:{server.port}"], timeout_s=10) as client:
        client.put("a", b"1")
        server.close()
        back: list[StoreServer] = []
        starter = threading.Timer(0.2, lambda: back.append(StoreServer(state, port=server.port)))
        starter.start()
        assert client.put("a", b"2") == 3
        starter.join()
        back[0].close()


def test_a_watch_resumes_over_a_restart_without_loss_or_repetition(state):
    server, seen = StoreServer(state), Recorder()
    with ClientStore([f"127.0.0.1:{server.port}"]) as client:
        client.watch("k", seen.on_events, on_error=seen.on_error)
        for number in range(5):
            state.put("k", b"%d" % number)
        seen.wait(5)
        server.close()
        for number in range(5, 10):
            state.put("k", b"%d" % number)
        with StoreServer(state, port=server.port):
            for number in range(10, 15):
                state.put("k", b"%d" % number)
            events = seen.wait(15)
    assert [event.kv.value for event in events] == [b"%d" % number for number in range(15)]
    assert seen.errors == []


@pytest.mark.parametrize("after_s", [0.0, 0.01, 0.03, 0.1])
def test_closing_the_store_while_a_watch_looks_for_a_server_is_no_error_to_its_owner(state, after_s, monkeypatch):
    server, seen = StoreServer(state), Recorder()
    client = ClientStore([f"127.0.0.1:{server.port}"])
    client.watch("k", seen.on_events, on_error=seen.on_error)
    state.put("k", b"1")
    seen.wait(1)
    closing = client._watcher.close

    def close_late() -> None:  # the thread of the watches gets to try again between the two steps of a close
        time.sleep(0.05)
        closing()

    monkeypatch.setattr(client._watcher, "close", close_late)
    server.close()
    time.sleep(after_s)
    client.close()
    assert seen.errors == []


def test_watches_lose_and_repeat_nothing_however_often_the_server_restarts(state):
    rng, server, seen = random.Random(7), StoreServer(state), [Recorder() for _ in range(3)]
    port, counter, stop = server.port, itertools.count(), threading.Event()
    written = []

    def write() -> None:
        while not stop.wait(0.001):
            number = next(counter)
            written.append(number)
            state.put(f"k/{number % 3}", b"%d" % number)

    with ClientStore([f"127.0.0.1:{port}"]) as client:
        for number, recorder in enumerate(seen):
            client.watch(f"k/{number}", recorder.on_events, on_error=recorder.on_error)
        writer = threading.Thread(target=write)
        writer.start()
        for _ in range(6):
            stop.wait(rng.uniform(0.01, 0.15))
            server.close()
            server = StoreServer(state, port=port)
        stop.set()
        writer.join()
        for number, recorder in enumerate(seen):
            expected = [b"%d" % value for value in written if value % 3 == number]
            assert [event.kv.value for event in recorder.wait(len(expected))] == expected
            assert recorder.errors == []
    server.close()


def test_a_lease_survives_a_restart_of_its_server(state):
    server, lost = StoreServer(state), []
    with ClientStore([f"127.0.0.1:{server.port}"]) as client:
        client.put("node", b"", client.lease(1.0, lambda: lost.append(True)))
        server.close()
        with StoreServer(state, port=server.port):
            time.sleep(1.5)  # time itself is under test: longer than the lease
            assert client.get("node") is not None
    assert lost == []


def test_the_owner_learns_that_its_lease_is_lost_when_the_store_stays_away(state):
    server, lost = StoreServer(state), threading.Event()
    with ClientStore([f"127.0.0.1:{server.port}"]) as client:
        lease = client.lease(1.0, lost.set)
        server.close()
        assert lost.wait(PATIENCE_S)
        assert not lease.alive


def test_the_owner_learns_that_its_lease_was_revoked(state):
    lost = threading.Event()
    with StoreServer(state) as server, ClientStore([f"127.0.0.1:{server.port}"]) as client:
        lease = client.lease(1.0, lost.set)
        state.hub.revoke(lease.id)
        assert lost.wait(PATIENCE_S)


def test_a_watch_says_compacted_when_the_store_lost_its_data(state):
    seen = Recorder()
    server = StoreServer(state)
    with ClientStore([f"127.0.0.1:{server.port}"]) as client:
        client.put("k", b"")
        client.watch("k", seen.on_events, on_error=seen.on_error)
        client.put("k", b"")
        seen.wait(1)
        server.close()
        with MemoryStore() as empty, StoreServer(empty, port=server.port):
            assert isinstance(seen.wait_error(), Compacted)


def test_an_endpoint_that_answers_nothing_is_a_timeout_that_names_it(silent):
    took = []
    while not took or (min(took) > 1.0 and len(took) < 10):  # a busy machine delays single ones
        started = time.monotonic()
        with pytest.raises(StoreTimeout, match=silent):
            store.connect(f"embedded://{silent}", timeout_s=0.5)
        took.append(time.monotonic() - started)
    assert 0.4 < min(took) < 1.0


def test_an_endpoint_where_nobody_listens_is_a_timeout_that_says_refused():
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        endpoint = f"127.0.0.1:{unused.getsockname()[1]}"
        with pytest.raises(StoreTimeout, match=f"{endpoint}.*refused"):
            store.connect(f"etcd://{endpoint}", timeout_s=0.3)


def test_a_silent_endpoint_beside_a_good_one_costs_a_try_not_the_call(silent, state):
    with StoreServer(state) as server:
        for _ in range(4):  # clients start with a random endpoint
            with ClientStore([silent, f"127.0.0.1:{server.port}"], timeout_s=2.0) as client:
                assert client.compare_and_put("k", 0, b"")[0]
                state.delete("k")


def test_compare_and_put_on_a_store_that_stops_answering_is_ambiguous():
    with EtcdCluster() as cluster, ClientStore(cluster.endpoints, timeout_s=0.5) as client:
        client.put("k", b"")
        cluster.freeze(0)
        with pytest.raises(StoreAmbiguous, match="read the key again"):
            client.compare_and_put("k2", 0, b"")
        with pytest.raises(StoreTimeout, match=cluster.endpoints[0]):
            client.get("k")
        cluster.thaw(0)
        client.get("k")


@pytest.mark.parametrize("harm", ["kill", "freeze"])
def test_three_members_of_etcd_do_without_their_leader(harm):
    with EtcdCluster(3) as cluster, ClientStore(cluster.endpoints, timeout_s=8.0) as client:
        seen, lost = Recorder(), []
        client.watch("k/", seen.on_events, on_error=seen.on_error)
        client.put("node", b"", client.lease(5.0, lambda: lost.append(True)))
        for number in range(5):
            client.put(f"k/{number}", b"")
        getattr(cluster, harm)(cluster.leader())
        for number in range(5, 10):
            client.put(f"k/{number}", b"")
        done = False
        while not done:
            try:
                done = client.compare_and_put("leader", 0, b"me")[0]
            except StoreAmbiguous:
                done = client.get("leader") is not None
        # A frozen member's stream is noticed by its unanswered ping; a killed one's at once.
        events = seen.wait(10, timeout_s=PATIENCE_S)
        assert [event.kv.key for event in events] == [f"k/{number}" for number in range(10)]
        assert client.get("node") is not None
        assert lost == []
        assert seen.errors == []


def test_a_wrong_secret_is_refused_on_both_sides(state):
    with StoreServer(state, secret=SECRET) as server:
        with pytest.raises(StoreRefused, match="secret"):
            store.connect(server.url, secret=OTHER_SECRET)
        with pytest.raises(StoreRefused, match="secret"):
            store.connect(server.url)
        store.connect(server.url, secret=SECRET).close()


def test_a_client_with_a_secret_does_not_trust_a_server_without_one(state):
    with StoreServer(state) as server, pytest.raises(StoreRefused, match="no secret"):
        store.connect(server.url, secret=SECRET)


def test_a_server_that_comes_back_with_another_secret_ends_the_watches(state):
    seen = Recorder()
    server = StoreServer(state, secret=SECRET)
    with ClientStore([f"127.0.0.1:{server.port}"], secret=SECRET) as client:
        client.watch("k", seen.on_events, on_error=seen.on_error)
        client.put("k", b"")
        seen.wait(1)
        server.close()
        with StoreServer(state, port=server.port, secret=OTHER_SECRET):
            assert isinstance(seen.wait_error(), StoreRefused)


def test_a_user_and_password_of_etcd_let_us_in(tmp_path):
    with EtcdCluster() as cluster:
        cluster.ctl("user", "add", "root:toor")
        cluster.ctl("user", "grant-role", "root", "root")
        cluster.ctl("auth", "enable")
        url = f"etcd://root:toor@{cluster.endpoints[0]}"
        with store.connect(url) as client:
            seen = Recorder()
            client.watch("k", seen.on_events)
            client.put("k", b"", client.lease(5.0))
            seen.wait(1)
        for bad in (url.replace("toor", "nope"), cluster.url):
            with pytest.raises(StoreRefused), store.connect(bad) as client:
                client.put("k", b"")


def test_tls_verifies_the_server_and_carries_calls_watches_and_leases():
    with EtcdCluster(tls=True) as cluster:
        seen = Recorder()
        with store.connect(cluster.url) as client:
            client.watch("k", seen.on_events, on_error=seen.on_error)
            client.put("k", b"", client.lease(5.0))
            seen.wait(1)
        with pytest.raises(StoreTimeout, match=cluster.endpoints[0]):
            store.connect(f"etcd://{cluster.endpoints[0]}", timeout_s=0.5)
        with EtcdCluster(tls=True) as stranger, pytest.raises(StoreTimeout):
            store.connect(f"etcd://{cluster.endpoints[0]}?ca={stranger.ca}", timeout_s=0.5)


@pytest.mark.parametrize(
    ("url", "complaint"),
    [
        ("redis://h:1", "expected one of memory://"),
        ("etcd://host:port", "expected HOST:PORT .*, got 'host:port'"),
        ("embedded://h:1,h2:", "got 'h2:'"),
        ("etcd://h:1,::1:2379", "in brackets, [::1]:2379 or [::1:2379]"),
        ("embedded://[::1", "expected HOST:PORT or [IPV6]:PORT .*, got '[::1'"),
        ("etcd://bob:hun[ter2@h]:1", "store URL 'etcd://bob:***@h]:1'"),
        ("etcd://bob:hunter2@h:x", "store URL 'etcd://bob:***@h:x'"),
        ("etcd://h:1?tls=yes", "'tls' is not known"),
        ("etcd://h:1/key", "'/key' is not known"),
        ("etcd://h:1?ca=/nowhere.pem", "cannot read /nowhere.pem"),
        ("file://relative", "expected one of"),
        ("", "expected one of"),
    ],
)
def test_a_url_that_cannot_be_read_says_why(url, complaint):
    with pytest.raises(UsageError) as caught:
        store.connect(url, timeout_s=0.2)
    assert all(words in str(caught.value) for words in complaint.split(" .*"))
    assert "hunter2" not in str(caught.value)
