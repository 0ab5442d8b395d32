"""Gamma and Dirichlet distributed samples whose gradients reach the parameters, by implicit reparametrization.

Both are drawn in float64 on the host and rounded once, and can be differentiated once.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from resilin.core import dtype as dtypes
from resilin.core.autograd.function import Function, once_differentiable
from resilin.core.kernels import implicit_gradients
from resilin.core.ops import rejection
from resilin.core.ops.creation import finish
from resilin.core.rng import pick
from resilin.core.tensor import Tensor

_DOUBLE = np.dtype(np.float64)


def _on_host(x: Tensor) -> Any:
    return x._dev.xp.to_host(x._array).astype(np.float64)


def _like(array: Any, x: Tensor) -> Tensor:
    return finish(array.astype(x._array.dtype), x._dev)


def _log_gammas(concentration: Tensor) -> Any:
    source = pick(None)
    return rejection.log_gamma(
        _on_host(concentration),
        lambda shape: source.uniform(shape, _DOUBLE),
        lambda shape: source.normal(shape, _DOUBLE),
    )


class StandardGamma(Function):
    """Gamma distributed numbers of rate 1: `apply(concentration)`."""

    @staticmethod
    def forward(ctx: Any, concentration: Tensor) -> Tensor:
        """Draw them."""
        drawn = _like(np.exp(_log_gammas(concentration)), concentration)
        ctx.save_for_backward(concentration, drawn)
        return drawn

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_output: Tensor) -> Tensor:
        """Gradients by the concentrations."""
        return grad_output * standard_gamma_grad(*ctx.saved_tensors)


class StandardDirichlet(Function):
    """Dirichlet distributed vectors: `apply(concentration)`."""

    @staticmethod
    def forward(ctx: Any, concentration: Tensor) -> Tensor:
        """Draw them."""
        logs = _log_gammas(concentration)
        parts = np.exp(logs - logs.max(-1, keepdims=True, initial=-np.inf))
        least = dtypes.finfo(concentration.dtype).tiny  # never 0, whose logarithm is infinite
        drawn = _like(np.maximum(parts / parts.sum(-1, keepdims=True), least), concentration)
        ctx.save_for_backward(drawn, concentration)
        return drawn

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_output: Tensor) -> Tensor:
        """Gradients by the concentrations."""
        x, concentration = ctx.saved_tensors
        total = concentration.sum(-1, True).expand_as(concentration)
        return dirichlet_grad(x, concentration, total) * (grad_output - (x * grad_output).sum(-1, True))


def standard_gamma_grad(concentration: Tensor, sample: Tensor) -> Tensor:
    """How gamma distributed numbers of rate 1 move with their concentrations."""
    return _like(implicit_gradients.gamma_gradient(_on_host(concentration), _on_host(sample)), sample)


def dirichlet_grad(x: Tensor, concentration: Tensor, total: Tensor) -> Tensor:
    """How parts of Dirichlet distributed vectors move with their concentrations, over 1 - x."""
    found = implicit_gradients.dirichlet_gradient(_on_host(x), _on_host(concentration), _on_host(total))
    return _like(found, x)
