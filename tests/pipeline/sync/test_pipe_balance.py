"""Layers are put into parts by their measured costs."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pipe_models import numbers

import resilin as torch
from resilin import nn
from resilin.distributed.pipeline.sync._balance import balance_by_size, balance_by_time, blockpartition
from resilin.pipeline.sync._balance.profile import layerwise_sandbox, profile_sizes, profile_times

CPU = torch.device("cpu")


def test_costs_are_cut_into_blocks():
    assert blockpartition.solve([1, 2, 3, 4, 5, 6], partitions=2) == [[1, 2, 3, 4], [5, 6]]
    assert blockpartition.solve([0, 0], partitions=2) == [[0], [0]]
    assert blockpartition.solve([5], partitions=1) == [[5]]


@pytest.mark.parametrize("partitions", [0, -1])
def test_fewer_than_one_block_is_refused(partitions):
    with pytest.raises(ValueError, match=f"partitions must be a positive integer \\({partitions}\\)"):
        blockpartition.solve([42], partitions=partitions)


def test_more_blocks_than_costs_are_refused():
    with pytest.raises(ValueError, match=r"sequence is shorter than intended partitions \(1 < 2\)"):
        blockpartition.solve([42], partitions=2)


@given(st.lists(st.integers(0, 9), min_size=1, max_size=8), st.data())
def test_no_other_cut_has_a_cheaper_costliest_block(costs, data):
    partitions = data.draw(st.integers(1, len(costs)))
    found = blockpartition.solve(costs, partitions)
    cuts = itertools.combinations(range(1, len(costs)), partitions - 1)
    best = min(max(sum(costs[a:b]) for a, b in itertools.pairwise((0, *cut, len(costs)))) for cut in cuts)
    assert [cost for block in found for cost in block] == costs
    assert len(found) == partitions
    assert all(found)
    assert max(map(sum, found)) == best


class FakeClock:
    def __init__(self):
        self.now = 0.0

    def monotonic(self):
        return self.now


class Takes(nn.Module):
    """A layer that takes a number of seconds of a clock of its own."""

    clock = FakeClock()

    def __init__(self, seconds):
        super().__init__()
        self.seconds = seconds

    def forward(self, x):
        type(self).clock.now += self.seconds
        return x * 2


@pytest.fixture
def taken(monkeypatch):
    monkeypatch.setattr(Takes, "clock", FakeClock())
    monkeypatch.setattr("resilin.pipeline.sync._balance.profile_times", timed)
    return Takes


def timed(module, sample, timeout, device):
    return profile_times(module, sample, timeout, device, clock=Takes.clock)


def test_parts_take_equal_times(taken):
    layers = nn.Sequential(*(taken(i / 100) for i in (1, 2, 3, 4, 5, 6)))
    assert balance_by_time(2, layers, torch.rand(1)) == [4, 2]
    assert timed(layers, torch.rand(1), 0.5, None) == pytest.approx([30000, 60000, 90000, 120000, 150000, 180000])


def test_each_round_begins_with_the_sample():
    layers = nn.Sequential(nn.Conv2d(3, 2, 1), nn.Flatten(), nn.Linear(2, 1))
    balance = balance_by_time(2, layers, torch.rand(10, 3, 1, 1), timeout=0.02)
    assert sum(balance) == 3


def test_layers_are_timed_at_least_once():
    assert sum(balance_by_time(2, nn.Sequential(nn.Linear(1, 1), nn.Linear(1, 1)), torch.rand(1, 1), timeout=0)) == 2


def test_parts_leave_equal_sizes():
    layers = nn.Sequential(*(nn.Sequential(*[nn.Sigmoid() for _ in range(n)]) for n in (1, 2, 3, 4, 5, 6)))
    x = torch.rand(10, 100, requires_grad=True)
    assert balance_by_size(2, layers, x) == [4, 2]
    assert balance_by_size(2, nn.Sequential(*reversed(list(layers))), x) == [2, 4]
    sizes = profile_sizes(layers, x, 1, 2.0, None)
    assert sizes == [4000 * n for n in (1, 2, 3, 4, 5, 6)]
    assert profile_sizes(layers, x, 10, 2.0, None) == [400 * n for n in (1, 2, 3, 4, 5, 6)]


def test_parameters_count_by_their_scale():
    layers = nn.Sequential(*(nn.Linear(i, i + 1, bias=False) for i in (1, 2, 10)))
    x = torch.rand(7, 1)
    small, large = (profile_sizes(layers[:2], x, 7, scale, None) for scale in (0, 100))
    assert [b - a for a, b in zip(small, large, strict=True)] == [100 * 4 * 2, 100 * 4 * 6]
    deep = nn.Sequential(*[nn.Linear(1, 1, bias=False) for _ in range(4)], nn.Linear(1, 64), nn.Linear(64, 64))
    assert balance_by_size(2, deep, x, chunks=7, param_scale=100) == [5, 1]
    assert balance_by_size(2, deep, x, chunks=7, param_scale=0) == [5, 1]
    assert profile_sizes(deep, x, 7, 0, None)[4] < 300 < profile_sizes(deep, x, 7, 100, None)[4]


def test_layers_run_as_copies_in_training_mode(monkeypatch):
    modes = []

    class Seen(nn.BatchNorm1d):
        def forward(self, x):
            modes.append(self.training)
            return super().forward(x)

    layers = nn.Sequential(Seen(3)).eval()
    before = {name: value.clone() for name, value in layers.state_dict().items()}
    assert [copy is not layer for copy, layer in zip(layerwise_sandbox(layers, CPU), layers, strict=True)] == [True]
    balance_by_time(1, layers, numbers(4, 3, device="cpu"), timeout=0)
    assert modes == [True]
    assert not layers[0].training
    assert all(torch.equal(before[name], value) for name, value in layers.state_dict().items())
    assert all(parameter.grad is None for parameter in layers.parameters())


def test_layers_run_on_the_device_that_is_named():
    class Look(nn.Module):
        def forward(self, x):
            seen.append(str(x.device))
            return x * 2

    seen = []
    layers = nn.Sequential(Look(), nn.Linear(2, 2))
    balance_by_time(2, layers, torch.rand(2, 2), timeout=0, device="sim:1")
    balance_by_size(2, layers, torch.rand(2, 2).to("sim:2"))
    assert seen == ["sim:1", "sim:2"]
    assert layers[1].weight.device == CPU


def test_samples_of_several_values_are_taken():
    class Two(nn.Module):
        def forward(self, a, b):
            return a * 2, b * 2

    layers = nn.Sequential(Two(), Two())
    sample = (torch.rand(4, 1, requires_grad=True), torch.rand(4, 1, requires_grad=True))
    assert balance_by_time(1, layers, sample, timeout=0) == [2]
    assert balance_by_size(2, layers, sample) == [1, 1]


def test_layers_that_have_gradients_are_not_timed():
    layers = nn.Sequential(nn.Linear(1, 1))
    layers(torch.rand(1, 1)).sum().backward()
    with pytest.raises(ValueError, match="some parameter already has gradient"):
        balance_by_time(1, layers, torch.rand(1, 1), timeout=0)
