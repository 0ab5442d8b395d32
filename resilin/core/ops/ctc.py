"""Connectionist temporal classification as an op. Arguments are checked in `core/api/nn/ctc.py`."""

from __future__ import annotations

from typing import Any

from resilin.core.kernels import ctc as kernel
from resilin.core.ops.registry import op, override

_STEPS = "its steps are small and many"

_TARGETS: Any = ([1, 1], [2], [])
_LENGTHS = (4, 3, 2)


# the gradient is PyTorch's, which holds for the results of log_softmax only
@op(takes="f", order=1, dtypes="full", host=_STEPS, samples=lambda r: [(r(4, 3, 3), _TARGETS, _LENGTHS, 0)])
def ctc_loss(xp, log_probs, targets=(), lengths=(), blank=0):
    """Minus the log-probability of each target, (N,), by log_probs (T, N, C)."""
    return kernel.forward(log_probs, targets, lengths, blank)[0]


@ctc_loss.vjp
def _(xp, g, y, log_probs, targets=(), lengths=(), blank=0):
    return xp.ctc_loss_grad(g, y, log_probs, targets, lengths, blank)


def _grad_samples(r: Any) -> list[tuple[Any, ...]]:
    log_probs = r(4, 3, 3)
    return [(r(3), ctc_loss.call(log_probs, _TARGETS, _LENGTHS, 0), log_probs, _TARGETS, _LENGTHS, 0)]


@op(takes="f", tensors=3, order=0, dtypes="full", host=_STEPS, samples=_grad_samples)
def ctc_loss_grad(xp, g, losses, log_probs, targets=(), lengths=(), blank=0):
    """The gradient of `ctc_loss`, (T, N, C), for gradients g (N,) of the losses."""
    alpha = kernel.forward(log_probs, targets, lengths, blank)[1]
    return kernel.backward(g, losses, alpha, log_probs, targets, lengths, blank)


@ctc_loss_grad.vjp_all
def _(xp, needs, g, _y, _g, _losses, _log_probs, targets=(), lengths=(), blank=0):
    raise NotImplementedError("ctc_loss has no second derivative (nor has PyTorch's): differentiate it once")


def _backward(xp, needs, g, y, alpha, log_probs, targets, lengths, blank):
    return (kernel.backward(g, y, alpha, log_probs, targets, lengths, blank),)


override(
    "ctc_loss",
    "cpu",
    lambda xp, log_probs, targets, lengths, blank: kernel.forward(log_probs, targets, lengths, blank),
    _backward,
    residual=True,
    quiet=False,
)
