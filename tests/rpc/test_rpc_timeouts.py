"""How long calls may take."""

from datetime import timedelta

import pytest
import rpc_functions
from rpc_functions import MyClass, SlowPickle, debug_info, identity, note, noted, sleeps
from rpc_workers import Me, on_workers, until

import resilin as torch
import resilin.distributed.rpc as rpc
from resilin._base.clock import SYSTEM
from resilin.errors import RpcTimeout

LATE = r"RPC ran for more than"


@on_workers(2)
def test_a_call_has_the_timeout_that_it_names_else_the_default(me: Me) -> None:
    assert rpc.get_rpc_timeout() == 60.0
    with pytest.raises(RpcTimeout, match=rf"{LATE} set timeout \(50 ms\).*rpc_functions:sleeps to worker '{me.next}'"):
        rpc.rpc_sync(me.next, sleeps, args=(0.3,), timeout=0.05)
    with pytest.raises(RuntimeError, match=LATE):
        rpc.rpc_async(me.next, sleeps, args=(0.3,), timeout=0.05).wait()
    rpc._set_rpc_timeout(0.05)
    before = rpc.rpc_async(me.next, sleeps, args=(0.3,))
    rpc._set_rpc_timeout(60)
    with pytest.raises(RuntimeError, match=LATE):
        before.wait()
    rpc._set_rpc_timeout(0.001)
    with pytest.raises(RuntimeError, match=LATE):
        rpc.rpc_sync(me.next, sleeps, args=(0.2,))
    for timeout in (5, 0):
        rpc.rpc_sync(me.next, sleeps, args=(0.05,), timeout=timeout)
        rpc.rpc_async(me.next, sleeps, args=(0.05,), timeout=timeout).wait()
    rpc._set_rpc_timeout(0)
    assert rpc.get_rpc_timeout() == 0
    rpc.rpc_sync(me.next, sleeps, args=(0.05,))
    rpc._set_rpc_timeout(60)


@on_workers(2, rpc_timeout=7.5)
def test_the_default_is_what_the_options_say(me: Me) -> None:
    assert rpc.get_rpc_timeout() == 7.5


@on_workers(2)
def test_what_is_no_number_of_seconds_is_refused(me: Me) -> None:
    for call in (rpc.rpc_sync, rpc.rpc_async, rpc.remote):
        with pytest.raises(TypeError, match="timeout: expected seconds"):
            call(me.next, min, args=(1, 2), timeout=timedelta(seconds=3))
        with pytest.raises(ValueError, match="timeout: expected seconds"):
            call(me.next, min, args=(1, 2), timeout=-3)
        with pytest.raises(ValueError, match="timeout: expected seconds, 0 for no limit, got nan"):
            call(me.next, min, args=(1, 2), timeout=float("nan"))
    for end in (rpc.shutdown, rpc.api._all_gather):
        with pytest.raises(TypeError, match="timeout: expected seconds"):
            end(True, timeout="3")
        with pytest.raises(ValueError, match="timeout: expected seconds"):
            end(True, timeout=-3)
    assert rpc.rpc_sync(me.next, min, args=(1, 2)) == 1, "a shutdown that is refused ends nothing"
    with pytest.raises(TypeError, match="expected seconds"):
        rpc._set_rpc_timeout(timedelta(seconds=3))  # type: ignore[arg-type]


@on_workers(2, setup=False)
def test_more_seconds_than_the_system_can_wait_are_without_end(me: Me) -> None:
    for transport in ("host", "zeromq", "grpc"):
        me.init(transport, transports=(transport,), rpc_timeout=float("inf"))
        assert rpc.get_rpc_timeout() == 0
        for long in (float("inf"), 1e10, 10**400):
            assert rpc.rpc_sync(me.next, min, args=(1, 2), timeout=long) == 1
            assert rpc.rpc_async(me.next, min, args=(1, 2), timeout=long).wait() == 1
            assert rpc.remote(me.next, min, args=(1, 2), timeout=long).to_here(long) == 1
            assert rpc.api._all_gather(me.rank, timeout=long) == {me.name(rank): rank for rank in range(2)}
        rpc.shutdown(timeout=float("inf"))


@on_workers(2)
def test_a_late_creation_shows_at_the_next_use(me: Me) -> None:
    if me.rank == 0:
        rref = rpc.remote(me.next, sleeps, args=(0.3,), timeout=0.02)
        with pytest.raises(RuntimeError, match=LATE):
            rref._get_future().wait()
        until(rref.confirmed_by_owner)
        for use in (rref.to_here, rref._get_type, rref.rpc_sync().item):
            with pytest.raises(RuntimeError, match=r"RRef creation via rpc.remote\(\) timed out"):
                use()
        with pytest.raises(RuntimeError, match="RRef creation"):
            rpc.rpc_sync(me.next, identity, args=(rref,))
        own = rpc.remote(me.name(0), sleeps, args=(0.3,), timeout=0.02)
        with pytest.raises(RuntimeError, match=LATE):
            own._get_future().wait()
        with pytest.raises(RuntimeError, match="RRef creation"):
            own.to_here()
        del rref, own, use
    me.meet("done")
    until(lambda: debug_info()["num_owner_rrefs"] == "0")


@on_workers(2)
def test_a_copy_of_a_value_that_is_not_made_yet_is_waited_for_as_long_as_one_likes(me: Me) -> None:
    rref = rpc.remote(me.next, sleeps, args=(0.3,))
    with pytest.raises(RuntimeError, match=LATE):
        rref.to_here(0.02)
    assert torch.equal(rref.to_here(), torch.tensor(1))
    slow = rpc.remote(me.next, MyClass, args=(torch.ones(2), 0.3))
    with pytest.raises(RuntimeError, match=LATE):
        slow.rpc_sync(timeout=0.02).get()
    with pytest.raises(RuntimeError, match=LATE):
        slow.rpc_async(timeout=0.02).get().wait()
    made = rpc.remote(me.next, MyClass, args=(torch.ones(2),))
    made.to_here()
    with pytest.raises(RuntimeError, match=LATE):
        made.rpc_sync(timeout=0.05).slow(1)


@on_workers(2, num_worker_threads=1)
def test_a_call_that_is_late_before_it_began_is_never_run(me: Me) -> None:
    rpc_functions.seen.clear()
    me.meet("cleared")
    busy = rpc.rpc_async(me.next, sleeps, args=(0.3,))
    late = rpc.rpc_async(me.next, note, args=("late",), timeout=0.05)
    with pytest.raises(RuntimeError, match=LATE):
        late.wait()
    busy.wait()
    rpc.rpc_sync(me.next, note, args=("on time",))
    me.meet("noted")
    assert noted() == ["on time"]
    assert rpc.stats()["cancelled"] == 1


@on_workers(2)
def test_the_time_that_arguments_take_to_be_sent_does_not_count(me: Me) -> None:
    begun = SYSTEM.monotonic()
    assert rpc.rpc_sync(me.next, type, args=(SlowPickle(0.2),), timeout=0.35) is SlowPickle
    assert SYSTEM.monotonic() - begun > 0.35


@on_workers(2)
def test_a_reply_after_the_timeout_is_thrown_away(me: Me) -> None:
    with pytest.raises(RuntimeError, match=LATE):
        rpc.rpc_sync(me.next, sleeps, args=(0.1,), timeout=0.02)
    for n in range(30):
        assert rpc.rpc_sync(me.next, identity, args=(n,)) == n
        SYSTEM.sleep(0.005)
