"""Metrics summed over shards: the same bits in any world, and what is refused."""

from __future__ import annotations

import numpy as np
import pytest

import resilin
from resilin.data import ElasticSampler
from resilin.ddp import ShardSums
from resilin.errors import CollectiveMismatch, UsageError
from resilin.testing.ranks import run_ranks

VALUES = np.random.default_rng(0).standard_normal(29) * 10.0 ** np.arange(29) % 1e9


def evaluate(rank: int, world: int, shards: int, batch: int, in_rounds: bool = False) -> list[dict[str, float]]:
    """A pass over the data without gradients, as a validation would be."""
    sums = ShardSums("total", "count", shards=shards)
    found = []
    for plan in ElasticSampler(len(VALUES), batch, shards, shuffle=False, in_rounds=in_rounds).steps(rank, world):
        for shard in plan.shards:
            for index in shard.indices:
                sums.add(shard, total=VALUES[index])
            if len(shard):
                sums.add(shard, count=resilin.tensor(len(shard)))
        found.append(sums.reduce())
    return found


@pytest.mark.parametrize(("shards", "batch"), [(8, 29), (8, 10), (7, 12), (5, 3)])
def test_the_sums_have_the_same_bits_on_all_ranks_of_every_world(shards: int, batch: int) -> None:
    (alone,) = run_ranks(1, evaluate, 1, shards, batch).results()
    assert sum(step["count"] for step in alone) == len(VALUES)
    assert sum(step["total"] for step in alone) == pytest.approx(VALUES.sum())
    for world in range(2, shards + 1):
        for in_rounds in (False, True):
            assert run_ranks(world, evaluate, world, shards, batch, in_rounds).results() == [alone] * world


def test_the_order_of_the_shards_does_not_matter_and_a_step_starts_from_zero() -> None:
    def summed(rank: int) -> list[dict[str, float]]:
        sums = ShardSums("total", shards=4)
        (plan,) = ElasticSampler(4, 4, 4).steps(0, 1)
        results = []
        for shards in (plan.shards, plan.shards[::-1]):
            for shard in shards:
                sums.add(shard, total=0.1 * 10**shard.number)
            results.append(sums.reduce())
        return [*results, sums.reduce()]

    ((first, second, third),) = run_ranks(1, summed).results()
    assert first == second != third == {"total": 0.0}


def test_misuse_is_refused_with_what_was_expected() -> None:
    def wrong(rank: int) -> None:
        plan = next(ElasticSampler(4, 4, 4).steps(1 - rank, 2))
        with pytest.raises(UsageError, match=rf"one of the shards \[{2 * rank}, {2 * rank + 1}\] of 4, got shard"):
            ShardSums("loss", shards=4).add(plan.shards[0], loss=1)
        own = next(ElasticSampler(4, 4, 4).steps(rank, 2)).shards[0]
        with pytest.raises(UsageError, match=r"\['los'\] is not among the names \['loss'\]"):
            ShardSums("loss", shards=4).add(own, los=1)
        with pytest.raises(UsageError, match="different names"):
            ShardSums("loss", "loss", shards=4)
        with pytest.raises(UsageError, match=r"at least the world size \(2\)"):
            ShardSums("loss", shards=1)

    run_ranks(2, wrong).results()
    with pytest.raises(UsageError, match="there is no process group"):
        ShardSums("loss", shards=4)


def test_ranks_that_sum_different_names_are_refused() -> None:
    def step(rank: int) -> None:
        ShardSums(*["loss", "correct"][: rank + 1], shards=2).reduce()

    outcome = run_ranks(2, step, abort=False)
    assert all(isinstance(error, CollectiveMismatch) for error in outcome.errors.values())
    assert outcome.errors.keys() == {0, 1}
