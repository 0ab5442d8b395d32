"""Divergences between two distributions of one family. Imported for what it registers."""

from __future__ import annotations

import math
from typing import Any

from resilin.core.api.manipulation import indexing
from resilin.core.api.nn import neural
from resilin.core.autograd.grad import grad
from resilin.core.tensor import Tensor
from resilin.distributions.bernoulli import Bernoulli, Binomial, Geometric
from resilin.distributions.categorical import Categorical, OneHotCategorical
from resilin.distributions.cauchy import Cauchy, Laplace
from resilin.distributions.continuous_bernoulli import ContinuousBernoulli
from resilin.distributions.dirichlet import Beta, Dirichlet
from resilin.distributions.exp_family import ExponentialFamily
from resilin.distributions.exponential import Exponential, Pareto
from resilin.distributions.gamma import Gamma
from resilin.distributions.independent import Independent
from resilin.distributions.kl import kl_divergence, register_kl
from resilin.distributions.lowrank_multivariate_normal import (
    LowRankMultivariateNormal,
    _batch_lowrank_logdet,
    _batch_lowrank_mahalanobis,
)
from resilin.distributions.multivariate_normal import MultivariateNormal, _batch_mahalanobis, half_log_det
from resilin.distributions.normal import HalfNormal, Normal
from resilin.distributions.poisson import Poisson
from resilin.distributions.transformed_distribution import TransformedDistribution
from resilin.distributions.uniform import Gumbel, Uniform
from resilin.distributions.utils import _sum_rightmost, euler_constant
from resilin.linalg import solve_triangular

where = indexing.where


@register_kl(Bernoulli, Bernoulli)
def _bernoulli(p: Bernoulli, q: Bernoulli) -> Tensor:
    one = p.probs * (neural.softplus(-q.logits) - neural.softplus(-p.logits))
    zero = (1 - p.probs) * (neural.softplus(q.logits) - neural.softplus(p.logits))
    one = where(p.probs == 0, 0.0, where(q.probs == 0, math.inf, one))
    zero = where(p.probs == 1, 0.0, where(q.probs == 1, math.inf, zero))
    return one + zero


@register_kl(Beta, Beta)
def _beta(p: Beta, q: Beta) -> Tensor:
    return _dirichlet(p._dirichlet, q._dirichlet)


@register_kl(Binomial, Binomial)
def _binomial(p: Binomial, q: Binomial) -> Tensor:
    if bool((p.total_count < q.total_count).any()):
        raise NotImplementedError("KL between Binomials where q.total_count > p.total_count is not implemented")
    one = p.probs * (p.logits - q.logits) + (-p.probs).log1p() - (-q.probs).log1p()
    return where(p.total_count > q.total_count, math.inf, p.total_count * one)


@register_kl(Categorical, Categorical)
def _categorical(p: Categorical, q: Categorical) -> Tensor:
    terms = p.probs * (p.logits - q.logits)
    return where(p.probs == 0, 0.0, where(q.probs == 0, math.inf, terms)).sum(-1)


@register_kl(OneHotCategorical, OneHotCategorical)
def _one_hot(p: OneHotCategorical, q: OneHotCategorical) -> Tensor:
    return _categorical(p._categorical, q._categorical)


@register_kl(Cauchy, Cauchy)
def _cauchy(p: Cauchy, q: Cauchy) -> Tensor:
    # F. Chyzak, F. Nielsen, "A closed-form formula for the Kullback-Leibler divergence between Cauchy distributions"
    return ((p.scale + q.scale).square() + (p.loc - q.loc).square()).log() - (4 * p.scale * q.scale).log()


@register_kl(ContinuousBernoulli, ContinuousBernoulli)
def _continuous_bernoulli(p: ContinuousBernoulli, q: ContinuousBernoulli) -> Tensor:
    own = p._cont_bern_log_norm() + (-p.probs).log1p()
    return p.mean * (p.logits - q.logits) + own - q._cont_bern_log_norm() - (-q.probs).log1p()


@register_kl(Dirichlet, Dirichlet)
def _dirichlet(p: Dirichlet, q: Dirichlet) -> Tensor:
    a, b = p.concentration, q.concentration
    total = a.sum(-1)
    log_beta = (a.lgamma() - b.lgamma()).sum(-1)
    mean_log = a.digamma() - total.digamma().unsqueeze(-1)
    return total.lgamma() - b.sum(-1).lgamma() - log_beta + ((a - b) * mean_log).sum(-1)


@register_kl(Exponential, Exponential)
def _exponential(p: Exponential, q: Exponential) -> Tensor:
    ratio = q.rate / p.rate
    return ratio - 1 - ratio.log()


@register_kl(ExponentialFamily, ExponentialFamily)
def _exponential_family(p: Any, q: Any) -> Tensor:
    """Bregman's divergence of the log normalizers, for any family whose own rule is not here."""
    if type(p) is not type(q):
        raise NotImplementedError(
            "The cross KL-divergence between different exponential families cannot be computed using Bregman "
            f"divergences: {type(p).__name__} and {type(q).__name__}"
        )
    ours = [param.detach().requires_grad_() for param in p._natural_params]
    log_normalizer = p._log_normalizer(*ours)
    slopes = grad(log_normalizer.sum(), ours, create_graph=True)
    result = q._log_normalizer(*q._natural_params) - log_normalizer
    for own, other, slope in zip(ours, q._natural_params, slopes, strict=True):
        result = result - _sum_rightmost((other - own) * slope, len(q.event_shape))
    return result


@register_kl(Gamma, Gamma)
def _gamma(p: Gamma, q: Gamma) -> Tensor:
    a, b = p.concentration, q.concentration
    by_rate = b * (p.rate / q.rate).log() + (q.rate - p.rate) * (a / p.rate)
    return by_rate + b.lgamma() - a.lgamma() + (a - b) * a.digamma()


@register_kl(Gumbel, Gumbel)
def _gumbel(p: Gumbel, q: Gumbel) -> Tensor:
    ratio, away = p.scale / q.scale, (p.loc - q.loc) / q.scale
    tail = ((1 + ratio).lgamma() - away).exp()
    return away - ratio.log() + ratio * euler_constant + tail - (1 + euler_constant)


@register_kl(Geometric, Geometric)
def _geometric(p: Geometric, q: Geometric) -> Tensor:
    return -p.entropy() - (-q.probs).log1p() / p.probs - q.logits


@register_kl(HalfNormal, HalfNormal)
def _half_normal(p: HalfNormal, q: HalfNormal) -> Tensor:
    return _normal(p.base_dist, q.base_dist)


@register_kl(Laplace, Laplace)
def _laplace(p: Laplace, q: Laplace) -> Tensor:
    ratio, away = p.scale / q.scale, (p.loc - q.loc).abs()
    return away / q.scale + ratio * (-away / p.scale).exp() - ratio.log() - 1


@register_kl(Normal, Normal)
def _normal(p: Normal, q: Normal) -> Tensor:
    ratio = (p.scale / q.scale).square()
    return 0.5 * (ratio + ((p.loc - q.loc) / q.scale).square() - 1 - ratio.log())


@register_kl(Pareto, Pareto)
def _pareto(p: Pareto, q: Pareto) -> Tensor:
    ratio = q.alpha / p.alpha
    result = q.alpha * (p.scale / q.scale).log() - ratio.log() + ratio - 1
    return where(p.scale < q.scale, math.inf, result)


@register_kl(Poisson, Poisson)
def _poisson(p: Poisson, q: Poisson) -> Tensor:
    return p.rate * (p.rate.log() - q.rate.log()) - (p.rate - q.rate)


@register_kl(Uniform, Uniform)
def _uniform(p: Uniform, q: Uniform) -> Tensor:
    result = ((q.high - q.low) / (p.high - p.low)).log()
    return where((q.low > p.low) | (q.high < p.high), math.inf, result)


@register_kl(TransformedDistribution, TransformedDistribution)
def _transformed(p: TransformedDistribution, q: TransformedDistribution) -> Tensor:
    if p.transforms != q.transforms or p.event_shape != q.event_shape:
        raise NotImplementedError("KL between transformed distributions needs equal transforms and event shapes")
    return kl_divergence(p.base_dist, q.base_dist)


@register_kl(Independent, Independent)
def _independent(p: Independent[Any], q: Independent[Any]) -> Tensor:
    if p.reinterpreted_batch_ndims != q.reinterpreted_batch_ndims:
        raise NotImplementedError("KL between Independents needs as many reinterpreted_batch_ndims")
    own = kl_divergence(p.base_dist, q.base_dist)
    return _sum_rightmost(own, p.reinterpreted_batch_ndims)


# -- normal vectors: half of tr(Q^-1 P) - n + (m - l)^T Q^-1 (m - l) + log det Q - log det P


def _trace_of_square(matrix: Tensor) -> Tensor:
    """tr(A A^T)."""
    return matrix.square().sum((-2, -1))


def _need_one_event_shape(p: Any, q: Any) -> None:
    if p.event_shape != q.event_shape:
        raise ValueError(
            "KL-divergence between two (Low Rank) Multivariate Normals with different event shapes cannot be "
            f"computed: {p.event_shape} and {q.event_shape}"
        )


def _whitened(q: LowRankMultivariateNormal) -> tuple[Tensor, Tensor]:
    """(D ** -1/2, A) with Q^-1 = D^-1 - A^T A."""
    W, D = q._unbroadcasted_cov_factor, q._unbroadcasted_cov_diag
    return D.rsqrt(), solve_triangular(q._capacitance_tril, W.mT / D.unsqueeze(-2), upper=False)


def _lowrank_log_det(d: LowRankMultivariateNormal) -> Tensor:
    return _batch_lowrank_logdet(d._unbroadcasted_cov_factor, d._unbroadcasted_cov_diag, d._capacitance_tril)


def _lowrank_distance(q: LowRankMultivariateNormal, away: Tensor) -> Tensor:
    W, D = q._unbroadcasted_cov_factor, q._unbroadcasted_cov_diag
    return _batch_lowrank_mahalanobis(W, D, away, q._capacitance_tril)


@register_kl(MultivariateNormal, MultivariateNormal)
def _vectors(p: MultivariateNormal, q: MultivariateNormal) -> Tensor:
    _need_one_event_shape(p, q)
    ours, theirs = p._unbroadcasted_scale_tril, q._unbroadcasted_scale_tril
    trace = _trace_of_square(solve_triangular(theirs, ours, upper=False))
    distance = _batch_mahalanobis(theirs, q.loc - p.loc)
    return half_log_det(theirs) - half_log_det(ours) + 0.5 * (trace + distance - p.event_shape[0])


@register_kl(LowRankMultivariateNormal, LowRankMultivariateNormal)
def _lowrank(p: LowRankMultivariateNormal, q: LowRankMultivariateNormal) -> Tensor:
    _need_one_event_shape(p, q)
    W, D = p._unbroadcasted_cov_factor, p._unbroadcasted_cov_diag
    root, A = _whitened(q)
    trace = (D * root.square()).sum(-1) + _trace_of_square(W * root.unsqueeze(-1))
    trace = trace - _trace_of_square(A * D.sqrt().unsqueeze(-2)) - _trace_of_square(A @ W)
    distance = _lowrank_distance(q, q.loc - p.loc)
    return 0.5 * (_lowrank_log_det(q) - _lowrank_log_det(p) + trace + distance - p.event_shape[0])


@register_kl(MultivariateNormal, LowRankMultivariateNormal)
def _full_from_lowrank(p: MultivariateNormal, q: LowRankMultivariateNormal) -> Tensor:
    _need_one_event_shape(p, q)
    factor = p._unbroadcasted_scale_tril
    root, A = _whitened(q)
    trace = _trace_of_square(factor * root.unsqueeze(-1)) - _trace_of_square(A @ factor)
    distance = _lowrank_distance(q, q.loc - p.loc)
    return 0.5 * (_lowrank_log_det(q) - 2 * half_log_det(factor) + trace + distance - p.event_shape[0])


@register_kl(LowRankMultivariateNormal, MultivariateNormal)
def _lowrank_from_full(p: LowRankMultivariateNormal, q: MultivariateNormal) -> Tensor:
    _need_one_event_shape(p, q)
    factor = q._unbroadcasted_scale_tril
    parts = (p._unbroadcasted_cov_factor, p._unbroadcasted_cov_diag.sqrt().diag_embed())
    trace = sum(_trace_of_square(solve_triangular(factor, part, upper=False)) for part in parts)
    distance = _batch_mahalanobis(factor, q.loc - p.loc)
    return 0.5 * (2 * half_log_det(factor) - _lowrank_log_det(p) + trace + distance - p.event_shape[0])
