"""Options that ranks set differently after construction: each would update its range with its own, so all are told."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from divided import parameters

import resilin
from resilin import distributed as dist
from resilin import nn, optim
from resilin.distributed.agreement import compare
from resilin.errors import CollectiveMismatch
from resilin.testing.ranks import run_ranks
from resilin.zero import ZeroRedundancyOptimizer, shard

WHY = "each rank updates its range with its own, so all must set the same"


def stepping(params: Any) -> Callable[[Any], None]:
    def step(optimizer: Any) -> None:
        for param in params:
            param.grad = resilin.ones(param.shape)
        optimizer.step()

    return step


@pytest.mark.parametrize(
    ("kind", "as_view"), [(optim.AdamW, False), (optim.AdamW, True), (optim.Adafactor, False), (optim.Muon, False)]
)
def test_a_rate_that_differs_is_named_in_the_step_that_uses_it(kind: Any, as_view: bool) -> None:
    def work(rank: int) -> None:
        params = parameters(((64, 32), (16, 8)))
        optimizer = ZeroRedundancyOptimizer(params, kind, lr=0.1, parameters_as_bucket_view=as_view)
        step = stepping(params)
        step(optimizer)
        for group in optimizer.param_groups:
            group["lr"] = 0.05  # alike: nothing to say
        step(optimizer)
        optimizer.param_groups[0]["lr"] = 0.05 + (rank == 1)
        with pytest.raises(
            CollectiveMismatch,
            match=rf"ZeroRedundancyOptimizer: lr of group 0 is 0\.05 on rank 0 and 1\.05 on rank 1; {WHY}",
        ):
            step(optimizer)

    run_ranks(3, work).results()


def test_a_scheduler_that_is_fed_each_ranks_own_loss_is_found() -> None:
    def work(rank: int) -> None:
        params = parameters(((64, 32),))
        optimizer = ZeroRedundancyOptimizer(params, optim.SGD, lr=0.1)
        scheduler, step = optim.lr_scheduler.ReduceLROnPlateau(optimizer, patience=0), stepping(params)

        def train() -> None:
            for number in range(4):
                step(optimizer)
                scheduler.step(1 + number if rank else 1 - number / 10)

        with pytest.raises(CollectiveMismatch, match=r"lr of group 0 is 0\.1 on rank 0 and 0\.01\d* on rank 1"):
            train()

    run_ranks(2, work).results()


def test_tensors_tuples_and_other_options_are_compared_and_functions_are_not() -> None:
    def work(rank: int) -> None:
        params = parameters(((64, 32),))
        optimizer = ZeroRedundancyOptimizer(params, optim.AdamW, lr=resilin.tensor(0.125))
        group, step = optimizer.param_groups[0], stepping(params)
        group["mine"] = lambda: rank
        step(optimizer)
        group["lr"].fill_(0.5 + rank)
        with pytest.raises(CollectiveMismatch, match=r"lr of group 0 is 0\.5 on rank 0 and 1\.5 on rank 1"):
            step(optimizer)
        group["lr"].fill_(0.5)
        group["betas"] = (0.5, 0.25 * (rank + 1))
        with pytest.raises(
            CollectiveMismatch, match=r"betas of group 0 is \[0\.5, 0\.25\] on rank 0 and \[0\.5, 0\.5\]"
        ):
            step(optimizer)

    run_ranks(2, work).results()


def net() -> nn.Module:
    return nn.Sequential(nn.Linear(20, 64), nn.ReLU(), nn.Linear(64, 5))


def backward(model: Any) -> None:
    model(resilin.ones(4, 20)).square().mean().backward()


@pytest.mark.parametrize("stage", [2, 3])
def test_a_rate_that_differs_in_stages_2_and_3_is_named_in_the_next_forward(stage: int) -> None:
    def work(rank: int) -> None:
        model = shard(net(), stage)
        optimizer = optim.SGD(model.parameters(), lr=0.1)
        for _ in range(2):
            backward(model)
            optimizer.step()
        optimizer.param_groups[0]["lr"] = 0.1 + rank
        backward(model)
        optimizer.step()
        with pytest.raises(
            CollectiveMismatch, match=rf"zero\.shard: lr of group 0 of SGD is 0\.1 on rank 0 and 1\.1 on rank 1; {WHY}"
        ):
            backward(model)
        optimizer.param_groups[0]["lr"] = 0.1
        backward(model)  # a step is compared once

    run_ranks(2, work).results()


@pytest.mark.parametrize("stage", [2, 3])
@pytest.mark.parametrize("take", [lambda model: model.state_dict(), lambda model: model.gathered().__enter__()])
def test_a_rate_that_differs_in_the_last_step_is_named_before_its_parameters_are_taken_away(
    stage: int, take: Any
) -> None:
    def work(rank: int) -> None:
        model = shard(net(), stage)
        optimizer = optim.SGD(model.parameters(), lr=0.1)
        for rate in (0.1, 0.1, 0.1 + rank):
            optimizer.param_groups[0]["lr"] = rate
            backward(model)
            optimizer.step()
        with pytest.raises(CollectiveMismatch, match=r"lr of group 0 of SGD is 0\.1 on rank 0 and 1\.1 on rank 1"):
            take(model)

    run_ranks(2, work).results()


@pytest.mark.parametrize("stage", [2, 3])
def test_of_two_optimizers_the_one_that_differs_is_named_and_so_is_a_step_that_one_rank_leaves_out(stage: int) -> None:
    def work(rank: int) -> None:
        model = shard(net(), stage)
        params = list(model.parameters())
        first, second = optim.SGD(params[:2], lr=0.1), optim.AdamW(params[2:], lr=0.1 + rank)
        backward(model)
        first.step()
        second.step()
        with pytest.raises(
            CollectiveMismatch, match=r"lr of group 0 of AdamW \(optimizer 1\) is 0\.1 on rank 0 and 1\.1 on rank 1"
        ):
            model(resilin.ones(4, 20))
        if rank == 0:
            first.step()
        with pytest.raises(CollectiveMismatch, match=r"lr of group 0 of SGD is 0\.1 on rank 0 and absent on rank 1"):
            model(resilin.ones(4, 20))

    run_ranks(2, work).results()


@pytest.mark.parametrize("stage", [2, 3])
@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (lambda rank: (0.25 * (rank + 1), 2.0), r"max_norm is 0\.25 on rank 0 and 0\.5 on rank 1"),
        (lambda rank: (0.25, 2.0 - rank), r"norm_type is 2\.0 on rank 0 and 1\.0 on rank 1"),
        (lambda rank: (0.25, float("inf") if rank else 2.0), r"norm_type is 2\.0 on rank 0 and inf on rank 1"),
    ],
)
def test_gradients_that_ranks_would_clip_differently_are_left_and_the_argument_named(
    stage: int, arguments: Any, says: str
) -> None:
    def work(rank: int) -> None:
        model = shard(net(), stage)
        backward(model)
        before = [None if param.grad is None else param.grad.numpy().copy() for param in model.parameters()]
        with pytest.raises(CollectiveMismatch, match=f"clip_grad_norm_: {says}; each rank scales its range"):
            model.clip_grad_norm_(*arguments(rank))
        after = [None if param.grad is None else param.grad.numpy() for param in model.parameters()]
        assert all((a is None and b is None) or np.array_equal(a, b) for a, b in zip(before, after, strict=True))
        assert 0 < float(model.clip_grad_norm_(1e-3, float("inf"))) < 1e3

    run_ranks(2, work).results()


def test_equal_options_need_no_collective_of_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    exchanged: list[int] = []
    monkeypatch.setattr(compare, "_everybodys", lambda *_: exchanged.append(1))

    def work(rank: int) -> int:
        params = parameters(((64, 32),))
        optimizer = ZeroRedundancyOptimizer(params, optim.AdamW)
        step = stepping(params)
        step(optimizer)
        before = dist.default_group().stats()["collectives"]
        step(optimizer)
        return int(dist.default_group().stats()["collectives"] - before)

    assert run_ranks(2, work).results() == [1, 1]
    assert not exchanged
