"""The key-value stores behind `init_process_group`, and the ways to initialise."""

import signal
import socket
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor

import extent
import pytest

from resilin import distributed as dist
from resilin.distributed.connections.accept_loop import AcceptLoop
from resilin.distributed.stores import tcp
from resilin.errors import CollectiveTimeout, DistError, DistNetworkError, DistStoreError, HandshakeError, UsageError
from resilin.store.memory import MemoryStore
from resilin.testing.job_secret import OTHER_SECRET, SECRET
from resilin.testing.patience import PATIENCE_S
from resilin.testing.ranks import start_ranks


@pytest.fixture(params=["hash", "file", "tcp", "tcp client", "prefix", "coordination"])
def store(request, tmp_path):
    opened = []

    def keep(thing):
        opened.append(thing)
        return thing

    if request.param == "hash":
        yield keep(dist.HashStore(timeout=5.0))
    elif request.param == "file":
        yield keep(dist.FileStore(tmp_path / "store", timeout=5.0))
    elif request.param.startswith("tcp"):
        server = keep(dist.TCPStore("127.0.0.1", 0, is_master=True, timeout=5.0))
        yield keep(dist.TCPStore("127.0.0.1", server.port, timeout=5.0)) if "client" in request.param else server
    elif request.param == "prefix":
        yield dist.PrefixStore("job", keep(dist.HashStore(timeout=5.0)))
    else:
        memory = keep(MemoryStore())
        yield keep(dist.CoordinationStore(memory, timeout=5.0))
    for thing in reversed(opened):
        thing.close()


def test_what_is_set_is_got(store):
    store.set("a", b"1")
    store.set("b", "text")
    assert (store.get("a"), store.get("b")) == (b"1", b"text")
    store.multi_set(["c", "d"], [b"\0\xff", b""])
    assert store.multi_get(["c", "d"]) == [b"\0\xff", b""]
    assert store.list_keys() == ["a", "b", "c", "d"]
    assert store.num_keys() == 4
    assert store.delete_key("a")
    assert not store.delete_key("a")
    assert store.check(["b"])
    assert not store.check(["a", "b"])


def test_counters_and_comparisons(store):
    assert store.add("n", 2) == 2
    assert store.add("n", -5) == -3
    assert store.get("n") == b"-3"
    assert store.compare_set("k", "", "first") == b"first"
    assert store.compare_set("k", "wrong", "second") == b"first"
    assert store.compare_set("k", "first", "second") == b"second"
    assert store.compare_set("missing", "x", "y") == b"x"
    store.append("k", "!")
    assert store.get("k") == b"second!"


def test_queues_give_back_what_was_pushed_in_order_and_are_keys_while_they_hold_something(store):
    for value in (b"", "two", b"\0three"):
        store.queue_push("q", value)
    assert store.queue_len("q") == 3
    assert store.check(["q"])
    assert [store.queue_pop("q"), store.queue_pop("q", block=False), store.queue_pop("q")] == [b"", b"two", b"\0three"]
    assert store.queue_len("q") == 0
    assert not store.check(["q"])


def test_an_empty_queue_raises_at_once_or_after_the_timeout(store):
    store.set_timeout(0.05)
    with pytest.raises(dist.QueueEmptyError, match="is empty"):
        store.queue_pop("q", block=False)
    with pytest.raises(DistStoreError, match="no value for"):
        store.queue_pop("q")
    store.set("k", "no queue")
    with pytest.raises(DistStoreError, match="expected what queue_push wrote"):
        store.queue_pop("k")
    assert store.get("k") == b"no queue"


def test_every_pushed_value_is_popped_once_by_threads_that_wait(store):
    def work(i):
        store.queue_push("q", str(i))
        return int(store.queue_pop("q"))

    with ThreadPoolExecutor(8) as pool:
        assert sorted(pool.map(work, range(24))) == list(range(24))
    assert store.queue_len("q") == 0


def test_a_clone_has_the_same_keys_and_its_timeout(store):
    store.set("a", "1")
    store.set_timeout(3.0)
    clone = store.clone()
    assert (clone.get("a"), clone.timeout.total_seconds()) == (b"1", 3.0)
    clone.set("b", "2")
    if not isinstance(store, dist.HashStore):
        clone.close()
    assert store.get("b") == b"2"
    assert store.has_extended_api()


def test_arguments_of_a_wrong_type_are_also_type_errors(store):
    for call in (
        lambda: store.set("a", 5),
        lambda: store.set(5, "a"),
        lambda: store.get(5),
        lambda: store.add("a", "x"),
        lambda: store.queue_push("q", None),
    ):
        with pytest.raises(TypeError) as caught:
            call()
        assert isinstance(caught.value, UsageError)


def test_waiting_ends_when_the_key_comes(store):
    writer = threading.Timer(0.05, store.set, ["late", b"here"])
    writer.start()
    assert store.get("late") == b"here"
    writer.join()
    store.wait(["late"], 0.1)


def test_a_late_key_is_named(store):
    store.set("there", b"")
    with pytest.raises(DistStoreError, match=r"no value for .*never'"):
        store.wait(["there", "never"], 0.05)


def test_concurrent_adds_all_count(store):
    threads = [threading.Thread(target=lambda: [store.add("n", 1) for _ in range(10)]) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert store.add("n", 0) == 40


def test_the_last_user_removes_the_file(tmp_path):
    path = tmp_path / "store"
    one, two = dist.FileStore(path), dist.FileStore(path)
    one.close()
    assert path.exists()
    two.close()
    assert not path.exists()


def test_a_store_that_is_dropped_has_left(tmp_path):
    store = dist.FileStore(tmp_path / "store")
    store.set("a", "b")
    del store
    assert list(tmp_path.iterdir()) == []


def test_a_store_that_is_dropped_where_its_table_is_locked_waits_for_nobody_for_long(tmp_path, monkeypatch):
    monkeypatch.setattr("resilin.distributed.stores.file._LEAVE_S", 0.05)
    one, two = dist.FileStore(tmp_path / "store"), dist.FileStore(tmp_path / "store")
    with one._table():
        del two
    one.close()
    assert list(tmp_path.iterdir()) == []


GIVES_A_STORE = """
import os, sys
import numpy as np
from resilin import dist
dist.init_process_group(store=dist.FileStore(sys.argv[1], 1), rank=0, world_size=1)
dist.all_reduce(np.ones(3))
if "destroy" in sys.argv:
    dist.destroy_process_group()
os.chdir("/")
"""


@pytest.mark.multiproc
@pytest.mark.parametrize("end", ["destroy", "leave"])
def test_a_file_store_that_nobody_closes_is_gone_after_a_normal_exit(tmp_path, end):
    command = [sys.executable, "-c", GIVES_A_STORE, "store", end]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert list(tmp_path.iterdir()) == []


USES_AND_DIES = """
import os, signal, sys
from resilin.distributed import FileStore
store = FileStore(sys.argv[1])
store.set("secret", "of a dead job")
print("set", flush=True)
if "wait" in sys.argv:
    sys.stdin.readline()
os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.multiproc
def test_a_file_whose_users_were_killed_is_dropped_by_the_next_user_and_removed_by_the_last(tmp_path):
    path = tmp_path / "store"
    done = subprocess.run([sys.executable, "-c", USES_AND_DIES, str(path)], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout) == (-signal.SIGKILL, "set\n"), done.stderr
    assert path.exists()
    with dist.FileStore(path) as one, dist.FileStore(path) as two:
        assert two.list_keys() == []
        one.set("a", "kept while somebody is there")
        assert two.get("a")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.multiproc
def test_a_user_that_is_killed_does_not_keep_the_file_from_being_removed(tmp_path):
    path = tmp_path / "store"
    with dist.FileStore(path) as store:
        command = [sys.executable, "-c", USES_AND_DIES, str(path), "wait"]
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as other:
            assert other.stdout.readline() == "set\n"
            assert store.get("secret") == b"of a dead job"
            other.communicate("go\n", timeout=PATIENCE_S)
        assert store.list_keys() == ["secret"], "what a dead user wrote stays while others live"
    assert list(tmp_path.iterdir()) == []


WRITES_AND_DIES = """
import os, resource, signal, sys
from resilin.distributed import FileStore
store = FileStore(sys.argv[1])
if sys.argv[2] == "amid the writing":
    signal.signal(signal.SIGXFSZ, signal.SIG_DFL)  # what lies beyond the limit kills
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, resource.RLIM_INFINITY))
else:
    os.replace = lambda *names: os.kill(os.getpid(), signal.SIGKILL)
store.set("b", b"2" * 5000)
"""


@pytest.mark.multiproc
@pytest.mark.parametrize(("at", "end"), [("amid the writing", signal.SIGXFSZ), ("before the new name", signal.SIGKILL)])
def test_a_writer_that_is_killed_amid_a_write_leaves_the_store_as_it_was(tmp_path, at, end):
    path = tmp_path / "store"
    with dist.FileStore(path) as store:
        store.set("a", b"1")
        command = [sys.executable, "-c", WRITES_AND_DIES, str(path), at]
        done = subprocess.run(command, capture_output=True, text=True, timeout=100, check=False)
        assert done.returncode == -end, done.stderr
        assert {each.name for each in tmp_path.iterdir()} == {"store", "store.new", "store.users"}, (
            "it was amid a write"
        )
        assert store.list_keys() == ["a"]
        store.set("b", b"3")
        assert (store.get("a"), store.get("b")) == (b"1", b"3")
    assert list(tmp_path.iterdir()) == []


NO_ROOM = """
import resource, sys
from resilin.distributed import FileStore
from resilin.errors import DistStoreError
with FileStore(sys.argv[1]) as store:
    store.set("a", b"1")
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))
    try:
        store.set("b", b"2" * 5000)
    except DistStoreError as error:
        print(error, store.list_keys(), sep="|")
"""


@pytest.mark.multiproc
def test_a_write_for_which_there_is_no_room_is_refused_and_changes_nothing(tmp_path):
    path = tmp_path / "store"
    done = subprocess.run([sys.executable, "-c", NO_ROOM, path], capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stderr
    assert done.stdout == f"file store {path}: cannot write {path}.new: File too large; nothing changed|['a']\n"
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_a_file_that_is_removed_while_another_opens_it_loses_no_write(tmp_path):
    path = tmp_path / "store"

    def come_and_go(own, other):
        for turn in range(150):
            with dist.FileStore(path, timeout=10.0) as store:
                store.set(f"{own}{turn}", "here")
                store.wait([f"{other}{turn}"])
                store.set(f"{own}{turn} seen", "")
                store.wait([f"{other}{turn} seen"])

    with ThreadPoolExecutor(2) as pool:
        for one in [pool.submit(come_and_go, "a", "b"), pool.submit(come_and_go, "b", "a")]:
            one.result()
    assert list(tmp_path.iterdir()) == []


def test_a_closed_file_store_says_so_and_leaves_nothing_behind(tmp_path):
    store = dist.FileStore(tmp_path / "store")
    store.close()
    store.close()
    with pytest.raises(DistStoreError, match="is closed"):
        store.set("a", "b")
    assert list(tmp_path.iterdir()) == []


def test_a_foreign_file_is_refused(tmp_path):
    path = tmp_path / "store"
    path.write_text("not ours")
    path.chmod(0o600)
    with pytest.raises(DistStoreError, match="not a resilin file store"):
        dist.FileStore(path)


def test_a_wrong_secret_is_refused():
    with dist.TCPStore("127.0.0.1", 0, is_master=True, secret=SECRET) as server, pytest.raises(HandshakeError):
        dist.TCPStore("127.0.0.1", server.port, secret=OTHER_SECRET, timeout=2.0)


def test_a_port_in_use_and_a_missing_server_are_said():
    with dist.TCPStore("127.0.0.1", 0, is_master=True) as server:
        with pytest.raises(DistNetworkError, match=f"cannot listen on 127.0.0.1:{server.port}: Address already in use"):
            dist.TCPStore("127.0.0.1", server.port, is_master=True)
        port = server.port
    with pytest.raises(DistStoreError, match="is rank 0 running"):
        dist.TCPStore("127.0.0.1", port, timeout=0.1)


@pytest.mark.parametrize(
    ("host", "says"),
    [
        ("192.0.2.1", "Cannot assign requested address; this host does not have the address: MASTER_ADDR has to be"),
        ("no.such.name.invalid", "; no address is known under this name: check MASTER_ADDR"),
    ],
)
def test_the_advice_follows_why_a_store_cannot_listen(host, says):
    """Whatever kept it from listening, another MASTER_PORT was advised."""
    with pytest.raises(DistNetworkError, match=f"cannot listen on {host}:29500: .*{says}"):
        dist.TCPStore(host, 29500, None, True, 5.0, secret="a secret for tests alone")


def test_who_waits_at_a_name_that_stands_for_loopback_hears_of_it(monkeypatch):
    """Debian's /etc/hosts makes a machine's own name so: ranks of other hosts knock at another address in vain."""
    real = socket.getaddrinfo
    monkeypatch.setattr(socket, "getaddrinfo", lambda name, *a, **k: real(name.replace("myname", "127.0.1.1"), *a, **k))
    monkeypatch.setenv("RESILIN_SECRET", "a secret for tests alone")
    with pytest.raises(CollectiveTimeout, match=r"at myname:[0-9]+ listens on loopback alone, for which that name"):
        dist.init_process_group(init_method="tcp://myname:0", rank=0, world_size=2, timeout=0.3)
    with dist.TCPStore("localhost", 0, None, True, 5.0) as store:
        assert store.refusals() == ""


def test_stores_of_one_process_share_a_server_that_has_several_tenants():
    with dist.TCPStore("127.0.0.1", 0, None, True, 5.0, multi_tenant=True) as first:
        first.set("a", "1")
        with pytest.raises(DistNetworkError, match="cannot listen"):
            dist.TCPStore("127.0.0.1", first.port, None, True, 5.0)
        second = dist.TCPStore("127.0.0.1", first.port, None, True, 5.0, multi_tenant=True)
        assert second.get("a") == b"1"
        second.close()
        second.close()
        assert first.get("a") == b"1"
    with dist.TCPStore("127.0.0.1", first.port, None, True, 5.0, multi_tenant=True) as later:
        assert not later.check(["a"])


def test_a_store_serves_on_the_socket_that_it_is_given():
    listening = socket.create_server(("127.0.0.1", 0))
    port = listening.getsockname()[1]
    with dist.TCPStore("127.0.0.1", port, None, True, 5.0, master_listen_fd=listening.detach()) as store:
        assert store.port == port
        store.set("a", "1")
        with dist.TCPStore("127.0.0.1", port, timeout=5.0) as client:
            assert client.get("a") == b"1"


def test_a_client_that_knocks_before_the_server_is_whole_is_served(monkeypatch):
    listening = socket.create_server(("127.0.0.1", 0))
    port, served = listening.getsockname()[1], threading.Event()

    def slow(*args):
        loop = AcceptLoop(*args)  # its threads run; whoever makes the server has not got it yet
        served.wait(PATIENCE_S)
        return loop

    def knock():
        with dist.TCPStore("127.0.0.1", port, timeout=PATIENCE_S) as client:
            try:
                return client.compare_set("key", "", "value")
            finally:
                served.set()

    monkeypatch.setattr(tcp, "AcceptLoop", slow)
    with ThreadPoolExecutor(1) as pool:
        knocked = pool.submit(knock)
        fd = listening.detach()
        with dist.TCPStore("127.0.0.1", port, None, True, PATIENCE_S, master_listen_fd=fd) as store:
            assert knocked.result() == store.get("key") == b"value"


def test_workers_that_do_not_come_are_counted():
    with pytest.raises(DistStoreError, match=r"1 of 3 workers connected within 0.1 s"):
        dist.TCPStore("127.0.0.1", 0, 3, is_master=True, timeout=0.1)


def test_init_names_the_ranks_that_never_came(tmp_path):
    with pytest.raises(CollectiveTimeout, match=r"rank 1, rank 2 missing after 0.1 s") as caught:
        dist.init_process_group(init_method=f"file://{tmp_path}/f", rank=0, world_size=3, timeout=0.1)
    assert caught.value.ranks == {1, 2}
    assert not dist.is_initialized()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"backend": "nccl"}, "'nccl' is not available"),
        ({"init_method": "http://x"}, "unknown init_method"),
        ({"init_method": "tcp://127.0.0.1:1"}, "give rank and world_size"),
        ({"init_method": "tcp://127.0.0.1", "rank": 0, "world_size": 1}, "expected HOST:PORT"),
        ({"init_method": "file:///x", "rank": 2, "world_size": 2}, "rank 2 of world_size 2"),
        (
            {"init_method": "tcp://127.0.0.1:70000", "rank": 0, "world_size": 1},
            "got '127.0.0.1:70000': ports are 0 to 65535",
        ),
        ({"init_method": "tcp://127.0.0.1:1?rank=x&world_size=1"}, "rank: expected an integer, got 'x'"),
        ({"init_method": "tcp://127.0.0.1:1", "rank": "0", "world_size": 1}, "rank: expected an integer, got '0'"),
        ({"init_method": 5, "rank": 0, "world_size": 1}, "expected env://, tcp://host:port or file:///path, got 5"),
        ({"init_method": "env://", "timeout": "5"}, "timeout: expected seconds or a timedelta, got '5'"),
    ],
)
def test_bad_arguments_are_refused_before_any_work(arguments, message):
    with pytest.raises(UsageError, match=message):
        dist.init_process_group(**arguments)


def test_env_names_the_missing_variable(monkeypatch):
    for name in ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(UsageError, match="RANK is not set"):
        dist.init_process_group()


def test_without_a_group_every_call_says_so():
    with pytest.raises(DistError, match="init_process_group"):
        dist.get_rank()
    for call in (dist.get_rank, dist.get_world_size, dist.barrier, dist.new_group):
        with pytest.raises(ValueError, match="no default process group"):
            call()


def test_a_world_of_one_works(tmp_path):
    dist.init_process_group(init_method=f"file://{tmp_path}/f", rank=0, world_size=1)
    try:
        assert (dist.get_rank(), dist.get_world_size(), dist.get_backend()) == (0, 1, "cpu")
        assert dist.get_process_group_ranks() == [0]
        dist.barrier()
        with pytest.raises(UsageError, match="destroy_process_group"):
            dist.init_process_group(init_method=f"file://{tmp_path}/f", rank=0, world_size=1)
    finally:
        dist.destroy_process_group()
    assert not dist.is_initialized()


INIT = """
import os
import numpy as np
from resilin import dist
method, rank, size = os.environ["METHOD"], int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
store = None
if method == "store":
    store = dist.TCPStore("127.0.0.1", int(os.environ["MASTER_PORT"]), size, rank == 0)
    dist.init_process_group("cpu", store=store, rank=rank, world_size=size)
elif method == "env":
    dist.init_process_group("gloo")
else:
    dist.init_process_group(init_method=method + f"?rank={rank}&world_size={size}")
total = np.array([rank + 1])
dist.all_reduce(total)
print(total[0])
dist.destroy_process_group()
"""


@pytest.mark.multiproc
@pytest.mark.parametrize(
    ("method", "secret"),
    extent.short(
        [(method, secret) for method in ("env", "tcp", "file", "store") for secret in ("", SECRET)],
        of=[("env", SECRET), ("tcp", ""), ("file", SECRET), ("store", "")],
    ),
)
def test_processes_find_one_another(tmp_path, method, secret):
    with dist.TCPStore("127.0.0.1", 0, is_master=True) as probe:
        port = str(probe.port)
    url = {"tcp": f"tcp://127.0.0.1:{port}", "file": f"file://{tmp_path}/rendezvous"}.get(method, method)
    for rank in start_ranks(
        2, INIT, str(tmp_path), METHOD=url, MASTER_ADDR="localhost", MASTER_PORT=port, RESILIN_SECRET=secret
    ):
        with rank:
            code, out, err = rank.finish(PATIENCE_S)
            assert (code, out) == (0, "3\n"), err


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda store: store.set(5, "x"), "key: expected str, got 5"),
        (lambda store: store.get(5), "key: expected str, got 5"),
        (lambda store: store.set("k", 5), r"value: expected bytes or str, got 5; write str\(value\)"),
        (lambda store: store.compare_set("k", "", None), "value: expected bytes or str, got None"),
        (lambda store: store.multi_set(["a", "b"], ["x"]), "multi_set: .* got 2 keys and 1 values"),
        (lambda store: store.add("c", 1.5), r"add: expected an integer amount, got 1\.5"),
        (lambda store: store.wait(["k"], "soon"), "timeout: expected seconds or a timedelta, got 'soon'"),
    ],
)
def test_what_a_store_cannot_hold_is_refused_and_it_stays_usable(store, call, message):
    with pytest.raises(UsageError, match=message):
        call(store)
    assert store.num_keys() == 0


def test_adding_to_what_is_no_number_is_said(store):
    store.set("word", "seven")
    with pytest.raises(DistStoreError, match=r"word'\): expected a counter, found the value b'seven'"):
        store.add("word", 1)


@pytest.mark.parametrize(
    ("host", "port", "message"),
    [
        ("127.0.0.1", 70000, "port: expected an integer from 1 to 65535, got 70000"),
        ("127.0.0.1", "2000", "port: expected an integer from 1 to 65535, got '2000'"),
        (None, 2000, "host_name: expected the server's name or address, got None"),
    ],
)
def test_an_address_that_cannot_be_is_refused_at_once(host, port, message):
    with pytest.raises(UsageError, match=message):
        dist.TCPStore(host, port, timeout=60.0)
