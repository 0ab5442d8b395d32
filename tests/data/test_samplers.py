"""Samplers with PyTorch's semantics."""

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import resilin
from resilin._base import world
from resilin.core import rng
from resilin.data import (
    BatchSampler,
    DistributedSampler,
    RandomSampler,
    SequentialSampler,
    SubsetRandomSampler,
    WeightedRandomSampler,
)
from resilin.errors import UsageError

CASES = json.loads((Path(__file__).parents[1] / "fixtures" / "torch_distributed_sampler.json").read_text())


@pytest.mark.parametrize("case", CASES, ids=lambda c: f"{c['length']}/{c['replicas']}{'-drop' * c['drop_last']}")
def test_distributed_sampler_gives_each_rank_what_pytorch_gives(case):
    data = range(case["length"])
    for rank, (length, indices) in enumerate(case["ranks"]):
        sampler = DistributedSampler(data, case["replicas"], rank, shuffle=False, drop_last=case["drop_last"])
        assert (len(sampler), list(sampler)) == (length, indices)


@given(length=st.integers(1, 50), replicas=st.integers(1, 7), seed=st.integers(0, 9), epoch=st.integers(0, 9))
def test_distributed_sampler_covers_all_samples_and_repeats_only_to_fill_up(length, replicas, seed, epoch):
    shares = []
    for rank in range(replicas):
        sampler = DistributedSampler(range(length), replicas, rank, seed=seed)
        sampler.set_epoch(epoch)
        shares.append(list(sampler))
    flat = [index for share in shares for index in share]
    assert set(flat) == set(range(length))
    assert len(flat) - length < replicas
    assert len({len(share) for share in shares}) == 1


def test_distributed_sampler_shuffles_anew_for_each_epoch_and_repeats_without_set_epoch():
    sampler = DistributedSampler(range(40), 2, 0)
    first = list(sampler)
    assert list(sampler) == first
    sampler.set_epoch(1)
    assert list(sampler) != first


def test_distributed_sampler_asks_the_current_group(monkeypatch):
    monkeypatch.setattr(world, "_source", lambda: (2, 3))
    assert list(DistributedSampler(range(6), shuffle=False)) == [2, 5]


def test_distributed_sampler_reads_the_launchers_environment(monkeypatch):
    monkeypatch.setattr(world, "_source", lambda: None)
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "2")
    assert list(DistributedSampler(range(6), shuffle=False)) == [1, 3, 5]


def test_distributed_sampler_says_what_to_do_without_a_group(monkeypatch):
    monkeypatch.setattr(world, "_source", lambda: None)
    monkeypatch.delenv("RANK", raising=False)
    monkeypatch.delenv("WORLD_SIZE", raising=False)
    with pytest.raises(UsageError, match="init_process_group"):
        DistributedSampler(range(6))
    with pytest.raises(UsageError, match="invalid rank 2"):
        DistributedSampler(range(6), 2, 2)


def test_sequential_sampler_gives_the_indices_in_order():
    assert list(SequentialSampler("abc")) == [0, 1, 2]


def test_random_sampler_gives_a_new_permutation_each_time_and_the_same_ones_after_the_same_seed():
    rng.manual_seed(5)
    sampler = RandomSampler(range(30))
    first, second = list(sampler), list(sampler)
    assert sorted(first) == sorted(second) == list(range(30))
    assert first != second
    rng.manual_seed(5)
    assert [list(sampler), list(sampler)] == [first, second]


def test_random_sampler_can_draw_more_or_fewer_or_with_replacement():
    assert len(set(RandomSampler(range(10), num_samples=4))) == 4
    several = list(RandomSampler(range(10), num_samples=25))
    assert sorted(several[:10]) == sorted(several[10:20]) == list(range(10))
    assert len(several) == 25
    drawn = list(RandomSampler(range(3), replacement=True, num_samples=50))
    assert (len(drawn), set(drawn)) == (50, {0, 1, 2})
    assert list(RandomSampler([])) == []


def test_a_samplers_own_generator_leaves_the_global_one_alone():
    rng.manual_seed(1)
    before = rng.get_rng_state()
    generator = rng.Generator()
    generator.manual_seed(9)
    first = list(RandomSampler(range(20), generator=generator))
    generator.manual_seed(9)
    assert list(RandomSampler(range(20), generator=generator)) == first
    assert rng.get_rng_state().tolist() == before.tolist()


def test_subset_random_sampler_permutes_the_subset():
    assert sorted(SubsetRandomSampler([7, 3, 5])) == [3, 5, 7]


def test_weighted_random_sampler_never_draws_weight_zero():
    drawn = list(WeightedRandomSampler([0, 1, 3], 200))
    assert set(drawn) == {1, 2}
    assert 120 < drawn.count(2) < 180
    firsts = [next(iter(WeightedRandomSampler([1, 0, 3], 2, replacement=False))) for _ in range(200)]
    assert set(firsts) == {0, 2}
    assert 120 < firsts.count(2) < 180
    assert sorted(WeightedRandomSampler([1, 1, 1], 3, replacement=False)) == [0, 1, 2]
    with pytest.raises(UsageError, match="without replacement"):
        WeightedRandomSampler([0, 1, 3], 3, replacement=False)


def test_batch_sampler_keeps_or_drops_the_short_batch():
    assert list(BatchSampler(range(5), 2, drop_last=False)) == [[0, 1], [2, 3], [4]]
    assert list(BatchSampler(range(5), 2, drop_last=True)) == [[0, 1], [2, 3]]
    assert (len(BatchSampler(range(5), 2, False)), len(BatchSampler(range(5), 2, True))) == (3, 2)
    with pytest.raises(UsageError, match="positive integer"):
        BatchSampler(range(5), 0, False)


@pytest.mark.parametrize(
    "weights", [[1, float("nan")], [1, float("inf")], [float("nan")], [-1.0, 2.0], [0, 0], [[1, 2]]]
)
def test_weights_that_are_no_distribution_are_refused(weights):
    with pytest.raises(UsageError, match="finite numbers >= 0"):
        WeightedRandomSampler(weights, 3)


@pytest.mark.parametrize("replacement", [True, False])
def test_nothing_can_be_drawn_from_an_empty_source(replacement):
    with pytest.raises(UsageError, match="cannot draw 3 samples from a data source of length 0"):
        RandomSampler([], replacement, 3)
    assert list(RandomSampler([], False)) == []


@pytest.mark.parametrize("count", [0, -1, 2.5, True])
def test_a_number_of_samples_is_a_positive_integer(count):
    with pytest.raises(UsageError, match="num_samples should be a positive integer"):
        RandomSampler([1, 2], True, count)
    with pytest.raises(UsageError, match="num_samples should be a positive integer"):
        WeightedRandomSampler([1, 2], count)


def test_flags_are_true_or_false():
    with pytest.raises(TypeError, match="replacement should be True or False, got 1"):
        RandomSampler([1, 2], 1)
    with pytest.raises(ValueError, match="replacement should be True or False, got 'yes'"):
        WeightedRandomSampler([1, 2], 1, "yes")
    with pytest.raises(ValueError, match="drop_last should be True or False, got 1"):
        BatchSampler([1, 2], 1, 1)


def test_weights_are_kept_as_a_tensor_and_can_be_one():
    sampler = WeightedRandomSampler(resilin.tensor([0.0, 1.0], requires_grad=True), 5)
    assert sampler.weights.dtype is resilin.float64
    assert list(sampler) == [1] * 5


def test_any_number_of_samples_can_be_drawn_with_replacement():
    endless = iter(RandomSampler(range(10), replacement=True, num_samples=10**15))
    assert {next(endless) for _ in range(200)} == set(range(10))
    drawn = list(RandomSampler(range(5), replacement=True, num_samples=70_000))
    assert len(drawn) == 70_000
    assert drawn[:4464] != drawn[65_536:]
