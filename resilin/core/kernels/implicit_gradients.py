"""Derivatives of gamma and beta distributed numbers by their parameters, on float64 arrays.

A number x of a distribution with the distribution function F(x; a) moves with `a` so that F stays as it is:
dx/da = -(dF/da) / (dF/dx). M. Figurnov, S. Mohamed, A. Mnih, "Implicit Reparameterization Gradients" (2018).
The expansions of F are those of `gamma.gammainc` and of the incomplete beta function's continued fraction (DLMF
8.17.22), each with its derivative carried along. Errors are about 1e-10 relative.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

from resilin.core.kernels.gamma import digamma

Array = np.ndarray[Any, Any]
_Steps = Iterable[tuple[Array, Array, Array]]

_CORNISH_FISHER_FROM = 1000.0  # there its next term is below 1e-9; the series would take hundreds of terms
_STEPS_MAX = 100_000  # continued fractions take a few times the root of the largest parameter
_ENOUGH = 1e-16
_CLOSE = 1e-13
_TINY = 1e-300


@np.errstate(all="ignore")
def gamma_gradient(a: Array, x: Array) -> Array:
    """dx/da of numbers `x` of the gamma distribution with shape `a` > 0 and rate 1."""
    a, x = (np.array(v, np.float64) for v in np.broadcast_arrays(a, x))
    shape = a.shape
    a, x = a.ravel(), np.maximum(x.ravel(), _TINY)
    found = np.empty_like(a)
    wide = a >= _CORNISH_FISHER_FROM
    low = ~wide & (x < a + 1)
    high = ~wide & ~low
    found[wide] = _by_quantile(a[wide], x[wide])
    found[low] = -_along_series(a[low], x[low])
    found[high] = _along_fraction(a[high], x[high])
    return found.reshape(shape)


def _along_series(a: Array, x: Array) -> Array:
    """dP/da over the density, by P = density * x * sum(x ** n / (a (a + 1) ... (a + n)))."""
    term = 1 / a
    slope = -1 / a  # of log(term)
    total, change, n = term.copy(), term * slope, 0
    while (term > _ENOUGH * total).any():
        n += 1
        term = term * (x / (a + n))
        slope = slope - 1 / (a + n)
        total = total + term
        change = change + term * slope
    return x * ((np.log(x) - digamma(a)) * total + change)


def _along_fraction(a: Array, x: Array) -> Array:
    """dQ/da over the density, by Q = density * x / (x + 1 - a - 1 (1 - a) / (x + 3 - a - ...))."""

    def steps() -> _Steps:
        b, one = x + 1 - a, np.ones_like(a)
        yield one, 0 * one, b
        for i in range(1, _STEPS_MAX):
            yield -i * (i - a), i * one, b + 2 * i

    value, change = _fraction(steps(), np.float64(-1.0))
    return x * ((np.log(x) - digamma(a)) * value + change)  # type: ignore[no-any-return]


def _by_quantile(a: Array, x: Array) -> Array:
    """By Cornish and Fisher's expansion of x in a normal number z, which stays as it is while `a` moves."""
    root = np.sqrt(a)
    z = (x - a) / root
    for _ in range(8):
        value, slope = _expansion(a, root, z)
        z = z - (value - x) / slope
    z2 = z * z
    return (  # type: ignore[no-any-return]
        1
        + z / (2 * root)
        - z * (z2 - 7) / (72 * a * root)
        + (3 * z2 * z2 + 7 * z2 - 16) / (810 * a * a)
        - z * (9 * z2 * z2 + 256 * z2 - 433) / (25920 * a * a * root)
    )


def _expansion(a: Array, root: Array, z: Array) -> tuple[Array, Array]:
    """x, and its slope in z."""
    z2 = z * z
    value = (
        a
        + root * z
        + (z2 - 1) / 3
        + z * (z2 - 7) / (36 * root)
        - (3 * z2 * z2 + 7 * z2 - 16) / (810 * a)
        + z * (9 * z2 * z2 + 256 * z2 - 433) / (38880 * a * root)
    )
    slope = root + 2 * z / 3 + (3 * z2 - 7) / (36 * root) - (12 * z2 + 14) * z / (810 * a)
    return value, slope


@np.errstate(all="ignore")
def dirichlet_gradient(x: Array, a: Array, total: Array) -> Array:
    """dx/da / (1 - x) of numbers `x` of the beta distribution of `a` and `total` - `a`, the latter held.

    With it, the parts of a Dirichlet distributed vector move as dx_j / da_i = (delta_ij - x_j) * this of part i.
    """
    x, a, total = (np.array(v, np.float64) for v in np.broadcast_arrays(x, a, total))
    shape = x.shape
    x, a = np.clip(x.ravel(), _TINY, 1.0), a.ravel()
    b = total.ravel() - a
    slope = np.log(x) - digamma(a) + digamma(a + b)  # of the log of the density, by a
    found = np.empty_like(a)
    low = x <= (a + 1) / (a + b + 2)
    value, change = _beta_fraction(a[low], b[low], x[low], by_first=True)
    found[low] = -x[low] / a[low] * ((slope[low] - 1 / a[low]) * value + change)
    high = ~low
    value, change = _beta_fraction(b[high], a[high], 1 - x[high], by_first=False)
    found[high] = x[high] / b[high] * (slope[high] * value + change)
    return found.reshape(shape)


def _beta_fraction(a: Array, b: Array, x: Array, *, by_first: bool) -> tuple[Array, Array]:
    """h with I_x(a, b) = x ** a (1 - x) ** b / (a B(a, b)) * h, and its derivative by `a` or `b`."""

    def steps() -> _Steps:
        one = np.ones_like(a)
        yield one, 0 * one, one
        first = -(a + b) * x / (a + 1)
        yield first, (-x / (a + 1) - first / (a + 1)) if by_first else -x / (a + 1), one
        for m in range(1, _STEPS_MAX):
            below, middle, above = a + (2 * m - 1), a + 2 * m, a + (2 * m + 1)
            even = m * (b - m) * x / (below * middle)
            yield even, -even * (1 / below + 1 / middle) if by_first else m * x / (below * middle), one
            odd = -(a + m) * (a + b + m) * x / (middle * above)
            by_a = odd * (1 / (a + m) - 1 / middle - 1 / above) - x * (a + m) / (middle * above)
            yield odd, by_a if by_first else -(a + m) * x / (middle * above), one

    return _fraction(steps(), np.float64(0.0))


def _fraction(steps: _Steps, b_change: Any) -> tuple[Array, Array]:
    """The continued fraction p1 / (b1 + p2 / (b2 + ...)) and its derivative, by Lentz' method.

    `steps` gives (p, the derivative of p, b); each b changes by `b_change`.
    """
    iterator = iter(steps)
    p, _, b = next(iterator)
    d, c = 1 / _nonzero(b), np.full_like(b, 1 / _TINY)
    d_change, c_change = -b_change * d * d, np.zeros_like(b)
    value, change = p * d, p * d_change
    for p, p_change, b in iterator:
        bottom = _nonzero(b + p * d)
        d_change = -(b_change + p_change * d + p * d_change) / (bottom * bottom)
        c_change = b_change + (p_change - p * c_change / c) / c
        d, c = 1 / bottom, _nonzero(b + p / c)
        factor = c * d
        before = change
        change = change * factor + value * (c_change * d + c * d_change)
        value = value * factor
        if (np.abs(factor - 1) <= 4 * _ENOUGH).all() and (np.abs(change - before) <= _CLOSE * np.abs(change)).all():
            break  # both: where p is 0 the fraction ends, and its derivative does not
    return value, change


def _nonzero(b: Array) -> Array:
    return np.where(np.abs(b) < _TINY, _TINY, b)
