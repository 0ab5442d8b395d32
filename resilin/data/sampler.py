"""Samplers: in which order samples are visited. The names and signatures are those of torch.utils.data."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Sequence, Sized
from typing import Any, Generic, TypeVar

import numpy as np

from resilin.core.ops import creation
from resilin.core.rng import Generator
from resilin.core.tensor import Tensor
from resilin.data.seeds import draw_seed
from resilin.data.shuffle import permutation
from resilin.errors import UsageError

_DRAWN_AT_ONCE = 1 << 16  # the numbers drawn depend on it: never change it

T_co = TypeVar("T_co", covariant=True)


class Sampler(Generic[T_co]):
    """Base of samplers: subclasses define `__iter__()` over indices (or lists of them) and usually `__len__()`."""

    def __iter__(self) -> Iterator[T_co]:
        raise NotImplementedError(f"{type(self).__name__} must define __iter__()")


def _check_count(where: str, num_samples: int) -> None:
    if isinstance(num_samples, bool) or not isinstance(num_samples, int) or num_samples < 1:
        raise UsageError(f"{where}: num_samples should be a positive integer, got {num_samples!r}")


def _check_flag(where: str, name: str, value: Any, error: type[Exception] = UsageError) -> None:
    if not isinstance(value, bool):
        raise error(f"{where}: {name} should be True or False, got {value!r}")


class SequentialSampler(Sampler[int]):
    """0, 1, 2, ... up to the length of `data_source`."""

    def __init__(self, data_source: Sized) -> None:
        self.data_source = data_source

    def __iter__(self) -> Iterator[int]:
        return iter(range(len(self.data_source)))

    def __len__(self) -> int:
        return len(self.data_source)


class RandomSampler(Sampler[int]):
    """A new random order each time it is iterated.

    replacement:  draw each index independently, so that some come twice and some never.
    num_samples:  how many to draw; default: the length of `data_source`. Without replacement, more than that means
                  several whole orders one after the other.
    generator:    where the order's seed is drawn from; default: the global generator.
    """

    def __init__(
        self,
        data_source: Sized,
        replacement: bool = False,
        num_samples: int | None = None,
        generator: Generator | None = None,
    ) -> None:
        _check_flag("RandomSampler", "replacement", replacement, TypeError)  # as in PyTorch
        if num_samples is not None:
            _check_count("RandomSampler", num_samples)
            if not len(data_source):
                raise UsageError(f"RandomSampler: cannot draw {num_samples} samples from a data source of length 0")
        self.data_source = data_source
        self.replacement = replacement
        self._num_samples = num_samples
        self.generator = generator

    @property
    def num_samples(self) -> int:
        """How many indices one iteration gives."""
        return len(self.data_source) if self._num_samples is None else self._num_samples

    def __iter__(self) -> Iterator[int]:
        length, seed = len(self.data_source), draw_seed(self.generator)
        if self.replacement:
            return _draw(Generator(seed=seed), length, self.num_samples)
        rounds = -(-self.num_samples // length) if length else 0
        orders = (permutation(length, seed, number).tolist() for number in range(rounds))
        return itertools.islice(itertools.chain.from_iterable(orders), self.num_samples)

    def __len__(self) -> int:
        return self.num_samples


def _draw(generator: Generator, length: int, count: int) -> Iterator[int]:
    """`count` numbers below `length`, a part at a time: counts may be far larger than what memory holds."""
    for begin in range(0, count, _DRAWN_AT_ONCE):
        yield from generator.integers(0, length, (min(_DRAWN_AT_ONCE, count - begin),)).tolist()


class SubsetRandomSampler(Sampler[int]):
    """The given indices in a new random order each time it is iterated."""

    def __init__(self, indices: Sequence[int], generator: Generator | None = None) -> None:
        self.indices = indices
        self.generator = generator

    def __iter__(self) -> Iterator[int]:
        order = permutation(len(self.indices), draw_seed(self.generator))
        return iter([self.indices[i] for i in order.tolist()])

    def __len__(self) -> int:
        return len(self.indices)


class WeightedRandomSampler(Sampler[int]):
    """`num_samples` indices, each drawn with probability proportional to its weight.

    weights:  one number per index, a sequence or a tensor; kept as a float64 tensor.
    """

    def __init__(
        self,
        weights: Sequence[float] | Tensor,
        num_samples: int,
        replacement: bool = True,
        generator: Generator | None = None,
    ) -> None:
        _check_count("WeightedRandomSampler", num_samples)
        _check_flag("WeightedRandomSampler", "replacement", replacement)
        array = creation.to_array(weights, np.float64)
        possible = int((array > 0).sum())
        if array.ndim != 1 or not ((array >= 0) & np.isfinite(array)).all() or possible == 0:
            raise UsageError(
                "WeightedRandomSampler: weights must be one list of finite numbers >= 0, at least one above 0"
            )
        if not replacement and num_samples > possible:
            raise UsageError(
                f"WeightedRandomSampler: cannot draw {num_samples} samples without replacement from {possible} "
                "weights above 0"
            )
        self.weights = creation.from_numpy(array)
        self.num_samples = num_samples
        self.replacement = replacement
        self.generator = generator

    def __iter__(self) -> Iterator[int]:
        weights = self.weights.numpy()
        draws = Generator(seed=draw_seed(self.generator))
        if self.replacement:
            ends = np.cumsum(weights)
            below = np.nextafter(ends[-1], 0)  # a product may be rounded up to the end
            places = np.minimum(draws.uniform((self.num_samples,), np.float64) * ends[-1], below)
            return iter(np.searchsorted(ends, places, side="right").tolist())
        # the largest keys u ** (1 / weight), in logarithms (Efraimidis and Spirakis, 2006)
        with np.errstate(divide="ignore"):
            keys = np.log(draws.uniform((len(weights),), np.float64)) / weights
        return iter(np.argsort(-keys, kind="stable")[: self.num_samples].tolist())

    def __len__(self) -> int:
        return self.num_samples


class BatchSampler(Sampler[list[Any]]):
    """Groups another sampler's indices into lists of `batch_size`; the last one may be shorter unless `drop_last`."""

    def __init__(self, sampler: Iterable[Any], batch_size: int, drop_last: bool) -> None:
        if isinstance(batch_size, bool) or not isinstance(batch_size, int) or batch_size < 1:
            raise UsageError(f"BatchSampler: batch_size must be a positive integer, got {batch_size!r}")
        _check_flag("BatchSampler", "drop_last", drop_last)
        self.sampler = sampler
        self.batch_size = batch_size
        self.drop_last = drop_last

    def __iter__(self) -> Iterator[list[Any]]:
        indices = iter(self.sampler)
        while batch := list(itertools.islice(indices, self.batch_size)):
            if len(batch) == self.batch_size or not self.drop_last:
                yield batch

    def __len__(self) -> int:
        if not isinstance(self.sampler, Sized):
            raise TypeError(f"BatchSampler: {type(self.sampler).__name__} has no length")
        full, rest = divmod(len(self.sampler), self.batch_size)
        return full if self.drop_last or not rest else full + 1
