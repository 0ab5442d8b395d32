"""Permutations that depend on nothing but their key: the same on every machine, numpy version and thread count."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

_WORD = (1 << 64) - 1


def permutation(length: int, seed: int, epoch: int = 0) -> NDArray[np.int64]:
    """A permutation of `range(length)`, a pure function of (length, seed, epoch).

    Sorts `length` words of the raw Philox4x64-10 stream with key (seed, epoch) (Salmon et al., 2011); equal words keep
    their order. Raw streams are frozen by numpy, unlike `Generator.permutation`, so an epoch's order never changes.
    """
    words = np.random.Philox(key=np.array([seed & _WORD, epoch & _WORD], dtype=np.uint64)).random_raw(length)
    return np.argsort(words, kind="stable").astype(np.int64, copy=False)
