"""One of several kinds: Categorical, OneHotCategorical, OneHotCategoricalStraightThrough, Multinomial."""

from __future__ import annotations

import math
from typing import Any

from resilin.core import dtype as dtypes
from resilin.core.api.manipulation import rearranging
from resilin.core.api.nn import neural
from resilin.core.ops import creation, random
from resilin.core.state.size import Size
from resilin.core.tensor import Tensor
from resilin.distributions import constraints
from resilin.distributions.bernoulli import _ONE_OF_TWO, Binomial
from resilin.distributions.distribution import Distribution, Shape
from resilin.distributions.utils import broadcast_all, full_of, lazy_property, logits_to_probs, probs_to_logits

__all__ = ["Categorical", "Multinomial", "OneHotCategorical", "OneHotCategoricalStraightThrough"]

_PROBS_OR_LOGITS = {"probs": constraints.simplex, "logits": constraints.real_vector}


class Categorical(Distribution):
    """The number of a kind, with probabilities in proportion to `probs` or to exp(`logits`)."""

    arg_constraints = _PROBS_OR_LOGITS
    has_enumerate_support = True

    def __init__(self, probs: Any = None, logits: Any = None, validate_args: bool | None = None) -> None:
        if (probs is None) == (logits is None):
            raise ValueError(_ONE_OF_TWO)
        given = logits if probs is None else probs
        if given.dim() < 1:
            name = "logits" if probs is None else "probs"
            raise ValueError(f"`{name}` parameter must be at least one-dimensional.")
        if probs is not None:
            self._param = self.probs = probs / probs.sum(-1, keepdim=True)
        else:
            self._param = self.logits = logits - logits.logsumexp(dim=-1, keepdim=True)
        self._num_events = self._param.size(-1)
        super().__init__(self._param.shape[:-1], validate_args=validate_args)

    def expand(self, batch_shape: Shape, _instance: Any = None) -> Any:
        """The distribution with its batch expanded."""
        new = self._get_checked_instance(Categorical, _instance)
        new._num_events = self._num_events
        return self._filled(new, batch_shape, probs=1, logits=1, _param=1)

    @constraints.dependent_property(is_discrete=True, event_dim=0)
    def support(self) -> Any:
        return constraints.integer_interval(0, self._num_events - 1)

    @lazy_property
    def logits(self) -> Tensor:
        """The logarithms of the probabilities."""
        return probs_to_logits(self.probs)

    @lazy_property
    def probs(self) -> Tensor:
        """The probabilities."""
        return logits_to_probs(self.logits)

    @property
    def param_shape(self) -> Size:
        """The shape of the parameter."""
        return self._param.shape

    @property
    def mean(self) -> Tensor:
        """NaN: kinds have no order."""
        return full_of(self.probs, self._extended_shape(), math.nan)

    @property
    def mode(self) -> Tensor:
        """The most probable kind."""
        return self.probs.argmax(dim=-1)

    @property
    def variance(self) -> Tensor:
        """NaN: kinds have no order."""
        return full_of(self.probs, self._extended_shape(), math.nan)

    def sample(self, sample_shape: Shape = ()) -> Tensor:
        """Draw a sample, int64."""
        rows = self.probs.detach().reshape(-1, self._num_events)
        count = Size(sample_shape).numel()
        shape = tuple(self._extended_shape(sample_shape))
        if count == 0 or rows.shape[0] == 0:
            return creation.empty(shape, dtype=dtypes.int64, device=rows.device)
        return random.multinomial(rows, count, True).t().reshape(shape)

    def log_prob(self, value: Tensor) -> Tensor:
        """The logarithm of the probability of `value`."""
        kind = self._checked(value).long().unsqueeze(-1)
        kind, log_pmf = rearranging.broadcast_tensors(kind, self.logits)
        return log_pmf.gather(-1, kind[..., :1]).squeeze(-1)

    def entropy(self) -> Tensor:
        """The entropy in nats."""
        logits = self.logits.clamp(min=dtypes.finfo(self.logits.dtype).min)
        return -(logits * self.probs).sum(-1)

    def enumerate_support(self, expand: bool = True) -> Tensor:
        """All kinds along dimension 0."""
        values = creation.arange(self._num_events, dtype=dtypes.int64, device=self._param.device)
        values = values.view((-1, *(1 for _ in self._batch_shape)))
        return values.expand((-1, *self._batch_shape)) if expand else values


class OverCategorical(Distribution):
    """A distribution of vectors with an element for each kind of a categorical one."""

    _categorical: Categorical

    def _take(self, probs: Any, logits: Any, validate_args: bool | None) -> None:
        self._categorical = Categorical(probs, logits)
        param_shape = self._categorical.param_shape
        Distribution.__init__(self, self._categorical.batch_shape, param_shape[-1:], validate_args=validate_args)

    def _filled(self, new: Any, batch_shape: Shape, *names: str, **event_dims: int) -> Any:
        new._categorical = self._categorical.expand(batch_shape)
        return super()._filled(new, batch_shape, *names, **event_dims)

    @property
    def _param(self) -> Tensor:
        return self._categorical._param

    @property
    def probs(self) -> Tensor:
        """The probabilities."""
        return self._categorical.probs

    @property
    def logits(self) -> Tensor:
        """The logarithms of the probabilities."""
        return self._categorical.logits

    @property
    def param_shape(self) -> Size:
        """The shape of the parameter."""
        return self._categorical.param_shape


class OneHotCategorical(OverCategorical):
    """A kind as a vector of 0 with a 1 in its place."""

    arg_constraints = _PROBS_OR_LOGITS
    support = constraints.one_hot
    has_enumerate_support = True

    def __init__(self, probs: Any = None, logits: Any = None, validate_args: bool | None = None) -> None:
        self._take(probs, logits, validate_args)

    def expand(self, batch_shape: Shape, _instance: Any = None) -> Any:
        """The distribution with its batch expanded."""
        return self._new_expanded(OneHotCategorical, batch_shape, _instance)

    @property
    def mean(self) -> Tensor:
        """The mean."""
        return self.probs

    @property
    def mode(self) -> Tensor:
        """The most probable value."""
        return neural.one_hot(self.probs.argmax(-1), self.probs.shape[-1]).to(self.probs.dtype)

    @property
    def variance(self) -> Tensor:
        """The variance of each part."""
        return self.probs * (1 - self.probs)

    def sample(self, sample_shape: Shape = ()) -> Tensor:
        """Draw a sample, outside of the graph."""
        kinds = self._categorical.sample(sample_shape)
        return neural.one_hot(kinds, self._categorical._num_events).to(self.probs.dtype)

    def log_prob(self, value: Tensor) -> Tensor:
        """The logarithm of the probability of `value`."""
        return self._categorical.log_prob(self._checked(value).argmax(-1))

    def entropy(self) -> Tensor:
        """The entropy in nats."""
        return self._categorical.entropy()

    def enumerate_support(self, expand: bool = True) -> Tensor:
        """All values along dimension 0."""
        n = self.event_shape[0]
        values = creation.eye(n, dtype=self._param.dtype, device=self._param.device)
        values = values.view((n, *(1 for _ in self._batch_shape), n))
        return values.expand((n, *self._batch_shape, n)) if expand else values


class OneHotCategoricalStraightThrough(OneHotCategorical):
    """`OneHotCategorical` whose samples pass gradients on to the probabilities as they are (Bengio et al., 2013)."""

    has_rsample = True

    def rsample(self, sample_shape: Shape = ()) -> Tensor:
        """Draw a sample through which gradients reach the probabilities."""
        return self.sample(sample_shape) + (self.probs - self.probs.detach())


class Multinomial(OverCategorical):
    """How many of `total_count` are of each kind."""

    arg_constraints = _PROBS_OR_LOGITS
    total_count: int

    def __init__(
        self, total_count: int = 1, probs: Any = None, logits: Any = None, validate_args: bool | None = None
    ) -> None:
        if not isinstance(total_count, int):
            raise NotImplementedError("inhomogeneous total_count is not supported")
        self.total_count = total_count
        self._take(probs, logits, validate_args)

    def expand(self, batch_shape: Shape, _instance: Any = None) -> Any:
        """The distribution with its batch expanded."""
        new = self._get_checked_instance(Multinomial, _instance)
        new.total_count = self.total_count
        return self._filled(new, batch_shape)

    @constraints.dependent_property(is_discrete=True, event_dim=1)
    def support(self) -> Any:
        return constraints.multinomial(self.total_count)

    @property
    def mean(self) -> Tensor:
        """The mean."""
        return self.probs * self.total_count

    @property
    def variance(self) -> Tensor:
        """The variance of each part."""
        return self.total_count * self.probs * (1 - self.probs)

    def sample(self, sample_shape: Shape = ()) -> Tensor:
        """Draw a sample, outside of the graph."""
        kinds = self._categorical.sample((self.total_count, *sample_shape)).movedim(0, -1)
        counts = creation.zeros(tuple(self._extended_shape(sample_shape)), dtype=dtypes.int64, device=kinds.device)
        return counts.scatter_add(-1, kinds, creation.ones_like(kinds)).to(self.probs.dtype)

    def entropy(self) -> Tensor:
        """The entropy in nats."""
        n = self.total_count
        binomial = Binomial(total_count=n, probs=self.probs)
        counts = binomial.enumerate_support(expand=False)[1:]
        expected = (binomial.log_prob(counts).exp() * (counts + 1).lgamma()).sum([0, -1])
        return n * self._categorical.entropy() - math.lgamma(n + 1) + expected

    def log_prob(self, value: Tensor) -> Tensor:
        """The logarithm of the probability of `value`."""
        logits, value = broadcast_all(self.logits, self._checked(value))
        logits = logits.masked_fill((value == 0) & (logits == -math.inf), 0.0)
        chosen = (value.sum(-1) + 1).lgamma() - (value + 1).lgamma().sum(-1)
        return chosen + (logits * value).sum(-1)
