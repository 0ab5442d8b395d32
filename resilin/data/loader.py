"""DataLoader: batches of a data set, fetched ahead by processes or by a thread. Signature of torch.utils.data."""

from __future__ import annotations

import queue
import threading
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from multiprocessing.context import BaseContext
from multiprocessing.util import Finalize
from typing import Any, Generic, TypeVar

from resilin._base.threads import OwnedThread
from resilin.core import memory, rng
from resilin.core.rng import Generator
from resilin.data.collate import default_collate, default_convert
from resilin.data.dataset import IterableDataset
from resilin.data.fetch import Exhausted, Fetcher, make_fetcher
from resilin.data.pool import WorkerPool
from resilin.data.sampler import BatchSampler, RandomSampler, Sampler, SequentialSampler
from resilin.data.seeds import draw_seed
from resilin.data.worker import WorkerConfig
from resilin.errors import UsageError

_AT_EXIT = 10  # priority among multiprocessing's own finalizers: before it terminates its children

T_co = TypeVar("T_co", covariant=True)


class DataLoader(Generic[T_co]):
    """Iterates over a data set in batches; each `iter()` is one pass.

    batch_size:         samples per batch; None: no batching, samples come one by one.
    shuffle:            a new random order each pass.
    sampler:            gives the order, instead of shuffle. batch_sampler: gives lists of indices, instead of
                        batch_size, shuffle, sampler and drop_last.
    num_workers:        processes that fetch ahead. The order of batches does not depend on how fast they are. An error
                        in one is raised here, with its traceback as a note; they end with the loader and this process.
    collate_fn:         joins a list of samples into a batch; default `default_collate`.
    pin_memory:         accepted; staging for GPUs is done where tensors move, so it changes nothing.
    drop_last:          leave out the last, smaller batch.
    timeout:            seconds to wait for a worker's batch; 0 waits as long as the worker lives.
    worker_init_fn:     called with the worker's number in each worker, after seeding.
    multiprocessing_context: how workers are started: "fork" (Linux's default), "spawn", "forkserver" or a context.
    generator:          where the order's and the workers' seeds are drawn from; default: the global generator.
    prefetch_factor:    batches fetched ahead per worker (2 when there are workers). With num_workers=0: fetched
                        ahead by a thread of this process.
    persistent_workers: keep the processes for the next pass.

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
        batch_sampler: Iterable[Any] | None = None,
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
    ) -> None:
        self.dataset = dataset
        self.num_workers = num_workers
        self.pin_memory = pin_memory
        self.pin_memory_device = pin_memory_device
        self.timeout = timeout
        self.worker_init_fn = worker_init_fn
        self.multiprocessing_context = multiprocessing_context
        self.generator = generator
        self.prefetch_factor = 2 if prefetch_factor is None and num_workers > 0 else prefetch_factor
        self.persistent_workers = persistent_workers
        self.in_order = in_order  # accepted; batches always come in order
        self._check_workers()
        self._choose_samplers(batch_size, bool(shuffle), sampler, batch_sampler, drop_last)
        self.collate_fn = collate_fn or (default_collate if self._batched else default_convert)
        self._pool: WorkerPool | None = None  # kept between passes with persistent_workers

    def _check_workers(self) -> None:
        if self.num_workers < 0:
            raise UsageError(
                f"DataLoader: num_workers must not be negative, got {self.num_workers}; 0 fetches in process"
            )
        if self.timeout < 0:
            raise UsageError(f"DataLoader: timeout must not be negative, got {self.timeout}")
        if self.prefetch_factor is not None and self.prefetch_factor < 1:
            raise UsageError(f"DataLoader: prefetch_factor must be at least 1, got {self.prefetch_factor}")
        if self.persistent_workers and self.num_workers == 0:
            raise UsageError("DataLoader: persistent_workers needs num_workers > 0")

    def _choose_samplers(
        self,
        batch_size: int | None,
        shuffle: bool,
        sampler: Iterable[Any] | None,
        batch_sampler: Iterable[Any] | None,
        drop_last: bool,
    ) -> None:
        stream = isinstance(self.dataset, IterableDataset)
        if stream and (shuffle or sampler is not None or batch_sampler is not None):
            raise UsageError("DataLoader: an IterableDataset decides its own order; shuffle and samplers do not apply")
        if sampler is not None and shuffle:
            raise UsageError("DataLoader: give a sampler or shuffle=True, not both")
        if batch_sampler is not None and (batch_size != 1 or shuffle or sampler is not None or drop_last):
            raise UsageError("DataLoader: batch_sampler excludes batch_size, shuffle, sampler and drop_last")
        if batch_size is None and drop_last:
            raise UsageError("DataLoader: drop_last needs a batch_size")
        if sampler is None and batch_sampler is None:
            if stream:
                sampler = _Endless()
            else:
                sampler = (
                    RandomSampler(self.dataset, generator=self.generator)
                    if shuffle
                    else SequentialSampler(self.dataset)
                )
        if batch_sampler is None and batch_size is not None:
            assert sampler is not None, "chosen above"
            batch_sampler = BatchSampler(sampler, batch_size, drop_last)
        self.batch_size = (
            None if batch_size is None or not isinstance(batch_sampler, BatchSampler) else batch_sampler.batch_size
        )
        self.drop_last = drop_last
        self.sampler = sampler
        self.batch_sampler = batch_sampler
        self._batched = batch_sampler is not None

    def __len__(self) -> int:
        """Batches per pass (samples when batch_size is None). For a stream: by the length it declares."""
        if isinstance(self.dataset, IterableDataset):
            length = len(self.dataset)  # type: ignore[arg-type]  # TypeError names the class when it declares none
            if self.batch_size is None:
                return length
            return length // self.batch_size if self.drop_last else -(-length // self.batch_size)
        source: Any = self.batch_sampler if self._batched else self.sampler
        return len(source)

    def __iter__(self) -> Iterator[T_co]:
        base_seed = draw_seed(self.generator)
        indices = iter(self.batch_sampler if self.batch_sampler is not None else self.sampler or ())
        if self.num_workers == 0:
            fetch = make_fetcher(self.dataset, self._batched, self.collate_fn, self.drop_last)
            if self.prefetch_factor is None:
                return _in_process(fetch, indices)
            return _ThreadIterator(fetch, indices, self.prefetch_factor, base_seed)
        return _WorkerIterator(self, indices, base_seed)

    def _take_pool(self) -> WorkerPool:
        """The idle pool of an earlier pass, or a new one."""
        pool, self._pool = self._pool, None
        if pool is not None:
            return pool
        configs = [
            WorkerConfig(
                number=number,
                num_workers=self.num_workers,
                dataset=self.dataset,
                batched=self._batched,
                collate_fn=self.collate_fn,
                drop_last=self.drop_last,
                worker_init_fn=self.worker_init_fn,
                started_by_main_thread=threading.current_thread() is threading.main_thread(),
            )
            for number in range(self.num_workers)
        ]
        pool = WorkerPool(configs, self.multiprocessing_context)
        if self.persistent_workers:
            Finalize(self, pool.close, exitpriority=_AT_EXIT)  # the loader owns it
        return pool

    def _give_back(self, pool: WorkerPool) -> None:
        """A pass has ended in good order: keep the pool if that was asked for."""
        if self.persistent_workers:
            self._pool = pool
        else:
            pool.close()


class _Endless(Sampler[None]):
    """The order of a stream: whatever comes next."""

    def __iter__(self) -> Iterator[None]:
        while True:
            yield None


def _in_process(fetch: Fetcher, indices: Iterator[Any]) -> Iterator[Any]:
    for index in indices:
        try:
            batch = fetch(index)
        except Exhausted:
            return
        yield batch


class _WorkerIterator(Iterator[Any]):
    """One pass with worker processes. Batch i is asked of the next worker in turn, and handed out in that order."""

    def __init__(self, loader: DataLoader[Any], indices: Iterator[Any], base_seed: int) -> None:
        self._loader = loader
        self._indices = indices
        self._timeout_s = loader.timeout or None
        self._pool = loader._take_pool()
        # runs when the loop is left by break or an exception, and before multiprocessing ends its children at exit
        self._finalizer = Finalize(self, self._pool.close, exitpriority=_AT_EXIT)
        self._asked: deque[int] = deque()  # workers, in the order of the batches asked for
        self._active = deque(range(len(self._pool)))  # workers whose stream has not ended, next one first
        self._pool.begin(base_seed)
        for _ in range((loader.prefetch_factor or 1) * len(self._pool)):
            self._ask()

    def _ask(self) -> None:
        if not self._active:
            return
        try:
            index = next(self._indices)
        except StopIteration:
            self._active.clear()
            return
        self._pool.request(self._active[0], index)
        self._asked.append(self._active[0])
        self._active.rotate(-1)

    def __next__(self) -> Any:
        while self._asked:
            number = self._asked.popleft()
            try:
                result = self._pool.result(number, self._timeout_s)
            except BaseException:
                self._finalizer()
                self._asked.clear()
                raise
            if result.exhausted:
                if number in self._active:
                    self._active.remove(number)
                continue
            self._ask()
            return result.batch
        self._finish()
        raise StopIteration

    def _finish(self) -> None:
        if self._finalizer.still_active():
            self._finalizer.cancel()
            self._loader._give_back(self._pool)


class _ThreadIterator(Iterator[Any]):
    """One pass with a thread that stays up to `depth` batches ahead."""

    def __init__(self, fetch: Fetcher, indices: Iterator[Any], depth: int, seed: int) -> None:
        self._indices = indices
        self._asked: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._ready: queue.SimpleQueue[tuple[bool, Any]] = queue.SimpleQueue()
        self._outstanding = 0
        self._thread = OwnedThread("data-prefetch", _prefetch_loop(fetch, self._asked, self._ready, seed))
        self._finalizer = weakref.finalize(self, _end_thread, self._asked, self._thread)
        for _ in range(depth):
            self._ask()

    def _ask(self) -> None:
        # the order is drawn here, not in the thread, so that random draws do not depend on timing
        try:
            index = next(self._indices)
        except StopIteration:
            return
        self._asked.put((index,))
        self._outstanding += 1

    def __next__(self) -> Any:
        if self._outstanding == 0:
            self._finalizer()
            raise StopIteration
        ok, value = self._ready.get()
        self._outstanding -= 1
        if ok:
            self._ask()
            return value
        self._outstanding = 0
        self._finalizer()
        if isinstance(value, Exhausted):
            raise StopIteration
        raise value


def _prefetch_loop(
    fetch: Fetcher, asked: queue.SimpleQueue[Any], ready: queue.SimpleQueue[tuple[bool, Any]], seed: int
) -> Callable[[], None]:
    def run() -> None:
        memory.install()
        rng.default_generator().manual_seed(seed)  # this thread's own: draws of the data set repeat from run to run
        while (request := asked.get()) is not None:
            try:
                ready.put((True, fetch(request[0])))
            except BaseException as error:  # noqa: BLE001 - a thread's top: handed to the loop that waits for the batch
                ready.put((False, error))

    return run


def _end_thread(asked: queue.SimpleQueue[Any], thread: OwnedThread) -> None:
    while not asked.empty():  # batches nobody will want
        asked.get_nowait()
    asked.put(None)
    thread.join()
