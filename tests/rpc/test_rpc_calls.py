"""Functions, classes and methods of others; tensors and containers of them; calls within calls."""

import operator
import threading

import pytest
import rpc_functions
from rpc_functions import (
    MyClass,
    Tensors,
    add3,
    chain_of_calls,
    decorated,
    decorated_twice,
    identity,
    nested,
    nested_remote,
    note,
    noted,
    nothing,
    raises,
    raises_lines,
    raises_two_arguments,
)
from rpc_workers import Me, on_workers, until

import resilin as torch
import resilin.distributed.rpc as rpc
from resilin.errors import RemoteError, RpcError


@on_workers(2)
def test_builtins_operators_and_functions_of_ones_own(me: Me) -> None:
    assert rpc.rpc_sync(me.next, min, args=(3, 2)) == 2
    assert rpc.rpc_sync(me.next, operator.add, (3, 2)) == 5
    assert rpc.rpc_sync(me.next, add3, kwargs={"a": 1, "b": 2, "c": 3}) == 6
    assert rpc.rpc_sync(me.next, add3, args=(1,), kwargs={"b": 2, "c": 3}) == 6
    assert rpc.rpc_sync(me.next, nothing) is None
    assert torch.equal(rpc.rpc_sync(me.next, torch.nonzero, args=(torch.ones(2, 2),)), torch.nonzero(torch.ones(2, 2)))


@on_workers(2)
def test_decorated_functions_are_found_by_their_names(me: Me) -> None:
    assert rpc.rpc_sync(me.next, decorated, (1,)) == 1
    assert rpc.rpc_sync(me.next, decorated_twice, (1,)) == [1]
    assert rpc.remote(me.next, decorated_twice, (2,)).to_here() == [2]
    with pytest.raises(RpcError, match="does not serialize function code"):  # what a name leads to is the outer one
        rpc.rpc_sync(me.next, decorated_twice.__wrapped__, (1,))


@on_workers(2)
def test_classes_and_methods_of_every_kind(me: Me) -> None:
    assert rpc.rpc_sync(me.next, MyClass, args=(2,)).a == 2
    assert rpc.rpc_sync(me.next, MyClass(2).plus, args=(1,)) == 3
    assert rpc.rpc_sync(me.next, MyClass.of_class, args=(2, 1)) == 3
    assert rpc.rpc_sync(me.next, MyClass.static, args=(11,)) is True
    assert torch.equal(rpc.rpc_sync(me.next, torch.Tensor.add, args=(torch.ones(2), 1)), torch.ones(2) + 1)


@on_workers(2)
def test_tensors_come_back_in_the_containers_that_they_went_in(me: Me) -> None:
    a = torch.ones(3, 3)
    thing = {"list": [a, [a, a + 1]], "named": Tensors((a * 2,)), (1, 2): {"deep": a.to(torch.float64)}, "none": None}
    got = rpc.rpc_sync(me.next, identity, args=(thing,))
    assert torch.equal(got["list"][1][1], a + 1)
    assert type(got["named"]) is Tensors
    assert got[(1, 2)]["deep"].dtype is torch.float64
    assert got["none"] is None
    got["list"][0] += 5
    assert torch.equal(got["list"][1][0], a + 5), "it was one tensor"


@on_workers(2)
def test_views_that_share_memory_share_it_there_too(me: Me) -> None:
    a = torch.arange(24.0).reshape(4, 6)
    row, column, turned = rpc.rpc_sync(me.next, identity, args=((a[1], a[:, 2], a.t()),))
    assert torch.equal(row, a[1])
    assert torch.equal(column, a[:, 2])
    assert torch.equal(turned, a.t())
    assert not column.is_contiguous()
    assert column.stride() == (6,)
    row[2] = 100.0
    assert column[1] == 100.0
    assert turned[2, 1] == 100.0
    assert a[1, 2] == 8.0


@on_workers(2)
def test_dtypes_and_shapes_are_kept(me: Me) -> None:
    for dtype in (torch.float32, torch.bfloat16, torch.int64, torch.bool, torch.complex64, torch.uint8, torch.float16):
        for x in (torch.ones(3, 2).to(dtype), torch.ones(()).to(dtype), torch.ones(0, 4).to(dtype)):
            got = rpc.rpc_sync(me.next, identity, args=(x,))
            assert got.dtype is dtype
            assert got.shape == x.shape
            assert torch.equal(got, x)


@on_workers(2)
def test_parameters_and_what_requires_gradients_stay_so(me: Me) -> None:
    parameter = torch.nn.Parameter(torch.ones(2))
    got = rpc.rpc_sync(me.next, identity, args=(parameter,))
    assert type(got) is torch.nn.Parameter
    assert got.requires_grad
    assert torch.equal(got, parameter)
    module = torch.nn.Linear(2, 3)
    there = rpc.rpc_sync(me.next, identity, args=(module,))
    assert all(torch.equal(a, b) for a, b in zip(module.parameters(), there.parameters(), strict=True))
    assert torch.equal(there(torch.ones(1, 2)), module(torch.ones(1, 2)))


@on_workers(2)
def test_of_a_small_view_of_much_memory_the_view_alone_is_sent(me: Me) -> None:
    big = torch.zeros(1024, 1024)
    before = rpc.stats()["calls"].get("rpc_functions:identity", {"bytes": 0})["bytes"]
    got = rpc.rpc_sync(me.next, identity, args=(big[:, 3],))
    assert torch.equal(got, big[:, 3])
    assert before == 0
    assert got.stride() == (1,), "the memory between was sent"


@on_workers(2)
def test_arguments_are_those_of_the_moment_of_the_call(me: Me) -> None:
    x = torch.zeros(1000)
    futures = []
    for _ in range(10):
        futures.append(rpc.rpc_async(me.next, torch.sum, args=(x,)))
        x += 1
    assert [int(future.wait()) for future in futures] == [1000 * turn for turn in range(10)]


@on_workers(3)
def test_a_called_function_calls_others(me: Me) -> None:
    assert torch.equal(rpc.rpc_sync(me.next, nested, args=(me.name(me.rank + 2),)), torch.ones(2, 2) + 1)
    assert torch.equal(rpc.rpc_sync(me.next, nested, args=(me.name(me.rank),)), torch.ones(2, 2) + 1)
    assert torch.equal(rpc.rpc_sync(me.next, nested_remote, args=(me.name(me.rank + 2),)), torch.ones(2, 2) + 3)


@on_workers(3, setup=False)
def test_a_chain_of_calls_that_nobody_waits_for_ends_before_the_workers_do(me: Me) -> None:
    me.init()
    rpc_functions.seen.clear()
    me.meet("cleared")
    if me.rank == 0:
        chain_of_calls(1, 3, 30)
    rpc.shutdown()
    assert noted() == (["end"] if me.rank == 30 % 3 else [])


@on_workers(3)
def test_many_calls_at_once_are_all_answered(me: Me) -> None:
    futures = [rpc.rpc_async(me.name(n), torch.add, args=(torch.ones(4), n)) for n in range(300)]
    assert all(float(future.wait()[0]) == n + 1 for n, future in enumerate(futures))
    assert rpc.rpc_sync(me.next, identity, args=("x" * (1 << 20),)) == "x" * (1 << 20)


@on_workers(2)
def test_calls_of_one_thread_begin_in_their_order(me: Me) -> None:
    rpc_functions.seen.clear()
    me.meet("cleared")
    for n in range(50):
        rpc.rpc_async(me.next, note, args=(n,))
    until(lambda: len(noted()) == 50)
    assert sorted(noted()) == list(range(50))


# --- errors ---


@on_workers(2)
def test_an_error_has_its_class_its_words_and_where_it_was_raised(me: Me) -> None:
    for call in (
        lambda: rpc.rpc_sync(me.next, raises),
        lambda: rpc.rpc_async(me.next, raises).wait(),
        lambda: rpc.remote(me.next, raises).to_here(),
    ):
        with pytest.raises(ValueError, match="Expected error") as caught:
            call()
        assert f"On WorkerInfo(id={1 - me.rank}, name={me.next})" in str(caught.value)
        assert "in raises" in str(caught.value), "the traceback of the callee"
    with pytest.raises(TypeError, match="nothing"):
        rpc.rpc_sync(me.next, nothing, args=(10,))


@on_workers(2)
def test_lines_of_an_error_stay_lines(me: Me) -> None:
    with pytest.raises(ValueError, match="First line of error") as caught:
        rpc.rpc_sync(me.next, raises_lines)
    text = str(caught.value)
    assert "\n next line of error \n last line" in text
    assert text == text.encode().decode("unicode_escape")


@on_workers(2)
def test_an_error_whose_class_cannot_be_made_again_is_told_by_its_name(me: Me) -> None:
    with pytest.raises(RuntimeError, match="Failed to create original exception type") as caught:
        rpc.rpc_sync(me.next, raises_two_arguments)
    error = caught.value
    assert type(error) is RemoteError
    assert error.kind == "rpc_functions.TwoArguments"
    assert error.rank == 1 - me.rank
    assert "foo" in str(error)
    assert "raises_two_arguments" in error.remote_traceback


@on_workers(2)
def test_a_function_that_the_callee_lacks_is_named(me: Me) -> None:
    def only_here() -> None:
        """Is not at the top of a module."""

    with pytest.raises(RuntimeError, match="RPC pickler does not serialize function code"):
        rpc.rpc_sync(me.next, only_here)
    added = type(raises)(raises.__code__, rpc_functions.__dict__, "added_here")
    added.__qualname__, added.__module__ = "added_here", rpc_functions.__name__
    if me.rank == 0:
        rpc_functions.added_here = added  # type: ignore[attr-defined]
        with pytest.raises(RuntimeError, match=r"RPC pickler does not serialize function code.*added_here"):
            rpc.rpc_sync(me.next, added)
        del rpc_functions.added_here  # type: ignore[attr-defined]
    with pytest.raises(TypeError, match="function should be callable"):
        rpc.rpc_sync(me.next, 3)


@on_workers(2)
def test_what_cannot_be_sent_is_refused_here_and_what_cannot_come_back_there(me: Me) -> None:
    with pytest.raises(TypeError, match="lock"):
        rpc.rpc_sync(me.next, identity, args=(threading.Lock(),))
    with pytest.raises(TypeError, match="lock"):
        rpc.rpc_sync(me.next, threading.Lock)
    assert rpc.rpc_sync(me.next, min, args=(1, 2)) == 1


@on_workers(2, max_message_bytes=1 << 20, channels=["inline"])
def test_a_message_above_the_cap_is_refused_on_either_way(me: Me) -> None:
    with pytest.raises(RuntimeError, match=r"1048576|1 MiB|bytes"):
        rpc.rpc_sync(me.next, identity, args=(torch.zeros(1 << 20),))
    with pytest.raises(RuntimeError, match=r"1048576|1 MiB|bytes"):
        rpc.rpc_sync(me.next, torch.zeros, args=(1 << 20,))
    assert rpc.rpc_sync(me.next, min, args=(1, 2)) == 1


@on_workers(2)
def test_code_is_taken_by_workers_alone_that_said_so(me: Me) -> None:
    with pytest.raises(RpcError, match=r"allow_closures=True"):
        rpc.rpc_sync(me.next, lambda: 1)
