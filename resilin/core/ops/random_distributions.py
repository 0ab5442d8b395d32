"""Random tensors of distributions that are made from uniform numbers. PyTorch's names and arguments, no gradient."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from resilin.core.ops import rejection
from resilin.core.ops.creation import finish
from resilin.core.ops.random import _fill, _need_continuous, need_floats
from resilin.core.ops.tracing import named
from resilin.core.rng import Generator, pick
from resilin.core.tensor import Tensor, wrap

_DOUBLE = np.dtype(np.float64)


@named("aten::poisson")
def poisson(input: Tensor, generator: Generator | None = None) -> Tensor:
    """Poisson distributed with the rates that `input` holds, finite and 0 or more, in its dtype."""
    if input._array.dtype.kind not in "fV":
        raise NotImplementedError(f"poisson(): not implemented for {input.dtype}; supported: floating point")
    if not input._dev.xp.elements:
        return wrap(input._dev.xp.empty_like(input._array), input._dev)
    rate = input._dev.xp.to_host(input._array).astype(np.float64)
    if not (rate >= 0).all():
        raise RuntimeError("invalid Poisson rate, expected rate to be non-negative")
    if not np.isfinite(rate).all():
        raise RuntimeError("poisson(): expected finite rates, got inf")
    return finish(_narrowed(rejection.poisson(rate, _uniform(generator)), input._array.dtype), input._dev)


def _uniform(generator: Generator | None) -> Any:
    source = pick(generator)
    return lambda shape: source.uniform(shape, _DOUBLE)


def _narrowed(counts: Any, kind: Any) -> Any:
    with np.errstate(over="ignore"):  # of float16: to infinity
        return counts.astype(kind)


@named("aten::binomial")
def binomial(count: Tensor, prob: Tensor, generator: Generator | None = None) -> Tensor:
    """How many of `count` trials succeed, each with probability `prob`. A broken trial counts for none."""
    if count._array.dtype != prob._array.dtype or count._array.dtype.kind not in "fV":
        raise NotImplementedError(
            f"binomial(): expected two tensors of one floating point dtype, got {count.dtype} and {prob.dtype}"
        )
    if not count._dev.xp.elements:
        shape = np.broadcast_shapes(count._array.shape, prob._array.shape)
        return wrap(count._dev.xp.empty(shape, count._array.dtype), count._dev)
    given = [x._dev.xp.to_host(x._array).astype(np.float64) for x in (count, prob)]
    n, p = np.broadcast_arrays(*given)
    if not (n >= 0).all() or not np.isfinite(n).all() or not ((p >= 0) & (p <= 1)).all():
        raise RuntimeError("binomial(): expected finite counts of at least 0 and probabilities between 0 and 1")
    drawn = rejection.binomial(np.floor(n), p, _uniform(generator))
    return finish(_narrowed(drawn, count._array.dtype), count._dev)


@named("aten::geometric_")
def fill_geometric(self: Tensor, p: float, *, generator: Generator | None = None) -> Tensor:
    """Write how many trials of success probability `p` it takes to succeed (1 or more)."""
    need_floats("geometric_", self, "fViu")
    if not 0 < p < 1:
        raise RuntimeError(f"geometric_ expects p to be in (0, 1), but got p={p}")
    draw = _uniform(generator)
    return _fill(self, lambda: np.maximum(np.ceil(np.log1p(-draw(self._array.shape)) / math.log1p(-p)), 1.0), 1, 0)


@named("aten::cauchy_")
def fill_cauchy(self: Tensor, median: float = 0, sigma: float = 1, *, generator: Generator | None = None) -> Tensor:
    """Write Cauchy distributed numbers of this median and half width."""
    _need_continuous("Cauchy", self)
    if not sigma > 0:
        raise RuntimeError(f"cauchy_ expects sigma > 0.0, but found sigma={sigma}")
    draw = _uniform(generator)
    return _fill(self, lambda: np.tan(math.pi * (draw(self._array.shape) - 0.5)), sigma, median)


@named("aten::log_normal_")
def fill_log_normal(self: Tensor, mean: float = 1, std: float = 2, *, generator: Generator | None = None) -> Tensor:
    """Write exp of normal numbers of this mean and standard deviation."""
    need_floats("log_normal_", self, "fV")
    if not std > 0:
        raise RuntimeError(f"log_normal_ expects std > 0.0, but found std={std}")
    draw = lambda: np.exp(pick(generator).normal(self._array.shape, _DOUBLE) * std + mean)  # noqa: E731
    return _fill(self, draw, 1, 0)
