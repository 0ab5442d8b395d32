"""Data sets: something with samples. The names are those of torch.utils.data."""

from __future__ import annotations

import bisect
import itertools
import math
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Generic, Protocol, TypeVar

from resilin.core.rng import Generator
from resilin.core.tensor import Tensor
from resilin.data.seeds import draw_seed
from resilin.data.shuffle import permutation
from resilin.errors import UsageError

T_co = TypeVar("T_co", covariant=True)


class SizedIndexable(Protocol):
    """What a map-style data set must offer; a list does too."""

    def __len__(self) -> int: ...

    def __getitem__(self, index: Any, /) -> Any: ...


class Dataset(Generic[T_co]):
    """A map-style data set: subclasses define `__getitem__(index)` and usually `__len__()`.

    `__getitems__(indices) -> list` may be defined too: the loader then asks for a whole batch in one call.
    """

    def __getitem__(self, index: Any) -> T_co:
        raise NotImplementedError(f"{type(self).__name__} must define __getitem__(index)")

    def __add__(self, other: Dataset[Any]) -> ConcatDataset:
        return ConcatDataset([self, other])


class IterableDataset(Dataset[T_co]):
    """A data set that is a stream: subclasses define `__iter__()`.

    With several loader workers each runs its own copy of the stream; split it there by `get_worker_info()`.
    """

    def __iter__(self) -> Iterator[T_co]:
        raise NotImplementedError(f"{type(self).__name__} must define __iter__()")


class TensorDataset(Dataset[tuple[Tensor, ...]]):
    """Sample i is the tuple of the i-th rows of all tensors. An index array gives the rows at once."""

    def __init__(self, *tensors: Tensor) -> None:
        sizes = [len(tensor) for tensor in tensors]
        if not tensors or len(set(sizes)) != 1:
            raise UsageError(f"TensorDataset: all tensors need the same first dimension, got sizes {sizes}")
        self.tensors = tensors

    def __getitem__(self, index: Any) -> tuple[Tensor, ...]:
        return tuple(tensor[index] for tensor in self.tensors)

    def __len__(self) -> int:
        return len(self.tensors[0])


class Subset(Dataset[Any]):
    """The samples of `dataset` at `indices`, in that order."""

    def __init__(self, dataset: SizedIndexable, indices: Sequence[int]) -> None:
        self.dataset = dataset
        self.indices = indices

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, list):
            return self.dataset[[self.indices[i] for i in index]]
        return self.dataset[self.indices[index]]

    def __getitems__(self, indices: list[int]) -> list[Any]:
        """The samples at `indices` of this subset."""
        own = [self.indices[index] for index in indices]
        many = getattr(self.dataset, "__getitems__", None)
        return list(many(own)) if many is not None else [self.dataset[index] for index in own]

    def __len__(self) -> int:
        return len(self.indices)


class ConcatDataset(Dataset[Any]):
    """Several map-style data sets one after the other."""

    def __init__(self, datasets: Iterable[Any]) -> None:
        self.datasets = list(datasets)
        if not self.datasets:
            raise UsageError("ConcatDataset: at least one data set is needed")
        for number, dataset in enumerate(self.datasets):
            if isinstance(dataset, IterableDataset):
                raise UsageError(f"ConcatDataset: data set {number} is an IterableDataset, which has no length")
        self.cumulative_sizes = list(itertools.accumulate(len(dataset) for dataset in self.datasets))

    def __getitem__(self, index: int) -> Any:
        if not -len(self) <= index < len(self):
            raise IndexError(f"ConcatDataset: index {index} is out of range for {len(self)} samples")
        index %= len(self)
        number = bisect.bisect_right(self.cumulative_sizes, index)
        start = self.cumulative_sizes[number - 1] if number else 0
        return self.datasets[number][index - start]

    def __len__(self) -> int:
        return self.cumulative_sizes[-1]


def random_split(
    dataset: SizedIndexable, lengths: Sequence[int | float], generator: Generator | None = None
) -> list[Subset]:
    """Split `dataset` at random into disjoint subsets.

    lengths:    sample counts that sum to `len(dataset)`, or fractions that sum to 1 (rounded down; the remainder goes
                one each to the first subsets, as in PyTorch).
    generator:  where the order is drawn from; default: the global one.
    """
    counts = _counts(len(dataset), lengths)
    order = permutation(len(dataset), draw_seed(generator)).tolist()
    ends = list(itertools.accumulate(counts))
    return [Subset(dataset, order[end - count : end]) for count, end in zip(counts, ends, strict=True)]


def _counts(total: int, lengths: Sequence[int | float]) -> list[int]:
    if math.isclose(sum(lengths), 1) and sum(lengths) <= 1 and any(isinstance(share, float) for share in lengths):
        if any(not 0 <= share <= 1 for share in lengths):
            raise UsageError(f"random_split: fractions must be between 0 and 1, got {list(lengths)}")
        counts = [math.floor(total * share) for share in lengths]
        for i in range(total - sum(counts)):
            counts[i % len(counts)] += 1
        return counts
    counts = [int(count) for count in lengths]
    if sum(counts) != total:
        raise UsageError(
            f"random_split: lengths {list(lengths)} sum to {sum(lengths)}, the data set has {total} samples"
        )
    return counts
