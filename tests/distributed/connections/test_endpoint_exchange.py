"""What `init_process_group` says when ranks do not come, come twice, or are not let in."""

import json
import logging
from concurrent.futures import ThreadPoolExecutor

import pytest

from resilin import distributed as dist
from resilin._base.clock import Deadline
from resilin.distributed.connections.listener import Listener
from resilin.distributed.group import endpoint_exchange
from resilin.errors import CollectiveMismatch, CollectiveTimeout, DistStoreError, HandshakeError, UsageError
from resilin.store.memory import MemoryStore
from resilin.testing.job_secret import OTHER_SECRET, SECRET
from resilin.testing.patience import PATIENCE_S
from resilin.testing.ranks import run_ranks, start_ranks


@pytest.fixture(params=["hash", "file", "tcp", "coordination"])
def stores(request, tmp_path):
    """`stores(rank)`: that rank's store; closed afterwards."""
    opened = []

    def store(rank):
        if request.param in ("hash", "coordination") and opened:
            return opened[0]
        if request.param == "hash":
            made = dist.HashStore(timeout=10.0)
        elif request.param == "coordination":
            opened.append(MemoryStore())
            made = dist.CoordinationStore(opened[0], timeout=10.0)
            opened.insert(0, made)
            return made
        elif request.param == "file":
            made = dist.FileStore(tmp_path / "store", timeout=10.0)
        elif not opened:
            made = dist.TCPStore("127.0.0.1", 0, is_master=True, timeout=10.0, secret=SECRET)
        else:
            made = dist.TCPStore("127.0.0.1", opened[0].port, timeout=10.0, secret=SECRET)
        opened.append(made)
        return made

    yield store
    for thing in reversed(opened):
        thing.close()


def meet(store, rank, size, timeout_s, listener):
    place = endpoint_exchange.place_of(store, "group")
    return endpoint_exchange.exchange(place, listener.describe(), rank, size, Deadline(timeout_s))


def test_all_ranks_name_the_ranks_that_the_first_whose_time_is_up_misses(stores):
    with Listener() as listener, ThreadPoolExecutor(3) as pool:
        limits = {0: 30.0, 2: 0.3, 4: 30.0}
        kept = {rank: stores(rank) for rank in limits}
        waiting = {rank: pool.submit(meet, kept[rank], rank, 5, limits[rank], listener) for rank in limits}
        for rank, result in waiting.items():
            with pytest.raises(CollectiveTimeout) as caught:
                result.result(PATIENCE_S)
            assert caught.value.ranks == {1, 3}
            assert f"rank {rank} of 5: rank 1, rank 3 missing after 0.3 s; was every rank started" in str(caught.value)


def test_a_rank_that_came_and_died_is_missing_with_those_that_never_came(stores):
    with Listener() as listener, ThreadPoolExecutor(2) as pool:
        kept = {rank: stores(rank) for rank in range(3)}
        with Listener() as dying:
            late = pool.submit(meet, kept[1], 1, 4, 0.2, dying)
            with pytest.raises(CollectiveTimeout, match=r"rank 0, rank 2, rank 3 missing after 0\.2 s; was every"):
                late.result(PATIENCE_S)
            place = endpoint_exchange.place_of(kept[0], "group")
            body = {"who": "host a, pid 7", "endpoint": dying.describe()}
            place.set("card/1", json.dumps(body))
        waiting = {rank: pool.submit(meet, kept[rank], rank, 4, 0.2 if rank else 30.0, listener) for rank in (0, 2)}
        for result in waiting.values():
            with pytest.raises(
                CollectiveTimeout, match=r"rank 3 missing after 0\.2 s; rank 1 came and is gone"
            ) as caught:
                result.result(PATIENCE_S)
            assert caught.value.ranks == {1, 3}


def test_a_second_attempt_in_the_same_store_meets_whoever_came_late(stores):
    with Listener() as listener, ThreadPoolExecutor(1) as pool:
        store = stores(0)
        with pytest.raises(CollectiveTimeout, match="rank 1 missing"):
            meet(store, 0, 2, 0.05, listener)
        late = pool.submit(meet, stores(1), 1, 2, 10.0, listener)
        assert meet(store, 0, 2, 10.0, listener) == late.result(PATIENCE_S) == [listener.describe()] * 2


@pytest.mark.parametrize("sizes", [(2, 3, 3), (3, 2, 3), (3, 3, 4), (4, 3, 3)])
def test_ranks_with_other_world_sizes_hear_of_it_and_not_at_their_limit(stores, sizes):
    with Listener() as listener, ThreadPoolExecutor(3) as pool:
        odd = next(rank for rank, size in enumerate(sizes) if sizes.count(size) == 1)
        others = [rank for rank in range(3) if rank != odd]
        kept = {rank: stores(rank) for rank in range(3)}
        waiting = {rank: pool.submit(meet, kept[rank], rank, sizes[rank], 2 * PATIENCE_S, listener) for rank in others}
        for rank in others:
            endpoint_exchange.place_of(kept[odd], "group").wait([f"card/{rank}"], PATIENCE_S)
        with pytest.raises(
            CollectiveMismatch, match=rf"rank {odd} {sizes[odd]}; start every rank with the same"
        ) as caught:
            meet(kept[odd], odd, sizes[odd], 2 * PATIENCE_S, listener)
        said = str(caught.value).partition(": ")[2]
        for rank, result in waiting.items():
            with pytest.raises(CollectiveMismatch) as caught:
                result.result(PATIENCE_S)
            assert str(caught.value) == f"init_process_group, rank {rank} of {sizes[rank]}: {said}"


def test_a_rank_that_is_taken_twice_is_refused_and_the_others_hear_of_it(stores):
    with Listener() as listener, Listener() as double, ThreadPoolExecutor(2) as pool:
        first, again = stores(0), stores(1)
        one = pool.submit(meet, first, 0, 3, 2.0, listener)
        two = pool.submit(meet, stores(1), 1, 3, 2.0, listener)
        place = endpoint_exchange.place_of(first, "group")
        place.wait(["card/1"], 5.0)
        with pytest.raises(
            UsageError, match=r"rank 1 of 3: rank 1 is taken twice: by host .*, pid \d+ and by host .*pid"
        ):
            meet(again, 1, 3, 2.0, double)
        for result in (one, two):
            with pytest.raises(CollectiveTimeout, match=r"rank 2 missing after 2 s; rank 1 is taken twice: by host"):
                result.result(PATIENCE_S)


def test_the_card_of_a_process_that_is_gone_is_replaced(stores):
    with Listener() as gone:
        card = json.dumps({"who": "host h, pid 1", "endpoint": gone.describe()})
    store = stores(0)
    endpoint_exchange.place_of(store, "group").set("card/0", card)
    with Listener() as listener:
        assert meet(store, 0, 1, 5.0, listener) == [listener.describe()]


def test_refused_handshakes_are_warned_of_at_once_and_named_when_ranks_are_missing(caplog):
    with Listener() as listener, dist.TCPStore("127.0.0.1", 0, is_master=True, secret=SECRET) as store:
        assert store.refusals() == ""
        for _ in range(2):
            with pytest.raises(
                HandshakeError, match=r"127.0.0.1:\d+ refused our proof of the job's secret for resilin "
            ):
                dist.TCPStore("127.0.0.1", store.port, timeout=5.0, secret=OTHER_SECRET)
        with pytest.raises(CollectiveTimeout) as caught:
            meet(store, 0, 2, 0.2, listener)
        assert (
            f"rank 1 missing after 0.2 s; 2 connections to the key-value store at 127.0.0.1:{store.port} refused, "
            "the last because 127.0.0.1:" in str(caught.value)
        )
        assert "did not prove the job's secret for resilin dist key-value store; was every rank" in str(caught.value)
        assert "b'res" not in str(caught.value)
        warned = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
        assert len(warned) == 2
        assert "refused: 127.0.0.1:" in warned[0]
        assert not [key for key in store.list_keys() if "refus" in key]


ABSENT = """
import os
from resilin import dist
try:
    size = int(os.environ["WORLD_SIZE"]) + 1
    url = f"{os.environ['METHOD']}?rank={os.environ['RANK']}&world_size={size}"
    dist.init_process_group(init_method=url, timeout=2)
except dist.DistError as error:
    print(error)
"""


@pytest.mark.multiproc
@pytest.mark.parametrize("method", ["tcp", "file"])
def test_processes_all_name_the_rank_that_never_came(tmp_path, method):
    with dist.TCPStore("127.0.0.1", 0, is_master=True) as probe:
        port = probe.port
    url = f"tcp://127.0.0.1:{port}" if method == "tcp" else f"file://{tmp_path}/rendezvous"
    for number, rank in enumerate(start_ranks(3, ABSENT, str(tmp_path), METHOD=url)):
        with rank:
            _, out, err = rank.finish(PATIENCE_S)
            assert out.startswith(f"init_process_group, rank {number} of 4: rank 3 missing after 2 s"), out + err
    assert list(tmp_path.iterdir()) == []


def test_a_store_that_goes_away_is_named_with_the_users_own_limit():
    with ThreadPoolExecutor(1) as pool:
        store = dist.TCPStore("127.0.0.1", 0, is_master=True, timeout=10.0)
        url = f"tcp://127.0.0.1:{store.port}"
        how = {"rank": 1, "world_size": 2, "timeout": 1.5, "group_name": "goes away"}
        joining = pool.submit(dist.init_process_group, init_method=url, **how)
        store.wait(["goes away/0/0/0/card/1"], 5.0)
        store.close()
        with pytest.raises(DistStoreError, match=r"rank 1 of 2: .*lost the server.*within 1.5 s: did rank 0 end\?"):
            joining.result(PATIENCE_S)


@pytest.mark.parametrize("url", ["file://rel/path", "file://host/path", "file://"])
def test_a_file_url_without_three_slashes_is_refused(url):
    with pytest.raises(UsageError, match=r"expected file:///path, with three slashes and an absolute path, got 'file"):
        dist.init_process_group(init_method=url, rank=0, world_size=1)


@pytest.mark.slow
def test_ranks_of_a_test_meet_whatever_secret_the_environment_has(monkeypatch):
    """Who dials a rank before it has named the group's secret was refused there, in one of fifty meetings."""
    monkeypatch.setenv("RESILIN_SECRET", "x" * 32)
    for _ in range(60):
        run_ranks(3, lambda rank: None, timeout_s=5).results()


@pytest.mark.parametrize(
    "garbage", [b"x", b"\xff", b"[]", b"{}", b"3", b"[" * 100_000, b'{"rank": 0, "size": 1e999}', b'{"size": "2"}']
)
@pytest.mark.parametrize("key", ["first", "verdict", "card/0", "card/1"])
def test_garbage_under_a_key_is_an_error_that_names_it(key, garbage):
    store = dist.HashStore(timeout=0.2)
    place = endpoint_exchange.place_of(store, "group")
    with Listener() as listener:
        if key == "verdict":  # else the meeting would be elsewhere
            place.set("card/1", b'{"who": "", "endpoint": ""}')
            place.check = lambda keys: True
        place.set(key, garbage)
        expected = CollectiveTimeout if (key, garbage) == ("card/0", b"{}") else DistStoreError
        with pytest.raises(expected) as caught:
            endpoint_exchange.exchange(place, listener.describe(), 0, 2, Deadline(0.2))
    assert repr(key) in str(caught.value) or expected is CollectiveTimeout
    assert len(str(caught.value)) < 1000


def test_a_world_size_that_no_group_has_is_none():
    store = dist.HashStore(timeout=0.2)
    place = endpoint_exchange.place_of(store, "group")
    place.set("first", json.dumps({"rank": 1, "size": 1 << 62}))
    with Listener() as listener, pytest.raises(DistStoreError, match="'first' in the store holds"):
        endpoint_exchange.exchange(place, listener.describe(), 0, 2, Deadline(0.2))
