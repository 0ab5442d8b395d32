"""Random tensors of distributions that are made from uniform numbers. PyTorch's names and arguments, no gradient."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from resilin.core.ops.creation import finish
from resilin.core.ops.random import _fill, _need_continuous, need_floats
from resilin.core.rng import Generator, pick
from resilin.core.tensor import Tensor

_DOUBLE = np.dtype(np.float64)
_MOST = 500.0  # the largest rate drawn at once: exp(-rate) is far from 0 in float64


def poisson(input: Tensor, generator: Generator | None = None) -> Tensor:
    """Poisson distributed with the rates that `input` holds, in its dtype; by inversion of the distribution."""
    rate = input._dev.xp.to_host(input._array).astype(np.float64)
    if input._array.dtype.kind not in "fV":
        raise NotImplementedError(f"poisson(): not implemented for {input.dtype}; supported: floating point")
    if not (rate >= 0).all():
        raise RuntimeError("invalid Poisson rate, expected rate to be non-negative")
    parts = max(1, math.ceil(float(rate.max(initial=0.0)) / _MOST))  # a sum of Poisson numbers is one
    total = np.zeros(rate.shape)
    for _ in range(parts):
        total += _poisson_once(rate / parts, pick(generator).uniform(rate.shape, _DOUBLE))
    return finish(total.astype(input._array.dtype), input._dev)


def _poisson_once(rate: Any, uniform: Any) -> Any:
    count = np.zeros(rate.shape)
    weight = np.exp(-rate)
    reached = weight.copy()
    for k in range(1, int(_MOST + 20 * math.sqrt(_MOST))):
        above = uniform >= reached
        if not above.any():
            break
        count += above
        weight = weight * rate / k
        reached = reached + weight
    return count


def binomial(count: Tensor, prob: Tensor, generator: Generator | None = None) -> Tensor:
    """How many of `count` trials succeed, each with probability `prob`; costs one uniform number per trial."""
    if count._array.dtype != prob._array.dtype or count._array.dtype.kind not in "fV":
        raise NotImplementedError(
            f"binomial(): expected two tensors of one floating point dtype, got {count.dtype} and {prob.dtype}"
        )
    given = [x._dev.xp.to_host(x._array).astype(np.float64) for x in (count, prob)]
    n, p = np.broadcast_arrays(*given)
    if not (n >= 0).all() or not ((p >= 0) & (p <= 1)).all():
        raise RuntimeError("binomial(): expected counts of at least 0 and probabilities between 0 and 1")
    source, total = pick(generator), np.zeros(n.shape)
    for trial in range(int(n.max(initial=0.0))):
        total += (source.uniform(n.shape, _DOUBLE) < p) & (trial < n)
    return finish(total.astype(count._array.dtype), count._dev)


def fill_geometric(self: Tensor, p: float, *, generator: Generator | None = None) -> Tensor:
    """Write how many trials of success probability `p` it takes to succeed (1 or more)."""
    need_floats("geometric_", self, "fViu")
    if not 0 < p < 1:
        raise RuntimeError(f"geometric_ expects p to be in (0, 1), but got p={p}")
    uniform = pick(generator).uniform(self._array.shape, _DOUBLE)
    return _fill(self, np.maximum(np.ceil(np.log1p(-uniform) / math.log1p(-p)), 1.0), 1, 0)


def fill_cauchy(self: Tensor, median: float = 0, sigma: float = 1, *, generator: Generator | None = None) -> Tensor:
    """Write Cauchy distributed numbers of this median and half width."""
    _need_continuous("Cauchy", self)
    if not sigma > 0:
        raise RuntimeError(f"cauchy_ expects sigma > 0.0, but found sigma={sigma}")
    uniform = pick(generator).uniform(self._array.shape, _DOUBLE)
    return _fill(self, np.tan(math.pi * (uniform - 0.5)), sigma, median)


def fill_log_normal(self: Tensor, mean: float = 1, std: float = 2, *, generator: Generator | None = None) -> Tensor:
    """Write exp of normal numbers of this mean and standard deviation."""
    need_floats("log_normal_", self, "fV")
    if not std > 0:
        raise RuntimeError(f"log_normal_ expects std > 0.0, but found std={std}")
    normal = pick(generator).normal(self._array.shape, _DOUBLE)
    return _fill(self, np.exp(normal * std + mean), 1, 0)
