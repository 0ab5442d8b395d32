"""Uniform numbers and a function of them: Uniform, Gumbel."""

from __future__ import annotations

import math
from typing import Any

from resilin.core import dtype as dtypes
from resilin.core.ops import creation
from resilin.core.tensor import Tensor
from resilin.distributions import constraints
from resilin.distributions.distribution import Distribution, Shape
from resilin.distributions.normal import _LOC_AND_SCALE
from resilin.distributions.transformed_distribution import TransformedDistribution
from resilin.distributions.transforms import AffineTransform, ExpTransform
from resilin.distributions.utils import all_numbers, broadcast_all, euler_constant, uniform_like

__all__ = ["Gumbel", "Uniform"]


class Uniform(Distribution):
    """Uniform numbers of [low, high)."""

    has_rsample = True

    def __init__(self, low: Any, high: Any, validate_args: bool | None = None) -> None:
        self.low, self.high = broadcast_all(low, high)
        super().__init__(() if all_numbers(low, high) else self.low.size(), validate_args=validate_args)

    def expand(self, batch_shape: Shape, _instance: Any = None) -> Any:
        """The distribution with its batch expanded."""
        return self._new_expanded(Uniform, batch_shape, _instance, "low", "high")

    @property
    def arg_constraints(self) -> Any:
        """`low` is less than `high`."""
        return {"low": constraints.less_than(self.high), "high": constraints.greater_than(self.low)}

    @constraints.dependent_property(is_discrete=False, event_dim=0)
    def support(self) -> Any:
        return constraints.interval(self.low, self.high)

    @property
    def mean(self) -> Tensor:
        """The mean."""
        return (self.high + self.low) / 2

    @property
    def mode(self) -> Tensor:
        """NaN: all values are as probable."""
        return math.nan * self.high

    @property
    def stddev(self) -> Tensor:
        """The standard deviation."""
        return (self.high - self.low) / 12**0.5

    @property
    def variance(self) -> Tensor:
        """The variance."""
        return (self.high - self.low).square() / 12

    def rsample(self, sample_shape: Shape = ()) -> Tensor:
        """Draw a sample through which gradients reach the parameters."""
        u = uniform_like(self.low, self._extended_shape(sample_shape))
        return self.low + u * (self.high - self.low)

    def log_prob(self, value: Tensor) -> Tensor:
        """The logarithm of the density at `value`."""
        value = self._checked(value)
        inside = (self.low <= value) & (self.high > value)
        return inside.to(self.low.dtype).log() - (self.high - self.low).log()

    def cdf(self, value: Tensor) -> Tensor:
        """The probability of a value up to `value`."""
        return ((self._checked(value) - self.low) / (self.high - self.low)).clamp(min=0, max=1)

    def icdf(self, value: Tensor) -> Tensor:
        """The inverse of `cdf`."""
        return value * (self.high - self.low) + self.low

    def entropy(self) -> Tensor:
        """The entropy in nats."""
        return (self.high - self.low).log()


class Gumbel(TransformedDistribution):
    """Gumbel (extreme value) numbers of mode `loc` and width `scale`."""

    arg_constraints = _LOC_AND_SCALE
    support = constraints.real

    def __init__(self, loc: Any, scale: Any, validate_args: bool | None = None) -> None:
        self.loc, self.scale = broadcast_all(loc, scale)
        limits = dtypes.finfo(self.loc.dtype)
        low, high = limits.tiny, 1 - limits.eps  # within (0, 1): its logarithm is finite
        if all_numbers(loc, scale):
            base = Uniform(low, high, validate_args=validate_args)
        else:
            like = creation.full_like
            base = Uniform(like(self.loc, low), like(self.loc, high), validate_args=validate_args)
        steps = [
            ExpTransform().inv,
            AffineTransform(loc=0, scale=-creation.ones_like(self.scale)),
            ExpTransform().inv,
            AffineTransform(loc=self.loc, scale=-self.scale),
        ]
        super().__init__(base, steps, validate_args=validate_args)

    def expand(self, batch_shape: Shape, _instance: Any = None) -> Any:
        """The distribution with its batch expanded."""
        new = self._get_checked_instance(Gumbel, _instance)
        new.loc, new.scale = self.loc.expand(tuple(batch_shape)), self.scale.expand(tuple(batch_shape))
        return super().expand(batch_shape, new)

    def log_prob(self, value: Tensor) -> Tensor:
        """The logarithm of the density at `value`."""
        z = (self.loc - self._checked(value)) / self.scale
        return z - z.exp() - self.scale.log()

    @property
    def mean(self) -> Tensor:
        """The mean."""
        return self.loc + self.scale * euler_constant

    @property
    def mode(self) -> Tensor:
        """The most probable value."""
        return self.loc

    @property
    def stddev(self) -> Tensor:
        """The standard deviation."""
        return math.pi / math.sqrt(6) * self.scale

    @property
    def variance(self) -> Tensor:
        """The variance."""
        return self.stddev.square()

    def entropy(self) -> Tensor:
        """The entropy in nats."""
        return self.scale.log() + (1 + euler_constant)
