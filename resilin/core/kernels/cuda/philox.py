"""Launches `philox.cu`: draws of random numbers in a device's memory, with the bits of `kernels/philox.py` on the CPU.

Each function takes the state of a draw, (seed, stream, offset), from `take`, and only when there is a kernel for what
is wanted: else it returns None, and the host draws. `xp` is the namespace of `backends/cupy.py`.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from resilin.core.kernels.cuda import sources
from resilin.core.kernels.loader import native

THREADS = 256  # THREADS of elements.cuh
BLOCKS = 4096  # at most

Take = Callable[..., tuple[int, int, int]]
"""A generator's: of (count, dtype)."""


def uniform(xp: Any, take: Take, shape: tuple[int, ...], dtype: Any) -> Any:
    """Uniform in [0, 1)."""
    types = sources.FLOATS.get(dtype.name)
    if types is None:
        return None
    return _drawn(xp, f"uniform<{types[0]}>", take(math.prod(shape), dtype), xp.empty(shape, dtype))


def normal(xp: Any, take: Take, shape: tuple[int, ...], dtype: Any) -> Any:
    """Standard normal, of float32, as native code draws them: numpy's logarithm, which others get, has other bits."""
    if dtype != np.float32 or native is None:
        return None
    count = math.prod(shape)
    return _drawn(xp, "normal", take(count + count % 2, dtype), xp.empty(shape, dtype))


def dropout_mask(xp: Any, take: Take, shape: tuple[int, ...], dtype: Any, p: float) -> Any:
    """0 with probability p, else 1 / (1 - p): the float32 factors of a dropout."""
    scale = np.float32(1 / (1 - p) if p < 1 else 0)
    return _drawn(xp, "dropout_mask", take(math.prod(shape)), xp.empty(shape, dtype), np.float32(p), scale)


def bernoulli(xp: Any, take: Take, shape: tuple[int, ...], dtype: Any, p: float = 0.0, chance: Any = None) -> Any:
    """1 with probability p, or with those of `chance`, an array of this shape and dtype, else 0.

    RuntimeError for what is no probability in `chance`, where the host next waits.
    """
    types = sources.FLOATS.get(dtype.name)
    if types is None:
        return None
    out = xp.empty(shape, dtype)
    given = np.uintp(0) if chance is None else xp.ascontiguousarray(chance)
    code = xp.faults.code(RuntimeError, "bernoulli: expected probabilities between 0 and 1")
    words = _words(take(math.prod(shape)))
    args = (given, np.float64(p), out, np.int64(out.size), *words, xp.faults.word, code)
    _launch(xp, f"bernoulli<{', '.join(types)}>", out, 4, args)
    if chance is not None:
        xp.faults.launched()
    return out


def _words(state: tuple[int, int, int]) -> list[Any]:
    return [np.uint64(word & ((1 << 64) - 1)) for word in state]


def _drawn(xp: Any, kernel: str, state: tuple[int, int, int], out: Any, *numbers: Any) -> Any:
    each = 2 if kernel == "uniform<double>" else 4  # numbers of a block of four words
    _launch(xp, kernel, out, each, (out, np.int64(out.size), *_words(state), *numbers))
    return out


def _launch(xp: Any, kernel: str, out: Any, each: int, args: tuple[Any, ...]) -> None:
    if out.size:
        blocks = min(math.ceil(out.size / each / THREADS), BLOCKS)
        xp.launch("philox", kernel, (blocks,), (THREADS,), args)


DRAWS: dict[str, Callable[..., Any]] = {
    "uniform": uniform,
    "normal": normal,
    "dropout_mask": dropout_mask,
    "bernoulli": bernoulli,
}
"""By the names that `ArrayBackend.draw` is asked for."""
