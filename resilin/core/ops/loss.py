"""Losses that deserve a fused rule. Reductions and argument checks are in `core/api/nn/losses.py`."""

# N samples, C classes

from __future__ import annotations

import numpy as np

from resilin.core.kernels import cross_entropy as kernel
from resilin.core.kernels import embedding as embedding_kernel
from resilin.core.kernels.common import array_namespace
from resilin.core.kernels.cuda import rows as rows_cuda
from resilin.core.kernels.loader import kernel as native
from resilin.core.ops.errstate import BY_KERNEL
from resilin.core.ops.registry import accelerate, op, override

_TARGET = np.array([1, 0, 3])


_WEIGHTS = np.array([1.0, 2, 0.5, 3])


@op(
    takes="f",
    samples=lambda r: [(r(3, 4), _TARGET), (r(3, 4), _TARGET, _WEIGHTS, 0, 0.1), (r(3, 4), _TARGET, None, 0, 0.1, 2)],
)
def cross_entropy(xp, logits, target=None, weight=None, ignore_index=-100, label_smoothing=0.0, count=None):
    """Per-sample cross entropy of `logits` (N, C) against class numbers `target` (N,); with `count` their sum by it."""
    losses = kernel.reference_forward(logits, target, weight, ignore_index, label_smoothing)[0]
    return losses if count is None else xp.sum(losses) / count


@cross_entropy.vjp
def _(xp, g, _y, logits, target=None, weight=None, ignore_index=-100, label_smoothing=0.0, count=None):
    N, C = logits.shape
    ns = array_namespace(target)
    valid = target != ignore_index
    safe = ns.where(valid, target, 0)
    dtype = np.float64 if "64" in str(logits.dtype) else np.float32
    w_C = ns.ones(C, dtype) if weight is None else weight
    chosen = ns.zeros((N, C), dtype)
    chosen[ns.arange(N), safe] = (1 - label_smoothing) * w_C[safe]
    chosen = (chosen + label_smoothing / C * w_C) * valid[:, None]
    total = chosen.sum(1, keepdims=True)
    p = xp.softmax(logits, 1)
    g = xp.expand_dims(g, 1) if count is None else g / count
    return g * (p * xp.constant(total, g) - xp.constant(chosen, g))


def _forward(xp, logits, target, weight, ignore_index, label_smoothing, count):
    losses, lse = kernel.forward(logits, target, weight, ignore_index, label_smoothing)
    return (losses if count is None else xp.sum(losses) / count), lse


def _backward(xp, needs, g, _y, lse, logits, target, weight, ignore_index, label_smoothing, count):
    if count is not None:
        g_N = np.empty(len(logits), g.dtype)
        g_N.fill(g / count)
        g = g_N
    return (kernel.backward(g, logits, target, lse, weight, ignore_index, label_smoothing),)


override("cross_entropy", "cpu", _forward, _backward, residual=True)


def _forward_cuda(xp, logits, target, weight, ignore_index, label_smoothing, count):
    losses, lse = rows_cuda.cross_entropy(xp, logits, target, weight, ignore_index, label_smoothing)
    return (losses if count is None else xp.sum(losses) / count), lse


def _backward_cuda(xp, needs, g, _y, lse, logits, target, weight, ignore_index, label_smoothing, count):
    g = g if count is None else xp.broadcast_to(g / count, logits.shape[:1])
    return (rows_cuda.cross_entropy_backward(xp, g, logits, target, lse, weight, ignore_index, label_smoothing),)


override("cross_entropy", "cuda", _forward_cuda, _backward_cuda, residual=True)


@op(single=BY_KERNEL, samples=lambda r: [(r(5, 3), np.array([[4, 0], [4, 2]]))])
def embedding(xp, weight, index=None, padding_idx=None, shares=None):
    """The rows of `weight` (num, D) at `index`. Row `padding_idx` gets no gradient.

    `shares` (an array of index's shape) multiplies the gradient of each place.
    """
    return embedding_kernel.forward(weight, index)


@embedding.vjp
def _(xp, g, _y, _weight, index=None, padding_idx=None, shares=None):
    g = g if shares is None else g * xp.constant(shares[..., None], g)
    return xp.embedding_grad(g, index, _weight.shape[0], padding_idx)


@op(samples=lambda r: [(r(2, 2, 3), np.array([[4, 0], [4, 2]]), 5)])
def embedding_grad(xp, g, index=None, num=0, padding_idx=None):
    """Rows of `g` added into (num, D) at `index`, in index order."""
    return embedding_kernel.backward(g, index, num, padding_idx)


@embedding_grad.vjp
def _(xp, h, _y, _g, index=None, num=0, padding_idx=None):
    rows = xp.embedding(h, index)
    if padding_idx is None:
        return rows
    return xp.where_else(rows, xp.zeros_like(rows), (index != padding_idx)[..., None])


_HOST = "bags of rows are added up on the host"
_BAGS = np.array([4, 0, 4, 2]), np.array([0, 0, 3])  # the first one is empty


@op(takes="f", host=_HOST, single=BY_KERNEL, samples=lambda r: [(r(5, 3), *_BAGS), (r(5, 3), *_BAGS, True)])
def embedding_bags(xp, weight, index=None, starts=None, mean=False):
    """The sums (or means) of the rows of `weight` (num, D) in bags of `index`, which begin at `starts`."""
    return embedding_kernel.bags_forward(weight, index, starts, mean)


@embedding_bags.vjp
def _(xp, g, _y, _weight, index=None, starts=None, mean=False):
    return xp.embedding_bags_grad(g, index, starts, mean, _weight.shape[0])


@op(takes="f", host=_HOST, samples=lambda r: [(r(3, 2), *_BAGS, False, 5), (r(3, 2), *_BAGS, True, 5)])
def embedding_bags_grad(xp, g, index=None, starts=None, mean=False, num=0):
    """The rows of `g`, one a bag, added into (num, D) at the bag's places of `index`, in order."""
    return embedding_kernel.bags_backward(g, index, starts, mean, num)


@embedding_bags_grad.vjp
def _(xp, h, _y, _g, index=None, starts=None, mean=False, num=0):
    return xp.embedding_bags(h, index, starts, mean)


@op(takes="f", elementwise=True, samples=lambda r: [(r(3, 4),), (r(3, 4), 0.5), (r(), 2)])
def smooth_absolute(xp, x, beta=1.0):
    """0.5 * x ** 2 / beta where |x| < beta > 0, else |x| - 0.5 * beta."""
    size = xp.absolute(x)
    small = xp.minimum(size, beta)
    return small * small * (0.5 / beta) + (size - small)


@smooth_absolute.vjp
def _(xp, g, _y, x, beta=1.0):
    return g * (xp.clip_to(x, -beta, beta) / beta)


accelerate("smooth_absolute", native("smooth_forward"), native("smooth_backward"))


_of_logits = native("bce_with_logits_forward")


@op(takes="f", elementwise=True, kernel=_of_logits, samples=lambda r: [(r(3, 4), r(3, 4, low=0.0, high=1.0))])
def bce_with_logits(xp, x, target):
    """-(t log s + (1 - t) log(1 - s)) for s = sigmoid(x), without overflow."""
    return xp.maximum(x, 0) - x * target + xp.log1p(xp.exp(-xp.absolute(x)))


@bce_with_logits.vjp(0)
def _(xp, g, _y, x, target):
    return g * (xp.sigmoid(x) - target)


@bce_with_logits.vjp(1)
def _(xp, g, _y, x, _target):
    return g * -x


@op(takes="f", elementwise=True, samples=lambda r: [(r(3, 4, low=0.1, high=0.9), r(3, 4, low=0.0, high=1.0))])
def binary_cross_entropy(xp, x, target):
    """-(t log x + (1 - t) log(1 - x)) for probabilities x, both logarithms at least -100."""
    return -(target * xp.maximum(xp.log(x), -100) + (1 - target) * xp.maximum(xp.log1p(-x), -100))


@binary_cross_entropy.vjp(0)
def _(xp, g, _y, x, target):
    return (
        g * (x - target) / xp.maximum((1 - x) * x, 1e-12)
    )  # 0 or 1 where a sigmoid is saturated: finite, as PyTorch's


@binary_cross_entropy.vjp(1)
def _(xp, g, _y, x, _target):
    return g * (xp.log1p(-x) - xp.log(x))
