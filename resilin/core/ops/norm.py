"""Normalization. The fused kernels run on the CPU; the rules here serve second derivatives."""

# N rows or samples, C channels, D features of a row

from __future__ import annotations

import numpy as np

from resilin.core.kernels import batch_norm as batch_kernel
from resilin.core.kernels import channels as channels_kernel
from resilin.core.kernels import layer_norm as layer_kernel
from resilin.core.kernels.cuda import batch_norm as batch_cuda
from resilin.core.kernels.cuda import layer_norm as layer_cuda
from resilin.core.kernels.loader import kernel
from resilin.core.ops.registry import op, override


@op(
    takes="f",
    tensors=3,
    samples=lambda r: [
        (r(3, 4), r(4), r(4), 1e-5, 4),
        (r(2, 3, 4), None, None, 1e-5, 4),
        (r(2, 3, 4), r(3, 4), None, 1e-5, 12),
    ],
)
def layer_norm(xp, x, weight=None, bias=None, eps=1e-5, D=0):
    """(x - mean) / sqrt(var + eps) * weight + bias over the last D elements, with the biased variance."""
    return layer_kernel.reference_forward(x, weight, bias, eps, D)[0]


@layer_norm.vjp_all
def _(xp, needs, g, _y, x, weight, bias, eps, D):
    x_ND, g_ND = x.reshape((-1, D)), g.reshape((-1, D))
    centred = x_ND - xp.mean(x_ND, axis=1, keepdims=True)
    rstd = 1 / xp.sqrt(xp.mean(centred * centred, axis=1, keepdims=True) + eps)
    hat = centred * rstd
    dx = None
    if needs[0]:
        dy = g_ND if weight is None else g_ND * weight.reshape((D,))
        inner = xp.mean(dy * hat, axis=1, keepdims=True)
        dx = (rstd * (dy - xp.mean(dy, axis=1, keepdims=True) - hat * inner)).reshape(x.shape)
    dw = xp.sum(g_ND * hat, axis=0).reshape(weight.shape) if needs[1] else None
    db = xp.sum(g_ND, axis=0).reshape(bias.shape) if needs[2] else None
    return dx, dw, db


def _layer_forward(xp, x, weight, bias, eps, D):
    y, mean, rstd = layer_kernel.forward(x, weight, bias, eps, D)
    return y, (mean, rstd)


def _layer_backward(xp, needs, g, _y, residual, x, weight, _bias, _eps, _D):
    return layer_kernel.backward(g, x, weight, *residual, sums=needs[2])


override("layer_norm", "cpu", _layer_forward, _layer_backward, residual=True, kernel=kernel("layer_norm_forward"))


def _layer_forward_cuda(xp, x, weight, bias, eps, D):
    y, mean, rstd = layer_cuda.forward(xp, x, weight, bias, eps, D)
    return y, (mean, rstd)


def _layer_backward_cuda(xp, needs, g, _y, residual, x, weight, _bias, _eps, _D, before=None):
    return layer_cuda.backward(xp, g, x, weight, *residual, before)


override("layer_norm", "cuda", _layer_forward_cuda, _layer_backward_cuda, residual=True, adds=True)


@op(
    takes="f",
    tensors=3,
    samples=lambda r: [
        (r(5, 3), r(3), r(3)),
        (r(3, 2, 4), None, r(2)),
        (r(2, 3, 2, 2), r(3), None),
    ],
)
def scale_channels(xp, x, weight=None, bias=None):
    """x (N, C, ...) with each channel multiplied by its `weight` and shifted by its `bias`."""
    return channels_kernel.reference_forward(x, weight, bias)


@scale_channels.vjp_all
def _(xp, needs, g, _y, x, weight, _bias):
    axes, along = (0, *range(2, x.ndim)), (-1, *(1,) * (x.ndim - 2))
    dx = None if not needs[0] else g if weight is None else g * weight.reshape(along)
    return dx, xp.sum(g * x, axis=axes) if needs[1] else None, xp.sum(g, axis=axes) if needs[2] else None


override(
    "scale_channels",
    "cpu",
    lambda xp, x, weight, bias: channels_kernel.forward(x, weight, bias),
    lambda xp, needs, g, _y, x, weight, _bias: channels_kernel.backward(g, x, weight, needs),
)


def _spread(r):
    return r(3, low=0.5, high=2.0)


@op(
    takes="f",
    tensors=5,
    samples=lambda r: [
        (r(5, 3), r(3), _spread(r), r(3), r(3), 1e-5),
        (r(2, 3, 4), r(3), _spread(r), None, None, 1e-5),
        (r(2, 3, 2, 2), r(3), _spread(r), r(3), None, 1e-5),
    ],
)
def batch_norm_fixed(xp, x, mean, var, weight=None, bias=None, eps=1e-5):
    """Each channel normalized with a mean and a variance that are given, then scaled and shifted."""
    return channels_kernel.reference_normalize(x, mean, var, weight, bias, eps)


def _fixed_gradients(needs, dx, total, dot, weight, rstd):
    """What follows from the sums of g, and of g * (x - mean)."""
    dmean = dvar = None
    scale = rstd if weight is None else rstd * weight
    if needs[1]:
        dmean = -total * scale
    if needs[2]:
        dvar = dot * scale * rstd * rstd * -0.5
    return dx, dmean, dvar, dot * rstd if needs[3] else None, total if needs[4] else None


@batch_norm_fixed.vjp_all
def _(xp, needs, g, _y, x, mean, var, weight, _bias, eps):
    axes, along = (0, *range(2, x.ndim)), (-1, *(1,) * (x.ndim - 2))
    rstd = 1 / xp.sqrt(var + eps)
    dx = g * (rstd if weight is None else rstd * weight).reshape(along) if needs[0] else None
    total = xp.sum(g, axis=axes) if needs[1] or needs[4] else None
    dot = xp.sum(g * (x - mean.reshape(along)), axis=axes) if needs[2] or needs[3] else None
    return _fixed_gradients(needs, dx, total, dot, weight, rstd)


def _fixed_backward(xp, needs, g, _y, x, mean, var, weight, _bias, eps):
    rstd = 1 / np.sqrt(var + var.dtype.type(eps))
    scale, dots = rstd if weight is None else rstd * weight, needs[2] or needs[3]
    dx, dot, total = channels_kernel.backward(g, x, scale, (needs[0], dots, dots or needs[1] or needs[4]))
    return _fixed_gradients(needs, dx, total, dot - mean * total if dots else None, weight, rstd)


override(
    "batch_norm_fixed",
    "cpu",
    lambda xp, *args: channels_kernel.normalize(*args),
    _fixed_backward,
    kernel=kernel("channels_normalize"),
)


@op(
    takes="f",
    tensors=3,
    samples=lambda r: [(r(5, 3), r(3), r(3), 1e-5), (r(3, 2, 4), None, None, 1e-5), (r(2, 3, 2, 2), r(3), None, 1e-5)],
)
def batch_norm(xp, x, weight=None, bias=None, eps=1e-5, stats=None):
    """Each channel normalized over samples and positions, then scaled and shifted; `stats`, a list, receives the mean
    and the biased variance per channel."""
    y, mean, var = batch_kernel.reference_forward(x, weight, bias, eps)
    if stats is not None:
        stats[:] = mean, var
    return y


@batch_norm.vjp_all
def _(xp, needs, g, _y, x, weight, _bias, eps, stats=None):
    axes = (0, *range(2, x.ndim))
    along = (1, -1, *(1,) * (x.ndim - 2))
    centred = x - xp.mean(x, axis=axes, keepdims=True)
    rstd = 1 / xp.sqrt(xp.mean(centred * centred, axis=axes, keepdims=True) + eps)
    hat = centred * rstd
    dx = None
    if needs[0]:
        dy = g if weight is None else g * weight.reshape(along)
        inner = xp.mean(dy * hat, axis=axes, keepdims=True)
        dx = rstd * (dy - xp.mean(dy, axis=axes, keepdims=True) - hat * inner)
    dw = xp.sum(g * hat, axis=axes) if needs[1] else None
    db = xp.sum(g, axis=axes) if needs[2] else None
    return dx, dw, db


def _batch_forward(xp, x, weight, bias, eps, stats):
    y, mean, var = batch_kernel.forward(x, weight, bias, eps)
    if stats is not None:
        stats[:] = mean, var
    return y, (mean, var)


def _batch_backward(xp, needs, g, _y, residual, x, weight, _bias, eps, _stats):
    return batch_kernel.backward(g, x, weight, *residual, eps)


override("batch_norm", "cpu", _batch_forward, _batch_backward, residual=True, kernel=kernel("batch_norm_forward"))


def _batch_forward_cuda(xp, x, weight, bias, eps, stats):
    y, mean, var = batch_cuda.forward(xp, x, weight, bias, eps)
    if stats is not None:
        stats[:] = mean, var
    return y, (mean, var)


def _batch_backward_cuda(xp, needs, g, _y, residual, x, weight, _bias, eps, _stats):
    return batch_cuda.backward(xp, g, x, weight, *residual, eps)


override("batch_norm", "cuda", _batch_forward_cuda, _batch_backward_cuda, residual=True)
