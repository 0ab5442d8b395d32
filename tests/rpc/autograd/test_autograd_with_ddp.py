"""A model whose dense part is replicated by DDP and whose sparse part is remote, in one distributed backward."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import rpc_graphs as graphs
from rpc_graphs import fresh
from rpc_workers import Me, on_workers

import resilin as torch
import resilin.distributed as dist
import resilin.distributed.autograd as dist_autograd
import resilin.distributed.rpc as rpc
from resilin.nn.parallel import DistributedDataParallel


@on_workers(2)
def test_hooks_on_accumulated_gradients_find_that_of_the_context(me: Me) -> None:
    a, seen = fresh(3), []
    (a * 5).sum().backward()
    before = a.grad
    a.register_post_accumulate_grad_hook(lambda leaf: seen.append(leaf.grad.tolist()))
    with dist_autograd.context() as context_id:
        loss = rpc.rpc_sync(me.next, torch.mul, args=(a, 2)).sum()
        dist_autograd.backward(context_id, [loss])
        assert seen == graphs.grads(context_id, a) == [[2.0] * 3]
    assert a.grad is before
    assert before.tolist() == [5.0] * 3


@on_workers(1)
def test_hooks_on_accumulated_gradients_find_what_backwards_of_the_context_have_added_up(me: Me) -> None:
    a, seen = fresh(3), []
    a.register_post_accumulate_grad_hook(lambda leaf: seen.append(leaf.grad.tolist()))
    with dist_autograd.context() as context_id:
        dist_autograd.backward(context_id, [rpc.rpc_sync("worker0", torch.mul, args=(a, 2)).sum()])
        first = dist_autograd.get_gradients(context_id)[a]
        dist_autograd.backward(context_id, [(a * 3).sum()])
        assert seen == [[2.0] * 3, [5.0] * 3]
        assert graphs.grads(context_id, a) == [[5.0] * 3]
        assert first.tolist() == [2.0] * 3
    assert a.grad is None


embeddings: list[Any] = []


def embed(rows: Any) -> Any:
    if not embeddings:
        embeddings.append(torch.ones(8, 4, requires_grad=True))
    return embeddings[0][rows]


def gradient_of_rows(context_id: int) -> Any:
    return dist_autograd.get_gradients(context_id)[embeddings[0]]


@on_workers(3)
def test_dense_gradients_are_averaged_and_remote_ones_are_each_trainers_own(me: Me) -> None:
    embeddings.clear()
    me.meet("cleared")
    if me.rank == 2:  # has the embeddings
        me.meet("trained")
        return
    dist.init_process_group("gloo", init_method=f"file://{me.folder}/group", rank=me.rank, world_size=2)
    torch.manual_seed(0)
    dense = torch.nn.Linear(4, 1)
    model = DistributedDataParallel(dense)
    for step in range(3):
        with dist_autograd.context() as context_id:
            rows = torch.tensor([me.rank, 2 + step])
            loss = model(rpc.rpc_sync("worker2", embed, args=(rows,)) * (me.rank + 1.0)).sum()
            dist_autograd.backward(context_id, [loss])
            found = dist_autograd.get_gradients(context_id)
            assert found[dense.weight].tolist() == [[3.0] * 4]  # the mean of 2 rows times 1 and times 2
            assert found[dense.bias].tolist() == [2.0]
            there = rpc.rpc_sync("worker2", gradient_of_rows, args=(context_id,))
            expected = torch.zeros(8, 4)
            expected[rows] = (dense.weight.detach() * (me.rank + 1.0)).expand(2, 4)
            torch.testing.assert_close(there, expected)
            assert dense.weight.grad is None
    dist.destroy_process_group()
    me.meet("trained")


class Hybrid(torch.nn.Module):
    """Dense parts here, and one at worker 2 between them."""

    def __init__(self, inside: bool, **options: Any) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, last = torch.nn.Linear(4, 4, bias=False), torch.nn.Linear(4, 1, bias=False)
        self.last = DistributedDataParallel(last, **options) if inside else last
        self.weights = [self.first.weight, last.weight]

    def forward(self, x: Any) -> Any:
        return self.last(rpc.rpc_sync("worker2", torch.mul, args=(self.first(x), 2.0)))


def alone(*inputs: Any) -> list[Any]:
    """The mean of the gradients that one process has, of each weight."""
    torch.manual_seed(0)
    first, last = torch.nn.Linear(4, 4, bias=False), torch.nn.Linear(4, 1, bias=False)
    for x in inputs:
        (last(first(x) * 2.0).sum() / len(inputs)).backward()
    return [first.weight.grad, last.weight.grad]


def batch(rank: int, turn: int = 0) -> Any:
    return torch.arange(8.0).reshape(2, 4) * (rank + 1) + turn


def both(me: Me, train: Callable[[int], None]) -> None:
    """Have workers 0 and 1 train, in a group of their own."""
    if me.rank < 2:
        dist.init_process_group("gloo", init_method=f"file://{me.folder}/group", rank=me.rank, world_size=2)
        train(me.rank)
        dist.destroy_process_group()
    me.meet("trained")


def check(context_id: int, weights: list[Any], expected: list[Any]) -> None:
    found = dist_autograd.get_gradients(context_id)
    for weight, gradient in zip(weights, expected, strict=True):
        torch.testing.assert_close(found[weight], gradient)
        assert weight.grad is None


OPTIONS: list[dict[str, Any]] = [{}, {"gradient_as_bucket_view": True}, {"static_graph": True}]


@on_workers(3)
def test_ddp_around_a_model_with_a_remote_part_averages_all_its_dense_gradients(me: Me) -> None:
    def train(rank: int) -> None:
        for options in OPTIONS:
            model = DistributedDataParallel(Hybrid(False), **options)
            for turn in range(3):
                with dist_autograd.context() as context_id:
                    dist_autograd.backward(context_id, [model(batch(rank, turn)).sum()])
                    check(context_id, model.module.weights, alone(batch(0, turn), batch(1, turn)))

    both(me, train)


@on_workers(3)
def test_ddp_inside_such_a_model_averages_the_gradients_of_its_part(me: Me) -> None:
    def train(rank: int) -> None:
        for options in OPTIONS:
            model = Hybrid(True, **options)
            with dist_autograd.context() as context_id:
                dist_autograd.backward(context_id, [model(batch(rank)).sum()])
                check(context_id, model.weights, [alone(batch(rank))[0], alone(batch(0), batch(1))[1]])

    both(me, train)


@on_workers(3)
def test_what_is_added_up_in_a_context_without_averaging_is_averaged_by_the_backward_that_does(me: Me) -> None:
    def train(rank: int) -> None:
        for options in OPTIONS[:2]:
            model = DistributedDataParallel(Hybrid(False), **options)
            means = [alone(batch(0, turn), batch(1, turn)) for turn in range(3)]
            with dist_autograd.context() as context_id:
                with model.no_sync():
                    for turn in range(2):
                        dist_autograd.backward(context_id, [model(batch(rank, turn)).sum()])
                own = [a + b for a, b in zip(alone(batch(rank, 0)), alone(batch(rank, 1)), strict=True)]
                check(context_id, model.module.weights, own)
                dist_autograd.backward(context_id, [model(batch(rank, 2)).sum()])
                check(context_id, model.module.weights, [a + b + c for a, b, c in zip(*means, strict=True)])
                dist_autograd.backward(context_id, [model(batch(rank, 2)).sum()])  # of equal parts, and one's own
                check(context_id, model.module.weights, [a + b + 2 * c for a, b, c in zip(*means, strict=True)])

    both(me, train)


@on_workers(3)
def test_trainers_whose_inputs_end_earlier_join(me: Me) -> None:
    def train(rank: int) -> None:
        for inside in (False, True):
            model = Hybrid(True) if inside else DistributedDataParallel(Hybrid(False))
            parallel, weights = (model.last, model.weights) if inside else (model, model.module.weights)
            with parallel.join(divide_by_initial_world_size=False):
                for turn in range(2 + rank):
                    inputs = [batch(each, turn) for each in range(2) if turn < 2 + each]
                    with dist_autograd.context() as context_id:
                        dist_autograd.backward(context_id, [model(batch(rank, turn)).sum()])
                        first, last = alone(*inputs)
                        check(context_id, weights, [alone(batch(rank, turn))[0] if inside else first, last])

    both(me, train)
