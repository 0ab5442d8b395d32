"""Launches `index_range.cu`: a look at a device's indices for which the host does not wait.

The host's form is `kernels/index_range.py`. `xp` is the namespace of `backends/cupy.py`.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from resilin.core.kernels.cuda import sources

THREADS = 256  # THREADS of elements.cuh
BLOCKS = 1024  # at most


def check(xp: Any, index: Any, low: int, high: int, error: type[Exception], text: str) -> None:
    """Have error(text) raised where the host next waits, if an index is outside [low, high); {value} names it."""
    kind = sources.INTEGERS.get(index.dtype.name)
    index = xp.ascontiguousarray(index if kind else index.astype(np.int64))
    blocks = min(math.ceil(index.size / THREADS), BLOCKS)
    numbers = (np.int64(index.size), np.int64(low), np.int64(high), xp.faults.word, xp.faults.code(error, text))
    kernel = f"index_range<{kind[0] if kind else 'long long'}>"
    xp.launch("index_range", kernel, (blocks,), (THREADS,), (index, *numbers))
    xp.faults.launched()
