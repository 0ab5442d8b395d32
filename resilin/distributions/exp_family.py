"""`ExponentialFamily`: distributions that are told by their natural parameters and log normalizer."""

from __future__ import annotations

from typing import Any

from resilin.core.autograd.grad import grad
from resilin.core.tensor import Tensor
from resilin.distributions.distribution import Distribution

__all__ = ["ExponentialFamily"]


class ExponentialFamily(Distribution):
    """A distribution of the density exp(<t(x), theta> - F(theta) + k(x)).

    A subclass has `_natural_params` (theta), `_log_normalizer(*theta)` (F) and `_mean_carrier_measure` (the mean of
    k), of which its entropy and divergence follow.
    """

    @property
    def _natural_params(self) -> tuple[Tensor, ...]:
        self._lacks("_natural_params")

    def _log_normalizer(self, *natural_params: Any) -> Tensor:
        self._lacks("_log_normalizer")

    @property
    def _mean_carrier_measure(self) -> Any:
        self._lacks("_mean_carrier_measure")

    def entropy(self) -> Tensor:
        """The entropy, F(theta) - <theta, the gradient of F> - the mean of k."""
        params = [p.detach().requires_grad_() for p in self._natural_params]
        log_normalizer = self._log_normalizer(*params)
        result = log_normalizer - self._mean_carrier_measure
        for param, slope in zip(params, grad(log_normalizer.sum(), params, create_graph=True), strict=True):
            result = result - (param * slope).reshape((*self._batch_shape, -1)).sum(-1)
        return result
