"""Fixed shards of divided modules: a step that is left half-way is named by whatever is refused next, on every rank."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sharded_nets import tensor

from resilin import nn, optim
from resilin.data import ElasticSampler
from resilin.data.elastic_sampler import Shard, StepPlan
from resilin.ddp import ShardSums
from resilin.errors import GroupAborted, UsageError
from resilin.testing.patience import PATIENCE_S
from resilin.testing.ranks import run_ranks
from resilin.zero import ShardedModule, shard

SHARDS, SAMPLES = 4, 8


def plans(rank: int, world: int) -> Sequence[StepPlan]:
    """Two steps."""
    return list(ElasticSampler(SAMPLES * 2, SAMPLES, SHARDS, shuffle=False, in_rounds=True).steps(rank, world))


def compute(model: ShardedModule, part: Shard) -> None:
    with model.shard(part):  # here it begins
        model(tensor(np.ones((2, 2)))).sum().backward()


LINE = next(n for n, text in enumerate(Path(__file__).read_text().splitlines(), 1) if text.endswith("# here it begins"))
STORY = f"step 0, which began at {__file__}:{LINE}, has had shards [{{}}] only, as after a `break` out of the loop"


def next_step(model: ShardedModule, optimizer: optim.Optimizer, second: StepPlan) -> None:
    compute(model, second.shards[0])


def update(model: ShardedModule, optimizer: optim.Optimizer, second: StepPlan) -> None:
    optimizer.step()


def clip(model: ShardedModule, optimizer: optim.Optimizer, second: StepPlan) -> None:
    model.clip_grad_norm_(1.0)


def metrics(model: ShardedModule, optimizer: optim.Optimizer, second: StepPlan) -> None:
    ShardSums("loss", shards=SHARDS).reduce()


@pytest.mark.parametrize("stage", [2, 3])
@pytest.mark.parametrize("go_on", [next_step, update, clip, metrics])
@pytest.mark.parametrize("leaving", [(0, 1), (1,)], ids=["both leave", "one leaves"])
def test_what_comes_next_is_refused_with_the_step_that_was_left(
    leaving: Sequence[int], go_on: Callable[..., Any], stage: int
) -> None:
    def run(rank: int) -> None:
        model = shard(nn.Linear(2, 1), stage, shards=SHARDS)
        optimizer = optim.SGD(model.parameters(), lr=0.1)
        first, second = plans(rank, 2)
        for part in first.shards:
            compute(model, part)
            if rank in leaving:
                break
        go_on(model, optimizer, second)

    outcome = run_ranks(2, run, abort=False)
    stories = "|".join(re.escape(STORY.format(rank)) for rank in leaving)
    for rank in (0, 1):
        assert isinstance(outcome.errors[rank], UsageError | GroupAborted)
        assert re.search(stories, str(outcome.errors[rank]))
    assert any(isinstance(outcome.errors[rank], UsageError) for rank in leaving)


def test_after_the_refusal_a_step_begins_again_with_nothing_of_the_one_that_was_left() -> None:
    def run(rank: int) -> None:
        model = shard(nn.Linear(2, 1), 3, shards=SHARDS)
        first, second = plans(0, 1)
        compute(model, first.shards[0])
        with pytest.raises(UsageError, match=re.escape(STORY.format(0))):
            compute(model, second.shards[0])
        for part in second.shards:
            compute(model, part)
        (weight, _) = model.parameters()
        assert np.allclose(weight.grad.numpy(), 2)

    run_ranks(1, run).results()


@pytest.mark.parametrize("stage", [2, 3])
def test_ranks_that_wait_for_one_whose_sampler_knows_no_world_hear_why(stage: int) -> None:
    def run(rank: int) -> None:
        model = shard(nn.Linear(2, 1), stage, shards=SHARDS)
        sampler = ElasticSampler(SAMPLES, SAMPLES, SHARDS, in_rounds=True)
        (plan,) = sampler.steps()  # neither bound nor told
        for part in plan.shards:
            compute(model, part)

    outcome = run_ranks(2, run, timeout_s=PATIENCE_S, abort=False)
    words = r"expected shard 1 of 4 \(this rank has \[1, 3\]\), got shard 0 of 4; .* a world of one: register it in"
    for rank, kind in enumerate((GroupAborted, UsageError)):
        assert isinstance(outcome.errors[rank], kind)
        assert re.search(words, str(outcome.errors[rank]))
