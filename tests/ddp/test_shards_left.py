"""Fixed-shard mode: a loop over a step's shards that is left half-way is named by whatever is refused next."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from resilin import nn, optim
from resilin.core.tensor import Tensor
from resilin.data import ElasticSampler
from resilin.data.elastic_sampler import StepPlan
from resilin.ddp import DistributedDataParallel as DDP
from resilin.ddp import ShardSums
from resilin.elastic import State
from resilin.errors import GroupAborted, UsageError
from resilin.testing.patience import PATIENCE_S
from resilin.testing.ranks import run_ranks

SHARDS, SAMPLES = 3, 6


def plans(rank: int = 0, world: int = 1) -> Sequence[StepPlan]:
    """Two steps."""
    return list(ElasticSampler(SAMPLES * 2, SAMPLES, SHARDS, shuffle=False).steps(rank, world))


def backward(model: DDP) -> None:
    model(Tensor._wrap(np.ones((1, 2), np.float32))).sum().backward()


def leave_half_way(model: DDP, plan: StepPlan) -> None:
    for shard in plan.shards:
        with model.shard(shard):  # here it begins
            backward(model)
            break


def line(text: str) -> str:
    lines = Path(__file__).read_text().splitlines()
    return f"{__file__}:{next(number for number, each in enumerate(lines, 1) if each.endswith(text))}"


STORY = (
    f"step 0, which began at {line('# here it begins')}, has had shards [0] only, as after a `break` out of the loop"
)


def alone(fn: Callable[[DDP], Any]) -> None:
    run_ranks(1, lambda rank: fn(DDP(nn.Linear(2, 1), shards=SHARDS))).results()


def test_the_next_step_is_refused_with_the_step_that_was_left_and_its_line() -> None:
    def run(model: DDP) -> None:
        first, second = plans()
        leave_half_way(model, first)
        with pytest.raises(UsageError, match=re.escape(STORY)) as refused:
            leave_half_way(model, second)
        words = "expected shard 1 of 3 (this rank has [0, 1, 2]), got shard 0 of 3 of step 1"
        assert words in str(refused.value)

    alone(run)


def test_a_shard_that_was_left_out_is_named_too() -> None:
    def run(model: DDP) -> None:
        first, _ = plans()
        leave_half_way(model, first)
        with pytest.raises(UsageError, match=re.escape(STORY)) as refused:
            model.shard(first.shards[2]).__enter__()
        assert "expected shard 1 of 3 (this rank has [0, 1, 2]), got shard 2 of 3 of step 0" in str(refused.value)

    alone(run)


def test_a_shard_of_the_next_step_does_not_go_on_with_the_one_that_was_left() -> None:
    def run(model: DDP) -> None:
        first, second = plans()
        leave_half_way(model, first)
        with pytest.raises(UsageError, match=re.escape(STORY)) as refused:
            model.shard(second.shards[1]).__enter__()
        assert "expected shard 1 of 3 (this rank has [0, 1, 2]), got shard 1 of 3 of step 1" in str(refused.value)

    alone(run)


def test_after_the_refusal_a_step_begins_again_with_nothing_of_the_one_that_was_left() -> None:
    def run(model: DDP) -> None:
        first, second = plans()
        leave_half_way(model, first)
        with pytest.raises(UsageError):
            model.shard(second.shards[0]).__enter__()
        for shard in second.shards:
            with model.shard(shard):
                backward(model)
        assert np.allclose(model.module.weight.grad.numpy(), 1)

    alone(run)


def test_sums_over_shards_and_a_commit_are_refused_in_the_middle_of_a_step() -> None:
    def run(rank: int) -> None:
        model = DDP(nn.Linear(2, 1), shards=SHARDS)
        sums = ShardSums("loss", shards=SHARDS)
        state = State(sampler=ElasticSampler(SAMPLES * 2, SAMPLES, SHARDS, shuffle=False))
        first, _ = plans()
        leave_half_way(model, first)
        for what, call in (("ShardSums.reduce", sums.reduce), ("State.commit", lambda: state.commit(first))):
            with pytest.raises(
                UsageError, match=rf"{what} in the middle of a step: shard 1 is still to come"
            ) as refused:
                call()
            assert STORY in str(refused.value)
        assert state.step == state.sampler.step == 0

    run_ranks(1, run).results()


def test_a_wrapper_that_was_replaced_in_the_middle_of_a_step_hinders_nobody() -> None:
    def run(rank: int) -> None:
        first = DDP(nn.Linear(2, 1), shards=SHARDS)
        leave_half_way(first, plans()[0])
        DDP(first.module, shards=SHARDS)
        ShardSums("loss", shards=SHARDS).reduce()

    run_ranks(1, run).results()


def next_step(model: DDP, sums: ShardSums, second: StepPlan) -> None:
    for shard in second.shards:
        with model.shard(shard):
            backward(model)


def next_sums(model: DDP, sums: ShardSums, second: StepPlan) -> None:
    sums.reduce()


def next_update(model: DDP, sums: ShardSums, second: StepPlan) -> None:
    optim.SGD(model.parameters(), lr=0.1).step()


@pytest.mark.parametrize("go_on", [next_step, next_sums, next_update])
def test_ranks_that_wait_for_the_one_that_left_hear_why(go_on: Callable[..., None]) -> None:
    """Rank 0 has one shard, and computes it; rank 1 has two, and leaves after the first."""

    def run(rank: int) -> None:
        model = DDP(nn.Linear(2, 1), shards=SHARDS)
        sums = ShardSums("loss", shards=SHARDS)
        first, second = plans(rank, 2)
        leave_half_way(model, first)
        go_on(model, sums, second)

    outcome = run_ranks(2, run, abort=False)
    story = STORY.replace("shards [0]", "shards [1]")
    for rank, kind in enumerate((GroupAborted, UsageError)):
        assert isinstance(outcome.errors[rank], kind)
        assert story in str(outcome.errors[rank])


@pytest.mark.parametrize("world", [2, 3])
def test_ranks_that_wait_for_one_whose_sampler_knows_no_world_hear_why(world: int) -> None:
    def run(rank: int) -> None:
        model = DDP(nn.Linear(2, 1), shards=SHARDS)
        (plan,) = ElasticSampler(SAMPLES, SAMPLES, SHARDS).steps()  # neither bound nor told
        for shard in plan.shards:
            with model.shard(shard):
                backward(model)

    outcome = run_ranks(world, run, timeout_s=PATIENCE_S, abort=False)
    words = r"expected shard \d of 3 \(this rank has .*\), got shard 0 of 3; .* a world of one: register it in elastic"
    assert isinstance(outcome.errors[0], GroupAborted)
    for rank in range(world):
        assert isinstance(outcome.errors[rank], UsageError | GroupAborted)
        assert re.search(words, str(outcome.errors[rank]))


def test_an_optimizer_s_step_in_the_middle_of_a_step_is_refused() -> None:
    """Gradients are not there yet: it would update nothing, and say nothing."""

    def run(model: DDP) -> None:
        optimizer = optim.AdamW(model.parameters())
        others = optim.SGD(nn.Linear(2, 1).parameters(), lr=0.1)
        first, second = plans()
        leave_half_way(model, first)
        others.step()
        with pytest.raises(
            UsageError, match=r"AdamW\.step in the middle of a step: shard 1 is still to come"
        ) as refused:
            optimizer.step()
        assert STORY in str(refused.value)
        with pytest.raises(UsageError, match="inside the block of shard 1"), model.shard(first.shards[1]):
            optimizer.step()
        for shard in second.shards:
            with model.shard(shard):
                backward(model)
        optimizer.step()

    alone(run)


def test_an_optimizer_s_step_is_refused_inside_blocks_where_the_gradients_of_the_outer_one_are_not_there() -> None:
    def run(rank: int) -> None:
        outer, inner = (DDP(nn.Linear(2, 2), shards=1) for _ in range(2))
        optimizer = optim.SGD([*outer.parameters(), *inner.parameters()], lr=0.1)
        (plan,) = ElasticSampler(2, 2, 1).steps(0, 1)
        (shard,) = plan.shards

        def inside() -> None:
            with outer.shard(shard), inner.shard(shard):
                inner(outer(Tensor._wrap(np.ones((1, 2), np.float32)))).sum().backward()
                optimizer.step()

        with pytest.raises(UsageError, match=r"SGD\.step in the middle of a step: inside the block of shard 0"):
            inside()

    run_ranks(1, run).results()
