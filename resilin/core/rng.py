"""Random numbers: counter-based (Philox4x32-10), so a draw is a pure function of (seed, stream, offset).

A `Generator` is a seed and an offset; every draw moves the offset by the counter blocks it takes. `keyed(*ids)`
replaces the stream while it lasts: inside, draw number n depends on (seed, ids, n) alone and the outer offset stands
still, also for other threads. The default generator is the process's, which all threads share, as in PyTorch: no two
draws give the same numbers, but which thread gets which depends on who comes first. A thread whose draws shall repeat
has its own (`using`): the workers of a DataLoader, the ranks of `resilin.testing`. All draws are made on the host and
copied where they are wanted, so they are the same on every device, whatever a generator's is.
"""

from __future__ import annotations

import math
import operator
import os
import threading
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import numpy as np

from resilin.core.batching.active import ACTIVE
from resilin.core.device import check_type
from resilin.core.device import device as device_of
from resilin.core.kernels import philox, shuffle
from resilin.core.tensor import Tensor, wrap

_MASK = (1 << 64) - 1
_FLOAT32 = np.dtype(np.float32)
_DEFAULT_SEED = 0x5EED
_MOST = 1 << 60  # numbers of one draw
_LOCK = threading.Lock()  # held while a generator's state is read or moved
os.register_at_fork(before=_LOCK.acquire, after_in_parent=_LOCK.release, after_in_child=_LOCK.release)


class Generator:
    """A source of random numbers: `seed`, `stream` and the `offset` of the next draw.

    It serves every device, and gives the same numbers on each; `device` is kept for those who read it.
    """

    def __init__(self, device: Any = "cpu", seed: int = _DEFAULT_SEED) -> None:
        self.device = device_of(device).home
        self._seed = seed & _MASK
        self.stream = 0
        self.offset = 0

    def __repr__(self) -> str:
        return f"<Generator seed={self._seed} stream={self.stream} offset={self.offset}>"

    def manual_seed(self, seed: int) -> Generator:
        """Start anew from `seed`, of [-2**63, 2**64); negative ones count from 2**64. ValueError for others."""
        checked = _checked_seed(seed)
        with _LOCK:
            self._seed, self.stream, self.offset = checked, 0, 0
        return self

    def seed(self) -> int:
        """Start anew from a seed of the operating system, and return it."""
        self.manual_seed(int.from_bytes(os.urandom(8), "little") >> 1)
        return self._seed

    def initial_seed(self) -> int:
        """The seed."""
        return self._seed

    def take(self, count: int, dtype: Any = _FLOAT32) -> tuple[int, int, int]:
        """(seed, stream, offset) of a draw of `count` values; the offset moves on."""
        if ACTIVE:
            ACTIVE[-1].drawing()
        count = operator.index(count)  # a tensor of one integer counts; whatever else would stay in the offset
        if count > _MOST:
            raise RuntimeError(f"a draw of {count} numbers is larger than any memory")
        with _LOCK:
            offset = self.offset
            self.offset = offset + philox.blocks(count, dtype)
            return self._seed, self.stream, offset

    def get_state(self) -> Tensor:
        """Seed, stream and offset, as a uint8 tensor (as PyTorch's) of 24 bytes."""
        with _LOCK:
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
        words = np.ascontiguousarray(array).view("<u8").tolist()
        with _LOCK:
            self._seed, self.stream, self.offset = words
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

    def uniform(self, shape: tuple[int, ...], dtype: Any = _FLOAT32) -> Any:
        """Uniform in [0, 1)."""
        return philox.uniform(*self.take(math.prod(shape), dtype), shape, dtype)

    def normal(self, shape: tuple[int, ...], dtype: Any = _FLOAT32) -> Any:
        """Standard normal."""
        count = math.prod(shape)
        return philox.normal(*self.take(count + count % 2, dtype), shape, dtype)

    def integers(self, low: int, high: int, shape: tuple[int, ...]) -> Any:
        """Integers in [low, high), int64 (those from 2**63 on wrap around, as uint64 sees them).

        64 random bits are scaled: the bias is below 2**-32 for any 32-bit range. Larger ranges have none: what lies
        beyond the last multiple of the range is drawn again. RuntimeError for more than 64 bits.
        """
        if low < -(1 << 63) or high > 1 << 64 or high - low > 1 << 64:
            raise RuntimeError(f"random integers: the range [{low}, {high}) does not fit in 64 bits")
        count = math.prod(shape)
        span = high - low
        if span <= 1 << 32:
            return philox.integers(*self.take(2 * count), count, low, span).reshape(shape)
        value, rest = self._pairs(count), (1 << 64) % span
        while rest and (beyond := np.flatnonzero(value > np.uint64(_MASK - rest))).size:
            value[beyond] = self._pairs(beyond.size)
        value = value if span == 1 << 64 else value % np.uint64(span)
        return (value + np.uint64(low & _MASK)).view(np.int64).reshape(shape)

    def _pairs(self, count: int) -> Any:
        """64 random bits each, uint64."""
        words = self.bits(2 * count).astype(np.uint64).reshape(-1, 2)
        return (words[:, 0] << np.uint64(32)) | words[:, 1]

    def permutation(self, n: int) -> Any:
        """0 to n - 1 in random order, int64."""
        return shuffle.shuffled(self.bits(2 * n))

    def clone_state(self) -> Generator:
        """A generator of its own that draws what this one would."""
        made = Generator(self.device)
        made.restore(self)
        return made

    def restore(self, state: Generator) -> None:
        """Continue where `state`, which `clone_state()` gave, stands."""
        with _LOCK:
            self._seed, self.stream, self.offset = state._seed, state.stream, state.offset


_STATE_BYTES = 24


def _checked_seed(seed: int) -> int:
    try:
        number = int(seed)
    except (TypeError, ValueError) as error:
        raise type(error)(f"manual_seed: expected an integer, got {seed!r}") from None
    if not -(1 << 63) <= number <= _MASK:
        raise ValueError(f"manual_seed: expected a seed of at least -2**63 and below 2**64, got {seed}")
    return number & _MASK


class _Own(threading.local):
    generator: Generator | None = None


_own = _Own()  # the generator that this thread draws from in place of the process's
_of_process = Generator()


def _current() -> Generator:
    return _own.generator or _of_process


class _Default(Generator):
    """The generator that draws of whichever thread use: the process's, or its own; called, it gives that one itself."""

    def __init__(self) -> None:
        self.device = device_of("cpu")

    def __call__(self) -> Generator:
        return _current()

    def __reduce__(self) -> str:
        return "default_generator"

    _seed = property(lambda self: _current()._seed, lambda self, v: setattr(_current(), "_seed", v))
    stream = property(lambda self: _current().stream, lambda self, v: setattr(_current(), "stream", v))
    offset = property(lambda self: _current().offset, lambda self, v: setattr(_current(), "offset", v))


default_generator = _Default()
"""The generator that draws without `generator=` use."""


def pick(generator: Generator | None) -> Generator:
    """`generator`, or the default one. TypeError for anything else."""
    if generator is None:
        return _current()
    if not isinstance(generator, Generator):
        raise TypeError(f"generator: expected a resilin.Generator or None, got {type(generator).__name__}")
    return generator


def manual_seed(seed: int) -> Generator:
    """Seed the default generator: of all threads, but for those that have their own, which seed that."""
    return _current().manual_seed(seed)


def seed() -> int:
    """Seed from the operating system; returns the seed."""
    return manual_seed(int.from_bytes(os.urandom(8), "little") >> 1).initial_seed()


def initial_seed() -> int:
    """The seed of the default generator."""
    return _current().initial_seed()


def get_rng_state() -> Tensor:
    """The state of the default generator, for `set_rng_state`."""
    return _current().get_state()


def set_rng_state(new_state: Tensor) -> None:
    """Continue where `get_rng_state` was called."""
    _current().set_state(new_state)


def own_generator() -> Generator | None:
    """The generator that this thread draws from in place of the process's, None where it has none."""
    return _own.generator


def set_own_generator(generator: Generator | None) -> None:
    """Let this thread draw from `generator` from now on; None is the process's again."""
    _own.generator = generator


@contextmanager
def using(generator: Generator) -> Iterator[Generator]:
    """Inside, draws of this thread come from `generator`, those of other threads do not."""
    before, _own.generator = _own.generator, generator
    try:
        yield generator
    finally:
        _own.generator = before


def keyed(*ids: int) -> AbstractContextManager[Generator]:
    """Inside, every draw of this thread is a pure function of (seed, ids, number of the draw inside the context).

    TypeError for `ids` that are no integers.
    """
    numbers = tuple(map(_as_id, ids))
    return _keyed(numbers)


def _as_id(value: Any) -> int:
    try:
        return operator.index(value)
    except TypeError:
        raise TypeError(f"keyed: expected integers, got {value!r}") from None


@contextmanager
def _keyed(ids: tuple[int, ...]) -> Iterator[Generator]:
    made = _current().clone_state()
    made.stream, made.offset = _mix(made.stream, ids), 0
    with using(made):
        yield made


@contextmanager
def fork_rng(
    devices: Any = None,
    enabled: bool = True,
    _caller: str = "fork_rng",
    _devices_kw: str = "devices",
    device_type: str | None = None,
) -> Iterator[None]:
    """Inside, draws do not move the outer stream, on any device; `devices` and `device_type` change nothing here.

    RuntimeError for a `device_type` that there is none of.
    """
    if device_type is not None:
        check_type(device_type)
    generator = _current()
    before = generator.clone_state()
    try:
        yield
    finally:
        if enabled:
            generator.restore(before)


def _mix(stream: int, ids: tuple[int, ...]) -> int:
    """A stream number for `ids` inside `stream`: SplitMix64's finalizer over each in turn. Never 0, the plain one."""
    state = (stream ^ (0x9E3779B97F4A7C15 * (len(ids) + 1))) & _MASK
    for part in ids:
        state = (state + (int(part) & _MASK) + 0x9E3779B97F4A7C15) & _MASK
        state = ((state ^ (state >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
        state = ((state ^ (state >> 27)) * 0x94D049BB133111EB) & _MASK
        state ^= state >> 31
    return state or 1
