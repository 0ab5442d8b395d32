"""Averages of models over their training. The rates of SWALR: test_lr_schedulers.py."""

import numpy as np
import pytest

import resilin
from resilin import nn, optim
from resilin.errors import UsageError
from resilin.optim import swa_utils


def moved(model, seed):
    """Sets every parameter to random values, and returns them."""
    rng = np.random.default_rng(seed)
    values = [rng.standard_normal(p.shape).astype(np.float32) for p in model.parameters()]
    with resilin.no_grad():
        for parameter, value in zip(model.parameters(), values, strict=True):
            parameter.copy_(resilin.tensor(value))
    return values


def averages(model):
    return [p.detach().numpy().copy() for p in model.module.parameters()]


def test_the_average_has_equal_weights_and_leaves_the_model_alone():
    model = nn.Linear(3, 2)
    average = swa_utils.AveragedModel(model)
    seen = []
    for seed in range(4):
        seen.append(moved(model, seed))
        average.update_parameters(model)
    for found, *values in zip(averages(average), *seen, strict=True):
        np.testing.assert_allclose(found, np.mean(values, axis=0), rtol=1e-5, atol=1e-6)
    assert average.n_averaged.item() == 4
    assert model.weight.detach().numpy().tobytes() == seen[-1][0].tobytes()


@pytest.mark.parametrize(
    "options",
    [
        {"avg_fn": swa_utils.get_ema_avg_fn(0.9)},
        {"multi_avg_fn": swa_utils.get_ema_multi_avg_fn(0.9)},
    ],
)
def test_the_exponential_average_starts_at_the_first_model(options):
    model = nn.Linear(3, 2)
    average = swa_utils.AveragedModel(model, **options)
    expected = None
    for seed in range(3):
        values = moved(model, seed)
        average.update_parameters(model)
        both = values if expected is None else [0.9 * a + 0.1 * b for a, b in zip(expected, values, strict=True)]
        expected = both
    for found, value in zip(averages(average), expected, strict=True):
        np.testing.assert_allclose(found, value, rtol=1e-5, atol=1e-6)


def test_the_multi_form_of_equal_weights_equals_the_default():
    model = nn.Linear(3, 2)
    one = swa_utils.AveragedModel(model)
    other = swa_utils.AveragedModel(model, multi_avg_fn=swa_utils.get_swa_multi_avg_fn())
    for seed in range(3):
        moved(model, seed)
        one.update_parameters(model)
        other.update_parameters(model)
    for a, b in zip(averages(one), averages(other), strict=True):
        assert a.tobytes() == b.tobytes()


@pytest.mark.parametrize(("use_buffers", "expected"), [(True, 2.0), (False, 3.0)])
def test_buffers_are_averaged_or_follow_the_model(use_buffers, expected):
    model = nn.BatchNorm1d(2)
    average = swa_utils.AveragedModel(model, use_buffers=use_buffers)
    for value in (1.0, 3.0):
        model.running_mean.fill_(value)
        average.update_parameters(model)
    assert average.module.running_mean.tolist() == [expected, expected]


def test_the_state_has_pytorchs_names_and_goes_round():
    model = nn.Linear(3, 2)
    average = swa_utils.AveragedModel(model)
    average.update_parameters(model)
    state = average.state_dict()
    assert list(state) == ["n_averaged", "module.weight", "module.bias"]
    other = swa_utils.AveragedModel(nn.Linear(3, 2))
    other.load_state_dict(state)
    assert other.n_averaged.item() == 1
    x = resilin.ones(1, 3)
    assert other(x).tolist() == average(x).tolist()


def test_update_bn_makes_the_statistics_of_the_whole_loader_anew():
    model = nn.Sequential(nn.BatchNorm1d(2), nn.Linear(2, 1)).eval()
    model[0].running_mean.fill_(100.0)
    batches = [resilin.tensor(np.random.default_rng(seed).standard_normal((4, 2))).float() for seed in range(3)]
    swa_utils.update_bn([(batch, None) for batch in batches], model)
    expected = np.mean([batch.numpy().mean(0) for batch in batches], axis=0)
    np.testing.assert_allclose(model[0].running_mean.numpy(), expected, rtol=1e-5, atol=1e-6)
    assert model[0].momentum == 0.1
    assert not model.training
    assert not model[0].training


def test_update_bn_does_not_read_the_loader_without_such_layers():
    swa_utils.update_bn(iter(lambda: pytest.fail("read"), None), nn.Linear(2, 2))


def test_mistakes_are_named():
    model = nn.Linear(3, 2)
    ema = swa_utils.get_ema_avg_fn(0.9)
    with pytest.raises(UsageError, match="not both"):
        swa_utils.AveragedModel(model, avg_fn=ema, multi_avg_fn=swa_utils.get_swa_multi_avg_fn())
    with pytest.raises(UsageError, match="decay must be between 0 and 1, got 2"):
        swa_utils.get_ema_multi_avg_fn(2)
    with pytest.raises(UsageError, match="has 1 tensors to average, the average has 2"):
        swa_utils.AveragedModel(model).update_parameters(nn.Linear(3, 2, bias=False))


@pytest.mark.filterwarnings("ignore:.*before the first step of its optimizer")
def test_swalr_gives_each_group_its_own_target():
    params = [resilin.zeros(1).requires_grad_() for _ in range(2)]
    optimizer = optim.SGD([{"params": [params[0]]}, {"params": [params[1]], "lr": 2.0}], lr=1.0)
    scheduler = swa_utils.SWALR(optimizer, [0.5, 0.1], anneal_epochs=2, anneal_strategy="linear")
    scheduler.step()
    assert scheduler.get_last_lr() == [pytest.approx(0.75), pytest.approx(1.05)]
    scheduler.step()
    assert scheduler.get_last_lr() == [pytest.approx(0.5), pytest.approx(0.1)]
