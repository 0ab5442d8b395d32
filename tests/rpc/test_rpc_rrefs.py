"""References: arguments, results, forwarding, types, proxies, counting, leaks."""

import gc
import pickle
import threading

import pytest
import rpc_functions
from rpc_functions import (
    MyClass,
    add3,
    add_to,
    call_on,
    debug_info,
    forward_chain,
    identity,
    is_confirmed,
    keep,
    let_go,
    local_rrefs,
    nested_rrefs,
    nothing,
    raises,
    returns_rref,
    set_flag,
    sleeps,
    sum_of,
    wait_for_flag,
)
from rpc_workers import Me, on_workers, until

import resilin as torch
import resilin.distributed.rpc as rpc
from resilin.errors import RpcError
from resilin.futures import Future
from resilin.rpc.references import rref as inner


@on_workers(3)
def test_references_are_arguments_of_their_owner_and_of_others(me: Me) -> None:
    a = rpc.remote(me.next, torch.add, args=(torch.ones(2), 1))
    b = rpc.remote(me.next, torch.add, args=(torch.ones(2), 2))
    for to in (me.next, me.name(me.rank + 2), me.name(me.rank)):
        assert torch.equal(rpc.rpc_sync(to, sum_of, args=(a, b)), torch.ones(2) * 5)
        assert torch.equal(rpc.rpc_async(to, sum_of, args=(a, b)).wait(), torch.ones(2) * 5)
        assert torch.equal(rpc.remote(to, sum_of, args=(a, b)).to_here(), torch.ones(2) * 5)


@on_workers(2)
def test_references_to_local_values_are_arguments(me: Me) -> None:
    rref = rpc.RRef(40)
    assert rref.local_value() == 40
    assert rref.to_here() == 40
    assert rref.is_owner()
    assert rref.confirmed_by_owner()
    assert rpc.rpc_sync(me.next, add_to, args=(rref, 50)) == 90
    assert rpc.rpc_async(me.next, add_to, args=(rref, 50)).wait() == 90
    assert rpc.remote(me.next, add_to, args=(rref, 50)).to_here() == 90


@on_workers(3)
def test_references_are_results(me: Me) -> None:
    rref = rpc.rpc_sync(me.next, returns_rref, args=(me.name(me.rank + 2),))
    assert torch.equal(rref.to_here(), torch.ones(2, 2) + 1)
    assert rref.owner_name() == me.name(me.rank + 2)
    held = rpc.remote(me.next, nested_rrefs, args=(me.name(me.rank + 2),))
    one, two = held.to_here()
    assert torch.equal(one.to_here() + two.to_here(), torch.ones(2) * 5)
    rrefs = rpc.rpc_sync(me.next, local_rrefs, args=([1, 2, 3],))
    for rref in rrefs:
        rpc.rpc_sync(rref.owner(), call_on, args=(MyClass.increment, rref, 10))
    assert [rpc.rpc_sync(rref.owner(), call_on, args=(MyClass.get, rref)) for rref in rrefs] == [11, 12, 13]


@on_workers(3)
def test_a_reference_is_forwarded_round_the_world(me: Me) -> None:
    rref = rpc.remote(me.next, torch.add, args=(torch.ones(2), 1))
    got = forward_chain((me.rank + 1) % 3, 3, rref, 8)
    for _ in range(8):
        assert len(got) == 1
        got = got[0].to_here()
    assert torch.equal(got, torch.ones(2) + 1)


@on_workers(3)
def test_a_function_sees_confirmed_references_alone(me: Me) -> None:
    rref = rpc.remote(me.name(me.rank + 2), torch.add, args=(torch.ones(2), 1))
    assert rpc.rpc_sync(me.next, is_confirmed, args=(rref,)) is True
    assert rpc.remote(me.next, is_confirmed, args=(rref,)).to_here() is True


@on_workers(2)
def test_the_value_itself_is_at_its_owner_alone(me: Me) -> None:
    rref = rpc.remote(me.next, torch.add, args=(torch.ones(1), 1))
    there = 1 - me.rank
    text = (
        rf"For UserRRef\(rref_id=GloballyUniqueId\(created_on={me.rank}, local_id=0\), "
        rf"fork_id=GloballyUniqueId\(created_on={me.rank}, local_id=1\)\), can't call localValue\(\) on user "
        rf"WorkerInfo\(id={me.rank}, name={me.name(me.rank)}\). Call it on owner "
        rf"WorkerInfo\(id={there}, name={me.next}\)"
    )
    with pytest.raises(RuntimeError, match=text):
        rref.local_value()
    assert not rref.is_owner()
    assert rref.owner() == rpc.get_worker_info(me.next)


@on_workers(2)
def test_references_show_their_ids(me: Me) -> None:
    owned = rpc.RRef(1)
    assert str(owned) == f"OwnerRRef(GloballyUniqueId(created_on={me.rank}, local_id=0))"
    user = rpc.remote(me.next, min, args=(1, 2))
    ids = f"GloballyUniqueId(created_on={me.rank}, local_id="
    assert str(user) == f"UserRRef(RRefId = {ids}1), ForkId = {ids}2))"


@on_workers(2)
def test_owners_are_equal_where_they_are_one_worker(me: Me) -> None:
    a, b = rpc.RRef(1), rpc.RRef(2)
    c, d = rpc.remote(me.next, min, args=(1, 2)), rpc.remote(me.next, min, args=(1, 2))
    assert a.owner() == b.owner() == rpc.get_worker_info()
    assert c.owner() == d.owner() != a.owner()
    assert a.owner() != 23
    assert len({each.owner() for each in (a, b, c, d)}) == 2


@on_workers(2)
def test_types_are_asked_for_once(me: Me) -> None:
    rref = rpc.remote(me.next, torch.add, args=(torch.ones(2), 1))
    assert rref._get_type() is torch.Tensor
    assert rref._get_type(blocking=False) is rref._get_type(blocking=False)
    assert rpc.stats()["calls"]["resilin.rpc.references.rref:_rref_typeof_on_owner"]["calls"] == 1
    assert rpc.remote(me.next, MyClass, args=(0,))._get_type() is MyClass
    assert rpc.RRef(MyClass(0))._get_type(blocking=False).wait() is MyClass
    assert rpc.RRef(1)._get_type() is int
    slow = rpc.remote(me.next, sleeps, args=(0.2,))
    assert slow._get_type() is torch.Tensor
    failed = rpc.remote(me.next, raises)
    with pytest.raises(ValueError, match="Expected error"):
        failed._get_type()
    with pytest.raises(ValueError, match="Expected error"):
        failed._get_type(blocking=False).wait()


@on_workers(2)
def test_proxies_call_methods_of_the_value(me: Me) -> None:
    rref = rpc.remote(me.next, MyClass, args=(7,))
    assert rref.rpc_sync().get() == rref.rpc_async().get().wait() == rref.remote().get().to_here() == 7
    assert rref.rpc_sync().increment(1) is None
    assert rref.rpc_async().increment(1).wait() is None
    assert rref.remote().increment(1).to_here() is None
    proxy = rref.rpc_sync(timeout=20)
    assert (proxy.get(), proxy.plus(2), proxy.static(11), proxy.of_class(2, e=3)) == (10, 12, True, 5)
    tensor = rpc.remote(me.next, add3, args=(torch.ones(2, 2), 1, 3))
    assert tensor.rpc_sync().size() == torch.ones(2, 2).size()
    assert torch.equal(tensor.remote().view(1, 4).to_here(), torch.ones(1, 4) * 5)


@on_workers(2)
def test_a_method_that_the_value_lacks_is_an_attribute_error_at_once(me: Me) -> None:
    rref = rpc.remote(me.next, MyClass, args=(7,))
    for call in (
        lambda: rref.rpc_sync().non_exist(),
        lambda: rref.rpc_async().non_exist().wait(),
        lambda: rref.remote().non_exist(),
    ):
        with pytest.raises(AttributeError, match="has no attribute 'non_exist'"):
            call()


@on_workers(2)
def test_what_went_wrong_in_making_a_value_shows_where_it_is_used(me: Me) -> None:
    for to in (me.next, me.name(me.rank)):
        rref = rpc.remote(to, raises)
        for _ in range(2):
            with pytest.raises(ValueError, match="Expected error"):
                rref.to_here()
        with pytest.raises(TypeError):
            rpc.remote(to, nothing, args=(10,)).to_here()


@on_workers(2)
def test_the_future_of_a_creation_is_done_when_it_is(me: Me) -> None:
    rref = rpc.remote(me.next, wait_for_flag)
    future = rref._get_future()
    assert isinstance(future, Future)
    assert not future.done()
    assert not rref.confirmed_by_owner()
    rpc.rpc_sync(me.next, set_flag)
    future.wait()
    assert rref.to_here() is True
    assert rref.confirmed_by_owner()
    me.meet("done")
    rpc_functions.flag.clear()


@on_workers(2)
def test_a_reference_is_pickled_in_calls_alone(me: Me) -> None:
    for rref in (rpc.RRef(35), rpc.remote(me.next, min, args=(1, 2))):
        with pytest.raises(RuntimeError, match="Can not pickle rref in python pickler"):
            pickle.dumps(rref)


# --- counting ---


@on_workers(2)
def test_a_value_lives_while_anybody_refers_to_it(me: Me) -> None:
    local = rpc.RRef(me.rank)
    assert debug_info()["num_owner_rrefs"] == "0", "nobody else knows of it"
    rpc.rpc_sync(me.next, keep, args=(local,))
    until(lambda: (debug_info()["num_owner_rrefs"], debug_info()["num_forks"]) == ("1", "1"))
    me.meet("kept")
    rpc.rpc_sync(me.next, let_go)
    until(lambda: debug_info()["num_owner_rrefs"] == "0")
    me.meet("let go")
    two = [rpc.remote(me.next, torch.add, args=(torch.ones(2), 1)) for _ in range(2)]
    for rref in two:
        rref.to_here()
    me.meet("made")
    info = debug_info()
    assert (info["num_owner_rrefs"], info["num_pending_users"], info["num_forks"]) == ("2", "0", "2")
    me.meet("checked")
    del rref, two
    gc.collect()
    until(lambda: debug_info()["num_owner_rrefs"] == "0")


@on_workers(3)
def test_a_value_outlives_the_one_who_made_it_where_others_hold_it(me: Me) -> None:
    if me.rank == 0:
        rref = rpc.remote(me.name(1), identity, args=("kept",))
        rpc.rpc_sync(me.name(2), keep, args=(rref,))
        del rref
        gc.collect()
        until(lambda: rpc.rpc_sync(me.name(1), debug_info)["num_forks"] == "1")
    me.meet("handed over")
    if me.rank == 2:
        assert rpc_functions.kept[0].to_here() == "kept"
        let_go()
        gc.collect()
    me.meet("read")
    until(lambda: debug_info()["num_owner_rrefs"] == "0")


@on_workers(2)
def test_references_that_nobody_took_are_given_back(me: Me) -> None:
    local = rpc.RRef(1)
    with pytest.raises(TypeError, match="lock"):
        rpc.rpc_sync(me.next, identity, args=((local, threading.Lock()),))
    assert debug_info()["num_forks"] == "0"
    with pytest.raises(RuntimeError, match="could not find"):
        rpc.rpc_sync("nobody", identity, args=(local,))
    assert debug_info()["num_owner_rrefs"] == "0"


@on_workers(2, setup=False)
def test_values_that_are_referred_to_at_the_end_are_told_where_that_is_asked_for(me: Me) -> None:
    for told in (True, False):
        me.init()
        rref = rpc.remote(me.next, torch.add, args=(torch.ones(2), 1))
        rref.to_here()
        me.meet(f"made {told}")
        real = rpc.api._delete_all_user_and_unforked_owner_rrefs
        rpc.api._delete_all_user_and_unforked_owner_rrefs = lambda: None
        rpc.api._ignore_rref_leak = not told
        try:
            if told:
                with pytest.raises(RuntimeError, match=r"Leaking RRef OwnerRRef\(.*with fork Ids"):
                    rpc.shutdown()
            else:
                rpc.shutdown()
        finally:
            rpc.api._delete_all_user_and_unforked_owner_rrefs = real
            rpc.api._ignore_rref_leak = True
        assert not rpc._is_current_rpc_agent_set()


@on_workers(2, setup=False)
def test_no_value_leaks_where_references_are_let_go_at_the_end(me: Me) -> None:
    me.init()
    rpc.api._ignore_rref_leak = False
    kept = [rpc.remote(me.next, torch.add, args=(torch.ones(2), 1)), rpc.RRef(1)]
    a, b = MyClass(1), MyClass(2)
    a.other, b.other, a.rref = b, a, kept[0]  # type: ignore[attr-defined]
    rpc.shutdown()
    rpc.api._ignore_rref_leak = True
    with pytest.raises(RuntimeError, match=r"Cannot call to_here\(\) on it after deletion."):
        kept[0].to_here()
    me.init()
    with pytest.raises(RuntimeError, match=r"Cannot call fork an UserRRef after deletion."):
        rpc.rpc_sync(me.next, identity, args=(kept[0],))


@on_workers(1)
def test_a_reference_is_made_of_any_value_and_has_no_hint_to_obey(me: Me) -> None:
    rref: rpc.RRef[int] = rpc.RRef(3, type_hint=str)
    assert rref.local_value() == 3
    with pytest.raises(RpcError, match="only be read where the call is"):
        inner._arrived((0, 0, 0, 0, 0, 0))
