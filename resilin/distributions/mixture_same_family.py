"""Mixtures of distributions of one family: MixtureSameFamily."""

from __future__ import annotations

from typing import Any

from resilin.core.api.nn import neural
from resilin.core.autograd.grad_mode import no_grad
from resilin.core.tensor import Tensor
from resilin.distributions import constraints
from resilin.distributions.categorical import Categorical
from resilin.distributions.constraints import MixtureSameFamilyConstraint
from resilin.distributions.distribution import Distribution, Shape

__all__ = ["MixtureSameFamily"]


class MixtureSameFamily(Distribution):
    """A mixture: a component of the last dimension of a batch is chosen, and draws. It has no `rsample`.

    mixture_distribution:    a `Categorical` of the component's number.
    component_distribution:  its batch has the components along the last dimension.
    """

    arg_constraints: Any = {}  # noqa: RUF012  as in every distribution
    has_rsample = False

    def __init__(
        self,
        mixture_distribution: Categorical,
        component_distribution: Distribution,
        validate_args: bool | None = None,
    ) -> None:
        if not isinstance(mixture_distribution, Categorical):
            raise ValueError(
                "The Mixture distribution needs to be an instance of resilin.distributions.Categorical, "
                f"got {type(mixture_distribution).__name__}"
            )
        if not isinstance(component_distribution, Distribution):
            raise ValueError(
                "The Component distribution needs to be an instance of resilin.distributions.Distribution, "
                f"got {type(component_distribution).__name__}"
            )
        _check_shapes(mixture_distribution, component_distribution)
        self._mixture_distribution = mixture_distribution
        self._component_distribution = component_distribution
        self._num_component = mixture_distribution.logits.shape[-1]
        event = component_distribution.event_shape
        self._event_ndims = len(event)
        super().__init__(component_distribution.batch_shape[:-1], event, validate_args=validate_args)

    def expand(self, batch_shape: Shape, _instance: Any = None) -> Any:
        """The distribution with its batch expanded."""
        new = self._get_checked_instance(MixtureSameFamily, _instance)
        new._component_distribution = self._component_distribution.expand((*batch_shape, self._num_component))
        new._mixture_distribution = self._mixture_distribution.expand(batch_shape)
        new._num_component, new._event_ndims = self._num_component, self._event_ndims
        return self._filled(new, batch_shape)

    @constraints.dependent_property
    def support(self) -> Any:
        return MixtureSameFamilyConstraint(self._component_distribution.support)

    @property
    def mixture_distribution(self) -> Categorical:
        """The distribution of the component's number."""
        return self._mixture_distribution

    @property
    def component_distribution(self) -> Distribution:
        """The components."""
        return self._component_distribution

    @property
    def mean(self) -> Tensor:
        """The mean."""
        return self._expected(self.component_distribution.mean)

    @property
    def variance(self) -> Tensor:
        """The variance of each part: the mean of the components' variances, and the variance of their means."""
        away = self.component_distribution.mean - self._pad(self.mean)
        return self._expected(self.component_distribution.variance) + self._expected(away.square())

    def _expected(self, values: Tensor) -> Tensor:
        """The mean over components."""
        probs = self.mixture_distribution.probs
        probs = probs.reshape((*probs.shape, *(1 for _ in range(self._event_ndims))))
        return (probs * values).sum(-1 - self._event_ndims)

    def cdf(self, value: Tensor) -> Tensor:
        """The probability of a value up to `value`."""
        return (self.component_distribution.cdf(self._pad(value)) * self.mixture_distribution.probs).sum(-1)

    def log_prob(self, value: Tensor) -> Tensor:
        """The logarithm of the density, or of the probability, at `value`."""
        own = self.component_distribution.log_prob(self._pad(self._checked(value)))
        return (own + neural.log_softmax(self.mixture_distribution.logits, dim=-1)).logsumexp(dim=-1)

    def sample(self, sample_shape: Shape = ()) -> Tensor:
        """Draw a sample, outside of the graph."""
        with no_grad():
            chosen = self.mixture_distribution.expand(self._batch_shape).sample(sample_shape)
            drawn = self.component_distribution.sample(sample_shape)
            dim = len(sample_shape) + len(self._batch_shape)
            event = (1, *self._event_shape)
            index = chosen.reshape((*chosen.shape, *(1 for _ in event))).expand((*chosen.shape, *event))
            return drawn.gather(dim, index).squeeze(dim)

    def _pad(self, x: Tensor) -> Tensor:
        return x.unsqueeze(-1 - self._event_ndims)

    def __repr__(self) -> str:
        return f"MixtureSameFamily(\n  {self.mixture_distribution},\n  {self.component_distribution})"


def _check_shapes(mixture: Categorical, components: Distribution) -> None:
    ours, theirs = mixture.batch_shape, components.batch_shape[:-1]
    for one, other in zip(reversed(ours), reversed(theirs), strict=False):
        if 1 not in (one, other) and one != other:
            raise ValueError(
                f"`mixture_distribution.batch_shape` ({ours}) is not compatible with "
                f"`component_distribution.batch_shape`({theirs})"
            )
    kinds, given = mixture.logits.shape[-1], components.batch_shape[-1]
    if kinds != given:
        raise ValueError(
            f"`mixture_distribution component` ({kinds}) does not equal "
            f"`component_distribution.batch_shape[-1]` ({given})"
        )
