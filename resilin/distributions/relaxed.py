"""Smooth stand-ins for what is discrete: RelaxedBernoulli, RelaxedOneHotCategorical, and those of their logarithms.

C. J. Maddison, A. Mnih, Y. W. Teh, "The Concrete Distribution" (2017); E. Jang, S. Gu, B. Poole, "Categorical
Reparameterization with Gumbel-Softmax" (2017).
"""

from __future__ import annotations

import math
from typing import Any

from resilin.core.ops import creation
from resilin.core.tensor import Tensor
from resilin.distributions import constraints
from resilin.distributions.bernoulli import _PROBS_OR_LOGITS, Odds
from resilin.distributions.categorical import _PROBS_OR_LOGITS as _VECTORS
from resilin.distributions.categorical import OverCategorical
from resilin.distributions.distribution import Shape
from resilin.distributions.transformed_distribution import TransformedDistribution
from resilin.distributions.transforms import ExpTransform, SigmoidTransform
from resilin.distributions.utils import broadcast_all, clamp_probs, uniform_like

__all__ = ["ExpRelaxedCategorical", "LogitRelaxedBernoulli", "RelaxedBernoulli", "RelaxedOneHotCategorical"]


class LogitRelaxedBernoulli(Odds):
    """The log odds of `RelaxedBernoulli` numbers."""

    arg_constraints = _PROBS_OR_LOGITS
    support = constraints.real
    has_rsample = True

    def __init__(
        self, temperature: Any, probs: Any = None, logits: Any = None, validate_args: bool | None = None
    ) -> None:
        self.temperature = temperature
        super().__init__(self._take(probs, logits), validate_args=validate_args)

    def expand(self, batch_shape: Shape, _instance: Any = None) -> Any:
        """The distribution with its batch expanded."""
        new = self._get_checked_instance(LogitRelaxedBernoulli, _instance)
        new.temperature = self.temperature
        return self._filled(new, batch_shape, "probs", "logits")

    def rsample(self, sample_shape: Shape = ()) -> Tensor:
        """Draw a sample through which gradients reach the parameters."""
        shape = tuple(self._extended_shape(sample_shape))
        probs = clamp_probs(self.probs.expand(shape))
        u = clamp_probs(uniform_like(probs, shape))
        return (u.log() - (-u).log1p() + probs.log() - (-probs).log1p()) / self.temperature

    def log_prob(self, value: Tensor) -> Tensor:
        """The logarithm of the density at `value`."""
        logits, value = broadcast_all(self.logits, self._checked(value))
        away = logits - value * self.temperature
        return _log(self.temperature) + away - 2 * away.exp().log1p()


def _log(temperature: Any) -> Any:
    return temperature.log() if isinstance(temperature, Tensor) else math.log(temperature)


class _Relaxed(TransformedDistribution):
    """What has its parameters from the distribution that it transforms."""

    @property
    def temperature(self) -> Any:
        """The temperature."""
        return self.base_dist.temperature

    @property
    def logits(self) -> Tensor:
        """The log odds of 1, or the logarithms of the probabilities of kinds."""
        return self.base_dist.logits

    @property
    def probs(self) -> Tensor:
        """The probabilities of 1, or of kinds."""
        return self.base_dist.probs


class RelaxedBernoulli(_Relaxed):
    """Numbers between 0 and 1, the nearer to one of them the lower the temperature."""

    arg_constraints = _PROBS_OR_LOGITS
    support = constraints.unit_interval
    has_rsample = True

    def __init__(
        self, temperature: Any, probs: Any = None, logits: Any = None, validate_args: bool | None = None
    ) -> None:
        base = LogitRelaxedBernoulli(temperature, probs, logits)
        super().__init__(base, SigmoidTransform(), validate_args=validate_args)

    def expand(self, batch_shape: Shape, _instance: Any = None) -> Any:
        """The distribution with its batch expanded."""
        return super().expand(batch_shape, self._get_checked_instance(RelaxedBernoulli, _instance))


class ExpRelaxedCategorical(OverCategorical):
    """The logarithms of `RelaxedOneHotCategorical` vectors."""

    arg_constraints = _VECTORS
    support = constraints.real_vector
    has_rsample = True

    def __init__(
        self, temperature: Any, probs: Any = None, logits: Any = None, validate_args: bool | None = None
    ) -> None:
        self.temperature = temperature
        self._take(probs, logits, validate_args)

    def expand(self, batch_shape: Shape, _instance: Any = None) -> Any:
        """The distribution with its batch expanded."""
        new = self._get_checked_instance(ExpRelaxedCategorical, _instance)
        new.temperature = self.temperature
        return self._filled(new, batch_shape)

    def rsample(self, sample_shape: Shape = ()) -> Tensor:
        """Draw a sample through which gradients reach the parameters."""
        u = clamp_probs(uniform_like(self.logits, self._extended_shape(sample_shape)))
        scores = (self.logits - (-u.log()).log()) / self.temperature
        return scores - scores.logsumexp(dim=-1, keepdim=True)

    def log_prob(self, value: Tensor) -> Tensor:
        """The logarithm of the density at `value`."""
        kinds = self._categorical._num_events
        logits, value = broadcast_all(self.logits, self._checked(value))
        scale = creation.as_tensor(_log(self.temperature)) * (kinds - 1) + math.lgamma(kinds)
        score = logits - value * self.temperature
        return (score - score.logsumexp(dim=-1, keepdim=True)).sum(-1) + scale


class RelaxedOneHotCategorical(_Relaxed):
    """Shares of kinds, the nearer to one kind alone the lower the temperature."""

    arg_constraints = _VECTORS
    support = constraints.simplex
    has_rsample = True

    def __init__(
        self, temperature: Any, probs: Any = None, logits: Any = None, validate_args: bool | None = None
    ) -> None:
        base = ExpRelaxedCategorical(temperature, probs, logits, validate_args=validate_args)
        super().__init__(base, ExpTransform(), validate_args=validate_args)

    def expand(self, batch_shape: Shape, _instance: Any = None) -> Any:
        """The distribution with its batch expanded."""
        return super().expand(batch_shape, self._get_checked_instance(RelaxedOneHotCategorical, _instance))
