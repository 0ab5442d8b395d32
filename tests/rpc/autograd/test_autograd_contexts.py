"""Contexts: their ids, how they travel, whom they know, and that they end everywhere."""

from __future__ import annotations

import threading
from typing import Any

import pytest
import rpc_graphs as graphs
from rpc_graphs import REMOTE, SYNC, fresh, grads, none_is_left, run
from rpc_workers import Me, on_workers, until

import resilin as torch
import resilin.distributed.autograd as dist_autograd
import resilin.distributed.rpc as rpc
from resilin.futures import Future
from resilin.rpc.autograd import contexts
from resilin.testing import rpc_faults


@on_workers(2)
def test_ids_name_their_workers_and_are_gone_with_their_blocks(me: Me) -> None:
    assert dist_autograd._get_max_id() == (me.rank << 48) + 281474976710655
    ids = []
    for _ in range(200):
        with dist_autograd.context() as context_id:
            assert dist_autograd._retrieve_context(context_id)._context_id() == context_id
            assert context_id >> 48 == me.rank
            assert dist_autograd._current_context()._context_id() == context_id
            ids.append(context_id)
    assert len(set(ids)) == 200
    for context_id in ids:
        with pytest.raises(RuntimeError, match=f"Could not find autograd context with id: {context_id}"):
            dist_autograd._retrieve_context(context_id)
    for ask in (dist_autograd.get_gradients, dist_autograd._is_valid_context):
        with pytest.raises(RuntimeError, match=f"Could not find autograd context with id: {ids[0]}"):
            ask(ids[0])
        for no_id in ("a", None, [1], 1.5, True):
            with pytest.raises(TypeError, match="expected the id of an autograd context"):
                ask(no_id)
    with pytest.raises(RuntimeError, match="Current thread doesn't have a valid autograd context"):
        dist_autograd._current_context()


@on_workers(2)
def test_contexts_are_not_nested(me: Me) -> None:
    with dist_autograd.context() as context_id:
        with pytest.raises(RuntimeError, match="Already have an autograd context id for this thread"):
            dist_autograd.context().__enter__()
        assert dist_autograd._current_context()._context_id() == context_id


@on_workers(1)
def test_each_thread_has_a_context_of_its_own(me: Me) -> None:
    found: list[Any] = []

    def other() -> None:
        with pytest.raises(RuntimeError, match="valid autograd context"):
            dist_autograd._current_context()
        with dist_autograd.context() as context_id:
            found.append(context_id)

    with dist_autograd.context() as context_id:
        thread = threading.Thread(target=other)
        thread.start()
        thread.join()
        assert found
        assert found[0] != context_id


@on_workers(3)
def test_the_graph_of_a_call_begins_and_ends_at_the_messages(me: Me) -> None:
    for way in (SYNC, REMOTE):
        a, b = fresh(3), fresh(3)
        with dist_autograd.context():
            result = run(way, me.next, torch.add, a, b)
            context = dist_autograd._current_context()
            (send,) = context._send_functions().values()
            (receive,) = context._recv_functions().values()
            assert [
                (edge.variable is tensor, nr) for (edge, nr), tensor in zip(send.next_functions, (a, b), strict=True)
            ] == [(True, 0)] * 2
            assert result.grad_fn is receive
            assert (send.name(), receive.name()) == ("SendRpcBackward", "RecvRpcBackward")
            assert context._known_worker_ids() == {(me.rank + 1) % 3}


@on_workers(3)
def test_tensors_that_need_no_gradients_leave_no_graph_but_the_context_travels(me: Me) -> None:
    with dist_autograd.context() as context_id:
        for way in (SYNC, REMOTE):
            run(way, me.next, torch.add, torch.ones(3), torch.ones(3))
        context = dist_autograd._current_context()
        assert (context._send_functions(), context._recv_functions()) == ({}, {})
        assert rpc.rpc_sync(me.next, graphs.current_context_id) == context_id
        assert context._known_worker_ids() == {(me.rank + 1) % 3}


@on_workers(2)
def test_only_tensors_that_require_gradients_are_recorded_in_containers(me: Me) -> None:
    tensors = [fresh(3, requires_grad=bool(n % 2)) for n in range(6)]
    with dist_autograd.context():
        rpc.rpc_sync(me.next, torch.stack, args=(tensors,))
        (send,) = dist_autograd._current_context()._send_functions().values()
        assert [edge.variable is t for (edge, _), t in zip(send.next_functions, tensors[1::2], strict=True)] == [
            True
        ] * 3


def ids_through(names: list[str]) -> list[int]:
    mine = graphs.current_context_id()
    return [mine, *(rpc.rpc_sync(names[0], ids_through, args=(names[1:],)) if names else ())]


@rpc.functions.async_execution
def ids_in_callbacks(to: str) -> Future[list[int]]:
    mine = graphs.current_context_id()
    return rpc.rpc_async(to, graphs.current_context_id).then(
        lambda done: [mine, done.wait(), graphs.current_context_id(), rpc.rpc_sync(to, graphs.current_context_id)]
    )


@on_workers(3)
def test_the_context_travels_through_nested_calls_and_callbacks(me: Me) -> None:
    with dist_autograd.context() as context_id:
        names = [me.name(me.rank + n) for n in (2, 0, 1, 1)]
        assert rpc.rpc_sync(me.next, ids_through, args=(names,)) == [context_id] * 5
        assert rpc.rpc_sync(me.next, ids_in_callbacks, args=(me.name(me.rank + 2),)) == [context_id] * 4
        rref = rpc.remote(me.next, graphs.current_context_id)
        assert rref.to_here() == context_id
    with pytest.raises(RuntimeError, match="valid autograd context"):
        rpc.rpc_sync(me.next, graphs.current_context_id)


def here_or_none(_: Any = None) -> int:
    frame = contexts.here.frame
    return -1 if frame is None else frame.context.id


@on_workers(2)
def test_all_callbacks_of_a_chain_are_in_the_context_in_which_they_were_added(me: Me) -> None:
    seen: list[int] = []
    with dist_autograd.context() as context_id:
        call = rpc.rpc_async(me.next, graphs.current_context_id)
        own: Future[int] = Future()
        both = torch.futures.collect_all([call, own])
        made = [each.then(here_or_none).then(here_or_none).then(here_or_none) for each in (call, own, both)]
        last = call.then(here_or_none)
        last.add_done_callback(lambda _: seen.append(here_or_none()))
        after = last.then(lambda _: rpc.rpc_sync(me.next, graphs.current_context_id))
        threading.Thread(target=own.set_result, args=(1,)).start()
        assert [each.wait() for each in made] == [context_id] * 3
        assert after.wait() == context_id
        assert seen == [context_id]
    outside = rpc.rpc_async(me.next, here_or_none).then(here_or_none).then(here_or_none)
    assert outside.wait() == -1


def got(made: Any) -> Any:
    """Return what a proxy's call comes to, in each of its ways."""
    if isinstance(made, rpc.RRef):
        return made.to_here()
    return made.wait() if isinstance(made, Future) else made


class Scales:
    def __init__(self) -> None:
        self.weight = torch.full((3,), 2.0, requires_grad=True)

    def context_id(self) -> int:
        return graphs.current_context_id()

    def times(self, x: Any) -> Any:
        return x * self.weight


@on_workers(2)
def test_calls_by_proxies_are_in_the_context_before_the_type_is_known_and_after(me: Me) -> None:
    for way in ("rpc_async", "rpc_sync", "remote"):
        rref = rpc.remote(me.next, Scales)
        x = fresh(3)
        with dist_autograd.context() as context_id:
            call = getattr(rref, way)
            assert [got(call().context_id()) for _ in range(2)] == [context_id] * 2
            dist_autograd.backward(context_id, [got(call().times(x)).sum()])
            assert dist_autograd.get_gradients(context_id)[x].tolist() == [2.0] * 3
    rref = rpc.remote(me.next, Scales)
    with dist_autograd.context() as context_id:
        assert rref.rpc_async().context_id().then(here_or_none).then(here_or_none).wait() == context_id


@rpc.functions.async_execution
def multiply_later(to: str, a: Any, b: Any) -> Future[Any]:
    return rpc.rpc_async(to, torch.mul, args=(a, b)).then(lambda done: rpc.rpc_sync(to, torch.add, (done.wait(), a)))


@on_workers(2)
def test_gradients_flow_through_async_execution(me: Me) -> None:
    a, b = fresh(3), fresh(3)
    with dist_autograd.context() as context_id:
        loss = rpc.rpc_sync(me.next, multiply_later, args=(me.name(me.rank), a, b)).sum()
        dist_autograd.backward(context_id, [loss])
        assert grads(context_id, a, b) == [(b + 1).tolist(), a.tolist()]


@on_workers(2)
def test_a_value_made_outside_of_the_context_is_fetched_in_it(me: Me) -> None:
    rref = rpc.remote(me.next, torch.ones, args=(3,), kwargs={"requires_grad": True})
    with dist_autograd.context() as context_id:
        dist_autograd.backward(context_id, [(rref.to_here() * 3).sum()])
        there = rpc.rpc_sync(me.next, graphs.gradient_of_reference, args=(context_id, rref))
        assert there.tolist() == [3.0] * 3


@on_workers(4)
def test_contexts_end_on_all_workers_that_they_came_to(me: Me) -> None:
    a, b = fresh(3), torch.ones(3)
    with dist_autograd.context():
        rpc.rpc_sync(me.next, torch.add, args=(a, b))
        rpc.rpc_sync(me.next, torch.add, args=(b, b))
        rpc.rpc_sync(me.next, graphs.add, args=(1, 1))
        rpc.rpc_sync(me.next, graphs.nested, args=(a, b, [me.name(me.rank + 2), me.name(me.rank + 3)]))
    none_is_left([me.name(rank) for rank in range(4)])


@on_workers(2, setup=False)
def test_cleanups_that_are_lost_are_sent_again(me: Me) -> None:
    with rpc_faults.planned(drop={"CLEANUP_AUTOGRAD_CONTEXT_REQ": 2}) as plan:
        me.init()
        with dist_autograd.context():
            rpc.rpc_sync(me.next, torch.add, args=(fresh(3), 1))
        until(plan.all_fired)
        none_is_left(["worker0", "worker1"])
        rpc.shutdown()


def wait_to_go_on() -> None:
    assert graphs.go_on.wait(30)


@on_workers(2)
def test_a_call_that_comes_after_the_end_of_its_context_leaves_nothing(me: Me) -> None:
    a = fresh(3)
    if me.rank == 0:
        graphs.go_on.clear()
        with dist_autograd.context():
            rpc.rpc_sync(me.next, torch.add, args=(a, 1))
            late = rpc.rpc_async(me.next, call_back_later, args=(me.name(0), a))
        until(lambda: rpc.rpc_sync(me.next, graphs.contexts_here) == 0)
        graphs.go_on.set()
        assert late.wait().tolist() == (a * 2).tolist()
        none_is_left(["worker0", "worker1"])


def call_back_later(to: str, a: Any) -> Any:
    rpc.rpc_sync(to, wait_to_go_on)
    return rpc.rpc_sync(to, torch.mul, args=(a, 2))


@on_workers(1)
def test_debug_info_counts(me: Me) -> None:
    assert dist_autograd._get_debug_info() == {"num_current_backward_passes": "0", "num_autograd_contexts": "0"}
    seen = []
    with dist_autograd.context() as context_id:
        value = rpc.rpc_sync("worker0", torch.mul, args=(fresh(3), 2))
        value.register_hook(lambda grad: seen.append(dist_autograd._get_debug_info()))
        dist_autograd.backward(context_id, [value.sum()])
    assert seen == [{"num_current_backward_passes": "1", "num_autograd_contexts": "1"}]
