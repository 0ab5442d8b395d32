"""Messages that are lost or late: what is told again, what is an error."""

import gc
import random

import pytest
from rpc_functions import add_to, debug_info, identity, keep, let_go, sleeps
from rpc_workers import Me, on_workers, until

import resilin as torch
import resilin.distributed.rpc as rpc
from resilin.errors import UsageError
from resilin.testing import rpc_faults


def everything_is_let_go(me: Me) -> None:
    let_go()
    gc.collect()
    until(lambda: debug_info()["num_owner_rrefs"] == "0")


@on_workers(3, setup=False)
def test_what_references_are_counted_by_is_told_again_until_it_is_heard(me: Me) -> None:
    with rpc_faults.planned(drop={"*": 2}) as plan:
        me.init()
        rref = rpc.remote(me.next, torch.add, args=(torch.ones(2), 1))
        for to in (me.name(me.rank + 2), me.next):
            assert torch.equal(rpc.rpc_sync(to, add_to, args=(rref, 1)), torch.ones(2) * 3)
            rpc.rpc_sync(to, keep, args=(rref,))
        del rref
        me.meet("kept")
        everything_is_let_go(me)
        me.meet("let go")
        rpc.shutdown()
    assert plan.dropped == dict.fromkeys(rpc_faults.RETRIED, 2)
    assert plan.all_fired()


@on_workers(3, setup=False)
def test_late_counting_frees_nothing_too_early_and_keeps_nothing(me: Me) -> None:
    with rpc_faults.planned(delay_s={"RREF_FORK_REQUEST": 0.3, "RREF_CHILD_ACCEPT": 0.05}):
        me.init()
        made = [rpc.remote(me.next, identity, args=(n,)) for n in range(5)]
        sums = [rpc.rpc_async(me.name(me.rank + 2), add_to, args=(rref, 1)) for rref in made]
        del made
        gc.collect()
        assert [each.wait() for each in sums] == [1, 2, 3, 4, 5]
        me.meet("summed")
        everything_is_let_go(me)
        me.meet("let go")
        rpc.shutdown()


@on_workers(2, setup=False)
def test_a_creation_that_is_lost_shows_where_the_value_is_used(me: Me) -> None:
    with rpc_faults.planned(drop={"PYTHON_REMOTE_CALL": 1}):
        me.init()
        rref = rpc.remote(me.next, sleeps, args=(0.0,), timeout=0.1)
        until(rref.confirmed_by_owner)
        for use in (rref.to_here, lambda: rpc.rpc_async(me.next, add_to, args=(rref, 1))):
            with pytest.raises(RuntimeError, match="RRef creation"):
                use()
        assert rpc.remote(me.next, identity, args=(1,)).to_here() == 1
        rpc.shutdown()


@on_workers(2, setup=False)
def test_a_creation_that_is_late_is_an_error_and_leaves_nothing(me: Me) -> None:
    with rpc_faults.planned(delay_s={"PYTHON_REMOTE_CALL": 0.2}):
        me.init()
        rref = rpc.remote(me.next, identity, args=(1,), timeout=0.05)
        with pytest.raises(RuntimeError, match="RPC ran for more than"):
            rref._get_future().wait()
        with pytest.raises(RuntimeError, match="RRef creation"):
            rref.to_here()
        slow = rpc.remote(me.next, identity, args=(2,))
        with pytest.raises(RuntimeError, match="RPC ran for more than"):
            slow.to_here(0.05)
        assert slow.to_here() == 2
        del rref, slow
        me.meet("done")
        everything_is_let_go(me)
        me.meet("let go")
        rpc.shutdown()


@on_workers(2, setup=False)
def test_calls_and_copies_that_are_late_are_errors_by_their_timeouts_alone(me: Me) -> None:
    with rpc_faults.planned(delay_s={"PYTHON_CALL": 0.15, "RREF_FETCH_CALL": 0.15}):
        me.init()
        for call in (
            lambda: rpc.rpc_sync(me.next, min, args=(1, 2), timeout=0.05),
            lambda: rpc.rpc_async(me.next, min, args=(1, 2), timeout=0.05).wait(),
            lambda: rpc.remote(me.next, min, args=(1, 2)).to_here(0.05),
        ):
            with pytest.raises(RuntimeError, match="RPC ran for more than"):
                call()
        assert rpc.rpc_sync(me.next, min, args=(1, 2)) == rpc.rpc_async(me.next, min, args=(1, 2), timeout=0).wait()
        assert rpc.remote(me.next, min, args=(1, 2)).to_here() == 1
        rpc.shutdown()


@on_workers(3, setup=False)
def test_whatever_is_lost_values_come_and_nothing_leaks(me: Me) -> None:
    choice = random.Random(me.rank)
    with rpc_faults.planned(drop={"*": 3}, delay_s={"RREF_USER_DELETE": 0.01}):
        me.init()
        for turn in range(30):
            rref = rpc.remote(me.name(choice.randrange(3)), identity, args=(turn,))
            to = me.name(choice.randrange(3))
            if choice.random() < 0.3:
                rpc.rpc_sync(to, keep, args=(rref,))
            assert rpc.rpc_sync(to, add_to, args=(rref, 1)) == turn + 1
        del rref
        me.meet("done")
        everything_is_let_go(me)
        me.meet("let go")
        rpc.shutdown()


def test_a_message_that_there_is_not_is_no_plan() -> None:
    with pytest.raises(UsageError, match="no message 'PIGEON'"):
        rpc_faults.RpcFaultPlan({"PIGEON": 1}, {})
