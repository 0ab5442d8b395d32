"""Divergences between distributions of two families. Imported for what it registers.

KL(p || q) is minus p's entropy minus the mean of log q under p. It is infinite where p has values that q has not.
"""

from __future__ import annotations

import math
from typing import Any

from resilin.core.api.manipulation import indexing
from resilin.core.api.mathematics import arithmetic
from resilin.core.ops import creation
from resilin.core.tensor import Tensor
from resilin.distributions.bernoulli import Bernoulli, Binomial
from resilin.distributions.cauchy import Laplace
from resilin.distributions.continuous_bernoulli import ContinuousBernoulli
from resilin.distributions.dirichlet import Beta
from resilin.distributions.exponential import Exponential, Pareto
from resilin.distributions.gamma import Gamma
from resilin.distributions.kl import register_kl
from resilin.distributions.normal import Normal
from resilin.distributions.poisson import Poisson
from resilin.distributions.uniform import Gumbel, Uniform
from resilin.distributions.utils import euler_constant

where = indexing.where
_LOG_TWO_PI = math.log(2 * math.pi)

# p -> (a parameter of p, those q that lack values of p)
_INFINITE: dict[type, tuple[str, tuple[type, ...]]] = {
    Beta: ("concentration1", (Pareto,)),
    ContinuousBernoulli: ("probs", (Pareto,)),
    Exponential: ("rate", (Beta, ContinuousBernoulli, Pareto, Uniform)),
    Gamma: ("concentration", (Beta, ContinuousBernoulli, Pareto, Uniform)),
    Gumbel: ("loc", (Beta, ContinuousBernoulli, Exponential, Gamma, Pareto, Uniform)),
    Laplace: ("loc", (Beta, ContinuousBernoulli, Exponential, Gamma, Pareto, Uniform)),
    Normal: ("loc", (Beta, ContinuousBernoulli, Exponential, Gamma, Pareto, Uniform)),
    Pareto: ("scale", (Beta, ContinuousBernoulli, Uniform)),
    Poisson: ("rate", (Bernoulli, Binomial)),
}


def _register_infinite(kind: type, parameter: str, others: tuple[type, ...]) -> None:
    def infinite(p: Any, q: Any) -> Tensor:
        return creation.full_like(getattr(p, parameter), math.inf)

    for other in others:
        register_kl(kind, other)(infinite)


for _kind, _of in _INFINITE.items():
    _register_infinite(_kind, *_of)


def _minus_mean_log_normal(q: Normal, mean: Tensor, variance: Tensor) -> Tensor:
    """Of a distribution of this mean and variance."""
    return 0.5 * _LOG_TWO_PI + q.scale.log() + 0.5 * (variance + (mean - q.loc).square()) / q.scale.square()


def _minus_mean_log_gamma(q: Gamma, mean: Tensor, mean_log: Tensor) -> Tensor:
    """Of a distribution of this mean and mean logarithm."""
    a = q.concentration
    return a.lgamma() - a * q.rate.log() - (a - 1) * mean_log + q.rate * mean


def _minus_mean_log_continuous_bernoulli(q: ContinuousBernoulli, mean: Tensor) -> Tensor:
    """Of a distribution of this mean."""
    return -mean * q.logits - (-q.probs).log1p() - q._cont_bern_log_norm()


def _mean_x_log(p: Uniform) -> Tensor:
    """The mean logarithm of uniform numbers."""
    width = p.high - p.low
    return (arithmetic.xlogy(p.high, p.high) - arithmetic.xlogy(p.low, p.low) - width) / width


@register_kl(Bernoulli, Poisson)
def _bernoulli_poisson(p: Bernoulli, q: Poisson) -> Tensor:
    return -p.entropy() - (p.probs * q.rate.log() - q.rate)


@register_kl(Beta, ContinuousBernoulli)
def _beta_continuous_bernoulli(p: Beta, q: ContinuousBernoulli) -> Tensor:
    return _minus_mean_log_continuous_bernoulli(q, p.mean) - p.entropy()


@register_kl(Beta, Exponential)
@register_kl(ContinuousBernoulli, Exponential)
@register_kl(Gamma, Exponential)
def _exponential(p: Any, q: Exponential) -> Tensor:
    return q.rate * p.mean - q.rate.log() - p.entropy()


@register_kl(Beta, Gamma)
def _beta_gamma(p: Beta, q: Gamma) -> Tensor:
    mean_log = p.concentration1.digamma() - (p.concentration1 + p.concentration0).digamma()
    return _minus_mean_log_gamma(q, p.mean, mean_log) - p.entropy()


@register_kl(Beta, Normal)
@register_kl(ContinuousBernoulli, Normal)
@register_kl(Exponential, Normal)
@register_kl(Gamma, Normal)
@register_kl(Gumbel, Normal)
@register_kl(Laplace, Normal)
@register_kl(Uniform, Normal)
def _normal(p: Any, q: Normal) -> Tensor:
    return _minus_mean_log_normal(q, p.mean, p.variance) - p.entropy()


@register_kl(Beta, Uniform)
@register_kl(ContinuousBernoulli, Uniform)
def _unit_interval_uniform(p: Any, q: Uniform) -> Tensor:
    result = (q.high - q.low).log() - p.entropy()
    return where((q.low > 0) | (q.high < 1), math.inf, result)


@register_kl(Exponential, Gamma)
def _exponential_gamma(p: Exponential, q: Gamma) -> Tensor:
    return _minus_mean_log_gamma(q, p.mean, -euler_constant - p.rate.log()) - p.entropy()


@register_kl(Exponential, Gumbel)
def _exponential_gumbel(p: Exponential, q: Gumbel) -> Tensor:
    scaled, place = p.rate * q.scale, q.loc / q.scale
    return scaled.log() - 1 - place + place.exp() * scaled / (scaled + 1) + scaled.reciprocal()


@register_kl(Gamma, Gumbel)
def _gamma_gumbel(p: Gamma, q: Gumbel) -> Tensor:
    scaled, place = p.rate * q.scale, q.loc / q.scale
    tail = place.exp() * (1 + scaled.reciprocal()).pow(-p.concentration)
    return q.scale.log() + p.mean / q.scale - place + tail - p.entropy()


@register_kl(Normal, Gumbel)
def _normal_gumbel(p: Normal, q: Gumbel) -> Tensor:
    away, ratio = (p.loc - q.loc) / q.scale, (p.scale / q.scale).square()
    return away + (0.5 * ratio - away).exp() - 0.5 * ratio.log() - 0.5 * (1 + _LOG_TWO_PI)


@register_kl(Normal, Laplace)
def _normal_laplace(p: Normal, q: Laplace) -> Tensor:
    away = p.loc - q.loc
    z = away / p.scale
    mean_distance = math.sqrt(2 / math.pi) * p.scale * (-0.5 * z.square()).exp() + away * (math.sqrt(0.5) * z).erf()
    return (2 * q.scale).log() + mean_distance / q.scale - p.entropy()


def _where_it_exists(p: Pareto, moment: int, result: Tensor) -> Tensor:
    return where(p.alpha <= moment, math.inf, result)


@register_kl(Pareto, Exponential)
def _pareto_exponential(p: Pareto, q: Exponential) -> Tensor:
    return _where_it_exists(p, 1, _exponential(p, q))


@register_kl(Pareto, Gamma)
def _pareto_gamma(p: Pareto, q: Gamma) -> Tensor:
    mean_log = p.scale.log() + p.alpha.reciprocal()
    return _where_it_exists(p, 1, _minus_mean_log_gamma(q, p.mean, mean_log) - p.entropy())


@register_kl(Pareto, Normal)
def _pareto_normal(p: Pareto, q: Normal) -> Tensor:
    return _where_it_exists(p, 2, _normal(p, q))


@register_kl(Uniform, Beta)
def _uniform_beta(p: Uniform, q: Beta) -> Tensor:
    a, b = q.concentration1, q.concentration0
    mirrored = Uniform(1 - p.high, 1 - p.low, validate_args=False)
    log_beta = a.lgamma() + b.lgamma() - (a + b).lgamma()
    result = log_beta - (a - 1) * _mean_x_log(p) - (b - 1) * _mean_x_log(mirrored) - p.entropy()
    return where((p.high > 1) | (p.low < 0), math.inf, result)


@register_kl(Uniform, ContinuousBernoulli)
def _uniform_continuous_bernoulli(p: Uniform, q: ContinuousBernoulli) -> Tensor:
    result = _minus_mean_log_continuous_bernoulli(q, p.mean) - p.entropy()
    return where((p.high > 1) | (p.low < 0), math.inf, result)


@register_kl(Uniform, Exponential)
def _uniform_exponential(p: Uniform, q: Exponential) -> Tensor:
    return where(p.low < 0, math.inf, _exponential(p, q))


@register_kl(Uniform, Gamma)
def _uniform_gamma(p: Uniform, q: Gamma) -> Tensor:
    return where(p.low < 0, math.inf, _minus_mean_log_gamma(q, p.mean, _mean_x_log(p)) - p.entropy())


@register_kl(Uniform, Gumbel)
def _uniform_gumbel(p: Uniform, q: Gumbel) -> Tensor:
    width = (p.high - p.low) / q.scale
    high, low = (p.high - q.loc) / q.scale, (p.low - q.loc) / q.scale
    return 0.5 * (high + low) - width.log() - ((-high).exp() - (-low).exp()) / width


@register_kl(Uniform, Pareto)
def _uniform_pareto(p: Uniform, q: Pareto) -> Tensor:
    result = (q.alpha + 1) * _mean_x_log(p) - q.alpha.log() - q.alpha * q.scale.log() - p.entropy()
    return where(p.low < q.scale, math.inf, result)
