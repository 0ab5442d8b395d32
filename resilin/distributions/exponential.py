"""Waiting times and powers of them: Exponential, Pareto, Weibull, GeneralizedPareto."""

from __future__ import annotations

import math
from typing import Any

from resilin.core.api.manipulation import indexing
from resilin.core.api.mathematics import arithmetic
from resilin.core.ops import creation
from resilin.core.tensor import Tensor
from resilin.distributions import constraints
from resilin.distributions.distribution import Distribution, Shape
from resilin.distributions.exp_family import ExponentialFamily
from resilin.distributions.transformed_distribution import TransformedDistribution
from resilin.distributions.transforms import AffineTransform, ExpTransform, PowerTransform
from resilin.distributions.utils import all_numbers, broadcast_all, euler_constant, is_number, uniform_like

__all__ = ["Exponential", "GeneralizedPareto", "Pareto", "Weibull"]


class Exponential(ExponentialFamily):
    """Exponential numbers of mean 1 / `rate`."""

    arg_constraints = {"rate": constraints.positive}  # noqa: RUF012
    support = constraints.nonnegative
    has_rsample = True
    _mean_carrier_measure = 0

    def __init__(self, rate: Any, validate_args: bool | None = None) -> None:
        (self.rate,) = broadcast_all(rate)
        super().__init__(() if is_number(rate) else self.rate.size(), validate_args=validate_args)

    def expand(self, batch_shape: Shape, _instance: Any = None) -> Any:
        """The distribution with its batch expanded."""
        return self._new_expanded(Exponential, batch_shape, _instance, "rate")

    @property
    def mean(self) -> Tensor:
        """The mean."""
        return self.rate.reciprocal()

    @property
    def mode(self) -> Tensor:
        """The most probable value."""
        return creation.zeros_like(self.rate)

    @property
    def stddev(self) -> Tensor:
        """The standard deviation."""
        return self.rate.reciprocal()

    @property
    def variance(self) -> Tensor:
        """The variance."""
        return self.rate.pow(-2)

    def rsample(self, sample_shape: Shape = ()) -> Tensor:
        """Draw a sample through which gradients reach the parameters."""
        return self.rate.new_empty(tuple(self._extended_shape(sample_shape))).exponential_() / self.rate

    def log_prob(self, value: Tensor) -> Tensor:
        """The logarithm of the density at `value`."""
        return self.rate.log() - self.rate * self._checked(value)

    def cdf(self, value: Tensor) -> Tensor:
        """The probability of a value up to `value`."""
        return -(-self.rate * self._checked(value)).expm1()

    def icdf(self, value: Tensor) -> Tensor:
        """The inverse of `cdf`."""
        return -(-value).log1p() / self.rate

    def entropy(self) -> Tensor:
        """The entropy in nats."""
        return 1.0 - self.rate.log()

    @property
    def _natural_params(self) -> tuple[Tensor]:
        return (-self.rate,)

    def _log_normalizer(self, x: Tensor) -> Tensor:
        return -(-x).log()


class Pareto(TransformedDistribution):
    """Pareto numbers: those beyond `scale` fall as a power of -`alpha`."""

    arg_constraints = {"alpha": constraints.positive, "scale": constraints.positive}  # noqa: RUF012

    def __init__(self, scale: Any, alpha: Any, validate_args: bool | None = None) -> None:
        self.scale, self.alpha = broadcast_all(scale, alpha)
        base = Exponential(self.alpha, validate_args=validate_args)
        steps = [ExpTransform(), AffineTransform(loc=0, scale=self.scale)]
        super().__init__(base, steps, validate_args=validate_args)

    def expand(self, batch_shape: Shape, _instance: Any = None) -> Any:
        """The distribution with its batch expanded."""
        new = self._get_checked_instance(Pareto, _instance)
        new.scale, new.alpha = self.scale.expand(tuple(batch_shape)), self.alpha.expand(tuple(batch_shape))
        return super().expand(batch_shape, new)

    @constraints.dependent_property(is_discrete=False, event_dim=0)
    def support(self) -> Any:
        return constraints.greater_than_eq(self.scale)

    @property
    def mean(self) -> Tensor:
        """The mean; infinite for `alpha` up to 1."""
        a = self.alpha.clamp(min=1)
        return a * self.scale / (a - 1)

    @property
    def mode(self) -> Tensor:
        """The most probable value."""
        return self.scale

    @property
    def variance(self) -> Tensor:
        """The variance; infinite for `alpha` up to 2."""
        a = self.alpha.clamp(min=2)
        return self.scale.square() * a / ((a - 1).square() * (a - 2))

    def entropy(self) -> Tensor:
        """The entropy in nats."""
        return (self.scale / self.alpha).log() + (1 + self.alpha.reciprocal())


class Weibull(TransformedDistribution):
    """Weibull numbers: `scale` times an exponential number to the power 1 / `concentration`."""

    arg_constraints = {"scale": constraints.positive, "concentration": constraints.positive}  # noqa: RUF012
    support = constraints.positive

    def __init__(self, scale: Any, concentration: Any, validate_args: bool | None = None) -> None:
        self.scale, self.concentration = broadcast_all(scale, concentration)
        self.concentration_reciprocal = self.concentration.reciprocal()
        base = Exponential(creation.ones_like(self.scale), validate_args=validate_args)
        super().__init__(base, self._steps(), validate_args=validate_args)

    def _steps(self) -> list[Any]:
        power = PowerTransform(exponent=self.concentration_reciprocal)
        return [power, AffineTransform(loc=0, scale=self.scale)]

    def expand(self, batch_shape: Shape, _instance: Any = None) -> Any:
        """The distribution with its batch expanded."""
        new = self._get_checked_instance(Weibull, _instance)
        new.scale = self.scale.expand(tuple(batch_shape))
        new.concentration = self.concentration.expand(tuple(batch_shape))
        new.concentration_reciprocal = new.concentration.reciprocal()
        base = self.base_dist.expand(batch_shape)
        TransformedDistribution.__init__(new, base, Weibull._steps(new), validate_args=False)
        new._validate_args = self._validate_args
        return new

    @property
    def mean(self) -> Tensor:
        """The mean."""
        return self.scale * (1 + self.concentration_reciprocal).lgamma().exp()

    @property
    def mode(self) -> Tensor:
        """The most probable value."""
        return self.scale * ((self.concentration - 1) / self.concentration) ** self.concentration_reciprocal

    @property
    def variance(self) -> Tensor:
        """The variance."""
        second = (1 + 2 * self.concentration_reciprocal).lgamma().exp()
        return self.scale.square() * (second - (2 * (1 + self.concentration_reciprocal).lgamma()).exp())

    def entropy(self) -> Tensor:
        """The entropy in nats."""
        ratio = self.concentration_reciprocal
        return euler_constant * (1 - ratio) + (self.scale * ratio).log() + 1


class GeneralizedPareto(Distribution):
    """Generalized Pareto numbers, the tails beyond a threshold `loc`; exponential for a `concentration` of 0."""

    arg_constraints = {  # noqa: RUF012
        "loc": constraints.real,
        "scale": constraints.positive,
        "concentration": constraints.real,
    }
    has_rsample = True

    def __init__(self, loc: Any, scale: Any, concentration: Any, validate_args: bool | None = None) -> None:
        self.loc, self.scale, self.concentration = broadcast_all(loc, scale, concentration)
        batch = () if all_numbers(loc, scale, concentration) else self.loc.size()
        super().__init__(batch, validate_args=validate_args)

    def expand(self, batch_shape: Shape, _instance: Any = None) -> Any:
        """The distribution with its batch expanded."""
        return self._new_expanded(GeneralizedPareto, batch_shape, _instance, "loc", "scale", "concentration")

    @constraints.dependent_property(is_discrete=False, event_dim=0)
    def support(self) -> Any:
        bounded = self.concentration < 0
        last = self.loc - self.scale / indexing.where(bounded, self.concentration, -1.0)
        return constraints.interval(self.loc, indexing.where(bounded, last, math.inf))

    def _safe(self) -> tuple[Tensor, Tensor]:
        """Where the concentration is 0, and the concentration, 1 there."""
        zero = arithmetic.isclose(self.concentration, creation.zeros_like(self.concentration))
        return zero, indexing.where(zero, 1.0, self.concentration)

    def rsample(self, sample_shape: Shape = ()) -> Tensor:
        """Draw a sample through which gradients reach the parameters."""
        return self.icdf(uniform_like(self.loc, self._extended_shape(sample_shape)))

    def log_prob(self, value: Tensor) -> Tensor:
        """The logarithm of the density at `value`."""
        z = (self._checked(value) - self.loc) / self.scale
        zero, safe = self._safe()
        power = 1 / safe + creation.ones_like(z)
        curved = indexing.where(power == 0, power, power * (safe * z).log1p())
        return -self.scale.log() - indexing.where(zero, z, curved)

    def log_survival_function(self, value: Tensor) -> Tensor:
        """The logarithm of the probability of a value beyond `value`."""
        z = (self._checked(value) - self.loc) / self.scale
        zero, safe = self._safe()
        return indexing.where(zero, -z, -(safe * z).log1p() / safe)

    def log_cdf(self, value: Tensor) -> Tensor:
        """The logarithm of `cdf`."""
        return (-self.log_survival_function(value).exp()).log1p()

    def cdf(self, value: Tensor) -> Tensor:
        """The probability of a value up to `value`."""
        return self.log_cdf(value).exp()

    def icdf(self, value: Tensor) -> Tensor:
        """The inverse of `cdf`."""
        zero, safe = self._safe()
        log_rest = (-value).log1p()
        curved = self.scale / safe * (-safe * log_rest).expm1()
        return self.loc + indexing.where(zero, -self.scale * log_rest, curved)

    @property
    def mean(self) -> Tensor:
        """The mean; NaN for a concentration of 1 or more."""
        valid = self.concentration < 1
        safe = indexing.where(valid, self.concentration, 0.5)
        return indexing.where(valid, self.loc + self.scale / (1 - safe), math.nan)

    @property
    def mode(self) -> Tensor:
        """The most probable value."""
        return self.loc

    @property
    def variance(self) -> Tensor:
        """The variance; NaN for a concentration of 1/2 or more."""
        valid = self.concentration < 0.5
        safe = indexing.where(valid, self.concentration, 0.25)
        return indexing.where(valid, self.scale.square() / ((1 - safe).square() * (1 - 2 * safe)), math.nan)

    def entropy(self) -> Tensor:
        """The entropy in nats."""
        return (self.scale.log() + self.concentration + 1).expand(tuple(self._batch_shape))
