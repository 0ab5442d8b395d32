"""Special functions: error, gamma and Bessel functions, orthogonal polynomials.

kernels/gamma.py and kernels/bessel.py compute them, in float64.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from resilin.core.kernels import bessel, gamma
from resilin.core.kernels.loader import kernel
from resilin.core.kernels.special import in_double, native_or
from resilin.core.ops.registry import accelerate, op

_SQRT_PI = math.sqrt(math.pi)
_SQRT_HALF = math.sqrt(0.5)


def _any(r: Any) -> list[tuple[Any, ...]]:
    return [(r(3, 4),), (r(),), (r(0, 2),)]


def _inside(r: Any) -> list[tuple[Any, ...]]:
    return [(r(3, 4, low=-0.9, high=0.9),)]


def _positive(r: Any) -> list[tuple[Any, ...]]:
    return [(r(3, 4, low=0.3, high=12.0),)]


def _wide(r: Any) -> list[tuple[Any, ...]]:
    return [(r(3, 4),), (r(4, low=6.0, high=9.5),)]


_PLAIN: dict[str, Any] = {"elementwise": True, "floats": True}
_ONE: dict[str, Any] = {**_PLAIN, "takes": "biuf", "host": "CuPy has it in cupyx.scipy.special, or not at all"}


_erfc, _erfcx = native_or("erfc", gamma.erfc), native_or("erfcx", bessel.erfcx)
_erfinv = native_or("erfinv", gamma.erfinv)
_ndtri = native_or("ndtri", lambda p: -math.sqrt(2) * gamma.erfcinv(2 * p))
_gammaln, _digamma = native_or("gammaln", gamma.lgamma), native_or("digamma", gamma.digamma)
_trigamma = native_or("trigamma", lambda x: gamma.polygamma(x, 1))


# -- error functions


@op(**_ONE, samples=_any)
def erfc(xp, x):
    """1 - erf(x), without cancellation."""
    return _erfc(x)


@erfc.vjp
def _(xp, g, _y, x):
    return g * xp.exp(-(x * x)) * (-2 / _SQRT_PI)


@op(**_ONE, samples=_any)
def erfcx(xp, x):
    """exp(x ** 2) erfc(x)."""
    return _erfcx(x)


@erfcx.vjp
def _(xp, g, y, x):
    return g * (2 * x * y - 2 / _SQRT_PI)


@op(**_ONE, samples=_inside)
def erfinv(xp, x):
    """The inverse of erf; NaN beyond [-1, 1]."""
    return _erfinv(x)


@erfinv.vjp
def _(xp, g, y, _x):
    return g * xp.exp(y * y) * (_SQRT_PI / 2)


@op(**_ONE, samples=_any)
def ndtr(xp, x):
    """The normal distribution function."""
    return _native_ndtr(x)


def _ndtr(x):
    left = np.minimum(x, -1)
    tail = 0.5 * bessel.erfcx(left * -_SQRT_HALF) * bessel.exp_square(left, -0.5)
    return np.where(x < -1, tail, 0.5 * gamma.erfc(x * -_SQRT_HALF))


_native_ndtr = native_or("ndtr", _ndtr)


@ndtr.vjp
def _(xp, g, _y, x):
    return g * xp.exp(x * x * -0.5) * (1 / math.sqrt(2 * math.pi))


@op(**_ONE, samples=lambda r: [(r(3, 4, low=0.05, high=0.95),)])
def ndtri(xp, x):
    """The inverse of the normal distribution function; NaN beyond [0, 1]."""
    return _ndtri(x)


@ndtri.vjp
def _(xp, g, y, _x):
    return g * xp.exp(y * y * 0.5) * math.sqrt(2 * math.pi)


@op(**_ONE, samples=lambda r: [(r(3, 4, low=-5.0),)])
def log_ndtr(xp, x):
    """log(ndtr(x)), also where that underflows."""
    return _native_log_ndtr(x)


def _log_ndtr(x):
    left = np.minimum(x, -1)
    tail = np.log(bessel.erfcx(left * -_SQRT_HALF) * 0.5) - left * left * 0.5
    return np.where(x < -1, tail, np.log1p(-_ndtr(-np.maximum(x, -1))))


_native_log_ndtr = native_or("log_ndtr", _log_ndtr)


@log_ndtr.vjp
def _(xp, g, _y, x):
    return g * math.sqrt(2 / math.pi) / xp.erfcx(x * -_SQRT_HALF)


@op(**_PLAIN, takes="biuf", samples=lambda r: [(r(3, 4, low=0.1),)])
def entr(xp, x):
    """-x log(x), 0 at 0 and minus infinity below."""
    if isinstance(x, np.ndarray) and (x > 0).all():  # most calls
        return -x * xp.log(x)
    rest = xp.where(x == 0, xp.zeros_like(x), xp.where(x < 0, xp.full_like(x, -np.inf), x))
    return xp.where(x > 0, -x * xp.log(xp.where(x > 0, x, xp.ones_like(x))), rest)


@entr.vjp
def _(xp, g, _y, x):
    return g * (-xp.log(x) - 1)


@op(**_PLAIN, complex=True, samples=_any)
def sinc(xp, x):
    """sin(pi x) / (pi x), 1 at 0."""
    return xp.sinc(x)


@sinc.vjp
def _(xp, g, _y, x):
    t = x * math.pi
    near = xp.absolute(t) < 0.1  # where the difference would lose its digits: the series of -t / 3 + t ** 3 / 30 - ...
    safe = xp.where(near, xp.ones_like(x), x)
    small = xp.where(near, t, xp.zeros_like(t))
    s = small * small
    series = (
        small * (s * (1 / 30 - s * (1 / 840 - s * (1 / 45360 - s * (1 / 3991680)))) - 1 / 3) * math.pi + 0.0
    )  # no -0
    return g * xp.conj(xp.where(near, series, (xp.cos(t) - xp.sinc(safe)) / safe))


accelerate("sinc", kernel("sinc_forward"), lambda g, x: None)


# -- gamma


@op(**_ONE, samples=lambda r: [(r(3, 4, low=0.3, high=20.0),), (r(4, low=-0.9, high=-0.1),)])
def gammaln(xp, x):
    """log |Gamma(x)|."""
    return _gammaln(x)


@gammaln.vjp
def _(xp, g, _y, x):
    return g * xp.digamma(x)


@op(**_ONE, samples=lambda r: [(r(3, 4, low=0.3, high=20.0),), (r(4, low=-0.9, high=-0.1),)])
def digamma(xp, x):
    """The derivative of log Gamma."""
    return _digamma(x)


@digamma.vjp
def _(xp, g, _y, x):
    return g * xp.polygamma(x, 1)


@op(**_ONE, samples=lambda r: [(r(3, 4, low=0.5, high=20.0), 1), (r(4, low=0.5, high=5.0), 3), (r(3, low=1.0), 0)])
def polygamma(xp, x, n=1):
    """The n-th derivative of digamma."""
    if n < 2:
        return _trigamma(x) if n else _digamma(x)
    return in_double(lambda v: gamma.polygamma(v, n), x)


@polygamma.vjp
def _(xp, g, _y, x, n=1):
    return g * xp.polygamma(x, n + 1)


def _common(fn: Any, a: Any, b: Any) -> Any:
    dtype = next(v.dtype for v in (a, b) if isinstance(v, np.ndarray))
    wide = [np.asarray(v, np.float64) for v in (a, b)]
    return np.asarray(fn(*wide)).astype(dtype, copy=False)


def _no_derivative(name: str, argument: str) -> Any:
    def rule(xp, g, _y, _a, _b):
        raise RuntimeError(f"{name} has no derivative with respect to its first argument, {argument}; detach it")

    return rule


@op(**_ONE, samples=lambda r: [(2.5, r(3, 4, low=0.5, high=9.0)), (1.5, r(3, low=0.5))])
def zeta(xp, s, q):
    """Hurwitz' zeta function: sum((q + k) ** -s), k = 0, 1, ..."""
    return _common(gamma.zeta, s, q)


zeta.vjp(0)(_no_derivative("zeta", "s"))


@zeta.vjp(1)
def _(xp, g, _y, s, q):
    return g * -s * xp.zeta(s + 1, q)


@op(**_ONE, samples=lambda r: [(0.7, r(3, 4, low=0.1, high=3.0)), (12.5, r(3, low=8.0, high=20.0))])
def gammainc(xp, a, x):
    """The regularised lower incomplete gamma function P(a, x)."""
    return _common(gamma.gammainc, a, x)


@op(**_ONE, samples=lambda r: [(0.7, r(3, 4, low=0.1, high=3.0)), (12.5, r(3, low=8.0, high=20.0))])
def gammaincc(xp, a, x):
    """The regularised upper incomplete gamma function Q(a, x) = 1 - P(a, x)."""
    return _common(lambda a, x: gamma.gammainc(a, x, upper=True), a, x)


gammainc.vjp(0)(_no_derivative("gammainc", "a"))
gammaincc.vjp(0)(_no_derivative("gammaincc", "a"))


@gammainc.vjp(1)
def _(xp, g, _y, a, x):
    return g * _density(xp, a, x)


@gammaincc.vjp(1)
def _(xp, g, _y, a, x):
    return g * -_density(xp, a, x)


def _density(xp, a, x):
    """dP(a, x) / dx."""
    log_gamma = math.lgamma(a) if isinstance(a, int | float) else xp.gammaln(a)
    return xp.exp((a - 1) * xp.log(x) - x - log_gamma)


# -- Bessel functions


def _bessel(name: str, fn: Any, doc: str, samples: Any, rule: Any) -> Any:
    compute = native_or(name, fn)

    def forward(xp, x):
        return compute(x)

    forward.__name__, forward.__doc__ = name, doc
    declared = op(**_ONE, samples=samples)(forward)
    declared.vjp(rule)
    return declared


def _over(xp, y, x, at_zero):
    """y / x, and `at_zero` where x is 0."""
    zero = x == 0
    return xp.where(zero, xp.full_like(x, at_zero), y / xp.where(zero, xp.ones_like(x), x))


def _i0_rule(xp, g, _y, x):
    return g * xp.i1(x)


def _i1_rule(xp, g, y, x):
    return g * (xp.i0(x) - _over(xp, y, x, 0.5))


def _i0e_rule(xp, g, y, x):
    return g * (xp.i1e(x) - xp.sign(x) * y)


def _i1e_rule(xp, g, y, x):
    return g * (xp.i0e(x) - xp.sign(x) * y - _over(xp, y, x, 0.5))


def _j0_rule(xp, g, _y, x):
    return g * -xp.bessel_j1(x)


def _j1_rule(xp, g, y, x):
    return g * (xp.bessel_j0(x) - _over(xp, y, x, 0.5))


def _y0_rule(xp, g, _y, x):
    return g * -xp.bessel_y1(x)


def _y1_rule(xp, g, y, x):
    return g * (xp.bessel_y0(x) - y / x)


def _k0_rule(xp, g, _y, x):
    return g * -xp.bessel_k1(x)


def _k1_rule(xp, g, y, x):
    return g * -(xp.bessel_k0(x) + y / x)


def _k0e_rule(xp, g, y, x):
    return g * (y - xp.bessel_k1e(x))


def _k1e_rule(xp, g, y, x):
    return g * (y - xp.bessel_k0e(x) - y / x)


i0 = _bessel("i0", bessel.i0, "The modified Bessel function I_0.", _wide, _i0_rule)
i0e = _bessel("i0e", bessel.i0e, "exp(-|x|) I_0(x).", _wide, _i0e_rule)
i1 = _bessel("i1", bessel.i1, "The modified Bessel function I_1.", _wide, _i1_rule)
i1e = _bessel("i1e", bessel.i1e, "exp(-|x|) I_1(x).", _wide, _i1e_rule)
j0 = _bessel("bessel_j0", bessel.j0, "The Bessel function J_0.", _wide, _j0_rule)
j1 = _bessel("bessel_j1", bessel.j1, "The Bessel function J_1.", _wide, _j1_rule)
y0 = _bessel("bessel_y0", bessel.y0, "The Bessel function Y_0; NaN below 0.", _positive, _y0_rule)
y1 = _bessel("bessel_y1", bessel.y1, "The Bessel function Y_1; NaN below 0.", _positive, _y1_rule)
k0 = _bessel("bessel_k0", bessel.k0, "The modified Bessel function K_0; NaN below 0.", _positive, _k0_rule)
k1 = _bessel("bessel_k1", bessel.k1, "The modified Bessel function K_1; NaN below 0.", _positive, _k1_rule)
k0e = _bessel("bessel_k0e", bessel.k0e, "exp(x) K_0(x).", _positive, _k0e_rule)
k1e = _bessel("bessel_k1e", bessel.k1e, "exp(x) K_1(x).", _positive, _k1e_rule)


# -- orthogonal polynomials: p(0) = 1, p(1) and p(k + 1) from p(k) and p(k - 1); x shifted to 2 x - 1 first if asked

_FAMILIES: dict[str, tuple[Any, Any]] = {
    "chebyshev_t": (lambda x: x, lambda k, x, p, q: 2 * x * p - q),
    "chebyshev_u": (lambda x: 2 * x, lambda k, x, p, q: 2 * x * p - q),
    "chebyshev_v": (lambda x: 2 * x - 1, lambda k, x, p, q: 2 * x * p - q),
    "chebyshev_w": (lambda x: 2 * x + 1, lambda k, x, p, q: 2 * x * p - q),
    "hermite_h": (lambda x: 2 * x, lambda k, x, p, q: 2 * x * p - 2 * k * q),
    "hermite_he": (lambda x: x, lambda k, x, p, q: x * p - k * q),
    "laguerre_l": (lambda x: 1 - x, lambda k, x, p, q: ((2 * k + 1 - x) * p - k * q) / (k + 1)),
    "legendre_p": (lambda x: x, lambda k, x, p, q: ((2 * k + 1) * x * p - k * q) / (k + 1)),
}


_LARGEST_DEGREE = 1 << 24  # a step of the recurrence for each: seconds, and nobody has asked for more


def _polynomial(family: str, shifted: bool) -> Any:
    first, following = _FAMILIES[family]

    def evaluate(x, n):
        x, n = np.broadcast_arrays(2 * x - 1 if shifted else x, np.trunc(np.where(np.isfinite(n), n, -1)))
        if np.max(n, initial=0) > _LARGEST_DEGREE:
            raise RuntimeError(f"{family}: the degree {np.max(n):.0f} is above {_LARGEST_DEGREE}, where this stops")
        before, now = np.ones_like(x), first(x)
        found = np.where(n < 0, 0, np.where(n == 0, before, now))
        for k in range(1, int(np.max(n, initial=0))):
            before, now = now, following(k, x, now, before)
            found = np.where(n == k + 1, now, found)
        return np.where(np.isnan(x) & (n >= 0), np.nan, found)

    def forward(xp, x, n):
        return _common(evaluate, x, n)

    forward.__name__ = ("shifted_" if shifted else "") + family
    forward.__doc__ = (
        f"The polynomials {family} of degree `n` (rounded towards 0), by recurrence. They are 0 for degrees that are "
        "negative or not finite."
    )
    return op(**_ONE, differentiable=False, samples=lambda r: [(r(3, 4), 3.0), (r(3, 1), r(4, low=0.0, high=5.0))])(
        forward
    )


for _family in _FAMILIES:
    _polynomial(_family, False)
for _family in ("chebyshev_t", "chebyshev_u", "chebyshev_v", "chebyshev_w"):
    _polynomial(_family, True)
