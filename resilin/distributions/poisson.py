"""Counts of independent events: Poisson."""

from __future__ import annotations

from typing import Any

from resilin.core.api.mathematics import arithmetic
from resilin.core.autograd.grad_mode import no_grad
from resilin.core.ops import random_distributions
from resilin.core.tensor import Tensor
from resilin.distributions import constraints
from resilin.distributions.distribution import Shape
from resilin.distributions.exp_family import ExponentialFamily
from resilin.distributions.utils import broadcast_all, is_number

__all__ = ["Poisson"]


class Poisson(ExponentialFamily):
    """Poisson distributed counts of mean `rate`. Its entropy has no closed form here."""

    arg_constraints = {"rate": constraints.nonnegative}  # noqa: RUF012
    support = constraints.nonnegative_integer

    def __init__(self, rate: Any, validate_args: bool | None = None) -> None:
        (self.rate,) = broadcast_all(rate)
        super().__init__(() if is_number(rate) else self.rate.size(), validate_args=validate_args)

    def expand(self, batch_shape: Shape, _instance: Any = None) -> Any:
        """The distribution with its batch expanded."""
        return self._new_expanded(Poisson, batch_shape, _instance, "rate")

    @property
    def mean(self) -> Tensor:
        """The mean."""
        return self.rate

    @property
    def mode(self) -> Tensor:
        """The most probable value."""
        return self.rate.floor()

    @property
    def variance(self) -> Tensor:
        """The variance."""
        return self.rate

    def sample(self, sample_shape: Shape = ()) -> Tensor:
        """Draw a sample, outside of the graph."""
        with no_grad():
            return random_distributions.poisson(self.rate.expand(tuple(self._extended_shape(sample_shape))))

    def log_prob(self, value: Tensor) -> Tensor:
        """The logarithm of the probability of `value`."""
        rate, value = broadcast_all(self.rate, self._checked(value))
        return arithmetic.xlogy(value, rate) - rate - (value + 1).lgamma()

    @property
    def _natural_params(self) -> tuple[Tensor]:
        return (self.rate.log(),)

    def _log_normalizer(self, x: Tensor) -> Tensor:
        return x.exp()
