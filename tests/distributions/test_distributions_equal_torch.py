"""Every distribution gives PyTorch's recorded densities, moments, entropies, gradients and texts."""

from __future__ import annotations

import numpy as np
import pytest
from distribution_cases import close, recorded, tensors

import resilin
from resilin import distributions
from resilin.distributions import relaxed

CASES = recorded("distributions")
FIXED = ("total_count", "dim", "temperature")
# PyTorch's own are wrong: the mode of Kumaraswamy is the logarithm of a negative number
LEFT_OUT = {("Kumaraswamy", "mode")}


def made(case, validate_args=None):
    kind = getattr(distributions, case["name"], None) or getattr(relaxed, case["name"])
    parameters = tensors(case["params"], grad=FIXED)
    return kind(**parameters, validate_args=validate_args), parameters


by_name = pytest.mark.parametrize("case", CASES, ids=[case["name"] for case in CASES])


@by_name
def test_values_and_gradients_are_pytorchs(case):
    d, parameters = made(case)
    value = tensors(case["value"])
    assert repr(d) == case["text"].replace("torch.Size", "resilin.Size")
    log_prob = d.log_prob(value)
    close(log_prob, case["log_prob"], "log_prob", case["close"])
    log_prob.sum().backward()
    for name, grad in case["grads"].items():
        grad = np.tril(grad) if name == "scale_tril" else grad  # what lies above is not used
        close(parameters[name].grad, grad, ("gradient", name), case["close"])
    assert [list(d.batch_shape), list(d.event_shape)] == case["shapes"]
    has_rsample = case["flags"][0] or case["name"] == "LogitRelaxedBernoulli"  # PyTorch's has it, and says False
    assert [bool(d.has_rsample), bool(d.has_enumerate_support)] == [has_rsample, case["flags"][1]]


@by_name
def test_what_a_distribution_tells_of_itself_is_pytorchs(case):
    d, _ = made(case)
    probabilities = resilin.tensor([0.2, 0.5, 0.9])[: d.batch_shape[-1] if d.batch_shape else 1]
    asked = {
        **{name: lambda name=name: getattr(d, name) for name in ("mean", "mode", "variance", "stddev")},
        "entropy": d.entropy,
        "cdf": lambda: d.cdf(tensors(case["value"])),
        "icdf": lambda: d.icdf(probabilities),
        "all_values": d.enumerate_support,
    }
    for name, ask in asked.items():
        if (case["name"], name) in LEFT_OUT:
            continue
        if case[name] is None:
            with pytest.raises((NotImplementedError, ValueError)):
                ask()
        else:
            close(ask(), case[name], name, case["close"])


@by_name
def test_samples_and_expanded_distributions_have_their_shapes_and_lie_in_the_support(case):
    d, _ = made(case)
    wider = d.expand((4, *d.batch_shape))
    assert type(wider) is type(d)
    assert tuple(wider.batch_shape) == (4, *d.batch_shape)
    for one in (d, wider):
        drawn = one.sample((3, 2))
        shape = (3, 2, *one.batch_shape, *one.event_shape)
        assert tuple(drawn.shape) == shape
        assert not drawn.requires_grad
        assert bool(one.support.check(drawn).all())
        log_prob = one.log_prob(drawn)
        assert tuple(log_prob.shape) == (3, 2, *one.batch_shape)
        assert not bool(log_prob.isnan().any())
    same = wider.log_prob(drawn[:, :, :1].expand(drawn.shape))
    np.testing.assert_array_equal(same[:, :, 0].detach(), same[:, :, 3].detach())
    if d.has_rsample:
        assert d.rsample((2,)).requires_grad
    else:
        with pytest.raises(NotImplementedError, match="does not implement rsample"):
            d.rsample()


def test_what_is_not_there_says_which_distribution_lacks_it():
    with pytest.raises(NotImplementedError, match="Poisson'> does not implement _mean_carrier_measure"):
        distributions.Poisson(2.0).entropy()
    with pytest.raises(NotImplementedError, match="VonMises'> does not implement rsample"):
        distributions.VonMises(0.0, 1.0).rsample()
    with pytest.raises(NotImplementedError, match="Beta'> does not implement cdf"):
        distributions.Beta(1.0, 2.0).cdf(resilin.tensor(0.5))


def test_the_mode_of_kumaraswamy_is_where_its_density_is_highest():
    d = distributions.Kumaraswamy(2.0, 3.0)
    places = resilin.linspace(0.01, 0.99, 981)
    assert abs(float(places[d.log_prob(places).argmax()]) - float(d.mode)) < 1e-3
