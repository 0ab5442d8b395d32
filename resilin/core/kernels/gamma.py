"""The gamma function's family and inverse error functions, on float64 arrays. Errors are a few ulps unless said."""

from __future__ import annotations

import functools
import math
from fractions import Fraction
from typing import Any

import numpy as np

from resilin.core.kernels import chebyshev_tables as tables
from resilin.core.kernels.bessel import chebyshev, erfcx

Array = np.ndarray[Any, Any]

# B_2, B_4, ... : the even Bernoulli numbers
_BERNOULLI = [
    float(Fraction(p, q))
    for p, q in (
        (1, 6),
        (-1, 30),
        (1, 42),
        (-1, 30),
        (5, 66),
        (-691, 2730),
        (7, 6),
        (-3617, 510),
        (43867, 798),
        (-174611, 330),
        (854513, 138),
        (-236364091, 2730),
    )
]
_DIGAMMA_ROOT, _DIGAMMA_ROOT_REST = 1.4616321449683622, 9.549995429965697e-17  # where digamma is 0, in two doubles
_HALF_LOG_TWO_PI = 0.5 * math.log(2 * math.pi)


def stirling(x: Array) -> Array:
    """log Gamma(x) - ((x - 1/2) log x - x + log(2 pi) / 2) for x >= 10; DLMF 5.11.1."""
    square = 1 / (x * x)
    total = np.zeros_like(x)
    for k in range(8, 0, -1):
        total = total * square + _BERNOULLI[k - 1] / (2 * k * (2 * k - 1))
    return total / x


def lgamma(x: Array) -> Array:
    """log |Gamma(x)|: a Chebyshev series with the zeros at 1 and 2 taken out on [1/2, 3], the recurrence to 13, then
    Stirling's series; the reflection formula below 0, where the error is relative to its largest term."""
    up = np.where(x < 0, 1 - x, x)
    result = _lgamma_positive(up)
    sine = np.abs(np.sin(np.pi * (x - np.rint(x))))
    below = np.log(np.pi / sine) - result
    return np.where(np.isinf(x), np.inf, np.where(x < 0, below, np.where(x == 0, np.inf, result)))


def _lgamma_positive(x: Array) -> Array:
    tiny = x < 0.5
    y = np.where(tiny, x + 1, np.minimum(x, 13))
    before = np.where(tiny, x, y - 1)  # y - 1, exact also where adding 1 rounds
    product = np.ones_like(y)
    for _ in range(10):
        above = y > 3
        y = np.where(above, y - 1, y)
        before = np.where(above, before - 1, before)
        product = np.where(above, product * y, product)
    near = before * (before - 1) * chebyshev(tables.LGAMMA, y, 0.5, 3)
    near = np.where(tiny, near - np.log(x), near + np.log(product))
    large = np.maximum(x, 13)
    far = (large - 0.5) * (np.log(large) - 1) + (_HALF_LOG_TWO_PI - 0.5) + stirling(large)
    return np.where(x < 13, near, far)  # type: ignore[no-any-return]


def digamma(x: Array) -> Array:
    """Gamma'(x) / Gamma(x): a Chebyshev series with the zero taken out on [1, 2], the recurrence to 10, then the
    asymptotic series (DLMF 5.11.2); reflection below 0. Minus infinity at 0, NaN at negative integers."""
    up = np.where(x < 0, 1 - x, x)
    result = _digamma_positive(up)
    part = x - np.rint(x)
    below = result - np.pi / np.tan(np.pi * part)
    found = np.where(x < 0, np.where(part == 0, np.nan, below), result)
    return np.where(x == 0, np.copysign(np.inf, -x), found)


def _digamma_positive(x: Array) -> Array:
    tiny = x < 1
    y = np.where(tiny, x + 1, np.minimum(x, 10))
    shift = np.where(tiny, -1 / x, 0.0)
    for _ in range(8):
        above = y > 2
        y = np.where(above, y - 1, y)
        shift = np.where(above, shift + 1 / y, shift)
    near = (y - _DIGAMMA_ROOT - _DIGAMMA_ROOT_REST) * chebyshev(tables.DIGAMMA, y, 1, 2) + shift
    large = np.maximum(x, 10)
    square = 1 / (large * large)
    series = np.zeros_like(large)
    for k in range(8, 0, -1):
        series = (series + _BERNOULLI[k - 1] / (2 * k)) * square
    return np.where(x < 10, near, np.log(large) - 0.5 / large - series)


def zeta(s: Array, q: Array) -> Array:
    """Hurwitz' zeta, sum((q + k) ** -s) for k >= 0: `_zeta_positive`, and below 0 with the terms of negative numbers
    as the difference of two such sums.

    Infinite for s = 1 and for q = 0, -1, ...; NaN for s < 1, and for other q < 0 unless s is whole.
    """
    s, q = (np.array(v, np.float64) for v in np.broadcast_arrays(s, q))
    bad = (s < 1) | ((q < 0) & (s != np.floor(s))) | np.isnan(s) | np.isnan(q)
    pole = (s == 1) | ((q <= 0) & (q == np.floor(q)))
    a = np.where(bad | pole, 10.0, q)
    found = _zeta_positive(s, np.where(a < 0, a - np.floor(a), a))
    below = a < 0
    if below.any():
        sign = np.where(s % 2 == 0, 1.0, -1.0)
        nearest = np.where(below, np.ceil(a) - a, 0.5)  # exact, however near to a pole
        mirrored = _zeta_positive(s, nearest) - _zeta_positive(s, np.where(below, 1 - a, 1.0))
        found = np.where(below, found + sign * mirrored, found)
    found = np.where(np.isinf(s), np.where(q > 1, 0.0, np.where(q == 1, 1.0, np.inf)), found)
    found = np.where(np.isinf(q) & (q > 0), 0.0, found)
    return np.where(bad & ~(pole & (s >= 1)), np.nan, np.where(pole, np.inf, found))


def _zeta_positive(s: Array, q: Array) -> Array:
    """`zeta` of s > 1 and q > 0 by Euler-Maclaurin (DLMF 2.10.1) from q + k >= 10 + s, or where terms vanish."""
    a, total = q, np.zeros_like(q)
    near = a < 10 + s
    while near.any():
        term = np.power(a, -s)
        total = np.where(near, total + term, total)
        a = np.where(near, a + 1, a)
        near = (a < 10 + s) & ((a < 1) | (np.abs(term) > 1e-18 * np.abs(total)))
    power = np.power(a, -s)
    tail = power * (a / np.where(s == 1, 1, s - 1) + 0.5)
    factor = power * s / a
    for k, number in enumerate(_BERNOULLI, 1):
        tail = tail + factor * (number / math.factorial(2 * k))
        factor = factor * (s + 2 * k - 1) * (s + 2 * k) / (a * a)
    return total + tail


def polygamma(x: Array, n: int) -> Array:
    """The n-th derivative of digamma, n >= 1: (-1) ** (n + 1) n! zeta(n + 1, x)."""
    scale = float(math.factorial(n)) if n <= 170 else math.inf
    return (1 if n % 2 else -1) * scale * zeta(np.float64(n + 1), x)  # type: ignore[arg-type]


# -- incomplete gamma functions


def gammainc(a: Array, x: Array, upper: bool = False) -> Array:
    """P(a, x), or Q(a, x) = 1 - P(a, x) with `upper`; NaN for negative arguments.

    The series of DLMF 8.7.1 for x < a + 1, the continued fraction of 8.9.2 beyond; from a = 10000 on Temme's uniform
    expansion (8.12). The common factor x ** a exp(-x) / Gamma(a + 1) is computed without cancellation, its error is
    about |log| ulps: a few in the middle, hundreds in far tails.
    """
    a, x = (np.array(v, np.float64) for v in np.broadcast_arrays(a, x))
    shape = a.shape
    a, x = a.ravel(), x.ravel()
    found = np.full(a.shape, np.nan)
    ends = (a == 0) | (x == 0) | np.isinf(x) | np.isinf(a)
    valid = (a >= 0) & (x >= 0) & ~((a == 0) & (x == 0)) & ~(np.isinf(a) & np.isinf(x))
    lower_is_one = (a == 0) | (np.isinf(x) & ~np.isinf(a))
    edge = valid & ends
    found[edge] = np.where(lower_is_one[edge] != upper, 1.0, 0.0)
    inner = valid & ~ends
    wide = inner & (a >= _TEMME_FROM)
    small = inner & ~wide & (x < a + 1)
    large = inner & ~wide & (x >= a + 1)
    found[wide] = _temme(a[wide], x[wide], upper)
    lower = _series(a[small], x[small])
    found[small] = 1 - lower if upper else lower
    rest = _fraction(a[large], x[large])
    found[large] = rest if upper else 1 - rest
    return found.reshape(shape)


_TEMME_FROM = 10000.0  # there four terms are exact, and the series would need hundreds


def _gap(a: Array, x: Array) -> Array:
    """l - 1 - log(l) for l = x / a, without cancellation near 1: with r = m / (2 + m), m = l - 1, it is
    r m - 2 (r ** 3 / 3 + r ** 5 / 5 + ...)."""
    m = (x - a) / a
    r = m / (2 + m)
    square = r * r
    series = np.zeros_like(r)
    for k in range(25, 1, -2):
        series = series * square + 1 / k
    near = r * m - 2 * r * square * series
    return np.where(np.abs(m) < 0.4, near, m - np.log(x / a))


_gamma: Any = np.frompyfunc(math.gamma, 1, 1)


def _factor(a: Array, x: Array) -> Array:
    """x ** a exp(-x) / Gamma(a + 1)."""
    low = np.minimum(a, 10)
    plain = np.power(x, low) * np.exp(-x) / _gamma(low + 1).astype(np.float64)
    high = np.maximum(a, 10)
    scaled = np.exp(-high * _gap(high, x)) / (np.sqrt(2 * np.pi * high) * np.exp(stirling(high)))
    return np.where(a < 10, plain, scaled)  # type: ignore[no-any-return]


def _series(a: Array, x: Array) -> Array:
    term, total, n = np.ones_like(a), np.ones_like(a), 0
    while (term > 1e-17 * total).any():
        n += 1
        term = term * (x / (a + n))
        total = total + term
    return _factor(a, x) * total


def _fraction(a: Array, x: Array) -> Array:
    """The continued fraction by Lentz' method, with Q's factor."""
    b = x + 1 - a
    c, d = np.full_like(b, 1e300), 1 / np.where(b == 0, 1e-300, b)
    value, n = d.copy(), 0
    active = np.ones(b.shape, bool)
    while active.any():
        n += 1
        numerator = -n * (n - a)
        b = b + 2
        d = numerator * d + b
        c = b + numerator / c
        d, c = 1 / np.where(d == 0, 1e-300, d), np.where(c == 0, 1e-300, c)
        step = d * c
        value = np.where(active, value * step, value)
        active &= np.abs(step - 1) > 2e-16
        if n > 100000:
            break
    return _factor(a, x) * a * value


@functools.cache
def _temme_coefficients() -> list[list[float]]:
    """Taylor coefficients of C_0 .. C_3 of DLMF 8.12.7 in eta, exactly, then rounded.

    With m(eta) from m m' = eta (1 + m): C_0 = 1 / m - 1 / eta, C_k = C_{k-1}' / eta + (-1) ** k g_k / m, where g_k are
    the coefficients of Stirling's series of Gamma. Powers of eta start at -1 in `inverse`.
    """
    count = 28
    m = [Fraction(0), Fraction(1)]
    for n in range(2, count + 2):
        known = sum((m[i] * m[n + 1 - i] * (n + 1 - i) for i in range(2, n)), Fraction(0))
        m.append((m[n - 1] - known) / (n + 1))
    inverse = [Fraction(1)]  # 1 / (m / eta)
    for n in range(1, count + 1):
        inverse.append(-sum((m[i + 1] * inverse[n - i] for i in range(1, n + 1)), Fraction(0)))
    stirling_of_gamma = [Fraction(1), Fraction(1, 12), Fraction(1, 288), Fraction(-139, 51840)]
    current = inverse[1:]
    rows = [current]
    for k in range(1, 4):
        scale = (-1) ** k * stirling_of_gamma[k]
        # C' / eta has c_1 / eta first, which cancels against scale * inverse[0] / eta
        current = [current[i + 2] * (i + 2) + scale * inverse[i + 1] for i in range(len(current) - 2)]
        rows.append(current)
    return [[float(c) for c in row[:20]] for row in rows]


_erfc: Any = np.frompyfunc(math.erfc, 1, 1)
_erf: Any = np.frompyfunc(math.erf, 1, 1)


def erfc(x: Array) -> Array:
    """1 - erf(x), without cancellation: the C library's."""
    return np.asarray(_erfc(x), np.float64)


def _temme(a: Array, x: Array, upper: bool) -> Array:
    gap = _gap(a, x)
    eta = np.copysign(np.sqrt(2 * gap), x - a)
    inside = np.clip(eta, -0.5, 0.5)  # beyond, exp(-a * gap) is 0
    total = np.zeros_like(a)
    for row in reversed(_temme_coefficients()):
        value = np.zeros_like(a)
        for c in reversed(row):
            value = value * inside + c
        total = total / a + value
    rest = np.exp(-a * gap) / np.sqrt(2 * np.pi * a) * total
    sign = 1 if upper else -1
    return 0.5 * erfc(sign * eta * np.sqrt(a / 2)) + sign * rest  # type: ignore[no-any-return]


# -- inverse error functions


def erfinv(y: Array) -> Array:
    """The inverse of erf: NaN beyond [-1, 1]. Two steps of Halley's method from an approximation."""
    size = np.abs(y)
    inner = np.minimum(size, 0.5)
    square = inner * inner
    x = (
        inner
        * (math.sqrt(math.pi) / 2)
        * (1 + square * (math.pi / 12 + square * (7 * math.pi**2 / 480 + square * 0.06)))
    )
    for _ in range(2):
        error = np.asarray(_erf(x), np.float64) - inner
        step = error * (math.sqrt(math.pi) / 2) * np.exp(x * x)
        x = x - step / (1 + x * step)  # f'' / f' is -2 x
    tail = _erfcinv_right(np.where(size > 0.5, 1 - size, 0.5))
    return np.copysign(np.where(size > 0.5, tail, x), y)


def erfcinv(z: Array) -> Array:
    """The inverse of erfc: NaN beyond [0, 2]."""
    middle = np.abs(1 - z) < 0.5
    sides = np.where(z <= 1, _erfcinv_right(np.minimum(z, 1)), -_erfcinv_right(np.minimum(2 - z, 1)))
    return np.where(middle, erfinv(np.where(middle, 1 - z, 0)), sides)


def _erfcinv_right(z: Array) -> Array:
    """x >= 0 with erfc(x) = z <= 1: three steps of Newton's method for the logarithms, which neither overflow nor lose
    digits in the tail, from Abramowitz and Stegun 26.2.23."""
    t = np.sqrt(-2 * np.log(z / 2))
    top = 2.515517 + t * (0.802853 + t * 0.010328)
    bottom = 1 + t * (1.432788 + t * (0.189269 + t * 0.001308))
    x = (t - top / bottom) / math.sqrt(2)
    for _ in range(3):
        scaled = erfcx(x)
        x = x + (np.log(scaled) - x * x - np.log(z)) * scaled * (math.sqrt(math.pi) / 2)
    return np.where(z == 0, np.inf, np.where(z < 0, np.nan, x))
