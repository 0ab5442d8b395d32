"""Bessel functions of orders 0 and 1 and the scaled complementary error function, on float64 arrays.

Each is a Chebyshev series near 0 and one of the asymptotic form beyond, as in Clenshaw, "Chebyshev series for
mathematical functions", 1962, and Shepherd and Laframboise, Math. Comp. 36, 1981 (erfcx); the coefficients are our own,
made by scripts/make_chebyshev_tables.py. Errors are a few ulps; for J and Y a few ulps of 1 for x < 8, of the amplitude
sqrt(2 / (pi x)) beyond.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from resilin.core.kernels import chebyshev_tables as tables

Array = np.ndarray[Any, Any]
_TWO_OVER_PI = 2 / np.pi


def chebyshev(coefficients: list[float], x: Array, low: float, high: float) -> Array:
    """The series on [low, high] at `x`, by Clenshaw's recurrence."""
    t = (2 * x - (low + high)) / (high - low)
    twice = 2 * t
    last, before = np.zeros_like(t), np.zeros_like(t)
    for c in coefficients[:0:-1]:
        last, before = c + twice * last - before, last
    result: Array = coefficients[0] + t * last - before
    return result


def i0e(x: Array) -> Array:
    """exp(-|x|) I_0(x)."""
    x = np.abs(x)
    inside = np.minimum(x, 8)
    near = chebyshev(tables.I0_NEAR, inside, 0, 8) / np.sqrt(1 + inside)
    beyond = np.maximum(x, 8)
    return np.where(x <= 8, near, chebyshev(tables.I0_FAR, 8 / beyond, 0, 1) / np.sqrt(beyond))


def i1e(x: Array) -> Array:
    """exp(-|x|) I_1(x)."""
    size = np.abs(x)
    inside = np.minimum(size, 8)
    near = chebyshev(tables.I1_NEAR, inside, 0, 8) / (1 + inside) * x
    beyond = np.maximum(size, 8)
    far = np.copysign(chebyshev(tables.I1_FAR, 8 / beyond, 0, 1) / np.sqrt(beyond), x)
    return np.where(size <= 8, near, far)


def i0(x: Array) -> Array:
    """I_0(x)."""
    return _times_exp(i0e(x), np.abs(x))


def i1(x: Array) -> Array:
    """I_1(x)."""
    return _times_exp(i1e(x), np.abs(x))


def _times_exp(scaled: Array, x: Array) -> Array:
    """scaled * exp(x), in two steps, so that it overflows no earlier than it must."""
    half = np.exp(x / 2)
    found = np.where(x < 700, scaled * np.exp(x), scaled * half * half)
    return np.where(np.isinf(x), np.copysign(np.inf, scaled), found)


def k0e(x: Array) -> Array:
    """exp(x) K_0(x); infinite at 0, NaN below."""
    return _k(x, tables.K0_NEAR, tables.K0_FAR, scaled=True, order=0)


def k1e(x: Array) -> Array:
    """exp(x) K_1(x); infinite at 0, NaN below."""
    return _k(x, tables.K1_NEAR, tables.K1_FAR, scaled=True, order=1)


def k0(x: Array) -> Array:
    """K_0(x); infinite at 0, NaN below."""
    return _k(x, tables.K0_NEAR, tables.K0_FAR, scaled=False, order=0)


def k1(x: Array) -> Array:
    """K_1(x); infinite at 0, NaN below."""
    return _k(x, tables.K1_NEAR, tables.K1_FAR, scaled=False, order=1)


def _k(x: Array, near: list[float], far: list[float], *, scaled: bool, order: int) -> Array:
    inside = np.clip(x, 0, 2)
    series = chebyshev(near, inside * inside, 0, 4)
    logarithm = np.log(inside / 2)
    small = series - logarithm * i0(inside) if order == 0 else inside * series + logarithm * i1(inside) + 1 / inside
    beyond = np.maximum(x, 2)
    large = chebyshev(far, 2 / beyond, 0, 1) / np.sqrt(beyond)
    if scaled:
        found = np.where(x <= 2, small * np.exp(inside), large)
    else:
        found = np.where(x <= 2, small, large * np.exp(-beyond))
    return np.where(x == 0, np.inf, np.where(x < 0, np.nan, found))


def j0(x: Array) -> Array:
    """J_0(x)."""
    size = np.abs(x)
    near = chebyshev(tables.J0_NEAR, np.minimum(size, 8) ** 2, 0, 64)
    return np.where(size <= 8, near, _waves(size, 0)[0])


def j1(x: Array) -> Array:
    """J_1(x)."""
    size = np.abs(x)
    near = chebyshev(tables.J1_NEAR, np.minimum(size, 8) ** 2, 0, 64) * size
    return np.where(size <= 8, near, _waves(size, 1)[0]) * np.where(x < 0, -1.0, 1.0)


def y0(x: Array) -> Array:
    """Y_0(x); minus infinity at 0, NaN below."""
    inside = np.clip(x, 0, 8)
    near = chebyshev(tables.Y0_NEAR, inside**2, 0, 64) + _TWO_OVER_PI * np.log(inside) * j0(inside)
    return _from_zero(x, np.where(x <= 8, near, _waves(x, 0)[1]))


def y1(x: Array) -> Array:
    """Y_1(x); minus infinity at 0, NaN below."""
    inside = np.clip(x, 0, 8)
    series = chebyshev(tables.Y1_NEAR, inside**2, 0, 64) * inside
    near = series + _TWO_OVER_PI * (np.log(inside) * j1(inside) - 1 / inside)
    return _from_zero(x, np.where(x <= 8, near, _waves(x, 1)[1]))


def _from_zero(x: Array, found: Array) -> Array:
    return np.where(x == 0, -np.inf, np.where(x < 0, np.nan, found))


def _waves(x: Array, order: int) -> tuple[Array, Array]:
    """(J, Y) for x > 8: Hankel's form, amplitudes P and Q with the angle x - (order / 2 + 1 / 4) pi."""
    x = np.maximum(x, 8)
    s = (8 / x) ** 2
    p = chebyshev((tables.P0_FAR, tables.P1_FAR)[order], s, 0, 1)
    q = chebyshev((tables.Q0_FAR, tables.Q1_FAR)[order], s, 0, 1) / x
    sin, cos = np.sin(x), np.cos(x)
    # cos and sin of the angle, times sqrt(2): without a subtraction of pi that would round x
    c, d = (cos + sin, sin - cos) if order == 0 else (sin - cos, -sin - cos)
    scale = np.sqrt(1 / (np.pi * x))
    return np.where(np.isinf(x), 0, scale * (p * c - q * d)), np.where(np.isinf(x), 0, scale * (p * d + q * c))


def erfcx(x: Array) -> Array:
    """exp(x ** 2) erfc(x)."""
    size = np.abs(x)
    right = chebyshev(tables.ERFCX, 4 / (4 + size), 0, 1) / (1 + 2 * size)
    return np.where(x < 0, 2 * exp_square(size, 1) - right, right)  # type: ignore[no-any-return]


def exp_square(x: Array, scale: float) -> Array:
    """exp(scale * x ** 2) for a power of 2 `scale`, without the square's rounding error, which exp would magnify."""
    head = x.astype(np.float32).astype(np.float64)  # 24 bits: its square is exact
    head = np.where(np.isfinite(head), head, x)
    tail = np.where((head == x) | (np.abs(x) > 1000), 0, (x - head) * (x + head))  # beyond, the result is 0 or infinite
    result: Array = np.exp(scale * head * head) * np.exp(scale * tail)
    return result
