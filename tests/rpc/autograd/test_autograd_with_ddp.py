"""A model whose dense part is replicated by DDP and whose sparse part is remote, in one distributed backward."""

from __future__ import annotations

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
