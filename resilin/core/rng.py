"""Random numbers: counter-based (Philox4x32-10), so a draw is a pure function of (seed, stream, offset).

A `Generator` is a seed and an offset; every draw moves the offset by the counter blocks it takes. `keyed(*ids)`
replaces the stream while it lasts: inside, draw number n depends on (seed, ids, n) alone and the outer offset stands
still. The default generator is one per thread (each thread of a process starts from the process's seed).
"""

from __future__ import annotations

import math
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from resilin.core.batching.active import ACTIVE
from resilin.core.kernels import philox
from resilin.core.tensor import Tensor, wrap

_MASK = (1 << 64) - 1
_DEFAULT_SEED = 0x5EED


class Generator:
    """A source of random numbers: `seed`, `stream` and the `offset` of the next draw."""

    def __init__(self, device: Any = "cpu", seed: int = _DEFAULT_SEED) -> None:
        self.device = device
        self._seed = seed & _MASK
        self.stream = 0
        self.offset = 0

    def __repr__(self) -> str:
        return f"<Generator seed={self._seed} stream={self.stream} offset={self.offset}>"

    def manual_seed(self, seed: int) -> Generator:
        """Start anew from `seed`."""
        self._seed, self.stream, self.offset = int(seed) & _MASK, 0, 0
        return self

    def seed(self) -> int:
        """Start anew from a seed of the operating system, and return it."""
        self.manual_seed(int.from_bytes(os.urandom(8), "little") >> 1)
        return self._seed

    def initial_seed(self) -> int:
        """The seed."""
        return self._seed

    def take(self, count: int, dtype: Any = np.float32) -> tuple[int, int, int]:
        """(seed, stream, offset) of a draw of `count` values; the offset moves on."""
        if ACTIVE:
            ACTIVE[-1].drawing()
        offset = self.offset
        self.offset = offset + philox.blocks(count, dtype)
        return self._seed, self.stream, offset

    def get_state(self) -> Tensor:
        """Seed, stream and offset as a uint64 tensor of length 3."""
        return wrap(np.array([self._seed, self.stream & _MASK, self.offset & _MASK], np.uint64))

    def set_state(self, new_state: Tensor) -> Generator:
        """Continue where `get_state` was called. RuntimeError for anything else."""
        array = new_state._array
        if array.shape != (3,) or array.dtype != np.uint64:
            raise RuntimeError(f"set_state: expected a uint64 tensor of length 3, got {array.dtype} {array.shape}")
        self._seed, self.stream, self.offset = (int(v) for v in array)
        return self

    def bits(self, count: int) -> Any:
        """`count` random words (uint32)."""
        return philox.bits(*self.take(count), count)

    def uniform(self, shape: tuple[int, ...], dtype: Any = np.float32) -> Any:
        """Uniform in [0, 1)."""
        return philox.uniform(*self.take(math.prod(shape), dtype), shape, dtype)

    def normal(self, shape: tuple[int, ...], dtype: Any = np.float32) -> Any:
        """Standard normal."""
        count = math.prod(shape)
        return philox.normal(*self.take(count + count % 2, dtype), shape, dtype)

    def integers(self, low: int, high: int, shape: tuple[int, ...]) -> Any:
        """Integers in [low, high), int64. 64 random bits are scaled: the bias is below 2**-32 for any 32-bit range."""
        count = math.prod(shape)
        words = self.bits(2 * count).astype(np.uint64).reshape(-1, 2)
        span = high - low
        if span <= 1 << 32:  # multiply-shift on 64 bits without overflow: high and low word apart
            s = np.uint64(span)
            upper = words[:, 0] * s + ((words[:, 1] * s) >> np.uint64(32))
            value = upper >> np.uint64(32)
        else:
            value = ((words[:, 0] << np.uint64(32)) | words[:, 1]) % np.uint64(span)
        return (value.astype(np.int64) + low).reshape(shape)

    def permutation(self, n: int) -> Any:
        """0 to n - 1 in random order, int64: the order of n random 64-bit keys."""
        words = self.bits(2 * n).astype(np.uint64).reshape(-1, 2)
        return np.argsort((words[:, 0] << np.uint64(32)) | words[:, 1], kind="stable").astype(np.int64)

    def clone_state(self) -> tuple[int, int, int]:
        """(seed, stream, offset) as numbers."""
        return self._seed, self.stream, self.offset

    def restore(self, state: tuple[int, int, int]) -> None:
        """Continue from `clone_state()`."""
        self._seed, self.stream, self.offset = state


class _Default(threading.local):
    def __init__(self) -> None:
        self.generator = Generator(seed=_process_seed)


_process_seed = _DEFAULT_SEED
_default = _Default()


def default_generator() -> Generator:
    """This thread's generator, which draws without `generator=` use."""
    return _default.generator


def pick(generator: Generator | None) -> Generator:
    """`generator`, or this thread's default."""
    return _default.generator if generator is None else generator


def manual_seed(seed: int) -> Generator:
    """Seed this thread's generator, and those of threads that start to draw later."""
    global _process_seed
    _process_seed = int(seed) & _MASK
    return _default.generator.manual_seed(seed)


def seed() -> int:
    """Seed from the operating system; returns the seed."""
    return manual_seed(int.from_bytes(os.urandom(8), "little") >> 1).initial_seed()


def initial_seed() -> int:
    """The seed of this thread's generator."""
    return _default.generator.initial_seed()


def get_rng_state() -> Tensor:
    """The state of this thread's generator, for `set_rng_state`."""
    return _default.generator.get_state()


def set_rng_state(new_state: Tensor) -> None:
    """Continue where `get_rng_state` was called."""
    _default.generator.set_state(new_state)


@contextmanager
def keyed(*ids: int) -> Iterator[Generator]:
    """Inside, every draw of this thread is a pure function of (seed, ids, number of the draw inside the context)."""
    generator = _default.generator
    before = generator.clone_state()
    generator.stream, generator.offset = _mix(before[1], ids), 0
    try:
        yield generator
    finally:
        generator.restore(before)


@contextmanager
def fork_rng(devices: Any = None, enabled: bool = True) -> Iterator[None]:
    """Inside, draws do not move the outer stream."""
    before = _default.generator.clone_state()
    try:
        yield
    finally:
        if enabled:
            _default.generator.restore(before)


def _mix(stream: int, ids: tuple[int, ...]) -> int:
    """A stream number for `ids` inside `stream`: SplitMix64's finalizer over each in turn. Never 0, the plain one."""
    state = (stream ^ (0x9E3779B97F4A7C15 * (len(ids) + 1))) & _MASK
    for part in ids:
        state = (state + (int(part) & _MASK) + 0x9E3779B97F4A7C15) & _MASK
        state = ((state ^ (state >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
        state = ((state ^ (state >> 27)) * 0x94D049BB133111EB) & _MASK
        state ^= state >> 31
    return state or 1
