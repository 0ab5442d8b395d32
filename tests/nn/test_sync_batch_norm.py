"""SyncBatchNorm on several ranks gives what BatchNorm gives on one process fed with the whole batch."""

import numpy as np
import pytest

import resilin
from resilin import nn
from resilin.distributed.wire import call_phases
from resilin.testing.ranks import run_ranks

PARTS = ([0, 1, 2], [3], [4, 5])  # of the batch, one per rank


def batch():
    rng = np.random.default_rng(0)
    return rng.normal(3, 2, (6, 2, 3)), rng.normal(size=(6, 2, 3))


def run(layer, rows):
    x, g = (resilin.tensor(a[rows]) for a in batch())
    x.requires_grad_()
    y = layer(x)
    y.backward(g)
    grads = [p.grad.numpy() for p in layer.parameters()]
    return y.detach().numpy(), x.grad.numpy(), grads, [b.numpy() for b in layer.buffers()]


def whole():
    return run(nn.BatchNorm1d(2, dtype=resilin.float64), list(range(6)))


def test_ranks_together_equal_one_process_with_the_whole_batch():
    outcome = run_ranks(3, lambda rank: run(nn.SyncBatchNorm(2, dtype=resilin.float64), PARTS[rank])).results()
    y, dx, grads, buffers = whole()
    parts = [outcome[rank] for rank in range(3)]
    np.testing.assert_allclose(np.concatenate([p[0] for p in parts]), y, rtol=1e-9, atol=1e-12)
    np.testing.assert_allclose(np.concatenate([p[1] for p in parts]), dx, rtol=1e-9, atol=1e-12)
    for number, grad in enumerate(grads):
        np.testing.assert_allclose(sum(p[2][number] for p in parts), grad, rtol=1e-9, atol=1e-12)
    for p in parts:
        for got, expected, first in zip(p[3], buffers, parts[0][3], strict=True):
            np.testing.assert_allclose(got, expected, rtol=1e-12)
            assert np.array_equal(got, first)  # the same bits on every rank


@pytest.mark.parametrize("transport", ["shm", "tcp"])
def test_a_rank_without_samples_takes_part(transport):
    parts = ([0, 1, 2, 3, 4, 5], [])
    outcome = run_ranks(
        2, lambda rank: run(nn.SyncBatchNorm(2, dtype=resilin.float64), parts[rank]), transport=transport
    ).results()
    for got, expected in zip(outcome[0][:2], whole()[:2], strict=True):
        np.testing.assert_allclose(got, expected, rtol=1e-9, atol=1e-12)
    for got, expected in zip(outcome[1][3], whole()[3], strict=True):
        np.testing.assert_allclose(got, expected, rtol=1e-12)


def penalty(layer, rows):
    """Gradients of a gradient's square, of the layer's parameters and of the input."""
    x = resilin.tensor(batch()[0][rows]).requires_grad_()
    out = (layer(x) ** 3).sum()
    (inner,) = resilin.autograd.grad([out], [x], create_graph=True)
    (inner.square().sum() + out).backward()
    return x.grad.numpy(), [p.grad.numpy() for p in layer.parameters()]


def test_derivatives_of_derivatives_are_those_of_one_process():
    parts = ([0, 1, 2], [3, 4, 5])
    outcome = run_ranks(2, lambda rank: penalty(nn.SyncBatchNorm(2, dtype=resilin.float64), parts[rank])).results()
    dx, grads = penalty(nn.BatchNorm1d(2, dtype=resilin.float64), list(range(6)))
    np.testing.assert_allclose(np.concatenate([part[0] for part in outcome]), dx, rtol=1e-7, atol=1e-9)
    for number, grad in enumerate(grads):
        np.testing.assert_allclose(sum(part[1][number] for part in outcome), grad, rtol=1e-7, atol=1e-9)


def test_statistics_of_all_ranks_are_one_collective_each_way():
    x, g = batch()

    def count(rank):
        layer, called = nn.SyncBatchNorm(2, dtype=resilin.float64), []
        with call_phases.listening(lambda phase, what, group: called.append(what) if phase == "start" else None):
            out = layer(resilin.tensor(x[rank::2]).requires_grad_())
            forward = len(called)
            out.backward(resilin.tensor(g[rank::2]))
        return forward, len(called) - forward

    assert run_ranks(2, count).results() == [(1, 1)] * 2


def test_without_a_group_and_outside_of_training_it_is_batch_norm():
    np.testing.assert_array_equal(run(nn.SyncBatchNorm(2, dtype=resilin.float64), list(range(6)))[0], whole()[0])
    x = resilin.tensor(batch()[0][:2])
    for given in ({}, {"track_running_stats": False}):

        def evaluate(rank, given=given):  # only one rank calls it: a collective would wait for the other
            return nn.SyncBatchNorm(2, dtype=resilin.float64, **given).eval()(x).detach().numpy() if rank == 0 else None

        got = run_ranks(2, evaluate).results()[0]
        want = nn.BatchNorm1d(2, dtype=resilin.float64, **given).eval()(x).detach().numpy()
        np.testing.assert_array_equal(got, want)


def test_converting_keeps_parameters_buffers_and_mode():
    model = nn.Sequential(nn.Linear(2, 3), nn.Sequential(nn.BatchNorm1d(3, momentum=0.3), nn.ReLU())).eval()
    norm, names = model[1][0], list(model.state_dict())
    assert nn.SyncBatchNorm.convert_sync_batchnorm(model) is model
    found = model[1][0]
    assert type(found) is nn.SyncBatchNorm
    assert found.weight is norm.weight
    assert found.running_var is norm.running_var
    assert (found.momentum, found.training) == (0.3, False)
    assert list(model.state_dict()) == names
    text = "SyncBatchNorm(3, eps=1e-05, momentum=0.3, affine=True, bias=True, track_running_stats=True)"
    assert repr(found) == text
    assert type(nn.SyncBatchNorm.convert_sync_batchnorm(norm)) is nn.SyncBatchNorm


def test_one_value_per_channel_in_all_is_refused():
    with pytest.raises(ValueError, match="more than 1 value per channel"):
        nn.SyncBatchNorm(2)(resilin.zeros(1, 2))
    with pytest.raises(ValueError, match="at least 2D input"):
        nn.SyncBatchNorm(2)(resilin.zeros(2))
