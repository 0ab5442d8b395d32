"""Calls of a worker to itself, by its name, id and WorkerInfo."""

import pytest
from rpc_functions import MyClass, add3, add_to, fetched, identity, nested, raises, sum_of
from rpc_workers import Me, on_workers

import resilin as torch
import resilin.distributed.rpc as rpc


@on_workers(1)
def test_a_worker_calls_itself_by_its_info(me: Me) -> None:
    own = rpc.get_worker_info()
    assert torch.equal(rpc.rpc_async(own, torch.add, args=(torch.ones(2, 2), 1)).wait(), torch.ones(2, 2) + 1)
    assert torch.equal(rpc.rpc_sync(own, torch.add, args=(torch.ones(2, 2), 1)), torch.ones(2, 2) + 1)


@on_workers(1)
def test_what_a_worker_sends_itself_is_a_copy(me: Me) -> None:
    x = torch.ones(3)
    got = rpc.rpc_sync(me.name(0), identity, args=(x,))
    x += 1
    assert torch.equal(got, torch.ones(3))


@on_workers(2)
def test_a_reference_to_oneself_is_an_argument_here_and_elsewhere(me: Me) -> None:
    rref = rpc.remote(me.name(me.rank), add3, args=(torch.ones(2), 1, 3))
    for to in (me.name(me.rank), me.next):
        assert torch.equal(rpc.rpc_sync(to, add_to, args=(rref, 1)), torch.ones(2) + 5)
        assert torch.equal(rpc.remote(to, sum_of, args=(rref, rref)).to_here(), 2 * (torch.ones(2) + 4))


@on_workers(1)
def test_a_call_within_a_call_has_a_thread_of_its_own(me: Me) -> None:
    assert torch.equal(rpc.rpc_sync(me.name(0), nested, args=(me.name(0),)), torch.ones(2, 2) + 1)


@on_workers(2)
def test_an_error_of_oneself_is_raised_as_one_of_any_other_owner(me: Me) -> None:
    said = {}
    for to in (me.name(me.rank), me.next):
        rref = rpc.remote(to, raises)
        rref._get_future().wait()  # which ends well: the error is the value's
        for use in (rref.to_here, rref.local_value) if rref.is_owner() else (rref.to_here,):
            with pytest.raises(ValueError, match="Expected error") as caught:
                use()
            said[to, use.__name__] = str(caught.value).replace(to, "there").replace(f"id={to[-1]}", "id=there")
    first = next(iter(said.values()))
    assert first.startswith("On WorkerInfo(id=there, name=there):\nValueError: Expected error\nTraceback")
    assert "in raises" in first
    assert set(said.values()) == {first}


@on_workers(2)
def test_others_are_told_of_an_error_of_oneself_once(me: Me) -> None:
    rref = rpc.remote(me.name(me.rank), raises)
    with pytest.raises(ValueError, match="Expected error") as caught:
        rpc.rpc_sync(me.next, fetched, args=(rref,))
    by, owner = (rpc.get_worker_info(name) for name in (me.next, me.name(me.rank)))
    assert str(caught.value).startswith(f"On {by}:\nValueError: On {owner}:\nValueError: Expected error\nTraceback")


@on_workers(1)
def test_every_use_of_a_failed_value_of_ones_own_raises_an_error_of_its_own(me: Me) -> None:
    rref = rpc.remote(me.name(0), raises)
    errors = []
    for use in (rref.to_here, rref.to_here, lambda: rref._get_type(), lambda: rref.rpc_sync().get()):
        with pytest.raises(ValueError, match="On WorkerInfo") as caught:
            use()
        errors.append(caught.value)
    assert errors[0] is not errors[1]


@on_workers(1)
def test_proxies_call_methods_of_ones_own_value(me: Me) -> None:
    rref = rpc.remote(rpc.get_worker_info(), MyClass, args=(7,))
    assert rref.is_owner()
    assert rref.rpc_sync().get() == 7
    rref.rpc_sync().increment(3)
    assert rref.rpc_async().plus(1).wait() == 11
    assert rref.remote().static(11).to_here() is True
    assert rref.local_value().a == 10
