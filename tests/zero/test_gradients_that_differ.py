"""Gradients that some ranks have dropped before a step of the divided optimizer: half of a tensor would be trained."""

from __future__ import annotations

from typing import Any

import pytest
from divided import bits, give_gradients, parameters

import resilin
from resilin import distributed as dist
from resilin import nn, optim
from resilin.data import ElasticSampler
from resilin.ddp import DistributedDataParallel
from resilin.ddp.comm_hooks import ddp_zero_hook, default_hooks
from resilin.distributed.agreement import compare
from resilin.distributed.api.join import Join
from resilin.errors import CollectiveMismatch
from resilin.testing.ranks import run_ranks
from resilin.zero import ZeroRedundancyOptimizer

WHY = "each rank updates its range with its own, so all must set the same"


@pytest.fixture
def exchanged(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """An entry each time that a rank has sent its facts."""
    found: list[int] = []
    everybodys = compare._everybodys

    def counted(*args: Any) -> Any:
        found.append(1)
        return everybodys(*args)

    monkeypatch.setattr(compare, "_everybodys", counted)
    return found


@pytest.mark.parametrize("as_view", [False, True])
def test_a_gradient_that_one_rank_drops_is_named_in_the_step(as_view: bool) -> None:
    def work(rank: int) -> None:
        net = nn.Linear(64, 64, bias=False)
        params = [net.weight]
        with resilin.no_grad():
            net.weight.fill_(0.5)
        optimizer = ZeroRedundancyOptimizer(params, optim.SGD, lr=0.1, parameters_as_bucket_view=as_view)
        for step in range(3):
            give_gradients(params, step)
            optimizer.step()
        if rank == 1:
            net.weight.grad = None
        with pytest.raises(
            CollectiveMismatch,
            match="ZeroRedundancyOptimizer: gradient of parameter 0 of group 0 is there on rank 0 and absent on rank "
            f"1; {WHY}",
        ):
            optimizer.step()

    run_ranks(2, work).results()


def test_names_are_given_where_they_are_known_also_in_groups_that_are_added_later() -> None:
    def work(rank: int) -> None:
        net = nn.Sequential(nn.Linear(64, 64), nn.Linear(64, 64))
        for param in net.parameters():
            with resilin.no_grad():
                param.fill_(0.5)
        first, second = (list(layer.named_parameters()) for layer in (net[0], net[1]))
        optimizer = ZeroRedundancyOptimizer(first, optim.AdamW)
        give_gradients(list(net.parameters()), 0)
        optimizer.step()
        optimizer.add_param_group({"params": second})
        optimizer.step()
        if rank == 0:
            net[1].weight.grad = None
        with pytest.raises(
            CollectiveMismatch, match="gradient of weight of group 1 is absent on rank 0 and there on rank 1"
        ):
            optimizer.step()

    run_ranks(2, work).results()


@pytest.mark.parametrize("kind", [optim.AdamW, optim.Adafactor])
def test_a_gradient_that_the_only_rank_with_elements_drops_is_named(kind: Any) -> None:
    def work(rank: int) -> None:
        params = parameters(((8, 8), (8, 8), (0, 4), (8, 8)))  # each of three ranks has one
        optimizer = ZeroRedundancyOptimizer(params, kind)
        give_gradients(params, 0)
        optimizer.step()
        if rank == 1:
            for held in optimizer.owned.held:
                held.param.grad = None
        with pytest.raises(CollectiveMismatch, match=r"gradient of parameter [013] of group 0 is there on rank 0"):
            optimizer.step()

    run_ranks(3, work).results()


@pytest.mark.parametrize("kind", [optim.AdamW, optim.Adafactor])
def test_ranks_without_elements_of_a_parameter_need_no_gradient_of_it(kind: Any, exchanged: list[int]) -> None:
    def work(rank: int) -> list[bytes]:
        params = parameters(((8, 8), (8, 8), (0, 4), (8, 8)))  # each of three ranks has one
        optimizer = ZeroRedundancyOptimizer(params, kind)
        give_gradients(params, 0)
        optimizer.step()
        assert not exchanged
        dist.barrier()
        for number in range(3):
            give_gradients(params, 1 + number)
            owned = {id(held.param) for held in optimizer.owned.held if held.piece.numel}
            for param in params:
                param.grad = param.grad if id(param) in owned else None
            optimizer.step()
        return bits(params)

    first, *others = run_ranks(3, work).results()
    assert all(other == first for other in others)
    assert exchanged


def test_gradients_that_no_rank_has_and_equal_ones_are_no_exchange(exchanged: list[int]) -> None:
    def work(rank: int) -> list[int]:
        params = parameters(((64, 32), (16, 8)))
        optimizer = ZeroRedundancyOptimizer(params, optim.AdamW)
        counts = []
        for step, without in enumerate(([], [0], [], [1], [0, 1])):
            give_gradients(params, step, without)
            before = dist.default_group().stats()["collectives"]
            optimizer.step()
            counts.append(int(dist.default_group().stats()["collectives"] - before))
        return counts[1:]  # the first step compares values

    assert run_ranks(2, work).results() == [[1, 1, 1, 1]] * 2
    assert not exchanged


def test_ranks_without_data_step_as_those_that_train_and_a_gradient_that_one_of_these_drops_is_named(
    exchanged: list[int],
) -> None:
    def work(rank: int) -> None:
        model = DistributedDataParallel(nn.Sequential(nn.Linear(16, 64), nn.Linear(64, 4)))
        optimizer = ZeroRedundancyOptimizer(model.named_parameters(), optim.AdamW)
        with Join([model, optimizer]):
            for _ in range(1 + rank):  # rank 0 ends first
                optimizer.zero_grad()
                model(resilin.ones(2, 16)).sum().backward()
                model.module[0].bias.grad = None
                optimizer.step()
        assert not exchanged
        dist.barrier()

        def drop() -> None:
            with Join([model, optimizer]):
                for _ in range(1 + rank):
                    optimizer.zero_grad()
                    model(resilin.ones(2, 16)).sum().backward()
                    if rank == 2:
                        model.module[0].weight.grad = None
                    optimizer.step()

        with pytest.raises(
            CollectiveMismatch,
            match=r"gradient of module\.0\.weight of group 0 is there on rank 0 and absent on rank 2",
        ):
            drop()

    run_ranks(3, work).results()


@pytest.mark.parametrize("shard_buckets", [False, True])
def test_updates_inside_backward_have_nothing_to_exchange(shard_buckets: bool, exchanged: list[int]) -> None:
    def work(rank: int) -> None:
        model = DistributedDataParallel(nn.Sequential(nn.Linear(16, 64), nn.Linear(64, 4)))
        optimizer = ZeroRedundancyOptimizer(model.parameters(), optim.AdamW, overlap_with_ddp=True)
        hook = ddp_zero_hook.hook_with_zero_step(default_hooks.allreduce_hook, model, optimizer, shard_buckets)
        model.register_comm_hook(None, hook)
        for _ in range(3):
            optimizer.zero_grad()
            model(resilin.ones(2, 16)).sum().backward()
            optimizer.step()

    run_ranks(3, work).results()
    assert not exchanged


def test_fixed_shards_leave_every_rank_the_same_gradients(exchanged: list[int]) -> None:
    def work(rank: int) -> None:
        model = DistributedDataParallel(nn.Sequential(nn.Linear(16, 64), nn.Linear(64, 4)), shards=3)
        optimizer = ZeroRedundancyOptimizer(model.parameters(), optim.AdamW)
        sampler = ElasticSampler(12, 5, 3, seed=1)
        for plan in sampler.steps(rank, 2):
            optimizer.zero_grad()
            for shard in plan.shards:
                with model.shard(shard):
                    if len(shard):
                        model(resilin.ones(len(shard), 16)).mean().backward()
            optimizer.step()
            sampler.advance(plan)

    run_ranks(2, work).results()
    assert not exchanged
