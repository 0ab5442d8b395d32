"""Connectionist temporal classification: log-space forward and backward sums over all alignments.

The states of a target of length n are its labels with blanks between and around them: 2 n + 1. All samples and states
advance together, one time step after the other; the native form goes through one sample after the other, on as many
threads as there are: samples have nothing to do with one another. Sums of three take the order stay, step, skip.
"""

# T time, N samples, C classes, L states

from __future__ import annotations

from typing import Any

import numpy as np

from resilin.core.kernels.common import Array
from resilin.core.kernels.loader import kernel

_native_ctc_forward = kernel("ctc_forward")
_native_ctc_backward = kernel("ctc_backward")


def forward(log_probs: Array, targets: Any, lengths: Any, blank: int) -> tuple[Array, Array]:
    """Losses (N,) of log_probs (T, N, C) and the sums (T, N, L) over the alignments that end in a state at a time.

    `targets`: the labels of each sample; `lengths`: how many times of each sample count, as do only the rows of so many
    in the sums.
    """
    labels_NL, sizes = states(targets, blank)
    lengths = np.asarray(lengths, np.int64)
    if (found := _native_ctc_forward(log_probs, labels_NL, sizes, lengths, blank)) is not None:
        return found  # type: ignore[no-any-return]
    return reference_forward(log_probs, targets, lengths, blank)


def backward(g: Array, losses: Array, alpha: Array, log_probs: Array, targets: Any, lengths: Any, blank: int) -> Array:
    """The gradient for log_probs (T, N, C), taken as the result of log_softmax, as in PyTorch: exp(log_probs) minus how
    probable each class is at each time, given the target. NaN where a loss is infinite and g is not 0.

    `losses` and `alpha` are what `forward` gave.
    """
    labels_NL, sizes = states(targets, blank)
    lengths = np.asarray(lengths, np.int64)
    grad = _native_ctc_backward(g, losses, alpha, log_probs, labels_NL, sizes, lengths, blank)
    if grad is not None:
        return grad  # type: ignore[no-any-return]
    return reference_backward(g, losses, alpha, log_probs, targets, lengths, blank)


def states(targets: Any, blank: int) -> tuple[Array, Array]:
    """The label of every state, (N, L), with blanks to the right of shorter targets, and the targets' lengths (N,)."""
    sizes = np.array([len(target) for target in targets], np.int64)
    longest = int(sizes.max(initial=0))
    labels_NL = np.full((len(sizes), 2 * longest + 1), blank, np.int64)
    if longest:
        labels_NL[:, 1::2][np.arange(longest) < sizes[:, None]] = np.concatenate(targets)
    return labels_NL, sizes


def _skips(labels_NL: Array, blank: int) -> Array:
    """Whether state s may be entered from s - 2: it is a label, and not the one before it."""
    skip_NL = np.zeros(labels_NL.shape, bool)
    skip_NL[:, 2:] = (labels_NL[:, 2:] != blank) & (labels_NL[:, 2:] != labels_NL[:, :-2])
    return skip_NL


def _advance(a_NL: Array, skip_NL: Array) -> Array:
    """log(exp of the state itself + of the one before + of the one before that where skipping is allowed)."""
    low = np.full((len(a_NL), 1), -np.inf, a_NL.dtype)
    one = np.concatenate((low, a_NL[:, :-1]), 1)
    two = np.where(skip_NL, np.concatenate((low, low, a_NL[:, :-2]), 1)[:, : a_NL.shape[1]], -np.inf)
    top = np.maximum(np.maximum(a_NL, one), two)
    top = np.where(np.isneginf(top), 0, top)
    return top + np.log(np.exp(a_NL - top) + np.exp(one - top) + np.exp(two - top))  # type: ignore[no-any-return]


def _picked(log_probs: Array, labels_NL: Array) -> Array:
    """The log-probability of every state's label at every time, (T, N, L)."""
    return np.take_along_axis(log_probs, np.broadcast_to(labels_NL, (len(log_probs), *labels_NL.shape)), 2)


def _forward_sums(picked_TNL: Array, skip_NL: Array) -> Array:
    """The log of the sum over all alignments that end in a state, at every time."""
    alpha = np.full(picked_TNL.shape, -np.inf, picked_TNL.dtype)
    if len(alpha):
        alpha[0, :, :2] = picked_TNL[0, :, :2]
    for t in range(1, len(alpha)):
        alpha[t] = _advance(alpha[t - 1], skip_NL) + picked_TNL[t]
    return alpha


def reference_forward(log_probs: Array, targets: Any, lengths: Any, blank: int) -> tuple[Array, Array]:
    """numpy form of `forward`."""
    with np.errstate(all="ignore"):
        labels_NL, _ = states(targets, blank)
        alpha = _forward_sums(_picked(log_probs, labels_NL), _skips(labels_NL, blank))
        losses = np.empty(len(targets), log_probs.dtype)
        for n, (target, length) in enumerate(zip(targets, lengths, strict=True)):
            if length == 0:  # nothing was emitted: certain for an empty target, impossible for another
                losses[n] = np.inf if len(target) else 0
                continue
            ends = alpha[length - 1, n, max(2 * len(target) - 1, 0) : 2 * len(target) + 1]
            losses[n] = -np.logaddexp.reduce(ends)
    return losses, alpha


def _backward_sums(picked_TNL: Array, labels_NL: Array, targets: Any, lengths: Any, blank: int) -> Array:
    """The log of the sum over all alignments that go on from a state, at every time; its own emission is counted.

    The same recurrence, on time and states turned round: a sample's last step and last state come first.
    """
    beta = np.full(picked_TNL.shape, -np.inf, picked_TNL.dtype)
    turned = [(n, slice(0, 2 * len(t) + 1), int(m)) for n, (t, m) in enumerate(zip(targets, lengths, strict=True))]
    given, labels = np.full_like(beta, -np.inf), np.full_like(labels_NL, blank)
    for n, own, length in turned:
        given[:length, n, own] = picked_TNL[:length, n, own][::-1, ::-1]
        labels[n, own] = labels_NL[n, own][::-1]
    found = _forward_sums(given, _skips(labels, blank))
    for n, own, length in turned:
        beta[:length, n, own] = found[:length, n, own][::-1, ::-1]
    return beta


def reference_backward(
    g: Array, losses: Array, alpha: Array, log_probs: Array, targets: Any, lengths: Any, blank: int
) -> Array:
    """numpy form of `backward`."""
    with np.errstate(all="ignore"):
        labels_NL, _ = states(targets, blank)
        picked = _picked(log_probs, labels_NL)
        beta = _backward_sums(picked, labels_NL, targets, lengths, blank)
        share_TNL = np.exp(alpha + beta - picked + losses[:, None])
        share_TNL[np.isneginf(alpha) | np.isneginf(beta)] = 0
        grad = np.exp(log_probs)
        samples = np.arange(len(targets))
        for s in range(labels_NL.shape[1]):
            grad[:, samples, labels_NL[:, s]] -= share_TNL[:, :, s]
        grad[:, np.isinf(losses) & (g != 0)] = np.nan
        grad *= g[:, None]
        for n, length in enumerate(lengths):
            grad[length:, n] = 0
    return grad
