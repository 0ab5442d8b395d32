"""Where seeds of orders and workers come from."""

from __future__ import annotations

from resilin.core import rng


def draw_seed(generator: rng.Generator | None) -> int:
    """63 random bits from `generator`, or from this thread's default one. Moves it by one draw."""
    high, low = rng.pick(generator).bits(2).tolist()
    return int((high << 32 | low) >> 1)
