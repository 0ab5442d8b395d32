"""One pass over a loader's batches: fetched in process, or asked of workers and handed out in order."""

from __future__ import annotations

import os
import warnings
import weakref
from collections import deque
from collections.abc import Callable, Iterator
from multiprocessing.util import Finalize
from typing import Any, Protocol

from resilin._base import trace
from resilin.data import pinning
from resilin.data.fetch import Exhausted, make_fetcher
from resilin.data.pool import Pool
from resilin.data.worker import FetchResult
from resilin.errors import ResilinError

AT_EXIT = 10  # priority among multiprocessing's own finalizers: before it ends and joins its children


class Loader(Protocol):
    """What a pass uses of a DataLoader: the arguments, and where it leaves workers for the next pass."""

    dataset: Any
    num_workers: int
    collate_fn: Callable[[Any], Any]
    pin_memory: bool
    pin_memory_device: str
    drop_last: bool
    timeout: float
    prefetch_factor: int | None
    persistent_workers: bool
    in_order: bool
    _batched: bool
    _promised_length: int | None

    @property
    def _index_sampler(self) -> Any: ...

    def _keep(self, pool: Pool) -> None: ...


class LoaderIterator(Iterator[Any]):
    """What all passes share. An error of the data set leaves the pass usable: `next()` goes on after that batch."""

    _traced: str
    """What traces call it: PyTorch's name of its class."""

    def __init__(self, loader: Loader) -> None:
        self._loader = loader
        self._indices = iter(loader._index_sampler)
        self._pins = pinning.check_pins(loader.pin_memory, loader.pin_memory_device, stacklevel=4)
        self._promised = loader._promised_length
        self._given = 0

    def __len__(self) -> int:
        return len(self._loader._index_sampler)

    def __next__(self) -> Any:
        if trace.recorder is None:
            result = self._next_result()
        else:
            with trace.span(f"enumerate(DataLoader)#{self._traced}.__next__", trace.SpanKind.DATA):
                result = self._next_result()
        if result.error is not None:
            try:
                raise result.error
            finally:  # the error's traceback holds this frame: it must not keep the pass, nor the error itself
                del self, result
        self._given += 1
        if self._promised is not None and self._given > self._promised:
            self._warn_of_length()
        return pinning.pin(result.batch) if self._pins else result.batch

    def _next_result(self) -> FetchResult:
        """The next batch or error. StopIteration: there is no other."""
        raise NotImplementedError

    def _warn_of_length(self) -> None:
        text = (
            f"DataLoader: the length of {type(self._loader.dataset).__name__} was said to be {self._promised} (when "
            f"len() of the loader was asked for), but {self._given} samples have been fetched"
        )
        self._promised = None  # said once
        if self._loader.num_workers:
            text += "; with several workers each runs the whole stream unless it is split by get_worker_info()"
        warnings.warn(text, UserWarning, stacklevel=3)


class InProcessIterator(LoaderIterator):
    """Fetches each batch when it is asked for."""

    _traced = "_SingleProcessDataLoaderIter"

    def __init__(self, loader: Loader) -> None:
        super().__init__(loader)
        self._fetch = make_fetcher(loader.dataset, loader._batched, loader.collate_fn, loader.drop_last)
        self._ended = False

    def _next_result(self) -> FetchResult:
        if self._ended:
            raise StopIteration
        index = next(self._indices)
        try:
            return FetchResult(0, batch=self._fetch(index))
        except Exhausted:
            self._ended = True
        raise StopIteration


class WorkerIterator(LoaderIterator):
    """Stays ahead with workers. Batch i is asked of the next worker in turn, and handed out in that order.

    With `in_order=False` whichever batch is ready comes first, and the worker with the least to do is asked next.
    """

    _traced = "_MultiProcessingDataLoaderIter"

    def __init__(self, loader: Loader, pool: Pool, base_seed: int) -> None:
        self._pool = pool
        # runs when the loop is left by break or an exception, and before multiprocessing ends its children at exit
        self._finalizer = Finalize(self, _let_go, args=(weakref.ref(loader), pool), exitpriority=AT_EXIT)
        self._timeout_s = loader.timeout or None
        self._ahead = (loader.prefetch_factor or 1) * len(pool)
        self._asked: deque[int] = deque()  # workers, in the order of the batches asked for
        self._active = deque(range(len(pool)))  # workers whose stream has not ended, next one first
        self._failure: str | None = None  # why the pass cannot go on
        try:
            super().__init__(loader)
            pool.begin(base_seed)
            self._ask()
        except BaseException:
            pool.close()
            raise

    def _ask(self) -> None:
        """Ask for batches until there are enough under way, or no more indices."""
        while self._active and len(self._asked) < self._ahead:
            try:
                index = next(self._indices)
            except StopIteration:
                self._active.clear()
                return
            number = self._active[0] if self._loader.in_order else min(self._active, key=self._asked.count)
            self._pool.request(number, index)
            self._asked.append(number)
            self._active.rotate(-1)

    def _next_result(self) -> FetchResult:
        if self._pool.owner_pid != os.getpid():
            raise ResilinError(
                f"DataLoader: this pass belongs to process {self._pool.owner_pid}, which forked this one "
                f"({os.getpid()}) amid it: its workers answer that process only; start a pass of your own with iter()"
            )
        while self._asked:
            result = self._answer()
            if not result.exhausted:
                return result
        if self._failure is not None:
            raise ResilinError(self._failure)
        self._finalizer()
        raise StopIteration

    def _answer(self) -> FetchResult:
        """The next answer of a worker; another batch is asked for in its place."""
        try:
            result = self._receive()
            self._ask()
        except BaseException as error:
            self._fail(error)
            raise
        return result

    def _receive(self) -> FetchResult:
        wanted = [self._asked[0]] if self._loader.in_order else sorted(set(self._asked))
        try:
            number, result = self._pool.result(wanted, self._timeout_s)
        except ResilinError as error:
            if not self._pool.usable:
                raise
            return FetchResult(0, error=error.with_traceback(None))  # it is only late, and may be waited for again
        self._asked.remove(number)
        if result.exhausted and number in self._active:
            self._active.remove(number)
        return result

    def _fail(self, error: BaseException) -> None:
        self._failure = f"this pass of the DataLoader ended with {type(error).__name__}: {error}; start a new one"
        self._asked.clear()
        self._finalizer.cancel()
        self._pool.close(hurry=True)


def _let_go(loader_ref: weakref.ref[Loader], pool: Pool) -> None:
    """A pass is over, or was abandoned: its workers end unless they are to be kept."""
    loader = loader_ref()
    if loader is not None and loader.persistent_workers and pool.usable:
        loader._keep(pool)
    else:
        pool.close()
