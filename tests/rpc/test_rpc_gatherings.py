"""Barriers and `_all_gather`."""

import threading

import pytest
import rpc_functions
from rpc_functions import SlowPickle, note, noted
from rpc_workers import Me, on_workers

import resilin.distributed.rpc as rpc
from resilin.rpc.group import gather


@on_workers(3)
def test_everybody_gets_what_everybody_gave(me: Me) -> None:
    for turn in range(5):
        assert rpc._all_gather((me.rank, turn)) == {me.name(rank): (rank, turn) for rank in range(3)}


@on_workers(3)
def test_a_barrier_holds_those_who_are_in_it(me: Me) -> None:
    everybody = [me.name(rank) for rank in range(3)]
    if me.rank == 0:
        rpc_functions.seen.clear()
    rpc.api._barrier(everybody)
    rpc.rpc_sync(me.name(0), note, args=(me.rank,))
    rpc.api._barrier(everybody)
    assert sorted(rpc.rpc_sync(me.name(0), noted)) == [0, 1, 2]
    some = [me.name(1), me.name(2)] if me.rank else [me.name(0)]
    for _ in range(3):
        rpc.api._barrier(some)


@on_workers(3)
def test_threads_may_be_in_barriers_of_their_own(me: Me) -> None:
    names = [me.name(rank) for rank in range(3)]
    threads = [threading.Thread(target=rpc.api._barrier, args=(names,)) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20.0)
        assert not thread.is_alive()
    assert not gather.gatherings._rounds, "rounds that are over are forgotten"
    me.meet("checked")


@on_workers(3)
def test_a_gathering_that_is_late_says_so_at_each(me: Me) -> None:
    rpc._set_rpc_timeout(0.1)
    said = r"Followers \['worker1', 'worker2'\] timed out in _all_gather after 0\.10 seconds"
    with pytest.raises(RuntimeError, match="RPC ran for more than" if me.rank else said):
        rpc._all_gather(SlowPickle(0.15))
    me.meet("raised")
    rpc._set_rpc_timeout(60)


@on_workers(3, setup=False)
def test_a_gathering_with_one_that_never_comes_ends_where_that_one_is_gone(me: Me) -> None:
    me.init()
    if me.rank == 2:
        rpc.shutdown(graceful=False)
        me.meet("raised")
        return
    with pytest.raises(RuntimeError, match="worker2"):
        rpc._all_gather(0)
    me.meet("raised")
    rpc.shutdown(graceful=False)


@on_workers(2)
def test_a_gathering_without_this_worker_is_refused_at_once(me: Me) -> None:
    for names in ({me.next}, me.name(me.rank), {me.name(me.rank), 5}):
        with pytest.raises(ValueError, match=f"expected names of workers, 'worker{me.rank}', which gathers"):
            rpc.api._all_gather(0, names)  # type: ignore[arg-type]
    assert rpc.api._all_gather(1, [me.name(me.rank)]) == {me.name(me.rank): 1}
