"""A divided optimizer behind DistributedDataParallel: the same bits as the undivided one, also with uneven inputs."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import resilin
from resilin import nn, optim
from resilin.core.tensor import Tensor
from resilin.ddp import DistributedDataParallel as DDP
from resilin.distributed.api.join import Join
from resilin.errors import DistError, UsageError
from resilin.nn.utils import clip_grad_norm_
from resilin.testing.ranks import run_ranks
from resilin.zero import ZeroRedundancyOptimizer

BATCHES = (5, 2, 3)  # of each rank, where they are uneven


def build(**options: Any) -> DDP:
    """A wrapped model, the same on all ranks."""
    resilin.manual_seed(3)
    model = nn.Sequential(nn.Linear(20, 37), nn.LayerNorm(37), nn.ReLU(), nn.Linear(37, 10))
    return DDP(model, bucket_cap_mb=0.005, **options)


def optimizer_of(model: DDP, divided: bool, kind: type[optim.Optimizer] = optim.AdamW) -> Any:
    """One of `kind`, divided or not."""
    if divided:
        return ZeroRedundancyOptimizer(model.parameters(), kind, lr=0.01)
    return kind(model.parameters(), lr=0.01)


def batch(rank: int, step: int) -> tuple[Tensor, Tensor]:
    """A function of (rank, step)."""
    rng = np.random.default_rng([rank, step])
    return Tensor._wrap(rng.standard_normal((8, 20)).astype(np.float32)), Tensor._wrap(rng.integers(0, 10, 8))


def bits(model: nn.Module) -> list[bytes]:
    """The parameters' bytes."""
    return [param.detach().numpy().tobytes() for param in model.parameters()]


@pytest.mark.parametrize("options", [{}, {"gradient_as_bucket_view": False}, {"shards": 4}])
def test_training_with_clipped_gradients_has_the_same_bits(options: dict[str, Any]) -> None:
    def work(rank: int, divided: bool) -> tuple[list[bytes], list[float]]:
        model = build(**options)
        optimizer, norms = optimizer_of(model, divided), []
        for step in range(4):
            optimizer.zero_grad()
            for loss in losses(model, rank, step):
                loss.backward()
            norms.append(float(clip_grad_norm_(model.parameters(), 0.05)))
            optimizer.step()
        return bits(model), norms

    def losses(model: DDP, rank: int, step: int) -> Any:
        if model.shards is None:
            x, y = batch(rank, step)
            yield nn.functional.cross_entropy(model(x), y)
            return
        sampler = resilin.data.ElasticSampler(16, 16, model.shards, shuffle=False)
        sampler.bind(rank, 2)
        for shard in next(iter(sampler.steps())).shards:
            with model.shard(shard):
                x, y = batch(0, step)
                yield nn.functional.cross_entropy(model(x[shard.indices % 8]), y[shard.indices % 8])

    want = run_ranks(2, work, False).results()
    assert run_ranks(2, work, True).results() == want
    assert want[0] == want[1]


class Branches(nn.Module):
    """Uses one of two layers, by turns: the other has no gradient."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(20, 10) for _ in range(2))

    def forward(self, x: Tensor, turn: int) -> Any:
        return self.layers[turn % 2](x)


@pytest.mark.parametrize("view", [False, True])
@pytest.mark.parametrize("clip", [False, True])
@pytest.mark.parametrize("scheduled", [False, True])
def test_inputs_that_end_earlier_on_some_ranks_train_as_without_division(
    view: bool, clip: bool, scheduled: bool
) -> None:
    def work(rank: int, divided: bool) -> list[bytes]:
        model = build(gradient_as_bucket_view=view)
        optimizer = optimizer_of(model, divided)
        schedule = optim.lr_scheduler.ExponentialLR(optimizer, 0.5) if scheduled else None
        with Join([model, optimizer] if divided else [model]):
            for step in range(BATCHES[rank]):
                optimizer.zero_grad()
                nn.functional.cross_entropy(model(batch(rank, step)[0]), batch(rank, step)[1]).backward()
                if clip:
                    clip_grad_norm_(model.parameters(), 0.05)
                optimizer.step()
                if schedule is not None:
                    schedule.step()
        return bits(model)

    want = run_ranks(3, work, False).results()
    assert run_ranks(3, work, True).results() == want
    assert want == want[:1] * 3


def test_closures_with_forward_and_backward_train_as_without_division_where_inputs_end_earlier() -> None:
    def work(rank: int, divided: bool) -> list[bytes]:
        model = build()
        optimizer = optimizer_of(model, divided)
        with Join([model, optimizer] if divided else [model]):
            for number in range(BATCHES[rank]):

                def closure(number: int = number) -> Tensor:
                    optimizer.zero_grad()
                    loss = nn.functional.cross_entropy(model(batch(rank, number)[0]), batch(rank, number)[1])
                    loss.backward()
                    return loss

                assert optimizer.step(closure) > 0
        return bits(model)

    want = run_ranks(3, work, False).results()
    assert run_ranks(3, work, True).results() == want


@pytest.mark.parametrize("kind", [optim.AdamW, optim.Adafactor])
def test_a_rank_without_data_leaves_out_the_parameters_that_the_others_leave_out(kind: type[optim.Optimizer]) -> None:
    def work(rank: int, divided: bool) -> list[bytes]:
        resilin.manual_seed(5)
        model = DDP(Branches(), find_unused_parameters=True)
        optimizer = optimizer_of(model, divided, kind)
        with Join([model, optimizer] if divided else [model]):
            for step in range(BATCHES[rank]):
                optimizer.zero_grad()
                nn.functional.cross_entropy(model(batch(rank, step)[0], step // 2), batch(rank, step)[1]).backward()
                optimizer.step()
        return bits(model)

    want = run_ranks(3, work, False).results()
    assert run_ranks(3, work, True).results() == want


def test_a_rank_without_data_ends_with_the_options_of_those_that_trained() -> None:
    def work(rank: int) -> float:
        optimizer = optimizer_of(model := build(), True)
        schedule = optim.lr_scheduler.ExponentialLR(optimizer, 0.5)
        with Join([model, optimizer]):
            for step in range(BATCHES[rank]):
                nn.functional.cross_entropy(model(batch(rank, step)[0]), batch(rank, step)[1]).backward()
                optimizer.step()
                schedule.step()
        return float(optimizer.param_groups[0]["lr"])

    first, second, third = run_ranks(3, work).results()
    assert first == 0.01 * 0.5**5  # after its last step
    assert second == third == 0.01 * 0.5**4  # in the last step of all


def test_all_ranks_stop_with_the_first_when_asked_to() -> None:
    def train(rank: int, steps: list[int]) -> None:
        model = build()
        optimizer = optimizer_of(model, True)
        with Join([model, optimizer], throw_on_early_termination=True):
            for step in range(BATCHES[rank]):
                nn.functional.cross_entropy(model(batch(rank, step)[0]), batch(rank, step)[1]).backward()
                optimizer.step()
                steps.append(step)

    def work(rank: int) -> list[int]:
        steps: list[int] = []
        with pytest.raises(DistError, match="exhausted all inputs"):
            train(rank, steps)
        return steps

    assert run_ranks(3, work, abort=False).results() == [[0, 1]] * 3


def test_the_optimizer_alone_joins_too() -> None:
    def work(rank: int) -> list[bytes]:
        params = [nn.Parameter(resilin.ones(50))]
        optimizer = ZeroRedundancyOptimizer(params, optim.SGD, lr=0.1)
        params[0].grad = resilin.ones(50)
        with Join([optimizer]):
            for _ in range(BATCHES[rank]):
                optimizer.step()
        return [params[0].detach().numpy().round(4).tolist() == [0.5] * 50]

    assert run_ranks(3, work).results() == [[True]] * 3


def test_a_join_in_the_wrong_order_says_the_right_one() -> None:
    def work(rank: int) -> None:
        model = build()
        optimizer = optimizer_of(model, divided=True)
        with Join([optimizer, model]):
            for step in range(BATCHES[rank] if rank else 0):  # rank 0 has no data: it waits for those that have
                optimizer.zero_grad()
                x, y = batch(rank, step)
                nn.functional.cross_entropy(model(x), y).backward()
                optimizer.step()

    errors = run_ranks(3, work, abort=False).errors
    for error in errors.values():
        assert "Join([DistributedDataParallel, ZeroRedundancyOptimizer])" in str(error)
    assert [type(errors[rank]) for rank in (1, 2)] == [UsageError] * 2
    assert isinstance(errors[0], DistError)
