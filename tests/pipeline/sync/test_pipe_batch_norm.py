"""Deferred batch normalization: micro-batches are normalized by themselves, statistics are those of whole batches."""

from copy import deepcopy

import pytest
from pipe_models import bits, numbers

import resilin as torch
from resilin import nn, optim
from resilin.distributed.pipeline.sync import Pipe
from resilin.pipeline.sync.batchnorm import DeferredBatchNorm

KINDS = [(nn.BatchNorm1d, (16, 3)), (nn.BatchNorm1d, (16, 3, 5)), (nn.BatchNorm2d, (16, 3, 4, 4))]


def converted(norm, chunks):
    return DeferredBatchNorm.convert_deferred_batch_norm(deepcopy(norm), chunks=chunks)


def assert_same_statistics(found, want):
    assert torch.allclose(found.running_mean, want.running_mean, atol=1e-6)
    assert torch.allclose(found.running_var, want.running_var, rtol=1e-5)
    assert int(found.num_batches_tracked) == int(want.num_batches_tracked)


@pytest.mark.parametrize(("kind", "shape"), KINDS)
@pytest.mark.parametrize("chunks", [1, 4, 5])
@pytest.mark.parametrize("momentum", [0.1, None])
def test_running_statistics_are_those_of_the_whole_batch(kind, shape, chunks, momentum):
    norm = kind(3, momentum=momentum)
    pipe = Pipe(nn.Sequential(deepcopy(norm)), chunks=chunks, deferred_batch_norm=True)
    for seed in range(3):
        x = numbers(*shape, device="cpu", seed=seed) * 2 + 5
        norm(x)
        pipe(x)
        assert_same_statistics(pipe[0], norm)


def test_the_variance_of_large_values_is_not_lost():
    norm = nn.BatchNorm1d(2)
    pipe = Pipe(nn.Sequential(deepcopy(norm)), chunks=4, deferred_batch_norm=True)
    x = numbers(32, 2, device="cpu") + 10000
    norm(x)
    pipe(x)
    assert torch.allclose(pipe[0].running_var, norm.running_var, rtol=1e-3)


def test_a_batch_of_fewer_micro_batches_counts_as_one():
    norm = nn.BatchNorm1d(2)
    pipe = Pipe(nn.Sequential(deepcopy(norm)), chunks=4, deferred_batch_norm=True)
    for size in (6, 8, 4):  # 3, 4 and 2 micro-batches
        x = numbers(size, 2, device="cpu", seed=size)
        norm(x)
        if size == 4:
            pipe.chunks = 2
        pipe(x)
        assert_same_statistics(pipe[0], norm)


def test_each_micro_batch_is_normalized_by_itself():
    norm, x = nn.BatchNorm1d(3), numbers(8, 3, device="cpu")
    y = Pipe(nn.Sequential(deepcopy(norm)), chunks=2, deferred_batch_norm=True)(x).local_value()
    assert bits([y]) == bits([torch.cat([norm(x[:4]), norm(x[4:])])])


def test_momentum_none_is_the_average_of_all_batches():
    norm = nn.BatchNorm1d(2, momentum=None)
    found = converted(norm, 2)
    for seed in range(4):
        x = numbers(8, 2, device="cpu", seed=seed)
        norm(x)
        found(x[:4])
        found(x[4:])
    assert_same_statistics(found, norm)


def test_only_batch_normalization_with_statistics_is_replaced():
    tracked, untracked = nn.BatchNorm1d(2), nn.BatchNorm1d(2, track_running_stats=False)
    linear, synchronized = nn.Linear(2, 2), nn.SyncBatchNorm(2)
    layers = nn.Sequential(linear, nn.Sequential(tracked, untracked), synchronized)
    found = DeferredBatchNorm.convert_deferred_batch_norm(layers, chunks=3)
    assert found is layers
    assert isinstance(found[1][0], DeferredBatchNorm)
    assert [found[0], found[1][1], found[2]] == [linear, untracked, synchronized]
    deferred = found[1][0]
    assert (deferred.weight, deferred.bias) == (tracked.weight, tracked.bias)
    assert deferred.running_mean is tracked.running_mean
    assert DeferredBatchNorm.convert_deferred_batch_norm(deferred, chunks=3) is deferred
    assert DeferredBatchNorm.convert_deferred_batch_norm(deferred, chunks=2) is not deferred
    assert "chunks=3" in repr(deferred)


def test_a_norm_without_weights_and_in_evaluation_stays_so():
    norm = nn.BatchNorm1d(2, affine=False).eval()
    found = converted(norm, 2)
    assert not found.training
    assert list(found.parameters()) == []
    x = numbers(4, 2, device="cpu")
    assert bits([found(x)]) == bits([norm(x)])
    assert int(found.num_batches_tracked) == 0


def test_states_are_those_of_plain_batch_normalization():
    norm = nn.BatchNorm2d(3)
    norm(numbers(2, 3, 4, 4, device="cpu"))
    found = converted(nn.BatchNorm2d(3), 4)
    found.load_state_dict(norm.state_dict())
    assert list(found.state_dict()) == list(norm.state_dict())
    x = numbers(2, 3, 4, 4, device="cpu")
    assert bits([found.eval()(x)]) == bits([norm.eval()(x)])


def test_training_goes_on_as_with_plain_batch_normalization():
    norm = nn.BatchNorm1d(3)
    found = converted(norm, 1)
    for module in (norm, found):
        sgd = optim.SGD(module.parameters(), lr=0.1)
        for seed in range(5):
            sgd.zero_grad()
            module(numbers(8, 3, device="cpu", seed=seed)).pow(3).sum().backward()
            sgd.step()
    assert bits(found.parameters()) == bits(norm.parameters())
    x = numbers(8, 3, device="cpu")
    assert torch.allclose(found.eval()(x), norm.eval()(x), atol=1e-5)


@pytest.mark.parametrize("mode", ["always", "except_last", "never"])
def test_a_part_that_is_computed_again_is_tracked_once(mode):
    norm, x = nn.BatchNorm1d(3), numbers(8, 3, device="cpu", requires_grad=True)
    pipe = Pipe(nn.Sequential(deepcopy(norm)), chunks=4, checkpoint=mode, deferred_batch_norm=True)
    norm(x)
    pipe(x).local_value().square().sum().backward()
    assert_same_statistics(pipe[0], norm)
    assert (pipe[0].counter, pipe[0].tracked) == (0, 0)


def test_what_a_failed_forward_collected_does_not_count():
    class Fails(nn.Module):
        on = True

        def forward(self, x):
            if self.on:
                raise ZeroDivisionError
            return x

    norm, fails = nn.BatchNorm1d(3), Fails()
    pipe = Pipe(nn.Sequential(deepcopy(norm), fails), chunks=3, deferred_batch_norm=True)
    with pytest.raises(ZeroDivisionError):
        pipe(numbers(6, 3, device="cpu", seed=1))
    assert pipe[0].tracked == 2
    fails.on = False
    x = numbers(6, 3, device="cpu", seed=2)
    norm(x)
    pipe(x)
    assert_same_statistics(pipe[0], norm)


def test_input_without_channels_is_refused():
    with pytest.raises(ValueError, match="DeferredBatchNorm: expected at least 2D input"):
        DeferredBatchNorm(3)(torch.ones(3))
