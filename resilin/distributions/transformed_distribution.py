"""`TransformedDistribution`: the distribution of a transform of what another distribution gives."""

from __future__ import annotations

from typing import Any

from resilin.core.autograd.grad_mode import no_grad
from resilin.core.tensor import Tensor
from resilin.distributions import constraints
from resilin.distributions.distribution import Distribution, Shape
from resilin.distributions.independent import Independent
from resilin.distributions.transforms import ComposeTransform, Transform
from resilin.distributions.utils import _sum_rightmost

__all__ = ["TransformedDistribution"]


class TransformedDistribution(Distribution):
    """The distribution of y = transforms(x), the first of the list first, for x of `base_distribution`.

    Its density is that of x by the transforms' determinants; a transform that is not bijective has none, unless the
    subclass says it.
    """

    arg_constraints: Any = {}  # noqa: RUF012  as in every distribution
    base_dist: Any

    def __init__(
        self,
        base_distribution: Distribution,
        transforms: Transform | list[Any],
        validate_args: bool | None = None,
    ) -> None:
        self.transforms = _listed(transforms)
        transform = ComposeTransform(self.transforms)
        base_shape = base_distribution.batch_shape + base_distribution.event_shape
        base_event_dim = len(base_distribution.event_shape)
        if len(base_shape) < transform.domain.event_dim:
            raise ValueError(
                "base_distribution needs to have shape with size at least "
                f"{transform.domain.event_dim}, but got {base_shape}."
            )
        forward_shape = tuple(transform.forward_shape(base_shape))
        expanded = tuple(transform.inverse_shape(forward_shape))
        if tuple(base_shape) != expanded:
            base_distribution = base_distribution.expand(expanded[: len(expanded) - base_event_dim])
        more = transform.domain.event_dim - base_event_dim
        self.base_dist = Independent(base_distribution, more) if more > 0 else base_distribution
        change = transform.codomain.event_dim - transform.domain.event_dim
        event_dim = max(transform.codomain.event_dim, base_event_dim + change)
        cut = len(forward_shape) - event_dim
        assert cut >= 0, f"forward_shape length {len(forward_shape)} must be >= event_dim {event_dim}"
        super().__init__(forward_shape[:cut], forward_shape[cut:], validate_args=validate_args)

    def expand(self, batch_shape: Shape, _instance: Any = None) -> Any:
        """The distribution with its batch expanded."""
        new = self._get_checked_instance(TransformedDistribution, _instance)
        shape: Any = (*batch_shape, *self.event_shape)
        for transform in reversed(self.transforms):
            shape = transform.inverse_shape(shape)
        new.base_dist = self.base_dist.expand(tuple(shape[: len(shape) - len(self.base_dist.event_shape)]))
        new.transforms = self.transforms
        return self._filled(new, batch_shape)

    @constraints.dependent_property(is_discrete=False)
    def support(self) -> Any:
        if not self.transforms:
            return self.base_dist.support
        support = self.transforms[-1].codomain
        more = len(self.event_shape) - support.event_dim
        return constraints.independent(support, more) if more > 0 else support

    @property
    def has_rsample(self) -> Any:
        """Whether the base distribution has `rsample`."""
        return self.base_dist.has_rsample

    def sample(self, sample_shape: Shape = ()) -> Tensor:
        """Draw a sample, outside of the graph."""
        with no_grad():
            return self._transformed(self.base_dist.sample(sample_shape))

    def rsample(self, sample_shape: Shape = ()) -> Tensor:
        """Draw a sample through which gradients reach the parameters."""
        return self._transformed(self.base_dist.rsample(sample_shape))

    def _transformed(self, x: Tensor) -> Tensor:
        for transform in self.transforms:
            x = transform(x)
        return x

    def log_prob(self, value: Tensor) -> Tensor:
        """The logarithm of the density at `value`."""
        y = self._checked(value)
        event_dim = len(self.event_shape)
        log_prob: Any = 0.0
        for transform in reversed(self.transforms):
            x = transform.inv(y)
            event_dim += transform.domain.event_dim - transform.codomain.event_dim
            change = transform.log_abs_det_jacobian(x, y)
            log_prob = log_prob - _sum_rightmost(change, event_dim - transform.domain.event_dim)
            y = x
        own = _sum_rightmost(self.base_dist.log_prob(y), event_dim - len(self.base_dist.event_shape))
        return log_prob + own

    def _monotonize_cdf(self, value: Tensor) -> Tensor:
        """1 - value where the transforms fall."""
        sign: Any = 1
        for transform in self.transforms:
            sign = sign * transform.sign
        if isinstance(sign, int) and sign == 1:
            return value
        return sign * (value - 0.5) + 0.5

    def cdf(self, value: Tensor) -> Tensor:
        """The probability of a value up to `value`."""
        for transform in reversed(self.transforms):
            value = transform.inv(value)
        if self._validate_args:
            self.base_dist._validate_sample(value)
        return self._monotonize_cdf(self.base_dist.cdf(value))

    def icdf(self, value: Tensor) -> Tensor:
        """The inverse of `cdf`."""
        return self._transformed(self.base_dist.icdf(self._monotonize_cdf(value)))


def _listed(transforms: Any) -> list[Any]:
    if isinstance(transforms, Transform):
        return [transforms]
    if not isinstance(transforms, list):
        raise ValueError(f"transforms must be a Transform or list, but was {transforms}")
    if not all(isinstance(t, Transform) for t in transforms):
        raise ValueError("transforms must be a Transform or a list of Transforms")
    return transforms
