"""Data sets: something with samples. The names are those of torch.utils.data."""

from __future__ import annotations

import bisect
import itertools
import math
import warnings
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

    def __add__(self, other: Dataset[Any]) -> ChainDataset:  # type: ignore[override]
        return ChainDataset([self, other])


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


class StackDataset(Dataset[Any]):
    """Data sets of one length side by side: sample i is the tuple of their samples i; the dict for keyword arguments.

    Raises: UsageError for no data sets, both kinds of arguments, or lengths that differ.
    """

    def __init__(self, *args: SizedIndexable, **kwargs: SizedIndexable) -> None:
        if bool(args) == bool(kwargs):
            raise UsageError(
                "StackDataset: give data sets either by place (samples are tuples) or by name (samples are dicts), "
                f"got {len(args)} by place and {len(kwargs)} by name"
            )
        self.datasets: tuple[SizedIndexable, ...] | dict[str, SizedIndexable] = args or kwargs
        sizes = [len(dataset) for dataset in self._parts()]
        if len(set(sizes)) != 1:
            raise UsageError(f"StackDataset: all data sets need the same length, got {sizes}")
        self._length = sizes[0]

    def _parts(self) -> Iterable[SizedIndexable]:
        return self.datasets.values() if isinstance(self.datasets, dict) else self.datasets

    def _join(self, parts: Iterable[Any]) -> Any:
        return dict(zip(self.datasets, parts, strict=True)) if isinstance(self.datasets, dict) else tuple(parts)

    def __getitem__(self, index: Any) -> Any:
        return self._join(dataset[index] for dataset in self._parts())

    def __getitems__(self, indices: list[Any]) -> list[Any]:
        """The samples at `indices`. UsageError when a part's own `__getitems__` gives another number of samples."""
        columns = [_many(dataset, indices) for dataset in self._parts()]
        for number, column in enumerate(columns):
            if len(column) != len(indices):
                raise UsageError(
                    f"StackDataset: data set {number} gave {len(column)} samples for {len(indices)} indices; "
                    "its __getitems__ must give one for each"
                )
        return [self._join(parts) for parts in zip(*columns, strict=True)]

    def __len__(self) -> int:
        return self._length


class ConcatDataset(Dataset[Any]):
    """Several map-style data sets one after the other."""

    def __init__(self, datasets: Iterable[Any]) -> None:
        self.datasets = list(datasets)
        if not self.datasets:
            raise UsageError("ConcatDataset: at least one data set is needed")
        for number, dataset in enumerate(self.datasets):
            if isinstance(dataset, IterableDataset):
                raise UsageError(f"ConcatDataset: data set {number} is an IterableDataset, which has no length")
        self.cumulative_sizes = self.cumsum(self.datasets)

    @staticmethod
    def cumsum(sequence: Iterable[Any]) -> list[int]:
        """For each data set the number of samples up to its end."""
        return list(itertools.accumulate(len(dataset) for dataset in sequence))

    def __getitem__(self, idx: int) -> Any:
        if idx < -len(self):
            raise UsageError(f"ConcatDataset: index {idx} is out of range for {len(self)} samples")
        if idx >= len(self):  # IndexError: it ends `for sample in dataset`
            raise IndexError(f"ConcatDataset: index {idx} is out of range for {len(self)} samples")
        idx = idx + len(self) if idx < 0 else idx
        number = bisect.bisect_right(self.cumulative_sizes, idx)
        start = self.cumulative_sizes[number - 1] if number else 0
        return self.datasets[number][idx - start]

    def __len__(self) -> int:
        return self.cumulative_sizes[-1]


class ChainDataset(IterableDataset[Any]):
    """Several streams one after the other. `len()` is the sum of theirs, where all have one."""

    def __init__(self, datasets: Iterable[Any]) -> None:
        self.datasets = datasets

    def __iter__(self) -> Iterator[Any]:
        for dataset in self._streams():
            yield from dataset

    def __len__(self) -> int:
        return sum(len(dataset) for dataset in self._streams())

    def _streams(self) -> Iterator[Any]:
        for number, dataset in enumerate(self.datasets):
            if not isinstance(dataset, IterableDataset):
                raise UsageError(
                    f"ChainDataset: data set {number} is a {type(dataset).__name__}, expected an IterableDataset; "
                    "ConcatDataset joins map-style ones"
                )
            yield dataset


class Subset(Dataset[T_co]):
    """The samples of `dataset` at `indices`, in that order.

    A subclass that overrides `__getitem__` must override `__getitems__` too, which the loader prefers:
    NotImplementedError otherwise.
    """

    def __init__(self, dataset: SizedIndexable, indices: Sequence[int]) -> None:
        own = type(self)
        if own.__getitem__ is not Subset.__getitem__ and own.__getitems__ is Subset.__getitems__:
            raise NotImplementedError(
                f"{own.__name__} overrides __getitem__ but not __getitems__, which DataLoader calls: define it too, "
                "for example as `return [self[index] for index in indices]`"
            )
        self.dataset = dataset
        self.indices = indices

    def __getitem__(self, idx: Any) -> T_co:
        if isinstance(idx, list):
            return self.dataset[[self.indices[i] for i in idx]]  # type: ignore[no-any-return]
        return self.dataset[self.indices[idx]]  # type: ignore[no-any-return]

    def __getitems__(self, indices: list[int]) -> list[T_co]:
        """The samples at `indices` of this subset."""
        return list(_many(self.dataset, [self.indices[index] for index in indices]))

    def __len__(self) -> int:
        return len(self.indices)


def _many(dataset: Any, indices: list[Any]) -> Any:
    """The samples of `dataset` at `indices`, in one call where it offers that."""
    many = getattr(dataset, "__getitems__", None)
    return many(indices) if callable(many) else [dataset[index] for index in indices]


def random_split(
    dataset: SizedIndexable, lengths: Sequence[int | float], generator: Generator | None = None
) -> list[Subset[Any]]:
    """Split `dataset` at random into disjoint subsets.

    lengths:    sample counts that sum to `len(dataset)`, or fractions that sum to 1 (rounded down; the remainder goes
                one each to the first subsets, as in PyTorch). A subset that a fraction leaves empty is warned of.
    generator:  where the order is drawn from; default: the global one.
    """
    counts = _counts(len(dataset), list(lengths))
    order = permutation(len(dataset), draw_seed(generator)).tolist()
    ends = list(itertools.accumulate(counts))
    return [Subset(dataset, order[end - count : end]) for count, end in zip(counts, ends, strict=True)]


def _counts(total: int, lengths: list[int | float]) -> list[int]:
    if math.isclose(sum(lengths), 1) and sum(lengths) <= 1:
        return _counts_of_fractions(total, lengths)
    for number, count in enumerate(lengths):
        if int(count) != count or count < 0:
            raise UsageError(
                f"random_split: length {number} should be a number of samples (or all lengths fractions that sum to "
                f"1), got {count!r}"
            )
    if sum(lengths) != total:
        raise UsageError(f"random_split: lengths {lengths} sum to {sum(lengths)}, the data set has {total} samples")
    return [int(count) for count in lengths]


def _counts_of_fractions(total: int, shares: list[int | float]) -> list[int]:
    for number, share in enumerate(shares):
        if not 0 <= share <= 1:
            raise UsageError(f"random_split: fraction {number} should be between 0 and 1, got {share}")
    counts = [math.floor(total * share) for share in shares]
    for i in range(total - sum(counts)):
        counts[i % len(counts)] += 1
    for number, count in enumerate(counts):
        if count == 0:
            warnings.warn(f"random_split: subset {number} of {shares} is empty", UserWarning, stacklevel=4)
    return counts
