"""The elastic sampler: every sample once, the same steps whatever the world."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from resilin.data import ElasticSampler, ShardBatches
from resilin.errors import UsageError

sizes = st.fixed_dictionaries(
    {
        "length": st.integers(1, 60),
        "batch_size": st.integers(1, 20),
        "shards": st.integers(1, 9),
        "seed": st.integers(0, 2**64),
        "shuffle": st.booleans(),
    }
)
RECORDED_ORDER = [3, 5, 2, 7, 0, 6, 1, 4]
worlds = st.lists(st.integers(1, 6), min_size=1, max_size=30)


def global_step(sampler, world_size):
    """The next step as all ranks of a world see it: the plans, and the shards by number."""
    plans = [next(sampler.steps(rank, world_size)) for rank in range(world_size)]
    shards = {shard.number: shard for plan in plans for shard in plan.shards}
    assert sum(len(plan.shards) for plan in plans) == len(shards)
    return plans, shards


@given(options=sizes, changes=worlds)
def test_every_sample_counts_once_per_epoch_whatever_the_worlds_are(options, changes):
    sampler = ElasticSampler(**options)
    seen, turn = [], 0
    while sampler.epoch == 0:
        plans, shards = global_step(sampler, changes[turn % len(changes)])
        turn += 1
        assert sorted(shards) == list(range(options["shards"]))
        batch = np.concatenate([shards[number].indices for number in sorted(shards)])
        assert len(batch) == plans[0].size
        assert sum(shard.weight for shard in shards.values()) == pytest.approx(1)
        seen.extend(batch.tolist())
        sampler.advance(plans[0])
    assert sorted(seen) == list(range(options["length"]))
    assert (sampler.epoch, sampler.position, sampler.step) == (1, 0, len(sampler))


@given(options=sizes, drop_last=st.booleans(), changes=worlds, epochs=st.integers(1, 3))
def test_generations_that_redo_a_step_and_restore_the_state_lose_and_repeat_nothing(
    options, drop_last, changes, epochs
):
    if drop_last and options["length"] < options["batch_size"]:
        return
    sampler = ElasticSampler(**options, drop_last=drop_last)
    committed = []
    for turn in range(epochs * len(sampler)):
        lost, _ = global_step(sampler, changes[(turn + 1) % len(changes)])  # computed, but never committed
        restored = ElasticSampler(**options, drop_last=drop_last)
        restored.load_state_dict(sampler.state_dict())
        sampler = restored
        plans, shards = global_step(sampler, changes[turn % len(changes)])
        assert (lost[0].position, lost[0].size, lost[0].step) == (plans[0].position, plans[0].size, turn)
        committed.extend((plans[0].epoch, index) for shard in shards.values() for index in shard.indices.tolist())
        sampler.advance(plans[0])
    length, batch = options["length"], options["batch_size"]
    assert len(set(committed)) == len(committed) == epochs * (length - length % batch if drop_last else length)
    assert (sampler.epoch, sampler.position, sampler.step) == (epochs, 0, epochs * len(sampler))


@given(options=sizes, drop_last=st.booleans(), world_size=st.integers(2, 6))
def test_shards_do_not_depend_on_the_world(options, drop_last, world_size):
    if drop_last and options["length"] < options["batch_size"]:
        return
    alone = list(ElasticSampler(**options, drop_last=drop_last).steps(0, 1))
    together = [
        list(ElasticSampler(**options, drop_last=drop_last).steps(rank, world_size)) for rank in range(world_size)
    ]
    for number, plan in enumerate(alone):
        theirs = [shard for rank in together for shard in rank[number].shards]
        assert [shard.number for shard in theirs] == [shard.number for shard in plan.shards]
        for mine, other in zip(plan.shards, theirs, strict=True):
            assert mine.indices.tolist() == other.indices.tolist()
            assert (mine.weight, mine.step, mine.epoch, mine.total) == (
                other.weight,
                other.step,
                other.epoch,
                other.total,
            )


@given(options=sizes, done=st.integers(0, 10), world_size=st.integers(1, 4))
def test_a_saved_sampler_goes_on_in_the_middle_of_an_epoch(options, done, world_size):
    sampler = ElasticSampler(**options)
    for _ in range(done):
        sampler.advance(next(sampler.steps()))
    restored = ElasticSampler(**{**options, "seed": 0, "shuffle": True})
    restored.load_state_dict(sampler.state_dict())
    assert restored.state_dict() == sampler.state_dict()
    for mine, other in zip(sampler.steps(0, world_size), restored.steps(0, world_size), strict=True):
        assert (mine.step, mine.position, mine.size) == (other.step, other.position, other.size)
        assert mine.indices.tolist() == other.indices.tolist()


def test_iterating_does_not_move_the_position():
    sampler = ElasticSampler(10, batch_size=3, shards=2)
    first = [plan.indices.tolist() for plan in sampler.steps()]
    assert [plan.indices.tolist() for plan in sampler.steps()] == first
    assert (sampler.epoch, sampler.position, sampler.step) == (0, 0, 0)


def test_a_ragged_batch_is_cut_in_shards_that_differ_by_one_sample_at_most():
    sampler = ElasticSampler(11, batch_size=8, shards=4, shuffle=False)
    full, ragged = sampler.steps()
    assert [shard.indices.tolist() for shard in full.shards] == [[0, 1], [2, 3], [4, 5], [6, 7]]
    assert [shard.indices.tolist() for shard in ragged.shards] == [[8, 9, 10], [], [], []]
    assert [shard.weight for shard in ragged.shards] == [1, 0, 0, 0]
    assert (ragged.size, ragged.position, ragged.step) == (3, 8, 1)


def test_a_ragged_batch_gives_no_shard_a_single_sample_if_a_full_one_does_not() -> None:
    for length in range(1, 40):
        for plan in ElasticSampler(length, batch_size=12, shards=5).steps():
            sizes = [len(shard) for shard in plan.shards]
            assert sum(sizes) == plan.size
            assert 1 not in sizes or plan.size == 1
    one_each = ElasticSampler(7, batch_size=4, shards=4)
    assert [[len(shard) for shard in plan.shards] for plan in one_each.steps()] == [[1, 1, 1, 1], [1, 1, 1, 0]]


def test_drop_last_leaves_the_ragged_step_out():
    sampler = ElasticSampler(11, batch_size=4, shards=2, drop_last=True)
    assert [plan.size for plan in sampler.steps()] == [4, 4]
    assert len(sampler) == 2


def test_ranks_own_contiguous_runs_of_shards():
    sampler = ElasticSampler(20, batch_size=20, shards=5, shuffle=False)
    owned = [[shard.number for shard in next(sampler.steps(rank, 3)).shards] for rank in range(3)]
    assert owned == [[0], [1, 2], [3, 4]]


def test_a_rank_may_own_nothing_when_the_world_is_larger_than_the_number_of_shards():
    sampler = ElasticSampler(4, batch_size=4, shards=2)
    plans = [next(sampler.steps(rank, 3)) for rank in range(3)]
    assert [len(plan.shards) for plan in plans] == [0, 1, 1]
    assert plans[0].indices.tolist() == []


def test_epochs_have_different_orders_and_seeds_too():
    sampler = ElasticSampler(50, batch_size=50, shards=1, seed=3)
    first = next(sampler.steps())
    sampler.advance(first)
    second = next(sampler.steps())
    other = next(ElasticSampler(50, batch_size=50, shards=1, seed=4).steps())
    assert (second.epoch, second.step) == (1, 1)
    assert len({tuple(plan.indices.tolist()) for plan in (first, second, other)}) == 3


def test_the_order_of_an_epoch_never_changes_between_versions():
    plan = next(ElasticSampler(8, batch_size=8, shards=1, seed=1).steps())
    assert plan.indices.tolist() == RECORDED_ORDER


def test_a_step_cannot_be_committed_twice_or_out_of_order():
    sampler = ElasticSampler(9, batch_size=3, shards=1)
    first, second, _ = sampler.steps()
    with pytest.raises(UsageError, match="the next step is"):
        sampler.advance(second)
    sampler.advance(first)
    with pytest.raises(UsageError, match="commit each step once"):
        sampler.advance(first)
    sampler.advance(second)


def test_bind_says_which_rank_steps_are_for():
    sampler = ElasticSampler(8, batch_size=4, shards=2, shuffle=False)
    assert next(sampler.steps()).indices.tolist() == [0, 1, 2, 3]
    sampler.bind(1, 2)
    assert next(sampler.steps()).indices.tolist() == [2, 3]
    sampler.bind(0, 1)
    assert next(sampler.steps()).indices.tolist() == [0, 1, 2, 3]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"length": 0, "batch_size": 1, "shards": 1}, "length must be at least 1"),
        ({"length": 5, "batch_size": 0, "shards": 1}, "batch_size must be at least 1"),
        ({"length": 5, "batch_size": 1, "shards": 0}, "shards must be at least 1"),
        ({"length": 5, "batch_size": 6, "shards": 1, "drop_last": True}, "drop_last=True leaves nothing"),
    ],
)
def test_impossible_sizes_are_refused(options, words):
    with pytest.raises(UsageError, match=words):
        ElasticSampler(**options)


def test_impossible_ranks_are_refused():
    sampler = ElasticSampler(5, batch_size=2, shards=1)
    with pytest.raises(UsageError, match="rank=2, world_size=2"):
        sampler.steps(2, 2)
    with pytest.raises(UsageError, match="both"):
        sampler.steps(rank=0)


def test_a_state_over_other_data_is_refused():
    state = ElasticSampler(5, batch_size=2, shards=1).state_dict()
    with pytest.raises(UsageError, match="over 5 samples, this sampler over 6"):
        ElasticSampler(6, batch_size=2, shards=1).load_state_dict(state)


def test_plans_cannot_change_the_order_they_show():
    plan = next(ElasticSampler(6, batch_size=3, shards=1).steps())
    with pytest.raises(ValueError, match="read-only"):
        plan.shards[0].indices[0] = 5


@given(options=sizes, drop_last=st.booleans(), world_size=st.integers(1, 6))
def test_dealt_in_rounds_all_ranks_have_as_many_shards_and_those_that_count_are_the_same(
    options, drop_last, world_size
):
    if drop_last and options["length"] < options["batch_size"]:
        return
    runs = list(ElasticSampler(**options, drop_last=drop_last).steps(0, 1))
    dealing = ElasticSampler(**options, drop_last=drop_last, in_rounds=True)
    dealt = [list(dealing.steps(rank, world_size)) for rank in range(world_size)]
    for number, plan in enumerate(runs):
        ranks = [plans[number] for plans in dealt]
        assert {(each.step, each.position, each.size, each.ends_epoch) for each in ranks} == {
            (plan.step, plan.position, plan.size, plan.ends_epoch)
        }
        assert len({len(each.shards) for each in ranks}) == 1
        everything = [shard for turn in zip(*(each.shards for each in ranks), strict=True) for shard in turn]
        assert [shard.number for shard in everything] == list(range(len(everything)))
        counted = [shard for shard in everything if shard.counts]
        filled = [shard for shard in plan.shards if len(shard)]
        assert [(shard.number, shard.weight, shard.indices.tolist()) for shard in counted] == [
            (shard.number, shard.weight, shard.indices.tolist()) for shard in filled
        ]
        for shard in everything:
            assert shard.in_rounds
            assert shard.counts or (shard.weight == 0 and shard.indices.tolist() == counted[0].indices.tolist())
        assert sum(len(each.indices) for each in ranks) == plan.size


def test_dealing_in_rounds_is_no_part_of_the_state():
    sampler = ElasticSampler(10, batch_size=4, shards=2, shuffle=False, in_rounds=True)
    plan = next(sampler.steps(1, 3))
    assert [(shard.number, shard.indices.tolist(), shard.counts) for shard in plan.shards] == [(1, [2, 3], True)]
    assert next(sampler.steps(2, 3)).shards[0].indices.tolist() == [0, 1]
    sampler.advance(plan)
    in_runs = ElasticSampler(10, batch_size=4, shards=2)
    in_runs.load_state_dict(sampler.state_dict())
    assert in_runs.state_dict() == sampler.state_dict()
    assert not in_runs.in_rounds


def test_a_loader_of_shards_dealt_in_rounds_has_a_batch_for_each_also_for_those_that_do_not_count():
    sampler = ElasticSampler(11, batch_size=8, shards=4, shuffle=False, in_rounds=True)
    sampler.bind(1, 3)
    batches = ShardBatches(sampler)
    assert list(batches) == [
        [2, 3],
        [0, 1],
        [8, 9, 10],
        [8, 9, 10],
    ]  # 4 shards are two rounds of 3; the last has 3 samples
    assert len(batches) == 4
    assert [plan.indices.tolist() for plan in sampler.steps()] == [[2, 3], []]


@given(options=sizes, drop_last=st.booleans(), changes=worlds)
def test_without_fixed_shards_each_rank_has_its_part_of_the_same_steps(options, drop_last, changes):
    options = {**options, "shards": None, "drop_last": drop_last}
    if drop_last and options["length"] < options["batch_size"]:
        return
    fixed = ElasticSampler(**{**options, "shards": 1})
    sampler, seen, turn = ElasticSampler(**options), [], 0
    while sampler.epoch == 0:
        size = changes[turn % len(changes)]
        turn += 1
        plans = [next(sampler.steps(rank, size)) for rank in range(size)]
        shards = [shard for plan in plans for shard in plan.shards]
        assert [(shard.number, shard.total) for shard in shards] == [(rank, size) for rank in range(size)]
        assert all(len(shard) for shard in shards), "all ranks compute, or the others would wait for them"
        assert sum(shard.share for shard in shards) / size == pytest.approx(1)
        batch = np.concatenate([plan.indices for plan in plans]).tolist()
        (whole,) = next(fixed.steps()).shards
        assert batch == whole.indices.tolist(), "which samples a step has does not depend on the world"
        repeats = [shard.indices.tolist() for shard in shards if not shard.counts]
        assert all(each == shards[0].indices.tolist() for each in repeats)
        seen += batch
        sampler.advance(plans[0])
        fixed.advance(plans[0])
    assert len(set(seen)) == len(seen) == sampler.samples_per_epoch


def test_without_fixed_shards_a_sampler_takes_over_from_one_with_and_back():
    mine, other = ElasticSampler(20, 6), ElasticSampler(20, 6, 3)
    mine.advance(next(mine.steps()))
    other.load_state_dict(mine.state_dict())
    other.advance(next(other.steps()))
    mine.load_state_dict(other.state_dict())
    assert (mine.position, mine.shards, other.shards) == (12, None, 3)
    assert (mine.largest_world, other.largest_world) == (6, 3)
    assert "shards=None" in repr(mine)


def test_rounds_need_fixed_shards():
    with pytest.raises(UsageError, match=r"in_rounds=True deals out fixed shards, got shards=None"):
        ElasticSampler(20, 6, in_rounds=True)
