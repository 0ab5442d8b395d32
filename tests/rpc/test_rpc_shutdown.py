"""The end: waiting for others, alone, and after somebody has died."""

import logging
import os
import signal
import threading
from pathlib import Path

import pytest
from rpc_functions import identity, sleeps
from rpc_workers import Me, on_workers, spawned, until

import resilin as torch
import resilin.distributed.rpc as rpc
from resilin._base.clock import SYSTEM
from resilin.errors import OwnerLost, PeerLost, RpcError


@on_workers(3, setup=False)
def test_a_graceful_end_waits_for_all_work(me: Me) -> None:
    me.init()
    futures = []
    if me.rank == 1:
        futures = [rpc.rpc_async(me.name(rank), sleeps, args=(0.1,)) for rank in range(3) for _ in range(4)]
    rpc.shutdown()
    assert all(future.done() and future.exception() is None for future in futures)


@on_workers(2, setup=False)
def test_one_ends_alone_at_once(me: Me) -> None:
    me.init()
    rpc.shutdown(graceful=False)
    me.meet("ended")


@on_workers(2, setup=False)
def test_no_thread_is_left(me: Me) -> None:
    before = set(threading.enumerate())
    me.init()
    assert rpc.rpc_sync(me.next, identity, args=(1,)) == 1
    with rpc._wait_all():
        for _ in range(5):
            rpc.rpc_async(me.next, sleeps, args=(0.01,))
    rpc.shutdown()
    until(lambda: not set(threading.enumerate()) - before)


@on_workers(2, setup=False)
def test_an_end_that_takes_too_long_is_an_error_and_an_end(me: Me) -> None:
    me.init()
    if me.rank == 0:
        rpc.rpc_sync(me.next, identity, args=(1,))
        with pytest.raises(RuntimeError):
            rpc.shutdown(timeout=0.1)
        assert not rpc._is_current_rpc_agent_set()
    me.meet("raised")
    if me.rank == 1:
        rpc.shutdown(graceful=False)


@on_workers(2, setup=False)
def test_calls_and_replies_that_begin_amid_a_sudden_end_are_told_so_and_nobody_logs_a_failure(me: Me) -> None:
    failed: list[logging.LogRecord] = []
    handler = logging.Handler(logging.ERROR)
    handler.emit = failed.append  # type: ignore[method-assign]
    logging.getLogger("resilin").addHandler(handler)
    try:
        me.init()
        raised: list[Exception] = []

        def call() -> None:
            while rpc._is_current_rpc_agent_set():
                try:
                    rpc.rpc_sync(me.next, identity, args=(1,))
                except Exception as error:  # noqa: BLE001 - which errors they are is what is tested
                    raised.append(error)

        threads = [threading.Thread(target=call) for _ in range(3)]
        for thread in threads:
            thread.start()
        SYSTEM.sleep(0.1)
        if me.rank == 0:  # the other one's calls are among those that it answers
            rpc.shutdown(graceful=False)
        me.meet("ended")
        if me.rank == 1:
            rpc.shutdown(graceful=False)
        for thread in threads:
            thread.join(10.0)
        assert not [error for error in raised if not isinstance(error, PeerLost | RpcError)]
        assert not [record.getMessage() for record in failed]
    finally:
        logging.getLogger("resilin").removeHandler(handler)


@on_workers(2, setup=False)
def test_calls_that_are_under_way_at_a_sudden_end_fail(me: Me) -> None:
    me.init()
    if me.rank == 0:
        pending = rpc.rpc_async(me.next, sleeps, args=(0.2,))
        raised: list[BaseException] = []

        def call() -> None:
            try:
                rpc.rpc_sync(me.next, sleeps, args=(0.2,))
            except RuntimeError as error:
                raised.append(error)

        thread = threading.Thread(target=call)
        thread.start()
        until(lambda: rpc._get_current_rpc_agent()._blocking.waiting)
        rpc.shutdown(graceful=False)
        with pytest.raises(RuntimeError, match="shut down"):
            pending.wait()
        thread.join(10.0)
        assert len(raised) == 1
        assert "shut down" in str(raised[0])
    me.meet("ended")
    if me.rank == 1:
        rpc.shutdown(graceful=False)


@on_workers(2, setup=False)
def test_a_callee_that_leaves_fails_its_calls_and_loses_its_values(me: Me) -> None:
    me.init()
    if me.rank == 1:
        me.meet("calling")
        rpc.shutdown(graceful=False)
        me.meet("lost")
        return
    rref = rpc.remote(me.next, torch.add, args=(torch.ones(2), 1))
    rref.to_here()
    pending = rpc.rpc_async(me.next, sleeps, args=(3.0,))
    me.meet("calling")
    with pytest.raises(PeerLost, match=r"rpc_functions:sleeps: worker 'worker1' \(id 1, host 127.0.0.1, pid \d+\)"):
        pending.wait()
    for call in (lambda: rpc.rpc_sync(me.next, min, args=(1, 2)), rpc.rpc_async(me.next, min, args=(1, 2)).wait):
        with pytest.raises(PeerLost, match="worker1") as caught:
            call()
        assert caught.value.ranks == {1}
    for use in (rref.to_here, lambda: rpc.rpc_sync("worker0", identity, args=(rref,)), rref.rpc_sync().size):
        with pytest.raises(OwnerLost, match="worker1"):
            use()
    with pytest.raises(OwnerLost, match="worker1"):
        rpc.remote(me.next, min, args=(1, 2)).to_here()
    with pytest.raises(PeerLost, match="worker1"):
        rpc.shutdown()
    me.meet("lost")


@pytest.mark.slow
def test_a_dead_callee_is_lost_within_its_time(tmp_path: Path) -> None:
    with spawned(_victim, 2, tmp_path) as ended:
        assert ended(0) == 0
        assert ended(1) == -signal.SIGKILL


def _victim(me: Me) -> None:
    me.init()
    if me.rank == 1:
        me.meet("calling")
        SYSTEM.sleep(60.0)
    futures = [rpc.rpc_async(me.next, sleeps, args=(30.0,)) for _ in range(3)]
    me.meet("calling")
    pid = rpc.rpc_sync(me.next, os.getpid)
    os.kill(pid, signal.SIGKILL)
    begun = SYSTEM.monotonic()
    for future in futures:
        with pytest.raises(PeerLost, match=rf"pid {pid}"):
            future.wait()
    assert SYSTEM.monotonic() - begun < 5.0
    rpc.shutdown(graceful=False)
