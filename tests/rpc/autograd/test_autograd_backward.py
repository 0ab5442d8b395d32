"""Backwards: how gradients add up, hooks, errors of every kind, and that what failed leaves nothing behind."""

from __future__ import annotations

import gc
import threading
import weakref
from typing import Any

import pytest
import rpc_graphs as graphs
from rpc_graphs import fresh, grads, none_is_left
from rpc_workers import Me, on_workers, until

import resilin as torch
import resilin.distributed.autograd as dist_autograd
import resilin.distributed.rpc as rpc
from resilin.errors import RpcTimeout


@on_workers(3)
def test_gradients_of_several_backwards_add_up_in_their_context_alone(me: Me) -> None:
    a, b = fresh(3), fresh(3)
    (a * b).sum().backward()
    for _ in range(2):
        with dist_autograd.context() as context_id:
            loss = rpc.rpc_sync(me.next, graphs.nested, args=(a, b, [me.name(me.rank + 2)])).sum()
            for times in (1, 2, 3):
                dist_autograd.backward(context_id, [loss], retain_graph=True)
                assert grads(context_id, b) == [(a * times).tolist()]
    assert a.grad.tolist() == b.tolist()


@on_workers(2)
def test_a_second_backward_without_retain_graph_is_refused(me: Me) -> None:
    a, b = fresh(3), fresh(3)
    with dist_autograd.context() as context_id:
        loss = rpc.rpc_sync(me.next, torch.mul, args=(a, b)).sum()
        dist_autograd.backward(context_id, [loss])
        with pytest.raises(RuntimeError, match="Trying to backward through the graph a second time"):
            dist_autograd.backward(context_id, [loss])
        assert grads(context_id, a) == [b.tolist()]


@on_workers(2)
def test_arguments_that_are_none(me: Me) -> None:
    with dist_autograd.context() as context_id:
        for args in ((context_id, None), (None, None), (context_id, [1]), ("1", [])):
            with pytest.raises(TypeError, match="incompatible function arguments"):
                dist_autograd.backward(*args)
        for roots, text in (
            ([], "No tensors provided for gradient computation"),
            ([torch.rand(3)], "requires_grad not set on"),
            ([fresh(3)], "is not a scalar, all roots need to be scalar"),
            ([fresh(1)], "does not have a valid gradient function"),
        ):
            with pytest.raises(RuntimeError, match=text):
                dist_autograd.backward(context_id, roots)
    with pytest.raises(RuntimeError, match="Could not find autograd context with id: 100"):
        dist_autograd.backward(100, [rpc.rpc_sync(me.next, torch.add, args=(fresh(3), 1)).sum()])


@on_workers(2)
def test_hooks_see_and_change_gradients(me: Me) -> None:
    a, b = fresh(3), fresh(3)
    a.register_hook(lambda grad: grad * 2)
    seen: list[Any] = []
    with dist_autograd.context() as context_id:
        c = rpc.rpc_sync(me.next, torch.mul, args=(a, b))
        c.register_hook(lambda grad: grad * 10)
        c.grad_fn.register_prehook(lambda given: seen.append(given[0].tolist()))
        dist_autograd.backward(context_id, [c.sum()])
        assert grads(context_id, a, b) == [(b * 10 * 2).tolist(), (a * 10).tolist()]
        assert seen == [[10.0] * 3]
    t = fresh(3)
    total = t + t
    for n in (1, 2):
        total.grad_fn.next_functions[0][0].register_hook(lambda inputs, outputs, n=n: seen.append((n, outputs[0])))
    with dist_autograd.context() as context_id:
        dist_autograd.backward(context_id, [total.sum()])
        assert [(n, grad.tolist()) for n, grad in seen[1:]] == [(1, [2.0] * 3), (2, [2.0] * 3)]
    assert t.grad is None


@on_workers(2)
def test_gradients_are_memory_of_their_own(me: Me) -> None:
    a, b = fresh(3), fresh(3)
    with dist_autograd.context() as context_id:
        dist_autograd.backward(context_id, [rpc.rpc_sync(me.next, torch.add, args=(a, b)).sum()])
        found = dist_autograd.get_gradients(context_id)
        found[a].fill_(7.0)
        assert found[b].tolist() == [1.0] * 3
        dist_autograd.backward(context_id, [(a + b).sum()])
        assert grads(context_id, a, b) == [[8.0] * 3, [2.0] * 3]
        assert found[a].tolist() == [7.0] * 3


@on_workers(3)
def test_an_error_of_any_worker_names_it_and_the_next_backward_succeeds(me: Me) -> None:
    me.meet("begin")
    a, b = fresh(3, 3), fresh(3, 3)
    where = (me.rank + 2) % 3
    with dist_autograd.context() as context_id:
        loss = rpc.rpc_sync(me.next, through, args=(me.name(where), a, b))
        loss = rpc.rpc_sync(me.next, torch.mul, args=(loss, 2))
        for _ in range(5):
            with pytest.raises(ValueError, match=f"Error on Node {where}: Simulate error on backward pass"):
                dist_autograd.backward(context_id, [loss], retain_graph=True)
        assert dist_autograd.get_gradients(context_id) == {}
        me.meet("failed")
        graphs.set_failing(False)
        me.meet("mended")
        for _ in range(5):
            dist_autograd.backward(context_id, [loss], retain_graph=True)
        assert set(dist_autograd.get_gradients(context_id)) == {a, b}
        me.meet("done")
        graphs.set_failing(True)
    none_is_left([me.name(rank) for rank in range(3)])


def through(to: str, a: Any, b: Any) -> Any:
    return rpc.rpc_sync(to, graphs.failing, args=(a * 1, b * 1)) + a.sum()


@on_workers(2)
def test_an_error_at_the_root_itself(me: Me) -> None:
    a, b = fresh(3), fresh(3)
    with dist_autograd.context() as context_id:
        loss = graphs.failing(rpc.rpc_sync(me.next, torch.mul, args=(a, b)), b)
        with pytest.raises(ValueError, match="Simulate error on backward pass"):
            dist_autograd.backward(context_id, [loss])
        deep = rpc.rpc_sync(me.next, torch.mul, args=(graphs.failing(a, b), 2))
        with pytest.raises(ValueError, match=f"Error on Node {me.rank}: Simulate error on backward pass"):
            dist_autograd.backward(context_id, [deep])


@on_workers(2)
def test_a_context_that_ends_in_its_backward_fails_it(me: Me) -> None:
    with dist_autograd.context() as context_id:
        value = rpc.rpc_sync(me.next, torch.mul, args=(fresh(3), 2))
        value.register_hook(lambda grad: dist_autograd._release_context(context_id))
        with pytest.raises(RuntimeError, match=r"context no longer valid|Could not find autograd context"):
            dist_autograd.backward(context_id, [value.sum()])
    none_is_left(["worker0", "worker1"])


@on_workers(2)
def test_a_gradient_of_another_context_is_refused(me: Me) -> None:
    with dist_autograd.context():
        old = rpc.rpc_sync(me.next, torch.mul, args=(fresh(3), 2))
    with (
        dist_autograd.context() as context_id,
        pytest.raises(RuntimeError, match="but it is no backward of that context"),
    ):
        dist_autograd.backward(context_id, [old.sum()])
    with pytest.raises(RuntimeError, match="but it is no backward of that context"):
        old.sum().backward()


@on_workers(2)
def test_a_message_that_was_never_received_does_not_hang_a_backward(me: Me) -> None:
    if me.rank == 0:
        a = fresh(3)
        graphs.go_on.clear()
        with dist_autograd.context() as context_id:
            late = rpc.rpc_async(me.next, busy, args=(me.name(0), a))
            with pytest.raises(RpcTimeout):
                rpc.rpc_sync(me.next, busy, args=(me.name(0), a), timeout=0.1)
            loss = rpc.rpc_sync(me.next, torch.mul, args=(a, 2)).sum()
            dist_autograd.backward(context_id, [loss])
            assert grads(context_id, a) == [[2.0] * 3]
            graphs.go_on.set()
            late.wait()


def busy(to: str, a: Any) -> Any:
    rpc.rpc_sync(to, wait_to_go_on)
    return a * 3


def wait_to_go_on() -> None:
    assert graphs.go_on.wait(30)


@on_workers(2)
def test_backward_of_references(me: Me) -> None:
    a = fresh(3, 3)
    rref = rpc.RRef(a.sum() + a.sum())
    rref.backward()
    assert a.grad.tolist() == [[2.0] * 3] * 3
    with dist_autograd.context() as context_id:
        rref = rpc.RRef(rpc.rpc_sync(me.next, torch.add, args=(a, a)).sum())
        rref.backward(context_id, retain_graph=True)
        rref.backward(context_id)
        assert grads(context_id, a) == [[[4.0] * 3] * 3]
    with dist_autograd.context() as context_id:
        rref = rpc.remote(me.next, torch.sum, args=(a,))
        rref.backward(context_id, retain_graph=True)
        rref.backward(context_id)
        assert grads(context_id, a) == [[[2.0] * 3] * 3]
        with pytest.raises(RuntimeError, match="User RRefs require 'dist_autograd_ctx_id' to be specified"):
            rref.backward()
        with pytest.raises(RuntimeError, match=r"RRef should contain a tensor for \.backward\(\)"):
            rpc.remote(me.next, graphs.add, args=("fo", "o")).backward(context_id)
    for value, text in (
        (torch.rand(10), "tensors does not require grad and does not have a grad_fn"),
        (fresh(10), "grad can be implicitly created only for scalar outputs"),
        ("foo", r"RRef should contain a tensor for \.backward\(\)"),
    ):
        with pytest.raises(RuntimeError, match=text):
            rpc.RRef(value).backward()
    with pytest.raises(RuntimeError, match="Could not find autograd context with id: 100"):
        rpc.RRef(fresh(10).sum()).backward(100)


def trainer(reference: Any, value: Any, server: str) -> Any:
    with dist_autograd.context() as context_id:
        loss = rpc.rpc_sync(server, graphs.add_to_reference, args=(reference, value)).sum()
        dist_autograd.backward(context_id, [loss])
        return rpc.rpc_sync(server, graphs.gradient_of_reference, args=(context_id, reference))


@on_workers(4)
def test_trainers_of_one_parameter_do_not_see_the_gradients_of_others(me: Me) -> None:
    reference, value = rpc.RRef(fresh(3)), fresh(3)
    mine = me.name(me.rank)
    calls = [rpc.rpc_async(me.name(me.rank + n), trainer, args=(reference, value, mine)) for n in (1, 2, 3)]
    assert [call.wait().tolist() for call in calls] == [[2.0] * 3] * 3


@on_workers(2)
def test_many_threads_and_contexts_at_once(me: Me) -> None:
    errors: list[BaseException] = []

    def work() -> None:
        a, b = fresh(3, 3), fresh(3, 3)
        try:
            with dist_autograd.context() as context_id:
                c = rpc.rpc_sync("worker0", torch.add, args=(a, b))
                d = rpc.rpc_sync("worker0", torch.mul, args=(b, c))
                dist_autograd.backward(context_id, [rpc.rpc_sync("worker0", torch.add, args=(c, d)).sum()])
                assert set(dist_autograd.get_gradients(context_id)) == {a, b}
        except BaseException as error:  # noqa: BLE001 - the test's
            errors.append(error)

    threads = [threading.Thread(target=work) for _ in range(10)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []


@on_workers(3)
def test_sums_of_several_calls_have_equal_bits_in_every_run(me: Me) -> None:
    if me.rank == 0:
        values = [torch.rand(64) * 10.0 ** (n - 4) for n in range(8)]
        found = set()
        for turn in range(6):
            with dist_autograd.context() as context_id:
                names = [me.name(1 + (n + turn) % 2) for n in range(8)]
                a = torch.full((64,), 1 / 3).requires_grad_()
                calls = [rpc.rpc_async(to, torch.mul, args=(a, v)) for to, v in zip(names, values, strict=True)]
                loss = sum(call.wait().sum() / 3 for call in calls)
                dist_autograd.backward(context_id, [loss])
                found.add(dist_autograd.get_gradients(context_id)[a].numpy().tobytes())
        assert len(found) == 1
        found = set()
        for _ in range(6):
            with dist_autograd.context() as context_id:
                parts = [rpc.rpc_async(me.next, weighted, args=(v.clone().requires_grad_(),)) for v in values]
                dist_autograd.backward(context_id, [sum(part.wait().sum() / 3 for part in parts)])
                there = rpc.rpc_sync(me.next, gradient_of_weight, args=(context_id,))
                found.add(there.numpy().tobytes())
        assert len(found) == 1


weight = torch.full((64,), 1 / 3).requires_grad_()


def weighted(value: Any) -> Any:
    return weight * value


def gradient_of_weight(context_id: int) -> Any:
    return dist_autograd.get_gradients(context_id)[weight]


@on_workers(2)
def test_what_a_context_held_is_freed_with_it(me: Me) -> None:
    if me.rank == 0:
        a = fresh(1000)
        alive = weakref.ref(a)
        with dist_autograd.context() as context_id:
            loss = rpc.rpc_sync(me.next, graphs.add_kept, args=(a[:3],)).sum()
            dist_autograd.backward(context_id, [loss])
        del a, loss

        def gone() -> bool:
            gc.collect()
            return alive() is None

        until(gone)
        until(lambda: rpc.rpc_sync(me.next, graphs.contexts_here) == 0)
