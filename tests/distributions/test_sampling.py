"""Samples have their distribution, and gradients through them are those of the parameters' influence."""

from __future__ import annotations

import math
import time

import numpy as np
import pytest
import scipy.stats
from distribution_cases import close, recorded, tensors

import resilin
from resilin import distributions as dist
from resilin.core.kernels.implicit_gradients import dirichlet_gradient, gamma_gradient
from resilin.testing.patience import PATIENCE_S

COUNT = 4000
CHANCE = 1e-5  # that one of the tests of samples fails by chance, for another seed


def continuous():
    return [
        (dist.Beta(0.4, 2.5), scipy.stats.beta(0.4, 2.5)),
        (dist.Beta(30.0, 0.9), scipy.stats.beta(30, 0.9)),
        (dist.Cauchy(1.0, 2.0), scipy.stats.cauchy(1, 2)),
        (dist.Chi2(resilin.tensor(3.0)), scipy.stats.chi2(3)),
        (dist.Exponential(0.7), scipy.stats.expon(scale=1 / 0.7)),
        (dist.FisherSnedecor(3.0, 5.0), scipy.stats.f(3, 5)),
        (dist.Gamma(0.3, 2.0), scipy.stats.gamma(0.3, scale=0.5)),
        (dist.Gamma(900.0, 2.0), scipy.stats.gamma(900, scale=0.5)),
        (dist.GeneralizedPareto(1.0, 2.0, 0.3), scipy.stats.genpareto(0.3, 1, 2)),
        (dist.Gumbel(1.0, 2.0), scipy.stats.gumbel_r(1, 2)),
        (dist.HalfCauchy(2.0), scipy.stats.halfcauchy(0, 2)),
        (dist.HalfNormal(2.0), scipy.stats.halfnorm(0, 2)),
        (dist.InverseGamma(2.5, 2.0), scipy.stats.invgamma(2.5, scale=2)),
        (dist.Laplace(1.0, 2.0), scipy.stats.laplace(1, 2)),
        (dist.LogNormal(0.3, 0.8), scipy.stats.lognorm(0.8, scale=math.exp(0.3))),
        (dist.Normal(1.0, 2.0), scipy.stats.norm(1, 2)),
        (dist.Pareto(2.0, 3.0), scipy.stats.pareto(3, scale=2)),
        (dist.StudentT(3.0, 1.0, 2.0), scipy.stats.t(3, 1, 2)),
        (dist.Uniform(-1.0, 2.0), scipy.stats.uniform(-1, 3)),
        (dist.VonMises(0.5, 2.0), scipy.stats.vonmises(2, 0.5)),
        (dist.Weibull(2.0, 1.5), scipy.stats.weibull_min(1.5, scale=2)),
    ]


def discrete():
    return [
        (dist.Bernoulli(0.3), scipy.stats.bernoulli(0.3)),
        (dist.Binomial(20, resilin.tensor(0.3)), scipy.stats.binom(20, 0.3)),
        (dist.Geometric(0.3), scipy.stats.geom(0.3, loc=-1)),
        (dist.NegativeBinomial(4.0, resilin.tensor(0.4)), scipy.stats.nbinom(4, 0.6)),
        (dist.Poisson(3.5), scipy.stats.poisson(3.5)),
    ]


def test_densities_moments_and_samples_are_scipys():
    resilin.manual_seed(3)
    for ours, theirs in continuous():
        drawn = ours.sample((COUNT,))
        assert scipy.stats.kstest(drawn.numpy(), theirs.cdf).pvalue > CHANCE, ours
        values = drawn[:20]
        np.testing.assert_allclose(ours.log_prob(values), theirs.logpdf(values), rtol=1e-6, err_msg=str(ours))
        if type(ours).cdf is not dist.Distribution.cdf and type(ours).cdf is not dist.TransformedDistribution.cdf:
            np.testing.assert_allclose(ours.cdf(values), theirs.cdf(values), rtol=1e-6, err_msg=str(ours))
        try:
            entropy = float(ours.entropy())
        except NotImplementedError:
            continue
        assert abs(entropy - theirs.entropy()) < 1e-4, ours


def test_counts_have_scipys_probabilities():
    resilin.manual_seed(4)
    for ours, theirs in discrete():
        drawn = ours.sample((COUNT,)).numpy()
        top = int(theirs.ppf(0.999))
        expected = theirs.pmf(np.arange(top)) * COUNT
        counts = np.array([(drawn == k).sum() for k in range(top)])
        kept = expected > 8
        chance = scipy.stats.chi2.sf((((counts - expected) ** 2 / expected)[kept]).sum(), kept.sum())
        assert chance > CHANCE, ours
        places = resilin.arange(float(top + 1) if top > 1 else 2.0)
        np.testing.assert_allclose(ours.log_prob(places), theirs.logpmf(places), rtol=1e-5, err_msg=str(ours))


def test_vectors_and_matrices_have_their_means_and_covariances():
    resilin.manual_seed(5)
    shares = dist.Dirichlet(resilin.tensor([0.5, 2.0, 3.0]))
    factor = resilin.tensor([[1.2, 0.0], [0.4, 0.7]])
    low = dist.LowRankMultivariateNormal(resilin.tensor([1.0, 2.0]), factor[:, :1], resilin.tensor([0.3, 0.6]))
    mixture = dist.MixtureSameFamily(
        dist.Categorical(resilin.tensor([0.3, 0.7])),
        dist.Normal(resilin.tensor([-2.0, 1.0]), resilin.tensor([0.5, 1.5])),
    )
    for d in (
        shares,
        low,
        mixture,
        dist.MultivariateNormal(resilin.tensor([1.0, 2.0]), scale_tril=factor),
        dist.Wishart(resilin.tensor(5.0), scale_tril=factor),
        dist.Multinomial(6, resilin.tensor([0.2, 0.5, 0.3])),
        dist.OneHotCategorical(resilin.tensor([0.2, 0.5, 0.3])),
        dist.ContinuousBernoulli(0.2),
        dist.Kumaraswamy(2.0, 3.0),
    ):
        drawn = d.sample((COUNT,))
        error = (d.variance / COUNT).sqrt()
        assert bool(((drawn.mean(0) - d.mean).abs() < 5 * error).all()), d
        assert bool(((drawn.var(0) / d.variance).log().abs() < 0.25).all()), d
    correlations = dist.LKJCholesky(3, 1.5).sample((COUNT,))
    matrix = correlations @ correlations.mT
    expected = scipy.stats.beta(1.5 + 0.5, 1.5 + 0.5, loc=-1, scale=2)  # of each correlation, of 3 variables
    assert scipy.stats.kstest(matrix[:, 2, 0].numpy(), expected.cdf).pvalue > CHANCE


def test_gradients_of_gamma_and_dirichlet_samples_are_pytorchs_within_its_approximation():
    gamma, dirichlet = recorded("implicit_gradients")
    np.testing.assert_allclose(gamma_gradient(gamma["a"], gamma["x"]), gamma["grad"], rtol=2e-3)
    found = dirichlet_gradient(dirichlet["x"], dirichlet["a"], dirichlet["total"])
    np.testing.assert_allclose(found, dirichlet["grad"], rtol=5e-2, atol=2e-3)


def test_gradients_of_gamma_and_dirichlet_samples_hold_their_probability():
    a = np.array([0.02, 0.7, 1.0, 4.0, 300.0, 5000.0])[:, None]
    step = 1e-5 * a
    for chance in (0.02, 0.5, 0.99):
        x = scipy.stats.gamma.ppf(chance, a)
        moved = (scipy.stats.gamma.ppf(chance, a + step) - scipy.stats.gamma.ppf(chance, a - step)) / (2 * step)
        np.testing.assert_allclose(gamma_gradient(a, x), moved, rtol=2e-6)
    b = np.array([0.3, 1.0, 8.0, 200.0])
    step = 1e-5
    for x in (0.03, 0.5, 0.93):
        slope = scipy.stats.beta.cdf(x, a[:5] * (1 + step), b) - scipy.stats.beta.cdf(x, a[:5] * (1 - step), b)
        density = scipy.stats.beta.pdf(x, a[:5], b)
        there = density > 1e-4
        expected = np.where(there, -slope / (2 * step * a[:5]) / np.where(there, density, 1) / (1 - x), 0)
        found = dirichlet_gradient(x, a[:5], a[:5] + b)
        np.testing.assert_allclose(np.where(there, found, 0), expected, rtol=1e-4, atol=1e-6)


def test_gradients_through_samples_hold_the_probability_of_what_was_drawn():
    """dx/da = -(dF/da) / (dF/dx), for every distribution that has a distribution function."""
    resilin.manual_seed(6)
    for kind, *given in (
        (dist.Cauchy, 0.3, 2.0),
        (dist.ContinuousBernoulli, 0.2),
        (dist.Exponential, 0.7),
        (dist.GeneralizedPareto, 1.0, 2.0, 0.3),
        (dist.Gumbel, 0.3, 2.0),
        (dist.HalfCauchy, 2.0),
        (dist.HalfNormal, 2.0),
        (dist.Kumaraswamy, 2.0, 3.0),
        (dist.Laplace, 0.3, 2.0),
        (dist.LogNormal, 0.3, 0.8),
        (dist.Normal, 0.3, 2.0),
        (dist.Pareto, 2.0, 3.0),
        (dist.Uniform, -1.0, 2.0),
        (dist.Weibull, 2.0, 1.5),
    ):
        params = [resilin.full((5,), value, requires_grad=True) for value in given]
        drawn = kind(*params, validate_args=False).rsample()
        through = resilin.autograd.grad(drawn.sum(), params)
        x = drawn.detach().requires_grad_()
        slopes = resilin.autograd.grad(kind(*params, validate_args=False).cdf(x).sum(), [x, *params])
        for got, slope in zip(through, slopes[1:], strict=True):
            np.testing.assert_allclose(got, -slope / slopes[0], rtol=1e-7, atol=1e-9, err_msg=kind.__name__)


def test_gradients_of_means_of_samples_are_those_of_the_mean():
    resilin.manual_seed(7)
    a = resilin.tensor([0.5, 2.0, 3.0], requires_grad=True)
    df = resilin.tensor([6.0], requires_grad=True)
    cases = [
        (lambda: dist.Dirichlet(a).rsample((COUNT,))[:, 0].mean(), lambda: dist.Dirichlet(a).mean[0], a),
        (lambda: dist.Gamma(a, 2.0).rsample((COUNT,)).log().mean(0).sum(), lambda: a.digamma().sum(), a),
        (lambda: dist.StudentT(df).rsample((COUNT,)).square().mean(), lambda: dist.StudentT(df).variance.sum(), df),
        (lambda: dist.Chi2(df).rsample((COUNT,)).mean(), lambda: df.sum(), df),
    ]
    for sampled, exact, leaf in cases:
        (got,), (expected,) = (resilin.autograd.grad(f(), leaf) for f in (sampled, exact))
        np.testing.assert_allclose(got, expected, rtol=0.2, atol=0.02)


def test_samples_follow_the_seed_and_have_the_dtype_of_the_parameters():
    for dtype in (resilin.float32, resilin.float16, resilin.float64):
        d = dist.Beta(resilin.tensor([0.5, 2.0], dtype=dtype), resilin.tensor(1.0, dtype=dtype))
        drawn = []
        for _ in range(2):
            resilin.manual_seed(11)
            drawn.append(d.sample((3,)))
        assert drawn[0].dtype is dtype
        np.testing.assert_array_equal(*drawn)
        assert not np.array_equal(drawn[0], d.sample((3,)))


def test_tiny_and_broken_concentrations_end():
    began = time.monotonic()
    tiny = dist.Dirichlet(resilin.full((200, 3), 1e-4)).sample()
    assert bool(((tiny.sum(-1) - 1).abs() < 1e-6).all())
    assert bool((dist.Gamma(resilin.full((50,), 1e-4), 1.0).sample() > 0).all())
    half = dist.Dirichlet(resilin.full((50, 3), 1e-3, dtype=resilin.float16), validate_args=False).sample()
    assert bool((half > 0).all())
    broken = dist.Gamma(resilin.tensor([math.nan, math.inf]), 1.0, validate_args=False).sample()
    assert broken.isnan().tolist() == [True, False]
    assert time.monotonic() - began < PATIENCE_S


def test_straight_through_and_relaxed_samples_have_gradients():
    logits = resilin.tensor([0.3, -1.0, 2.0], requires_grad=True)
    weight = resilin.tensor([1.0, 2.0, 3.0])
    (dist.OneHotCategoricalStraightThrough(logits=logits).rsample() * weight).sum().backward()
    expected = logits.detach().softmax(-1)
    expected = expected * (weight - (expected * weight).sum())
    close(logits.grad, expected.numpy(), "straight through")
    soft = dist.RelaxedOneHotCategorical(resilin.tensor(0.5), logits=logits).rsample((4,))
    close(soft.sum(-1), np.ones(4), "simplex")
    assert dist.RelaxedBernoulli(resilin.tensor(0.5), logits=logits).rsample().requires_grad


def test_mixtures_give_each_event_whole():
    components = dist.Independent(dist.Normal(tensors(np.array([[[0.0, 0.0], [9.0, 9.0]]] * 3)), 0.1), 1)
    mixture = dist.MixtureSameFamily(dist.Categorical(resilin.ones(2)), components)
    drawn = mixture.sample((50,))
    assert tuple(drawn.shape) == (50, 3, 2)
    assert bool(((drawn[..., 0] > 5) == (drawn[..., 1] > 5)).all())
    assert not bool((drawn[:, 0, 0] > 5).eq(drawn[:, 1, 0] > 5).all())  # each of the batch chooses by itself


@pytest.mark.parametrize("shape", [(), (0,), (2, 0, 3)])
def test_shapes_without_elements_are_kept(shape):
    for d in (dist.Normal(0.0, 1.0), dist.Gamma(1.0, 1.0), dist.Categorical(resilin.ones(3)), dist.VonMises(0.0, 1.0)):
        assert tuple(d.sample(shape).shape) == shape


def test_samples_and_their_gradients_stay_on_the_device_of_the_parameters():
    a = resilin.tensor([0.5, 2.0], device="sim:1", requires_grad=True)
    for d in (
        dist.Normal(a, a),
        dist.Gamma(a, a),
        dist.Dirichlet(a),
        dist.StudentT(a),
        dist.Laplace(a, a),
        dist.Kumaraswamy(a, a),
        dist.RelaxedBernoulli(resilin.tensor(0.5, device="sim:1"), logits=a),
        dist.MultivariateNormal(a, scale_tril=resilin.eye(2, device="sim:1")),
    ):
        drawn = d.rsample((3,))
        assert str(drawn.device) == "sim:1"
        d.log_prob(drawn).sum().backward()
    assert str(a.grad.device) == "sim:1"
    for d in (
        dist.Bernoulli(logits=a),
        dist.Binomial(4, logits=a),
        dist.Categorical(a.detach()),
        dist.Geometric(logits=a),
        dist.Poisson(a),
        dist.VonMises(a, a),
        dist.Multinomial(5, logits=a),
        dist.OneHotCategorical(logits=a),
        dist.LKJCholesky(3, a),
    ):
        drawn = d.sample((3,))
        assert str(drawn.device) == "sim:1"
        assert str(d.log_prob(drawn).device) == "sim:1"
