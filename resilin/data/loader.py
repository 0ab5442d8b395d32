"""DataLoader: batches of a data set, fetched ahead by processes or by threads. Signature of torch.utils.data."""

from __future__ import annotations

import multiprocessing
import os
import warnings
from collections.abc import Callable, Iterable, Iterator
from multiprocessing.context import BaseContext
from multiprocessing.util import Finalize
from numbers import Integral, Real
from typing import Any, Generic, TypeVar

from resilin.core.rng import Generator
from resilin.data.collate import default_collate, default_convert
from resilin.data.dataset import IterableDataset
from resilin.data.elastic_sampler import ElasticSampler
from resilin.data.iteration import AT_EXIT, InProcessIterator, WorkerIterator
from resilin.data.pool import Pool, WorkerPool
from resilin.data.sampler import BatchSampler, RandomSampler, Sampler, SequentialSampler
from resilin.data.seeds import draw_seed
from resilin.data.shard_batches import ShardBatches
from resilin.data.thread_pool import ThreadPool
from resilin.data.worker import WorkerConfig, seed_prefetcher, seed_thread
from resilin.errors import UsageError

_METHODS = ("multiprocessing", "thread")
_FIXED = frozenset({"batch_size", "batch_sampler", "sampler", "drop_last", "dataset", "persistent_workers"})

T_co = TypeVar("T_co", covariant=True)


class DataLoader(Generic[T_co]):
    """Iterates over a data set in batches; each `iter()` is one pass.

    batch_size:         samples per batch; None: no batching, samples come one by one.
    shuffle:            a new random order each pass.
    sampler:            gives the order, instead of shuffle. batch_sampler: gives lists of indices, instead of
                        batch_size, shuffle, sampler and drop_last. Of an ElasticSampler: those of its `ShardBatches`.
    num_workers:        workers that fetch ahead. The order of batches does not depend on how fast they are. An error of
                        the data set is raised here, with the worker's traceback as a note, and `next()` may go on after
                        it. A worker that dies ends the pass. They all end with the pass, the loader and this process.
    collate_fn:         joins a list of samples into a batch; default `default_collate`.
    pin_memory:         batches lie in page-locked memory, for copies to a GPU; a warning and no effect without one.
    drop_last:          leave out the last, smaller batch.
    timeout:            seconds to wait for a worker's batch; 0 waits as long as the worker lives.
    worker_init_fn:     called with the worker's number in each worker, after seeding.
    multiprocessing_context: how workers are started: "fork" (Linux's default), "spawn", "forkserver" or a context.
    generator:          where the order's and the workers' seeds are drawn from; default: the global generator.
    prefetch_factor:    batches fetched ahead per worker (2 when there are workers). With num_workers=0: fetched
                        ahead by a thread of this process.
    persistent_workers: keep the workers for the next pass.
    pin_memory_device:  deprecated and ignored, as in PyTorch.
    in_order:           False: batches come as soon as a worker has them.
    worker_method:      what workers are: "multiprocessing", or "thread" (they share this process and the data set).

    What a forked worker costs: no copy of the data set. It reads the tensors and arrays that were alive when it started
    where they lie; pages that it writes, and Python objects that it touches, become its own. This process's memory for
    those is not used for new ones before the workers end, also when they are freed. Don't write into the data set's
    tensors in place while workers run: unlike PyTorch's, the workers may see it, half-written too. A spawned worker
    gets the data set pickled: a copy each.
    """

    def __init__(
        self,
        dataset: Any,
        batch_size: int | None = 1,
        shuffle: bool | None = None,
        sampler: Iterable[Any] | None = None,
        batch_sampler: Iterable[Any] | ElasticSampler | None = None,
        num_workers: int = 0,
        collate_fn: Callable[[Any], Any] | None = None,
        pin_memory: bool = False,
        drop_last: bool = False,
        timeout: float = 0,
        worker_init_fn: Callable[[int], Any] | None = None,
        multiprocessing_context: BaseContext | str | None = None,
        generator: Generator | None = None,
        *,
        prefetch_factor: int | None = None,
        persistent_workers: bool = False,
        pin_memory_device: str = "",
        in_order: bool = True,
        worker_method: str = "multiprocessing",
    ) -> None:
        _check_workers(num_workers, timeout, prefetch_factor, persistent_workers, worker_method)
        _check_callable("collate_fn", collate_fn)
        _check_callable("worker_init_fn", worker_init_fn)
        self.dataset = dataset
        self.num_workers = num_workers
        self.pin_memory = pin_memory
        self.pin_memory_device = pin_memory_device
        self.timeout = timeout
        self.worker_init_fn = worker_init_fn
        self.worker_method = worker_method
        self.multiprocessing_context = multiprocessing_context
        self.generator = generator
        self.prefetch_factor = 2 if prefetch_factor is None and num_workers > 0 else prefetch_factor
        self.in_order = in_order
        self._choose_samplers(batch_size, shuffle, sampler, batch_sampler, drop_last)
        self.collate_fn = collate_fn or (default_collate if self._batched else default_convert)
        self.persistent_workers = persistent_workers
        self._pool: Pool | None = None  # kept between passes with persistent_workers
        self._promised_length: int | None = None  # of a stream, once len() has told it
        self._is_ready = True
        _warn_of_many(num_workers)

    def __setattr__(self, name: str, value: Any) -> None:
        if name in _FIXED and "_is_ready" in self.__dict__:
            raise UsageError(f"DataLoader: {name} cannot be changed after construction; make a new loader")
        super().__setattr__(name, value)

    @property
    def multiprocessing_context(self) -> BaseContext | None:
        """How worker processes are started; None: as `multiprocessing` does by default. Set it to a method's name, too.

        Raises: UsageError without worker processes or for an unknown name, TypeError for what is no context.
        """
        return self._context

    @multiprocessing_context.setter
    def multiprocessing_context(self, value: BaseContext | str | None) -> None:
        if value is not None and (self.num_workers == 0 or self.worker_method == "thread"):
            raise UsageError(
                f"DataLoader: multiprocessing_context needs worker processes, got num_workers={self.num_workers} and "
                f"worker_method={self.worker_method!r}"
            )
        if isinstance(value, str):
            methods = multiprocessing.get_all_start_methods()
            if value not in methods:
                raise UsageError(f"DataLoader: multiprocessing_context should be one of {methods}, got {value!r}")
            value = multiprocessing.get_context(value)
        if value is not None and not isinstance(value, BaseContext):
            raise TypeError(
                "DataLoader: multiprocessing_context should be a start method's name or a context of multiprocessing, "
                f"got {value!r}"
            )
        self._context = value

    def _choose_samplers(
        self,
        batch_size: int | None,
        shuffle: bool | None,
        sampler: Iterable[Any] | None,
        batch_sampler: Iterable[Any] | ElasticSampler | None,
        drop_last: bool,
    ) -> None:
        stream = isinstance(self.dataset, IterableDataset)
        if stream and (shuffle or sampler is not None or batch_sampler is not None):
            raise UsageError("DataLoader: an IterableDataset decides its own order; shuffle and samplers do not apply")
        if isinstance(sampler, ElasticSampler):
            raise UsageError(
                "DataLoader: an ElasticSampler says which samples form a batch, so it comes as batch_sampler=, without "
                "batch_size and shuffle"
            )
        if sampler is not None and shuffle:
            raise UsageError("DataLoader: give a sampler or shuffle=True, not both")
        if batch_sampler is not None:
            if batch_size != 1 or shuffle or sampler is not None or drop_last:
                raise UsageError("DataLoader: batch_sampler excludes batch_size, shuffle, sampler and drop_last")
            batch_size = None
            if isinstance(batch_sampler, ElasticSampler):
                batch_sampler = ShardBatches(batch_sampler)
        elif batch_size is None and drop_last:
            raise UsageError("DataLoader: drop_last needs a batch_size")
        if sampler is None:
            sampler = self._default_sampler(stream, bool(shuffle))
        if batch_size is not None:
            batch_sampler = BatchSampler(sampler, batch_size, drop_last)
        self.batch_size = batch_size
        self.drop_last = drop_last
        self.sampler = sampler
        self.batch_sampler = batch_sampler
        self._batched = batch_sampler is not None

    def _default_sampler(self, stream: bool, shuffle: bool) -> Sampler[Any]:
        if stream:
            return _Endless()
        if shuffle:
            return RandomSampler(self.dataset, generator=self.generator)
        return SequentialSampler(self.dataset)

    @property
    def _index_sampler(self) -> Any:
        return self.batch_sampler if self._batched else self.sampler

    def __len__(self) -> int:
        """Batches per pass (samples when batch_size is None). For a stream: by the length it declares."""
        if not isinstance(self.dataset, IterableDataset):
            return len(self._index_sampler)
        length = len(self.dataset)  # type: ignore[arg-type]  # TypeError names the class when it declares none
        self._promised_length = length
        if self.batch_size is None:
            return length
        return length // self.batch_size if self.drop_last else -(-length // self.batch_size)

    def __iter__(self) -> Iterator[T_co]:
        base_seed = self._base_seed()
        if self.num_workers == 0 and self.prefetch_factor is None:
            return InProcessIterator(self)
        return WorkerIterator(self, self._take_pool(), base_seed)

    def _base_seed(self) -> int:
        if self.generator is None and isinstance(self.batch_sampler, ShardBatches):
            return self.batch_sampler.base_seed()
        return draw_seed(self.generator)

    def _take_pool(self) -> Pool:
        """The idle pool of an earlier pass in this process, or a new one."""
        pool, self._pool = self._pool, None
        if pool is not None and pool.owner_pid == os.getpid():
            return pool
        pool = self._new_pool()
        if self.persistent_workers:
            Finalize(self, pool.close, exitpriority=AT_EXIT)  # the loader owns it
        return pool

    def _new_pool(self) -> Pool:
        configs = [
            WorkerConfig(
                number=number,
                num_workers=self.num_workers,
                dataset=self.dataset,
                batched=self._batched,
                collate_fn=self.collate_fn,
                drop_last=self.drop_last,
                worker_init_fn=self.worker_init_fn,
            )
            for number in range(max(1, self.num_workers))
        ]
        if self.num_workers == 0:
            return ThreadPool(configs, seed_prefetcher)
        if self.worker_method == "thread":
            return ThreadPool(configs, seed_thread)
        return WorkerPool(configs, self.multiprocessing_context)

    def _keep(self, pool: Pool) -> None:
        """A pass has ended in good order: keep its workers for the next one, unless others are kept already."""
        if self._pool is None:
            self._pool = pool
        else:
            pool.close()


class _Endless(Sampler[None]):
    """The order of a stream: whatever comes next."""

    def __iter__(self) -> Iterator[None]:
        while True:
            yield None


def _check_workers(
    num_workers: int, timeout: float, prefetch_factor: int | None, persistent_workers: bool, worker_method: str
) -> None:
    for name, value in (("num_workers", num_workers), ("prefetch_factor", prefetch_factor)):
        if value is not None and not isinstance(value, Integral):
            raise TypeError(f"DataLoader: {name} should be an integer, got {value!r}")
    if num_workers < 0:
        raise UsageError(f"DataLoader: num_workers must not be negative, got {num_workers}; 0 fetches in process")
    if not isinstance(timeout, Real):
        raise TypeError(f"DataLoader: timeout should be a number of seconds, got {timeout!r}")
    if not timeout >= 0:
        raise UsageError(f"DataLoader: timeout must not be negative, got {timeout}")
    if timeout and num_workers == 0:
        raise UsageError(f"DataLoader: timeout={timeout} needs num_workers > 0: nothing else is waited for")
    if prefetch_factor is not None and prefetch_factor < 1:
        raise UsageError(f"DataLoader: prefetch_factor must be at least 1, got {prefetch_factor}")
    if persistent_workers and num_workers == 0:
        raise UsageError("DataLoader: persistent_workers needs num_workers > 0")
    if worker_method not in _METHODS:
        raise UsageError(f"DataLoader: worker_method should be one of {_METHODS}, got {worker_method!r}")


def _check_callable(name: str, function: Any) -> None:
    if function is not None and not callable(function):
        raise TypeError(f"DataLoader: {name} should be callable, got {function!r}")


def _warn_of_many(num_workers: int) -> None:
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    if num_workers > cores:
        warnings.warn(
            f"DataLoader: num_workers={num_workers} is more than the {cores} cores this process may use, which is slow",
            UserWarning,
            stacklevel=3,
        )
