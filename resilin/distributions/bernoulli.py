"""Trials that succeed or fail: Bernoulli, Binomial, Geometric, NegativeBinomial."""

from __future__ import annotations

import math
from typing import Any

from resilin.core import dtype as dtypes
from resilin.core.api.manipulation import indexing
from resilin.core.api.nn import activations, losses
from resilin.core.autograd.grad_mode import no_grad
from resilin.core.ops import creation, random, random_distributions
from resilin.core.state.size import Size
from resilin.core.tensor import Tensor
from resilin.distributions import constraints
from resilin.distributions.distribution import Distribution, Shape
from resilin.distributions.exp_family import ExponentialFamily
from resilin.distributions.gamma import Gamma
from resilin.distributions.utils import (
    broadcast_all,
    is_number,
    lazy_property,
    logits_to_probs,
    probs_to_logits,
    uniform_like,
)

__all__ = ["Bernoulli", "Binomial", "Geometric", "NegativeBinomial"]

_ONE_OF_TWO = "Either `probs` or `logits` must be specified, but not both."
_PROBS_OR_LOGITS = {"probs": constraints.unit_interval, "logits": constraints.real}


def cross_entropy(logits: Tensor, probs: Tensor) -> Tensor:
    """The binary cross entropy of log odds."""
    return losses.binary_cross_entropy_with_logits(logits, probs, reduction="none")


class Odds(Distribution):
    """A distribution whose parameter is a probability, given as such (`probs`) or as log odds (`logits`)."""

    _from: str  # which of the two was given; the other is made of it when it is asked for

    def _take(self, probs: Any, logits: Any) -> Any:
        """Keep the parameter, and return the shape of the batch."""
        if (probs is None) == (logits is None):
            raise ValueError(_ONE_OF_TWO)
        self._from, given = ("logits", logits) if probs is None else ("probs", probs)
        (self.__dict__[self._from],) = broadcast_all(given)
        return () if is_number(given) else self._param.size()

    def _take_counts(self, total_count: Any, probs: Any, logits: Any) -> Any:
        """Keep the parameter and counts of trials, and return the shape of the batch."""
        if (probs is None) == (logits is None):
            raise ValueError(_ONE_OF_TWO)
        self._from, given = ("logits", logits) if probs is None else ("probs", probs)
        counts, self.__dict__[self._from] = broadcast_all(total_count, given)
        self.total_count = counts.to(self._param.dtype)
        return self._param.size()

    @property
    def _param(self) -> Tensor:
        found: Tensor = self.__dict__[self._from]
        return found

    @property
    def param_shape(self) -> Size:
        """The shape of the parameter."""
        return self._param.shape

    @lazy_property
    def logits(self) -> Tensor:
        """The log odds."""
        return probs_to_logits(self.probs, is_binary=True)

    @lazy_property
    def probs(self) -> Tensor:
        """The probabilities."""
        return logits_to_probs(self.logits, is_binary=True)

    def _counts_to(self, last: int, expand: bool) -> Tensor:
        """0, 1, ..., last along dimension 0."""
        values = creation.arange(last + 1, dtype=self._param.dtype, device=self._param.device)
        values = values.view((-1, *(1 for _ in self._batch_shape)))
        return values.expand((-1, *self._batch_shape)) if expand else values

    def _filled(self, new: Any, batch_shape: Shape, *names: str, **event_dims: int) -> Any:
        new._from = self._from
        return super()._filled(new, batch_shape, *names, **event_dims)


class Bernoulli(Odds, ExponentialFamily):
    """1 with probability `probs`, else 0."""

    arg_constraints = _PROBS_OR_LOGITS
    support = constraints.boolean
    has_enumerate_support = True
    _mean_carrier_measure = 0

    def __init__(self, probs: Any = None, logits: Any = None, validate_args: bool | None = None) -> None:
        super().__init__(self._take(probs, logits), validate_args=validate_args)

    def expand(self, batch_shape: Shape, _instance: Any = None) -> Any:
        """The distribution with its batch expanded."""
        return self._new_expanded(Bernoulli, batch_shape, _instance, "probs", "logits")

    @property
    def mean(self) -> Tensor:
        """The mean."""
        return self.probs

    @property
    def mode(self) -> Tensor:
        """The most probable value; NaN where both are."""
        return indexing.where(self.probs == 0.5, math.nan, (self.probs >= 0.5).to(self.probs.dtype))

    @property
    def variance(self) -> Tensor:
        """The variance."""
        return self.probs * (1 - self.probs)

    def sample(self, sample_shape: Shape = ()) -> Tensor:
        """Draw a sample, outside of the graph."""
        with no_grad():
            return random.bernoulli(self.probs.expand(tuple(self._extended_shape(sample_shape))))

    def log_prob(self, value: Tensor) -> Tensor:
        """The logarithm of the probability of `value`."""
        logits, value = broadcast_all(self.logits, self._checked(value))
        return -cross_entropy(logits, value)

    def entropy(self) -> Tensor:
        """The entropy in nats."""
        return cross_entropy(self.logits, self.probs)

    def enumerate_support(self, expand: bool = True) -> Tensor:
        """0 and 1 along dimension 0."""
        return self._counts_to(1, expand)

    @property
    def _natural_params(self) -> tuple[Tensor]:
        return (self.probs.logit(),)

    def _log_normalizer(self, x: Tensor) -> Tensor:
        return x.exp().log1p()


class Binomial(Odds):
    """How many of `total_count` trials succeed."""

    arg_constraints = {"total_count": constraints.nonnegative_integer, **_PROBS_OR_LOGITS}  # noqa: RUF012
    has_enumerate_support = True

    def __init__(
        self, total_count: Any = 1, probs: Any = None, logits: Any = None, validate_args: bool | None = None
    ) -> None:
        super().__init__(self._take_counts(total_count, probs, logits), validate_args=validate_args)

    def expand(self, batch_shape: Shape, _instance: Any = None) -> Any:
        """The distribution with its batch expanded."""
        return self._new_expanded(Binomial, batch_shape, _instance, "total_count", "probs", "logits")

    @constraints.dependent_property(is_discrete=True, event_dim=0)
    def support(self) -> Any:
        return constraints.integer_interval(0, self.total_count)

    @property
    def mean(self) -> Tensor:
        """The mean."""
        return self.total_count * self.probs

    @property
    def mode(self) -> Tensor:
        """The most probable value."""
        return ((self.total_count + 1) * self.probs).floor().clamp(max=self.total_count)

    @property
    def variance(self) -> Tensor:
        """The variance."""
        return self.total_count * self.probs * (1 - self.probs)

    def sample(self, sample_shape: Shape = ()) -> Tensor:
        """Draw a sample, outside of the graph."""
        shape = tuple(self._extended_shape(sample_shape))
        with no_grad():
            return random_distributions.binomial(self.total_count.expand(shape), self.probs.expand(shape))

    def log_prob(self, value: Tensor) -> Tensor:
        """The logarithm of the probability of `value`."""
        value, n = self._checked(value), self.total_count
        chosen = (n + 1).lgamma() - (value + 1).lgamma() - (n - value + 1).lgamma()
        above = (self.logits.clamp(min=0) + self.logits - self.logits.clamp(max=0)) / 2  # half the slope at 0
        return chosen + value * self.logits - n * (above + (-self.logits.abs()).exp().log1p())

    def _one_count(self, name: str) -> int:
        count = int(self.total_count.max())
        if not bool(self.total_count.min() == count):
            raise NotImplementedError(f"Inhomogeneous total count not supported by `{name}`.")
        return count

    def entropy(self) -> Tensor:
        """The entropy in nats. NotImplementedError for different counts of trials."""
        self._one_count("entropy")
        log_prob = self.log_prob(self.enumerate_support(False))
        return -(log_prob.exp() * log_prob).sum(0)

    def enumerate_support(self, expand: bool = True) -> Tensor:
        """0 to `total_count` along dimension 0. NotImplementedError for different counts of trials."""
        return self._counts_to(self._one_count("enumerate_support"), expand)


class Geometric(Odds):
    """How many trials fail before the first that succeeds."""

    arg_constraints = _PROBS_OR_LOGITS
    support = constraints.nonnegative_integer

    def __init__(self, probs: Any = None, logits: Any = None, validate_args: bool | None = None) -> None:
        super().__init__(self._take(probs, logits), validate_args=validate_args)
        if self._validate_args and probs is not None and not bool((self.probs > 0).all()):
            value = self.probs
            raise ValueError(
                f"Expected parameter probs ({type(value).__name__} of shape {tuple(value.shape)}) of distribution "
                f"{self!r} to be positive but found invalid values:\n{value}"
            )

    def expand(self, batch_shape: Shape, _instance: Any = None) -> Any:
        """The distribution with its batch expanded."""
        return self._new_expanded(Geometric, batch_shape, _instance, "probs", "logits")

    @property
    def mean(self) -> Tensor:
        """The mean."""
        return 1.0 / self.probs - 1.0

    @property
    def mode(self) -> Tensor:
        """The most probable value."""
        return creation.zeros_like(self.probs)

    @property
    def variance(self) -> Tensor:
        """The variance."""
        return (1.0 / self.probs - 1.0) / self.probs

    def sample(self, sample_shape: Shape = ()) -> Tensor:
        """Draw a sample, outside of the graph."""
        with no_grad():
            u = uniform_like(self.probs, self._extended_shape(sample_shape), dtypes.finfo(self.probs.dtype).tiny)
            return (u.log() / (-self.probs).log1p()).floor()

    def log_prob(self, value: Tensor) -> Tensor:
        """The logarithm of the probability of `value`."""
        value, probs = broadcast_all(self._checked(value), self.probs)
        certain = (probs == 1) & (value == 0)
        return value * (-probs.masked_fill(certain, 0.0)).log1p() + self.probs.log()

    def entropy(self) -> Tensor:
        """The entropy in nats."""
        return cross_entropy(self.logits, self.probs) / self.probs


class NegativeBinomial(Odds):
    """How many trials, each with probability `probs`, succeed before `total_count` have failed."""

    arg_constraints = {  # noqa: RUF012
        "total_count": constraints.greater_than_eq(0),
        "probs": constraints.half_open_interval(0.0, 1.0),
        "logits": constraints.real,
    }
    support = constraints.nonnegative_integer

    def __init__(
        self, total_count: Any, probs: Any = None, logits: Any = None, validate_args: bool | None = None
    ) -> None:
        super().__init__(self._take_counts(total_count, probs, logits), validate_args=validate_args)

    def expand(self, batch_shape: Shape, _instance: Any = None) -> Any:
        """The distribution with its batch expanded."""
        return self._new_expanded(NegativeBinomial, batch_shape, _instance, "total_count", "probs", "logits")

    @property
    def mean(self) -> Tensor:
        """The mean."""
        return self.total_count * self.logits.exp()

    @property
    def mode(self) -> Tensor:
        """The most probable value."""
        return ((self.total_count - 1) * self.logits.exp()).floor().clamp(min=0.0)

    @property
    def variance(self) -> Tensor:
        """The variance."""
        return self.mean / (-self.logits).sigmoid()

    @lazy_property
    def _gamma(self) -> Gamma:
        return Gamma(concentration=self.total_count, rate=(-self.logits).exp(), validate_args=False)

    def sample(self, sample_shape: Shape = ()) -> Tensor:
        """Draw a sample, outside of the graph."""
        with no_grad():
            return random_distributions.poisson(self._gamma.sample(sample_shape))

    def log_prob(self, value: Tensor) -> Tensor:
        """The logarithm of the probability of `value`."""
        value, n = self._checked(value), self.total_count
        trials = n * activations.logsigmoid(-self.logits) + value * activations.logsigmoid(self.logits)
        chosen = (n + value).lgamma() - (1.0 + value).lgamma() - n.lgamma()
        return trials + chosen.masked_fill(n + value == 0.0, 0.0)
