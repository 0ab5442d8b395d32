"""Numbers between 0 and 1 with the density of Bernoulli's probabilities: ContinuousBernoulli.

G. Loaiza-Ganem, J. P. Cunningham, "The continuous Bernoulli: fixing a pervasive error in variational autoencoders"
(2019). Around a probability of 1/2, where its formulas cancel, their Taylor series are used.
"""

from __future__ import annotations

import math
from typing import Any

from resilin.core.api.manipulation import indexing
from resilin.core.ops import creation
from resilin.core.tensor import Tensor
from resilin.distributions import constraints
from resilin.distributions.bernoulli import _PROBS_OR_LOGITS, Odds, cross_entropy
from resilin.distributions.distribution import Shape
from resilin.distributions.exp_family import ExponentialFamily
from resilin.distributions.utils import broadcast_all, clamp_probs, lazy_property, logits_to_probs, uniform_like

__all__ = ["ContinuousBernoulli"]


class ContinuousBernoulli(Odds, ExponentialFamily):
    """Numbers of [0, 1] with a density in proportion to probs ** x (1 - probs) ** (1 - x).

    lims:  between these probabilities the series are used.
    """

    arg_constraints = _PROBS_OR_LOGITS
    support = constraints.unit_interval
    has_rsample = True
    _mean_carrier_measure = 0

    def __init__(
        self,
        probs: Any = None,
        logits: Any = None,
        lims: tuple[float, float] = (0.499, 0.501),
        validate_args: bool | None = None,
    ) -> None:
        batch = self._take(probs, logits)
        self._lims = lims
        if probs is not None:
            wanted = self._validate_args if validate_args is None else validate_args
            if wanted and not bool(constraints.unit_interval.check(self.probs).all()):
                raise ValueError(f"The parameter probs has invalid values:\n{self.probs}")
            self.probs = clamp_probs(self.probs)
        super().__init__(batch, validate_args=validate_args)

    def expand(self, batch_shape: Shape, _instance: Any = None) -> Any:
        """The distribution with its batch expanded."""
        new = self._get_checked_instance(ContinuousBernoulli, _instance)
        new._lims = self._lims
        return self._filled(new, batch_shape, "probs", "logits")

    @lazy_property
    def probs(self) -> Tensor:
        """The parameter, within (0, 1)."""
        return clamp_probs(logits_to_probs(self.logits, is_binary=True))

    def _outside_unstable_region(self) -> Tensor:
        return (self.probs <= self._lims[0]) | (self.probs > self._lims[1])

    def _cut_probs(self) -> Tensor:
        """The parameter; the lower limit where the series are used."""
        return indexing.where(self._outside_unstable_region(), self.probs, self._lims[0])

    def _stable(self, outside: Tensor, series: Tensor) -> Tensor:
        return indexing.where(self._outside_unstable_region(), outside, series)

    def _cont_bern_log_norm(self) -> Tensor:
        p = self._cut_probs()
        log_norm = (_log_odds(p).abs()).log() - (1 - 2 * p).abs().log()
        x = (self.probs - 0.5).square()
        return self._stable(log_norm, math.log(2.0) + (4.0 / 3.0 + 104.0 / 45.0 * x) * x)

    @property
    def mean(self) -> Tensor:
        """The mean."""
        p, x = self._cut_probs(), self.probs - 0.5
        series = 0.5 + (1.0 / 3.0 + 16.0 / 45.0 * x.square()) * x
        return self._stable(p / (2.0 * p - 1.0) - 1.0 / _log_odds(p), series)

    @property
    def variance(self) -> Tensor:
        """The variance."""
        p, x = self._cut_probs(), (self.probs - 0.5).square()
        outside = p * (p - 1.0) / (1.0 - 2.0 * p).square() + 1.0 / _log_odds(p).square()
        return self._stable(outside, 1.0 / 12.0 - (1.0 / 15.0 - 128.0 / 945.0 * x) * x)

    def rsample(self, sample_shape: Shape = ()) -> Tensor:
        """Draw a sample through which gradients reach the parameters."""
        return self.icdf(uniform_like(self.probs, self._extended_shape(sample_shape)))

    def log_prob(self, value: Tensor) -> Tensor:
        """The logarithm of the density at `value`."""
        logits, value = broadcast_all(self.logits, self._checked(value))
        return self._cont_bern_log_norm() - cross_entropy(logits, value)

    def cdf(self, value: Tensor) -> Tensor:
        """The probability of a value up to `value`."""
        value, p = self._checked(value), self._cut_probs()
        below = (p.pow(value) * (1.0 - p).pow(1.0 - value) + p - 1.0) / (2.0 * p - 1.0)
        inside = self._stable(below, value)
        return indexing.where(
            value <= 0.0, creation.zeros_like(inside), indexing.where(value >= 1.0, creation.ones_like(inside), inside)
        )

    def icdf(self, value: Tensor) -> Tensor:
        """The inverse of `cdf`."""
        p = self._cut_probs()
        found = ((-p + value * (2.0 * p - 1.0)).log1p() - (-p).log1p()) / _log_odds(p)
        return self._stable(found, value)

    def entropy(self) -> Tensor:
        """The entropy in nats."""
        log_not = (-self.probs).log1p()
        return self.mean * (log_not - self.probs.log()) - self._cont_bern_log_norm() - log_not

    @property
    def _natural_params(self) -> tuple[Tensor]:
        return (self.logits,)

    def _log_normalizer(self, x: Tensor) -> Tensor:
        outside = (x <= self._lims[0] - 0.5) | (x > self._lims[1] - 0.5)
        safe = indexing.where(outside, x, self._lims[0] - 0.5)
        series = 0.5 * x + x.square() / 24.0 - x.pow(4) / 2880.0
        return indexing.where(outside, safe.expm1().abs().log() - safe.abs().log(), series)


def _log_odds(p: Tensor) -> Tensor:
    return p.log() - (-p).log1p()
