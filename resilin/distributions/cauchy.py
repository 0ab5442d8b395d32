"""Heavy tails around a centre: Cauchy, HalfCauchy, Laplace."""

from __future__ import annotations

import math
from typing import Any

from resilin.core import dtype as dtypes
from resilin.core.ops import creation
from resilin.core.tensor import Tensor
from resilin.distributions import constraints
from resilin.distributions.distribution import Distribution, Shape
from resilin.distributions.normal import _LOC_AND_SCALE, folded_log_prob
from resilin.distributions.transformed_distribution import TransformedDistribution
from resilin.distributions.transforms import AbsTransform
from resilin.distributions.utils import all_numbers, broadcast_all, full_of

__all__ = ["Cauchy", "HalfCauchy", "Laplace"]


class Cauchy(Distribution):
    """Cauchy (Lorentz) numbers of median `loc` and half width `scale`; they have neither mean nor variance."""

    arg_constraints = _LOC_AND_SCALE
    support = constraints.real
    has_rsample = True

    def __init__(self, loc: Any, scale: Any, validate_args: bool | None = None) -> None:
        self.loc, self.scale = broadcast_all(loc, scale)
        super().__init__(() if all_numbers(loc, scale) else self.loc.size(), validate_args=validate_args)

    def expand(self, batch_shape: Shape, _instance: Any = None) -> Any:
        """The distribution with its batch expanded."""
        return self._new_expanded(Cauchy, batch_shape, _instance, "loc", "scale")

    @property
    def mean(self) -> Tensor:
        """NaN."""
        return full_of(self.loc, self._extended_shape(), math.nan)

    @property
    def mode(self) -> Tensor:
        """The most probable value."""
        return self.loc

    @property
    def variance(self) -> Tensor:
        """Infinite."""
        return full_of(self.loc, self._extended_shape(), math.inf)

    def rsample(self, sample_shape: Shape = ()) -> Tensor:
        """Draw a sample through which gradients reach the parameters."""
        return self.loc + self.loc.new_empty(tuple(self._extended_shape(sample_shape))).cauchy_() * self.scale

    def log_prob(self, value: Tensor) -> Tensor:
        """The logarithm of the density at `value`."""
        z = (self._checked(value) - self.loc) / self.scale
        return -math.log(math.pi) - self.scale.log() - z.square().log1p()

    def cdf(self, value: Tensor) -> Tensor:
        """The probability of a value up to `value`."""
        return ((self._checked(value) - self.loc) / self.scale).atan() / math.pi + 0.5

    def icdf(self, value: Tensor) -> Tensor:
        """The inverse of `cdf`."""
        return (math.pi * (value - 0.5)).tan() * self.scale + self.loc

    def entropy(self) -> Tensor:
        """The entropy in nats."""
        return math.log(4 * math.pi) + self.scale.log()


class HalfCauchy(TransformedDistribution):
    """Absolute values of Cauchy numbers of median 0 and half width `scale`."""

    arg_constraints = {"scale": constraints.positive}  # noqa: RUF012
    support = constraints.nonnegative
    has_rsample = True

    def __init__(self, scale: Any, validate_args: bool | None = None) -> None:
        super().__init__(Cauchy(0, scale, validate_args=False), AbsTransform(), validate_args=validate_args)

    def expand(self, batch_shape: Shape, _instance: Any = None) -> Any:
        """The distribution with its batch expanded."""
        return super().expand(batch_shape, self._get_checked_instance(HalfCauchy, _instance))

    @property
    def scale(self) -> Tensor:
        """The half width of the Cauchy numbers."""
        return self.base_dist.scale

    @property
    def mean(self) -> Tensor:
        """Infinite."""
        return full_of(self.scale, self._extended_shape(), math.inf)

    @property
    def mode(self) -> Tensor:
        """The most probable value."""
        return creation.zeros_like(self.scale)

    @property
    def variance(self) -> Tensor:
        """Infinite."""
        return self.base_dist.variance

    def log_prob(self, value: Tensor) -> Tensor:
        """The logarithm of the density at `value`."""
        return folded_log_prob(self, value)

    def cdf(self, value: Tensor) -> Tensor:
        """The probability of a value up to `value`."""
        return 2 * self.base_dist.cdf(self._checked(value)) - 1

    def icdf(self, value: Tensor) -> Tensor:
        """The inverse of `cdf`."""
        return self.base_dist.icdf((value + 1) / 2)

    def entropy(self) -> Tensor:
        """The entropy in nats."""
        return self.base_dist.entropy() - math.log(2)


class Laplace(Distribution):
    """Laplace (two-sided exponential) numbers of mean `loc` and width `scale`."""

    arg_constraints = _LOC_AND_SCALE
    support = constraints.real
    has_rsample = True

    def __init__(self, loc: Any, scale: Any, validate_args: bool | None = None) -> None:
        self.loc, self.scale = broadcast_all(loc, scale)
        super().__init__(() if all_numbers(loc, scale) else self.loc.size(), validate_args=validate_args)

    def expand(self, batch_shape: Shape, _instance: Any = None) -> Any:
        """The distribution with its batch expanded."""
        return self._new_expanded(Laplace, batch_shape, _instance, "loc", "scale")

    @property
    def mean(self) -> Tensor:
        """The mean."""
        return self.loc

    @property
    def mode(self) -> Tensor:
        """The most probable value."""
        return self.loc

    @property
    def stddev(self) -> Tensor:
        """The standard deviation."""
        return 2**0.5 * self.scale

    @property
    def variance(self) -> Tensor:
        """The variance."""
        return 2 * self.scale.square()

    def rsample(self, sample_shape: Shape = ()) -> Tensor:
        """Draw a sample through which gradients reach the parameters."""
        u = self.loc.new_empty(tuple(self._extended_shape(sample_shape)))
        u.uniform_(dtypes.finfo(u.dtype).eps - 1, 1)  # never -1, whose logarithm is infinite
        return self.loc - self.scale * u.sign() * (-u.abs()).log1p()

    def log_prob(self, value: Tensor) -> Tensor:
        """The logarithm of the density at `value`."""
        return -(2 * self.scale).log() - (self._checked(value) - self.loc).abs() / self.scale

    def cdf(self, value: Tensor) -> Tensor:
        """The probability of a value up to `value`."""
        away = self._checked(value) - self.loc
        return 0.5 - 0.5 * away.sign() * (-away.abs() / self.scale).expm1()

    def icdf(self, value: Tensor) -> Tensor:
        """The inverse of `cdf`."""
        away = value - 0.5
        return self.loc - self.scale * away.sign() * (-2 * away.abs()).log1p()

    def entropy(self) -> Tensor:
        """The entropy in nats."""
        return 1 + (2 * self.scale).log()
