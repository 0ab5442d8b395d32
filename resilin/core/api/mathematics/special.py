"""Special functions under PyTorch's names: what `resilin` and `resilin.special` share."""

from __future__ import annotations

import math as _math
from typing import Any

import numpy as np

from resilin.core.api.mathematics import arithmetic, reducing
from resilin.core.api.mathematics.half_precision import rounded_once
from resilin.core.ops import special as special_ops
from resilin.core.ops.registry import OPS
from resilin.core.tensor import Tensor, wrap

erfc, erfinv, sinc, i0 = special_ops.erfc.call, special_ops.erfinv.call, special_ops.sinc.call, special_ops.i0.call
lgamma, digamma = special_ops.gammaln.call, special_ops.digamma.call
igamma, igammac = special_ops.gammainc.call, special_ops.gammaincc.call


def polygamma(n: int, input: Tensor) -> Tensor:
    """The n-th derivative of digamma, n >= 0."""
    if isinstance(n, Tensor) or not isinstance(n, int):
        raise TypeError(f"polygamma: n must be an int and comes first, got {type(n).__name__}")
    if n < 0:
        raise RuntimeError(f"polygamma: n must not be negative, got {n}")
    return OPS["polygamma"].call(input, n)


def polygamma_of(input: Tensor, n: int) -> Tensor:
    """`polygamma(n, input)`, the method's order of arguments."""
    return polygamma(n, input)


@rounded_once
def mvlgamma(input: Tensor, p: int) -> Tensor:
    """The logarithm of the multivariate gamma function of dimension p, for input > (p - 1) / 2.

    Below, it is the same sum of logarithms of |Gamma|, infinite at its poles.
    """
    if p < 1:
        raise RuntimeError(f"mvlgamma: p must be at least 1, got {p}")
    if input._array.dtype.kind in "biu":
        input = input * 1.0
    offsets = wrap((np.arange(p) / -2).astype(input._array.dtype), input._dev)
    terms = lgamma(input.unsqueeze(-1) + offsets)
    return reducing.sum(terms, -1) + p * (p - 1) / 4 * _math.log(_math.pi)


def xlog1py(input: Any, other: Any) -> Tensor:
    """input * log1p(other); 0 where input is 0 and other is not NaN."""
    return _xlog1py(*arithmetic.both_floating("xlog1py", input, other))


@rounded_once
def _xlog1py(x: Tensor, y: Tensor) -> Tensor:
    flat = arithmetic.eq(x, 0).logical_and(arithmetic.le(y, -1).logical_or(arithmetic.eq(y, float("inf"))))
    x, y, flat = _broadcast(x, y, flat)
    return x * arithmetic.log1p(y.masked_fill(flat, 0))


def _broadcast(*tensors: Tensor) -> list[Tensor]:
    shape = np.broadcast_shapes(*(t._array.shape for t in tensors))
    return [t.expand(*shape) if t._array.shape != shape else t for t in tensors]
