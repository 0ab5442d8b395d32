"""Writes resilin/core/kernels/chebyshev_tables.py. Run it with a Python that has mpmath:

python scripts/make_chebyshev_tables.py

Each entry is a smooth part of a special function: singular factors, zeros and exponentials are taken out, so that some
twenty coefficients give all digits of a double. bessel.py and gamma.py put the factors back.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import mpmath as mp

TARGET = Path(__file__).resolve().parent.parent / "resilin" / "core" / "kernels" / "chebyshev_tables.py"
HEAD = '''\
"""Chebyshev coefficients of the smooth parts of special functions, the constant first; bessel.py and gamma.py say
on which intervals. Written by scripts/make_chebyshev_tables.py from values of 40 digits."""
'''
POINTS = 80
TOLERANCE = mp.mpf(10) ** -18  # of the largest coefficient: below the rounding of a double
Number = Any

mp.mp.dps = 40


def coefficients(f: Callable[[Number], Number], low: float, high: float) -> list[float]:
    """Those of f's interpolant at Chebyshev points of [low, high], without the negligible end."""
    middle, half = (mp.mpf(low) + high) / 2, (mp.mpf(high) - low) / 2
    angles = [mp.pi * (2 * k + 1) / (2 * POINTS) for k in range(POINTS)]
    values = [f(middle + half * mp.cos(angle)) for angle in angles]
    found = [
        mp.mpf(2) / POINTS * mp.fsum(v * mp.cos(j * a) for v, a in zip(values, angles, strict=True))
        for j in range(POINTS)
    ]
    found[0] /= 2
    largest = max(map(abs, found))
    count = 1 + max(j for j in range(POINTS) if abs(found[j]) > TOLERANCE * largest)
    if count > POINTS - 4:
        raise RuntimeError(f"{count} of {POINTS} coefficients: the function is not smooth enough for these points")
    return [float(c) for c in found[:count]]


def waves(order: int, s: Number) -> tuple[Number, Number]:
    """Hankel's amplitudes P and x Q at x = 8 / sqrt(s): J = sqrt(2 / (pi x)) (P cos c - Q sin c)."""
    x = 8 / mp.sqrt(s)
    c = x - (mp.mpf(order) / 2 + mp.mpf(1) / 4) * mp.pi
    j, y, scale = mp.besselj(order, x), mp.bessely(order, x), mp.sqrt(mp.pi * x / 2)
    return scale * (j * mp.cos(c) + y * mp.sin(c)), scale * (y * mp.cos(c) - j * mp.sin(c)) * x


def scaled_erfc(x: Number) -> Number:
    """exp(x ** 2) erfc(x), by its asymptotic series where exp is too large for 60 digits."""
    if x > 60:
        terms = ((-1) ** k * mp.fac2(2 * k - 1) / (2 * x * x) ** k for k in range(12))
        return mp.fsum(terms) / (x * mp.sqrt(mp.pi))
    with mp.workdps(60):
        return mp.exp(x * x) * mp.erfc(x)


def root(f: Callable[[Number], Number]) -> Callable[[Number], Number]:
    """f of the square root."""
    return lambda s: f(mp.sqrt(s))


def tables() -> dict[str, list[float]]:
    """All of them, by name."""
    two_over_pi, digamma_root = 2 / mp.pi, mp.findroot(mp.digamma, 1.46)
    made = {
        "I0_NEAR": coefficients(lambda x: mp.exp(-x) * mp.besseli(0, x) * mp.sqrt(1 + x), 0, 8),
        "I1_NEAR": coefficients(lambda x: mp.exp(-x) * mp.besseli(1, x) / x * (1 + x), 0, 8),
        "K0_NEAR": coefficients(root(lambda x: mp.besselk(0, x) + mp.log(x / 2) * mp.besseli(0, x)), 0, 4),
        "K1_NEAR": coefficients(
            root(lambda x: (mp.besselk(1, x) - mp.log(x / 2) * mp.besseli(1, x) - 1 / x) / x), 0, 4
        ),
        "J0_NEAR": coefficients(root(lambda x: mp.besselj(0, x)), 0, 64),
        "J1_NEAR": coefficients(root(lambda x: mp.besselj(1, x) / x), 0, 64),
        "Y0_NEAR": coefficients(root(lambda x: mp.bessely(0, x) - two_over_pi * mp.log(x) * mp.besselj(0, x)), 0, 64),
        "Y1_NEAR": coefficients(
            root(lambda x: (mp.bessely(1, x) - two_over_pi * (mp.log(x) * mp.besselj(1, x) - 1 / x)) / x), 0, 64
        ),
        "ERFCX": coefficients(lambda t: scaled_erfc(4 / t - 4) * (8 / t - 7), 0, 1),
        "LGAMMA": coefficients(lambda x: mp.loggamma(x) / ((x - 1) * (x - 2)), 0.5, 3),
        "DIGAMMA": coefficients(lambda x: mp.digamma(x) / (x - digamma_root), 1, 2),
    }
    for n in (0, 1):
        made[f"I{n}_FAR"] = coefficients(lambda t, n=n: mp.sqrt(8 / t) * mp.exp(-8 / t) * mp.besseli(n, 8 / t), 0, 1)
        made[f"K{n}_FAR"] = coefficients(lambda t, n=n: mp.sqrt(2 / t) * mp.exp(2 / t) * mp.besselk(n, 2 / t), 0, 1)
        made[f"P{n}_FAR"] = coefficients(lambda s, n=n: waves(n, s)[0], 0, 1)
        made[f"Q{n}_FAR"] = coefficients(lambda s, n=n: waves(n, s)[1], 0, 1)
    return made


def main() -> None:
    """Write the file."""
    blocks = [f"{name} = [\n" + "".join(f"    {c!r},\n" for c in row) + "]\n" for name, row in tables().items()]
    TARGET.write_text(HEAD + "\n" + "".join(blocks))


if __name__ == "__main__":
    main()
