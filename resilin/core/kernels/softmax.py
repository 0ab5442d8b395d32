"""Softmax and log-softmax along an axis, shifted by each line's maximum so that they cannot overflow."""

from __future__ import annotations

import numpy as np

from resilin.core.kernels.common import Array, array_namespace, compute_dtype
from resilin.core.kernels.loader import kernel

_native_softmax_forward = kernel("softmax_forward")
_native_softmax_backward = kernel("softmax_backward")
_native_log_softmax_forward = kernel("log_softmax_forward")
_native_log_softmax_backward = kernel("log_softmax_backward")


def forward(x: Array, axis: int = -1) -> Array:
    """exp(x) / sum(exp(x)) along `axis`. A line with a NaN, or with -inf only, is NaN."""
    if (y := _native_softmax_forward(x, axis)) is not None:
        return y  # type: ignore[no-any-return]
    return reference_forward(x.swapaxes(axis, -1)).swapaxes(axis, -1)


def backward(g: Array, y: Array, axis: int = -1) -> Array:
    """y * (g - sum(g * y)), with y the result of `forward`."""
    if (dx := _native_softmax_backward(g, y, axis)) is not None:
        return dx  # type: ignore[no-any-return]
    return reference_backward(g.swapaxes(axis, -1), y.swapaxes(axis, -1)).swapaxes(axis, -1)


def log_forward(x: Array, axis: int = -1) -> Array:
    """x - log(sum(exp(x))) along `axis`."""
    if (y := _native_log_softmax_forward(x, axis)) is not None:
        return y  # type: ignore[no-any-return]
    return reference_log_forward(x.swapaxes(axis, -1)).swapaxes(axis, -1)


def log_backward(g: Array, y: Array, axis: int = -1) -> Array:
    """g - exp(y) * sum(g), with y the result of `log_forward`."""
    if (dx := _native_log_softmax_backward(g, y, axis)) is not None:
        return dx  # type: ignore[no-any-return]
    return reference_log_backward(g.swapaxes(axis, -1), y.swapaxes(axis, -1)).swapaxes(axis, -1)


def reference_forward(x: Array) -> Array:
    """numpy form of `forward` along the last axis, also for a device's arrays."""
    xp = array_namespace(x)
    if not x.size:
        return xp.empty_like(x, order="C")  # type: ignore[no-any-return]
    z = x.astype(compute_dtype(x.dtype), copy=False)
    with np.errstate(invalid="ignore"):  # inf - inf is the NaN we want
        e = xp.exp(z - z.max(axis=-1, keepdims=True))
        e /= e.sum(axis=-1, keepdims=True)
    return e.astype(x.dtype, copy=False)  # type: ignore[no-any-return]


def reference_backward(g: Array, y: Array) -> Array:
    """numpy form of `backward` along the last axis."""
    acc = compute_dtype(y.dtype)
    g_, y_ = g.astype(acc, copy=False), y.astype(acc, copy=False)
    return (y_ * (g_ - (g_ * y_).sum(axis=-1, keepdims=True))).astype(y.dtype, copy=False)  # type: ignore[no-any-return]


def reference_log_forward(x: Array) -> Array:
    """numpy form of `log_forward` along the last axis, also for a device's arrays."""
    xp = array_namespace(x)
    if not x.size:
        return xp.empty_like(x, order="C")  # type: ignore[no-any-return]
    z = x.astype(compute_dtype(x.dtype), copy=False)
    with np.errstate(invalid="ignore"):
        z = z - z.max(axis=-1, keepdims=True)
        z = z - xp.log(xp.exp(z).sum(axis=-1, keepdims=True))
    return z.astype(x.dtype, copy=False)  # type: ignore[no-any-return]


def reference_log_backward(g: Array, y: Array) -> Array:
    """numpy form of `log_backward` along the last axis."""
    acc = compute_dtype(y.dtype)
    g_, y_ = g.astype(acc, copy=False), y.astype(acc, copy=False)
    return (g_ - np.exp(y_) * g_.sum(axis=-1, keepdims=True)).astype(y.dtype, copy=False)  # type: ignore[no-any-return]
