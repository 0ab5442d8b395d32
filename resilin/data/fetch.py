"""Fetches one batch from a data set; used by the loader in process, in its thread and in its workers."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any, Protocol

import numpy as np

from resilin.core.tensor import Tensor
from resilin.data import collate
from resilin.data.dataset import IterableDataset, Subset, TensorDataset
from resilin.errors import ResilinError


class Exhausted(Exception):
    """The stream of an IterableDataset has ended. Never leaves the package."""


class Fetcher(Protocol):
    """Turns what the sampler gave (a list of indices, or one index without batching) into a batch."""

    def __call__(self, index: Any) -> Any: ...


def make_fetcher(dataset: Any, batched: bool, collate_fn: Callable[[Any], Any], drop_last: bool) -> Fetcher:
    """The fetcher for `dataset`. For a stream it starts a new pass over it."""
    if isinstance(dataset, IterableDataset):
        return _Unending(_StreamFetcher(dataset, batched, collate_fn, drop_last))
    return _Unending(_MapFetcher(dataset, batched, collate_fn))


def stopped(where: str) -> ResilinError:
    """The error for a StopIteration of the user's code, which iteration would take for the end of the samples."""
    return ResilinError(
        f"DataLoader: {where} raised StopIteration, which would end the pass with samples missing: "
        "catch it there (a next() without a default is the usual source), or make the data set an IterableDataset"
    )


class _Unending:
    """A fetcher that lets no StopIteration through: only Exhausted ends a pass early."""

    def __init__(self, fetch: Fetcher) -> None:
        self._fetch = fetch

    def __call__(self, index: Any) -> Any:
        try:
            return self._fetch(index)
        except StopIteration as error:
            raise stopped(f"the data set or collate_fn, for the batch of {index!r},") from error


class _MapFetcher:
    def __init__(self, dataset: Any, batched: bool, collate_fn: Callable[[Any], Any]) -> None:
        self._dataset = dataset
        self._many = getattr(dataset, "__getitems__", None)
        self._batched = batched
        self._collate = collate_fn

    def __call__(self, index: Any) -> Any:
        if not self._batched:
            return self._collate(self._dataset[index])
        if self._collate is collate.default_collate and collate.stacks_tensors():
            rows = _rows(self._dataset, index)
            if rows is not None:
                return rows
        if self._many is not None:
            return self._collate(self._many(index))
        return self._collate([self._dataset[i] for i in index])


def _rows(dataset: Any, indices: Any) -> list[Tensor] | None:
    """What collating samples of a TensorDataset comes to, by one indexing per tensor; None for anything else."""
    if type(indices) is not list or not indices or not all(type(index) is int for index in indices):
        return None
    if type(dataset) is TensorDataset:
        try:
            places: Any = Tensor._wrap(np.array(indices, np.int64))  # once for all tensors
        except OverflowError:
            places = indices  # which is refused where it is used
        return [tensor[places] for tensor in dataset.tensors]
    if type(dataset) is Subset:
        return _rows(dataset.dataset, [dataset.indices[index] for index in indices])
    return None


class _StreamFetcher:
    def __init__(
        self, dataset: IterableDataset[Any], batched: bool, collate_fn: Callable[[Any], Any], drop_last: bool
    ) -> None:
        self._samples = iter(dataset)
        self._batched = batched
        self._collate = collate_fn
        self._drop_last = drop_last

    def __call__(self, index: Any) -> Any:
        """`index` is a list whose length is the batch's size, or anything without batching."""
        wanted = len(index) if self._batched else 1
        samples = list(itertools.islice(self._samples, wanted))
        if not samples or (self._drop_last and len(samples) < wanted):
            raise Exhausted
        return self._collate(samples if self._batched else samples[0])
