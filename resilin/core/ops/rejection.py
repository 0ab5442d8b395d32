"""Poisson and binomial numbers from uniform ones, in a time that hardly grows with the mean.

Small means by inversion; from 10 on by transformed rejection (W. Hoermann, "The transformed rejection method for
generating Poisson random variables", 1993, and "The generation of binomial random variates", 1993): a number drawn
under a hat over the distribution is kept with the probability that it is under the distribution, too.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

Uniform = Callable[[tuple[int, ...]], Any]  # float64 numbers in [0, 1) of this shape, new ones with each call

_LEAST = 10.0  # the mean from which on the hats fit
_LONGEST = 200  # nothing of a distribution with a smaller mean is left beyond, in float64
_LOG_FACTORIALS = np.concatenate([np.zeros(1), np.cumsum(np.log(np.arange(1.0, 16.0)))])


def poisson(rate: Any, uniform: Uniform) -> Any:
    """Counts for an array of finite rates."""
    mean = rate.reshape(-1)
    small = np.minimum(mean, _LEAST)
    count = _inverted(uniform(mean.shape), np.exp(-small), lambda k: small / k)
    far = np.flatnonzero(mean >= _LEAST)
    mean = mean[far]
    b = 0.931 + 2.53 * np.sqrt(mean)
    a, quick, scale = 0.02483 * b - 0.059, 0.9277 - 3.6224 / (b - 2), 1.1239 + 1.1328 / (b - 3.4)

    def log_chance(k: Any, of: Any) -> Any:
        return -_deviance(k, mean[of] - k) - _excess(k)

    count[far] = _kept((a, b, mean + 0.43, quick, scale), log_chance, uniform)
    return count.reshape(rate.shape)


def binomial(trials: Any, chance: Any, uniform: Uniform) -> Any:
    """Counts of successes for arrays of finite whole `trials` and of chances, of one shape."""
    n, p = trials.reshape(-1), np.minimum(chance, 1 - chance).reshape(-1)
    few = np.where(n * p < _LEAST, n, 0)
    count = _inverted(
        uniform(n.shape), np.exp(few * np.log1p(-p)), lambda k: np.maximum(few - k + 1, 0) / k * p / (1 - p)
    )
    count = np.minimum(count, few)
    far = np.flatnonzero(n * p >= _LEAST)
    n_far, p_far = n[far], p[far]
    mean = n_far * p_far
    spread = np.sqrt(mean * (1 - p_far))
    b = 1.15 + 2.53 * spread
    a, quick, scale = 0.0248 * b + 0.01 * p_far - 0.0873, 0.92 - 4.2 / b, (2.83 + 5.1 / b) * spread

    def log_weight(k: Any, of: Any) -> Any:
        rest, short = n_far[of] - k, mean[of] - k
        return -_deviance(k, short) - _excess(k) - _deviance(rest, -short) - _excess(rest)

    mode = np.floor((n_far + 1) * p_far)
    highest = log_weight(mode, slice(None))

    def log_chance(k: Any, of: Any) -> Any:
        return np.where(k <= n_far[of], log_weight(np.minimum(k, n_far[of]), of) - highest[of], -np.inf)

    count[far] = _kept((a, b, mean + 0.5, quick, scale), log_chance, uniform)
    return np.where(chance.reshape(-1) > 0.5, n - count, count).reshape(trials.shape)


def _inverted(uniform: Any, first: Any, ratio: Callable[[int], Any]) -> Any:
    """How often the sum of probabilities must grow to pass `uniform`; each is `ratio(k)` times the one before."""
    count, weight, reached = np.zeros(uniform.shape), first, first
    for k in range(1, _LONGEST):
        above = uniform >= reached
        if not above.any():
            break
        count += above
        weight = weight * ratio(k)
        reached = reached + weight
    return count


def _kept(hat: tuple[Any, ...], log_chance: Callable[[Any, Any], Any], uniform: Uniform) -> Any:
    """Numbers drawn under the hat (a, b, centre, what is kept unseen, height) until each is under its distribution."""
    found = np.empty(len(hat[0]))
    left = np.arange(len(found))
    while left.size:
        a, b, centre, quick, scale = (part[left] for part in hat)
        place, height = uniform((2, left.size))
        place = place - 0.5
        edge = 0.5 - np.abs(place)
        with np.errstate(all="ignore"):  # at the very edge: infinite, and not kept
            k = np.floor((2 * a / edge + b) * place + centre)
            bound = np.log(height * scale / (a / (edge * edge) + b))
            good = (k >= 0) & (bound <= log_chance(np.maximum(k, 0), left)) & np.isfinite(k)
        good |= (edge >= 0.07) & (height <= quick)
        found[left[good]] = k[good]
        left = left[~good]
    return found


def _deviance(x: Any, short: Any) -> Any:
    """x log(x / mean) + mean - x for mean = x + short, exact too where both are huge."""
    safe = np.where(x > 0, x, 1.0)
    return np.where(x > 0, short - x * np.log1p(short / safe), short)


def _excess(x: Any) -> Any:
    """log(x!) - (x log(x) - x), by Stirling's series from 16 on."""
    safe = np.maximum(x, 1.0)
    few = np.minimum(x, 15.0)
    exact = _LOG_FACTORIALS[few.astype(np.int64)] - few * np.log(np.maximum(few, 1.0)) + few
    series = 0.5 * np.log(2 * np.pi * safe) + (1 / 12 - (1 / 360 - 1 / 1260 / (safe * safe)) / (safe * safe)) / safe
    return np.where(x < 16, exact, series)


def log_gamma(concentration: Any, uniform: Uniform, normal: Uniform) -> Any:
    """Logarithms of gamma distributed numbers of rate 1, for an array of shapes; of a shape that is not finite and
    positive, its own logarithm.

    The cube of a normal number under a squeeze (G. Marsaglia, W. W. Tsang, "A Simple Method for Generating Gamma
    Variables", 2000); for shapes below 1 that of the shape + 1, times a power of a uniform number. Logarithms, as
    those of small shapes lie below what a float can be.
    """
    shape = concentration.reshape(-1)
    d = np.where(shape < 1, shape + 1, shape) - 1 / 3
    with np.errstate(all="ignore"):
        found = np.log(shape)
    left = np.flatnonzero(np.isfinite(shape) & (shape > 0))
    small = left[shape[left] < 1]
    while left.size:
        x, u = normal(left.shape), 1 - uniform(left.shape)
        v = (1 + x / np.sqrt(9 * d[left])) ** 3
        log_v = np.log(np.maximum(v, 1e-300))
        kept = (v > 0) & (np.log(u) < x * x / 2 + d[left] * (1 - v + log_v))
        found[left[kept]] = np.log(d[left[kept]]) + log_v[kept]
        left = left[~kept]
    found[small] += np.log1p(-uniform(small.shape)) / shape[small]
    return found.reshape(concentration.shape)
