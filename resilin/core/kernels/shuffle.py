"""A random order of places from random words, by the exchanges of Fisher and Yates."""

from __future__ import annotations

import numpy as np

from resilin.core.kernels.common import Array
from resilin.core.kernels.loader import kernel

_native_shuffled = kernel("shuffled")


def shuffled(words: Array) -> Array:
    """0 to n - 1 in the order that 2 n random `words` of 32 bits give, for n < 2 ** 32.

    From the first place on, place i is exchanged with the one `word * (n - i) / 2 ** 64` after it, its word being made
    of two of `words`, the upper half first.
    """
    found: Array | None = _native_shuffled(words)
    return reference_shuffled(words) if found is None else found


def reference_shuffled(words: Array) -> Array:
    """numpy form of `shuffled`."""
    n = len(words) // 2
    places = list(range(n))
    for i, (high, low) in enumerate(words.reshape(n, 2).tolist()):
        other = i + ((high << 32 | low) * (n - i) >> 64)
        places[i], places[other] = places[other], places[i]
    return np.array(places, np.int64)
