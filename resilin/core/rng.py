"""Random numbers: counter-based (Philox4x32-10), so a draw is a pure function of (seed, stream, offset).

A `Generator` is a seed and an offset; every draw moves the offset by the counter blocks it takes. `keyed(*ids)`
replaces the stream while it lasts: inside, draw number n depends on (seed, ids, n) alone and the outer offset stands
still. The default generator is one per thread (each thread of a process starts from the process's seed). All draws are
made on the host and copied where they are wanted, so they are the same on every device, whatever a generator's is.
"""

from __future__ import annotations

import math
import operator
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from resilin.core.batching.active import ACTIVE
from resilin.core.device import device as device_of
from resilin.core.kernels import philox
from resilin.core.tensor import Tensor, wrap

_MASK = (1 << 64) - 1
_DEFAULT_SEED = 0x5EED
_MOST = 1 << 60  # numbers of one draw


class Generator:
    """A source of random numbers: `seed`, `stream` and the `offset` of the next draw.

    It serves every device, and gives the same numbers on each; `device` is kept for those who read it.
    """

    def __init__(self, device: Any = "cpu", seed: int = _DEFAULT_SEED) -> None:
        self.device = device_of(device)
        self._seed = seed & _MASK
        self.stream = 0
        self.offset = 0

    def __repr__(self) -> str:
        return f"<Generator seed={self._seed} stream={self.stream} offset={self.offset}>"

    def manual_seed(self, seed: int) -> Generator:
        """Start anew from `seed`, of [-2**63, 2**64); negative ones count from 2**64. ValueError for others."""
        self._seed, self.stream, self.offset = _checked_seed(seed), 0, 0
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
        count = operator.index(count)  # a tensor of one integer counts; whatever else would stay in the offset
        if count > _MOST:
            raise RuntimeError(f"a draw of {count} numbers is larger than any memory")
        offset = self.offset
        self.offset = offset + philox.blocks(count, dtype)
        return self._seed, self.stream, offset

    def get_state(self) -> Tensor:
        """Seed, stream and offset, as a uint8 tensor (as PyTorch's) of 24 bytes."""
        words = np.array([self._seed, self.stream & _MASK, self.offset & _MASK], "<u8")
        return wrap(words.view(np.uint8))

    def set_state(self, new_state: Tensor) -> Generator:
        """Continue where `get_state` was called. TypeError for no uint8 tensor, RuntimeError for other sizes."""
        if not isinstance(new_state, Tensor) or new_state._array.dtype != np.uint8:
            given = new_state.dtype if isinstance(new_state, Tensor) else type(new_state).__name__
            raise TypeError(f"set_state: RNG state must be a uint8 tensor, as get_state gives it; got {given}")
        array = new_state._dev.backend.to_host(new_state._array)
        if array.shape != (_STATE_BYTES,):
            raise RuntimeError(f"set_state: expected {_STATE_BYTES} bytes, as get_state gives, got shape {array.shape}")
        self._seed, self.stream, self.offset = (int(v) for v in np.ascontiguousarray(array).view("<u8"))
        return self

    graphsafe_get_state, graphsafe_set_state = get_state, set_state

    def get_offset(self) -> int:
        """The number of the counter block that the next draw begins with."""
        return self.offset

    def set_offset(self, offset: int) -> None:
        """Begin the next draw with counter block `offset`. RuntimeError for negative ones."""
        if offset < 0:
            raise RuntimeError(f"set_offset: expected an offset of at least 0, got {offset}")
        self.offset = int(offset)

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
        """Integers in [low, high), int64 (those from 2**63 on wrap around, as uint64 sees them).

        64 random bits are scaled: the bias is below 2**-32 for any 32-bit range. RuntimeError for more than 64 bits.
        """
        if low < -(1 << 63) or high > 1 << 64 or high - low > 1 << 64:
            raise RuntimeError(f"random integers: the range [{low}, {high}) does not fit in 64 bits")
        count = math.prod(shape)
        words = self.bits(2 * count).astype(np.uint64).reshape(-1, 2)
        span = high - low
        if span <= 1 << 32:  # multiply-shift on 64 bits without overflow: high and low word apart
            s = np.uint64(span)
            upper = words[:, 0] * s + ((words[:, 1] * s) >> np.uint64(32))
            value = upper >> np.uint64(32)
        else:
            value = (words[:, 0] << np.uint64(32)) | words[:, 1]
            value = value if span == 1 << 64 else value % np.uint64(span)
        return (value + np.uint64(low & _MASK)).view(np.int64).reshape(shape)

    def permutation(self, n: int) -> Any:
        """0 to n - 1 in random order, int64: the order of n random 64-bit keys."""
        words = self.bits(2 * n).astype(np.uint64).reshape(-1, 2)
        return np.argsort((words[:, 0] << np.uint64(32)) | words[:, 1], kind="stable").astype(np.int64)

    def clone_state(self) -> Generator:
        """A generator of its own that draws what this one would."""
        made = Generator(self.device)
        made.restore(self)
        return made

    def restore(self, state: Generator) -> None:
        """Continue where `state`, which `clone_state()` gave, stands."""
        self._seed, self.stream, self.offset = state._seed, state.stream, state.offset


_STATE_BYTES = 24


def _checked_seed(seed: int) -> int:
    number = int(seed)
    if not -(1 << 63) <= number <= _MASK:
        raise ValueError(f"manual_seed: expected a seed of at least -2**63 and below 2**64, got {seed}")
    return number & _MASK


class _Default(threading.local):
    generator: Generator

    def __init__(self) -> None:
        self.generator = Generator(seed=_process_seed)


_process_seed = _DEFAULT_SEED
_default = _Default()


class _OfThisThread(Generator):
    """The generator of whichever thread uses it; called, it gives that one itself."""

    def __init__(self) -> None:
        self.device = device_of("cpu")

    def __call__(self) -> Generator:
        return _default.generator

    def __reduce__(self) -> str:
        return "default_generator"

    _seed = property(lambda self: _default.generator._seed, lambda self, v: setattr(_default.generator, "_seed", v))
    stream = property(lambda self: _default.generator.stream, lambda self, v: setattr(_default.generator, "stream", v))
    offset = property(lambda self: _default.generator.offset, lambda self, v: setattr(_default.generator, "offset", v))


default_generator = _OfThisThread()
"""This thread's generator, which draws without `generator=` use."""


def pick(generator: Generator | None) -> Generator:
    """`generator`, or this thread's default. TypeError for anything else."""
    if generator is None:
        return _default.generator
    if not isinstance(generator, Generator):
        raise TypeError(f"generator: expected a resilin.Generator or None, got {type(generator).__name__}")
    return generator


def manual_seed(seed: int) -> Generator:
    """Seed this thread's generator, and those of threads that start to draw later."""
    global _process_seed
    _process_seed = _checked_seed(seed)
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
    generator.stream, generator.offset = _mix(before.stream, ids), 0
    try:
        yield generator
    finally:
        generator.restore(before)


@contextmanager
def fork_rng(
    devices: Any = None,
    enabled: bool = True,
    _caller: str = "fork_rng",
    _devices_kw: str = "devices",
    device_type: str | None = None,
) -> Iterator[None]:
    """Inside, draws do not move the outer stream, on any device; `devices` and `device_type` change nothing here."""
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
