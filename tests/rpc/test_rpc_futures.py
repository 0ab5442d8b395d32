"""What `rpc_async` returns: callbacks, `_wait_all`, several at once, never pickled."""

import concurrent.futures
import threading
from typing import Any

import pytest
import rpc_functions
from rpc_functions import add3, identity, raises, returns_future, set_flag, sleeps, takes_future, wait_for_flag
from rpc_workers import Me, on_workers, until

import resilin as torch
import resilin.distributed.rpc as rpc
from resilin.futures import Future, collect_all, wait_all


def add_by_callback(to: str, x: Any, y: Any, z: Any) -> Any:
    out: concurrent.futures.Future[Any] = concurrent.futures.Future()
    rpc.rpc_async(to, torch.add, args=(x, y)).then(lambda done: out.set_result(done.wait() + z))
    return out.result(20.0)


def add_by_future(to: str, x: Any, y: Any, z: Any) -> Any:
    out: Future[Any] = Future()
    rpc.rpc_async(to, torch.add, args=(x, y)).then(lambda done: out.set_result(done.wait() + z))
    return out.wait()


@on_workers(2)
def test_results_wait_and_are_waited_for(me: Me) -> None:
    future = rpc.rpc_async(me.next, wait_for_flag)
    assert not future.done()
    rpc.rpc_sync(me.next, set_flag)
    assert future.wait() is True
    assert future.done()
    assert future.value() is True
    me.meet("done")
    rpc_functions.flag.clear()
    failed = rpc.rpc_async(me.next, raises)
    for _ in range(2):
        with pytest.raises(ValueError, match="Expected error"):
            failed.wait()
    assert failed.done()


@on_workers(2)
def test_callbacks_run_when_the_result_is_there(me: Me) -> None:
    future = rpc.rpc_async(me.next, torch.add, args=(torch.ones(2), 1))
    called = threading.Event()
    future.add_done_callback(lambda done: called.set())
    chained = future.then(lambda done: done.wait() * 2).then(lambda done: done.wait() + 1)
    assert torch.equal(chained.wait(), torch.ones(2) * 5)
    assert called.wait(20.0)
    many = [future.then(lambda done, n=n: float(done.wait()[0]) + n) for n in range(20)]  # type: ignore[misc]
    assert wait_all(many) == [2.0 + n for n in range(20)]


@on_workers(2)
def test_errors_go_through_callbacks(me: Me) -> None:
    def other(done: Future[Any]) -> None:
        with pytest.raises(ValueError, match="Expected error"):
            done.wait()
        raise RuntimeError("Another expected error")

    with pytest.raises(RuntimeError, match="Another expected error"):
        rpc.rpc_async(me.next, raises).then(other).wait()
    with pytest.raises(TypeError, match=r"add3\(\) missing 2 required positional arguments"):
        rpc.rpc_async(me.next, identity, args=(1,)).then(lambda done: add3(done.wait())).wait()  # type: ignore[call-arg]
    with pytest.raises(TypeError):
        rpc.rpc_async(me.next, identity, args=(1,)).then(None)  # type: ignore[arg-type]


@on_workers(3)
def test_callbacks_call_others_also_in_called_functions(me: Me) -> None:
    third = me.name(me.rank + 2)
    for function in (add_by_callback, add_by_future):
        assert torch.equal(rpc.rpc_sync(me.next, function, args=(third, torch.ones(2), 1, 2)), torch.ones(2) * 4)
    again = rpc.rpc_async(me.next, torch.add, args=(torch.ones(2), 1)).then(
        lambda done: rpc.rpc_sync(third, torch.add, args=(done.wait(), 1))
    )
    assert torch.equal(again.wait(), torch.ones(2) * 3)


@on_workers(2)
def test_a_callback_may_wait_for_calls_that_it_makes(me: Me) -> None:
    def waits(done: Future[Any]) -> Any:
        return [rpc.rpc_async(me.next, identity, args=(n,)).wait() for n in range(done.wait())]

    futures = [rpc.rpc_async(me.next, identity, args=(3,)).then(waits) for _ in range(10)]
    assert wait_all(futures) == [[0, 1, 2]] * 10


@on_workers(2)
def test_a_result_is_set_once_and_no_future_is_sent(me: Me) -> None:
    future = rpc.rpc_async(me.next, min, args=(1, 2))
    assert future.wait() == 1
    with pytest.raises(RuntimeError, match="Future can only be marked completed once"):
        future.set_result(3)
    for call in (rpc.rpc_sync, rpc.rpc_async, rpc.remote):
        with pytest.raises(RuntimeError, match=r"Can not pickle resilin.futures.Future"):
            call(me.next, takes_future, args=(Future(),))
    for got in (
        lambda: rpc.rpc_sync(me.next, returns_future),
        lambda: rpc.rpc_async(me.next, returns_future).wait(),
        lambda: rpc.remote(me.next, returns_future).to_here(),
    ):
        with pytest.raises(RuntimeError, match=r"Can not pickle resilin.futures.Future"):
            got()


@on_workers(2)
def test_several_are_waited_for_together(me: Me) -> None:
    futures = [rpc.rpc_async(me.next, identity, args=(n,)) for n in range(20)]
    assert wait_all(futures) == list(range(20))
    assert len(collect_all(futures).wait()) == 20
    with pytest.raises(ValueError, match="Expected error"):
        wait_all([rpc.rpc_async(me.next, identity, args=(1,)), rpc.rpc_async(me.next, raises)])


@on_workers(2)
def test_the_end_of_a_block_waits_for_all_its_calls(me: Me) -> None:
    with rpc._wait_all():
        futures = [rpc.rpc_async(me.next, sleeps, args=(0.01,)) for _ in range(5)]
        assert rpc.api._thread_local_var.future_list == futures
    assert all(future.done() for future in futures)
    assert not hasattr(rpc.api._thread_local_var, "future_list")
    for late in (
        lambda: rpc.rpc_async(me.next, sleeps, args=(0.3,), timeout=0.05),
        lambda: rpc.rpc_async(me.next, raises),
        lambda: raises(),
    ):
        with pytest.raises((RuntimeError, ValueError), match=r"RPC ran for more than|Expected error"), rpc._wait_all():
            late()
        assert not hasattr(rpc.api._thread_local_var, "future_list")


@on_workers(2)
def test_a_thread_has_calls_of_its_own(me: Me) -> None:
    results: dict[int, Any] = {}

    def run(number: int) -> None:
        results[number] = [rpc.rpc_sync(me.next, identity, args=((number, turn),)) for turn in range(20)]

    threads = [threading.Thread(target=run, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    until(lambda: not any(thread.is_alive() for thread in threads))
    assert results == {number: [(number, turn) for turn in range(20)] for number in range(8)}
