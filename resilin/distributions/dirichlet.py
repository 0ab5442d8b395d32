"""Shares of a whole: Dirichlet, Beta, and Kumaraswamy, which is like a beta distribution with an inverse."""

from __future__ import annotations

import math
from typing import Any

from resilin.core.api.manipulation import indexing, joining
from resilin.core.api.mathematics import arithmetic
from resilin.core.api.nn import neural
from resilin.core.ops import creation
from resilin.core.tensor import Tensor
from resilin.distributions import constraints
from resilin.distributions.distribution import Shape
from resilin.distributions.exp_family import ExponentialFamily
from resilin.distributions.sampling import StandardDirichlet
from resilin.distributions.transformed_distribution import TransformedDistribution
from resilin.distributions.transforms import AffineTransform, PowerTransform
from resilin.distributions.uniform import Uniform
from resilin.distributions.utils import all_numbers, broadcast_all, euler_constant

__all__ = ["Beta", "Dirichlet", "Kumaraswamy"]

_TWO_CONCENTRATIONS = {"concentration1": constraints.positive, "concentration0": constraints.positive}


class Dirichlet(ExponentialFamily):
    """Dirichlet distributed vectors: shares, with a mean in proportion to the `concentration` of each."""

    arg_constraints = {"concentration": constraints.independent(constraints.positive, 1)}  # noqa: RUF012
    support = constraints.simplex
    has_rsample = True

    def __init__(self, concentration: Tensor, validate_args: bool | None = None) -> None:
        if concentration.dim() < 1:
            raise ValueError("`concentration` parameter must be at least one-dimensional.")
        self.concentration = concentration
        super().__init__(concentration.shape[:-1], concentration.shape[-1:], validate_args=validate_args)

    def expand(self, batch_shape: Shape, _instance: Any = None) -> Any:
        """The distribution with its batch expanded."""
        return self._new_expanded(Dirichlet, batch_shape, _instance, concentration=1)

    def rsample(self, sample_shape: Shape = ()) -> Tensor:
        """Draw a sample through which gradients reach the parameters."""
        shape = tuple(self._extended_shape(sample_shape))
        drawn: Tensor = StandardDirichlet.apply(self.concentration.expand(shape))
        return drawn

    def log_prob(self, value: Tensor) -> Tensor:
        """The logarithm of the density at `value`."""
        powers = arithmetic.xlogy(self.concentration - 1.0, self._checked(value)).sum(-1)
        return powers + self.concentration.sum(-1).lgamma() - self.concentration.lgamma().sum(-1)

    @property
    def mean(self) -> Tensor:
        """The mean."""
        return self.concentration / self.concentration.sum(-1, True)

    @property
    def mode(self) -> Tensor:
        """The most probable value; where all concentrations are below 1, one of the corners."""
        above = (self.concentration - 1).clamp(min=0.0)
        mode = above / above.sum(-1, True)
        corner = neural.one_hot(mode.argmax(-1), above.shape[-1]).to(mode.dtype)
        return indexing.where((self.concentration < 1).all(-1, keepdim=True), corner, mode)

    @property
    def variance(self) -> Tensor:
        """The variance of each part."""
        total = self.concentration.sum(-1, True)
        return self.concentration * (total - self.concentration) / (total.square() * (total + 1))

    def entropy(self) -> Tensor:
        """The entropy in nats."""
        a = self.concentration
        total = a.sum(-1)
        log_beta = a.lgamma().sum(-1) - total.lgamma()
        return log_beta - (a.size(-1) - total) * total.digamma() - ((a - 1.0) * a.digamma()).sum(-1)

    @property
    def _natural_params(self) -> tuple[Tensor]:
        return (self.concentration,)

    def _log_normalizer(self, x: Tensor) -> Tensor:
        return x.lgamma().sum(-1) - x.sum(-1).lgamma()


class Beta(ExponentialFamily):
    """Beta distributed numbers: the first of the two shares of a Dirichlet distribution."""

    arg_constraints = _TWO_CONCENTRATIONS
    support = constraints.unit_interval
    has_rsample = True

    def __init__(self, concentration1: Any, concentration0: Any, validate_args: bool | None = None) -> None:
        if all_numbers(concentration1, concentration0):
            both = creation.tensor([float(concentration1), float(concentration0)])
        else:
            both = joining.stack(list(broadcast_all(concentration1, concentration0)), -1)
        self._dirichlet = Dirichlet(both, validate_args=validate_args)
        super().__init__(self._dirichlet.batch_shape, validate_args=validate_args)

    def expand(self, batch_shape: Shape, _instance: Any = None) -> Any:
        """The distribution with its batch expanded."""
        new = self._get_checked_instance(Beta, _instance)
        new._dirichlet = self._dirichlet.expand(batch_shape)
        return self._filled(new, batch_shape)

    @property
    def concentration1(self) -> Tensor:
        """The concentration at 1."""
        return self._dirichlet.concentration[..., 0]

    @property
    def concentration0(self) -> Tensor:
        """The concentration at 0."""
        return self._dirichlet.concentration[..., 1]

    @property
    def mean(self) -> Tensor:
        """The mean."""
        return self.concentration1 / (self.concentration1 + self.concentration0)

    @property
    def mode(self) -> Tensor:
        """The most probable value."""
        return self._dirichlet.mode[..., 0]

    @property
    def variance(self) -> Tensor:
        """The variance."""
        total = self.concentration1 + self.concentration0
        return self.concentration1 * self.concentration0 / (total.square() * (total + 1))

    def rsample(self, sample_shape: Shape = ()) -> Tensor:
        """Draw a sample through which gradients reach the parameters."""
        return self._dirichlet.rsample(sample_shape).select(-1, 0)

    def log_prob(self, value: Tensor) -> Tensor:
        """The logarithm of the density at `value`."""
        value = self._checked(value)
        return self._dirichlet.log_prob(joining.stack([value, 1.0 - value], -1))

    def entropy(self) -> Tensor:
        """The entropy in nats."""
        return self._dirichlet.entropy()

    @property
    def _natural_params(self) -> tuple[Tensor, Tensor]:
        return self.concentration1, self.concentration0

    def _log_normalizer(self, x: Tensor, y: Tensor) -> Tensor:
        return x.lgamma() + y.lgamma() - (x + y).lgamma()


class Kumaraswamy(TransformedDistribution):
    """Kumaraswamy numbers: (1 - u ** (1 / concentration0)) ** (1 / concentration1) of uniform u."""

    arg_constraints = _TWO_CONCENTRATIONS
    support = constraints.unit_interval
    has_rsample = True

    def __init__(self, concentration1: Any, concentration0: Any, validate_args: bool | None = None) -> None:
        self.concentration1, self.concentration0 = broadcast_all(concentration1, concentration0)
        zeros, ones = creation.zeros_like(self.concentration0), creation.ones_like(self.concentration0)
        steps = [
            PowerTransform(exponent=self.concentration0.reciprocal()),
            AffineTransform(loc=1.0, scale=-1.0),
            PowerTransform(exponent=self.concentration1.reciprocal()),
        ]
        super().__init__(Uniform(zeros, ones, validate_args=validate_args), steps, validate_args=validate_args)

    def expand(self, batch_shape: Shape, _instance: Any = None) -> Any:
        """The distribution with its batch expanded."""
        new = self._get_checked_instance(Kumaraswamy, _instance)
        new.concentration1 = self.concentration1.expand(tuple(batch_shape))
        new.concentration0 = self.concentration0.expand(tuple(batch_shape))
        return super().expand(batch_shape, new)

    def _moment(self, n: int) -> Tensor:
        b, place = self.concentration0, 1 + n / self.concentration1
        return b * (place.lgamma() + b.lgamma() - (place + b).lgamma()).exp()

    @property
    def mean(self) -> Tensor:
        """The mean."""
        return self._moment(1)

    @property
    def mode(self) -> Tensor:
        """The most probable value; NaN where a concentration is below 1."""
        a, b = self.concentration1, self.concentration0
        mode = ((a - 1) / (a * b - 1)) ** a.reciprocal()
        return indexing.where((b < 1) | (a < 1), math.nan, mode)

    @property
    def variance(self) -> Tensor:
        """The variance."""
        return self._moment(2) - self.mean.square()

    def entropy(self) -> Tensor:
        """The entropy in nats."""
        a, b = self.concentration1, self.concentration0
        harmonic = (b + 1).digamma() + euler_constant
        return (1 - b.reciprocal()) + (1 - a.reciprocal()) * harmonic - a.log() - b.log()
