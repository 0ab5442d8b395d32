"""Gradients through remote calls are those of the same program in one process, whatever the shape of the graph."""

from __future__ import annotations

import pytest
import rpc_graphs as graphs
from rpc_graphs import LOCAL, SYNC, WAYS, fresh, grads, local_grads, run
from rpc_workers import Me, on_workers

import resilin as torch
import resilin.distributed.autograd as dist_autograd
import resilin.distributed.rpc as rpc


@on_workers(3)
def test_one_call_gives_the_gradients_of_a_local_one_in_every_way_also_of_a_worker_to_itself(me: Me) -> None:
    a, b = fresh(3, 3), fresh(3, 3)
    expected = local_grads((a * b).sum(), a, b)
    for to in (me.next, me.name(me.rank)):
        for way in WAYS:
            with dist_autograd.context() as context_id:
                loss = run(way, to, torch.mul, a, b).sum()
                dist_autograd.backward(context_id, [loss])
                assert grads(context_id, a, b) == expected
    assert a.grad is None


@on_workers(2)
def test_multiple_round_trips(me: Me) -> None:
    a, b, c = fresh(3, 3), fresh(3, 3, requires_grad=False), fresh(3, 3)

    def program(way: str) -> torch.Tensor:
        value = run(way, me.next, torch.add, a, b)
        value = run(way, me.next, torch.mul, c, value)
        one = run(way, me.next, torch.stack, (a, value))
        other = run(way, me.next, torch.stack, (c, value))
        value = run(way, me.next, torch.bmm, one, other)
        return run(way, me.next, torch.matmul, value, value).sum()

    expected = local_grads(program(LOCAL), a, b, c)
    for way in WAYS:
        with dist_autograd.context() as context_id:
            dist_autograd.backward(context_id, [program(way)])
            assert grads(context_id, a, b, c) == expected


@on_workers(3)
def test_nested_recursive_calls_that_come_back_to_the_caller(me: Me) -> None:
    a, b = fresh(3, 3), fresh(3, 3)
    expected = local_grads((a * b + a).sum(), a, b)
    here = me.name(me.rank)
    others = [me.next, me.name(me.rank + 2)]
    for ways in ([], [others[1]], [here], [others[1], here], [here, others[0], here, others[1]], [others[0]] * 3):
        with dist_autograd.context() as context_id:
            loss = rpc.rpc_sync(me.next, graphs.nested, args=(a, b, ways)).sum()
            dist_autograd.backward(context_id, [loss])
            assert grads(context_id, a, b) == expected, ways
    c, d = a * b, a + b
    expected = local_grads((a * b * c * d * (c + d)).sum(), a, b)
    with dist_autograd.context() as context_id:
        loss = rpc.rpc_sync(me.next, graphs.between, args=(a, b, others[1])).sum()
        dist_autograd.backward(context_id, [loss])
        for found, wanted in zip(grads(context_id, a, b), expected, strict=True):
            torch.testing.assert_close(torch.tensor(found), torch.tensor(wanted))


@on_workers(2)
def test_multiple_roots_outputs_and_dims_and_unused_tensors(me: Me) -> None:
    a, b, c = fresh(4, 4), fresh(4, 4), fresh(4, 4)
    for way in (SYNC, *WAYS):
        with dist_autograd.context() as context_id:
            roots = [run(way, me.next, f, a, b).sum() for f in (torch.add, torch.mul, torch.div)]
            dist_autograd.backward(context_id, roots)
            expected = local_grads((a + b).sum() + (a * b).sum() + (a / b).sum(), a, b)
            for found, wanted in zip(grads(context_id, a, b), expected, strict=True):
                torch.testing.assert_close(torch.tensor(found), torch.tensor(wanted))
        with dist_autograd.context() as context_id:
            parts = run(way, me.next, torch.split, a, 1)
            stacked = run(way, me.next, torch.stack, (a, b, c))
            loss = (parts[0] * parts[2]).sum() + stacked[0].sum() + stacked[2].sum()
            dist_autograd.backward(context_id, [loss])
            parts, stacked = torch.split(a, 1), torch.stack((a, b, c))
            loss = (parts[0] * parts[2]).sum() + stacked[0].sum() + stacked[2].sum()
            assert grads(context_id, a, b, c) == local_grads(loss, a, b, c)


@on_workers(2)
def test_references_to_tensors_have_their_gradients_at_their_owners(me: Me) -> None:
    value = fresh(3, 3)
    with dist_autograd.context() as context_id:
        rref = rpc.remote(me.next, torch.ones, args=((3, 3),), kwargs={"requires_grad": True})
        loss = rpc.remote(me.next, graphs.add_to_reference, args=(rref, value)).to_here().sum()
        dist_autograd.backward(context_id, [loss])
        assert grads(context_id, value) == [[[1.0] * 3] * 3]
        there = rpc.rpc_sync(me.next, graphs.gradient_of_reference, args=(context_id, rref))
        assert there.tolist() == [[2.0] * 3] * 3


@on_workers(3)
def test_references_are_used_through_a_third_worker(me: Me) -> None:
    value, owner = fresh(3, 3), me.name(me.rank + 2)
    with dist_autograd.context() as context_id:
        rref = rpc.remote(owner, torch.ones, args=((3, 3),), kwargs={"requires_grad": True})
        loss = rpc.rpc_sync(me.next, graphs.add_to_far_reference, args=(owner, rref, value)).sum()
        dist_autograd.backward(context_id, [loss])
        assert grads(context_id, value) == [[[1.0] * 3] * 3]
        there = rpc.rpc_sync(owner, graphs.gradient_of_reference, args=(context_id, rref))
        assert there.tolist() == [[2.0] * 3] * 3


@on_workers(2)
def test_gradients_of_what_only_the_callee_has(me: Me) -> None:
    with dist_autograd.context() as context_id:
        loss = rpc.rpc_sync(me.next, graphs.kept_tensor).sum()
        dist_autograd.backward(context_id, [loss])
        there = rpc.rpc_sync(me.next, graphs.gradient_of_kept, args=(context_id,))
        assert there.tolist() == [[1.0] * 3] * 3


@on_workers(2)
def test_mixed_requires_grad_and_dtypes(me: Me) -> None:
    a, b = fresh(3, 3), fresh(3, 3, requires_grad=False)
    with dist_autograd.context() as context_id:
        loss = rpc.rpc_sync(me.next, torch.mul, args=(a, b)).sum()
        dist_autograd.backward(context_id, [loss])
        assert list(dist_autograd.get_gradients(context_id)) == [a]
        assert grads(context_id, a) == [b.tolist()]
    c = torch.rand(3, 3, dtype=torch.float64).requires_grad_()
    with dist_autograd.context() as context_id:
        loss = rpc.rpc_sync(me.next, torch.add, args=(a, c)).sum()
        dist_autograd.backward(context_id, [loss])
        found = dist_autograd.get_gradients(context_id)
        assert (found[a].dtype, found[c].dtype) == (torch.float32, torch.float64)


@on_workers(2)
def test_parameters_get_gradients_and_arrive_as_parameters(me: Me) -> None:
    weight = torch.nn.Parameter(torch.ones(3))
    with dist_autograd.context() as context_id:
        dist_autograd.backward(context_id, [rpc.rpc_sync(me.next, torch.mul, args=(weight, 3.0)).sum()])
        assert grads(context_id, weight) == [[3.0] * 3]


@on_workers(2)
def test_a_backward_without_remote_calls_and_one_of_parts_that_nobody_uses(me: Me) -> None:
    a, b = fresh(3, 3), fresh(3, 3)
    with dist_autograd.context() as context_id:
        dist_autograd.backward(context_id, [(a + b).sum()])
        assert grads(context_id, a, b) == [[[1.0] * 3] * 3] * 2
    with dist_autograd.context() as context_id:
        rpc.rpc_sync(me.next, torch.add, args=(a, b))  # nobody uses the result
        rpc.rpc_sync(me.next, graphs.current_context_id)
        rpc.rpc_sync(me.next, torch.Tensor.size, args=(a,))  # has tensors of ours, and returns none
        dist_autograd.backward(context_id, [(a * b).sum()])
        assert grads(context_id, a) == [b.tolist()]


@on_workers(2)
def test_under_no_grad_nothing_is_recorded(me: Me) -> None:
    a = fresh(3)
    with dist_autograd.context():
        with torch.no_grad():
            rpc.rpc_sync(me.next, torch.mul, args=(a, 2))
        context = dist_autograd._current_context()
        assert (context._send_functions(), context._recv_functions()) == ({}, {})


@on_workers(2)
def test_large_tensors_that_are_lent_keep_their_gradients_when_they_are_written_later(me: Me) -> None:
    a, b = fresh(1 << 16), fresh(1 << 16)
    with dist_autograd.context() as context_id:
        loss = rpc.rpc_sync(me.next, torch.mul, args=(a, b)).sum()
        before = a.tolist()
        with torch.no_grad():
            a.data.fill_(7.0)  # the callee saved the value that it was sent
        dist_autograd.backward(context_id, [loss])
        assert grads(context_id, b) == [before]


@on_workers(2)
def test_a_written_tensor_that_the_caller_has_saved_is_refused(me: Me) -> None:
    a = fresh(3)
    with dist_autograd.context() as context_id:
        b = a * 2
        saved = b * b
        loss = rpc.rpc_sync(me.next, torch.add, args=(saved, 1)).sum()
        b.add_(1)
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            dist_autograd.backward(context_id, [loss])
