"""What a loader's worker does between requests, be it a process or a thread, and how it knows who it is."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy.random as numpy_random  # numpy loads it late: here, so that not every forked worker does

from resilin.core import rng
from resilin.data.fetch import Exhausted, Fetcher, make_fetcher, stopped
from resilin.errors import ResilinError


@dataclass(frozen=True, kw_only=True)
class WorkerRNG:
    """Generators of one worker thread, seeded for the pass. A thread's draws from the global ones of `random` and numpy
    would depend on what other threads draw."""

    random_generator: random.Random
    """Of Python's `random`."""
    torch_generator: rng.Generator
    """The thread's default one."""
    numpy_generator: numpy_random.Generator
    """Of numpy."""


@dataclass(frozen=True, kw_only=True)
class WorkerInfo:
    """Who a worker is; what `get_worker_info()` returns inside it."""

    id: int
    """Number of the worker, 0 to `num_workers` - 1."""
    num_workers: int
    """Workers of the loader."""
    seed: int
    """Seed of this worker's generators in this epoch."""
    dataset: Any
    """This worker's data set: a copy in a process, the loader's own in a thread."""
    rng: WorkerRNG | None = None
    """A thread's generators; None in a process, whose global ones are seeded."""
    worker_method: str = "multiprocessing"
    """What the worker is: "multiprocessing" or "thread"."""


@dataclass(frozen=True, kw_only=True)
class WorkerConfig:
    """What a worker is told when it starts."""

    number: int
    num_workers: int
    dataset: Any
    batched: bool
    collate_fn: Callable[[Any], Any]
    drop_last: bool
    worker_init_fn: Callable[[int], Any] | None


@dataclass(frozen=True)
class Begin:
    """To a worker: a new pass starts; results of older passes are no longer wanted."""

    epoch: int
    base_seed: int


@dataclass(frozen=True)
class Fetch:
    """To a worker: give the batch of `index`."""

    epoch: int
    index: Any


@dataclass(frozen=True)
class FetchResult:
    """From a worker: the batch, or the error, or the news that the stream has ended."""

    epoch: int
    batch: Any = None
    error: Any = None
    """An exception; on its way out of a process a `failures.WorkerError`."""
    exhausted: bool = False


class _Own(threading.local):
    info: WorkerInfo | None = None  # of a worker thread


_own = _Own()
_process_info: WorkerInfo | None = None


def get_worker_info() -> WorkerInfo | None:
    """Inside a loader's worker: who it is, in any thread of a worker process. None everywhere else."""
    return _own.info or _process_info


def forget_forker() -> None:
    """In a forked worker process: it is not the worker that may have forked it."""
    global _process_info
    _process_info = _own.info = None


class Serving:
    """The state of a worker between requests.

    seed_all:  seeds what the worker draws from.
    catches:   the errors of the user's code that become results; others end the worker.
    """

    def __init__(
        self,
        config: WorkerConfig,
        seed_all: Callable[[WorkerConfig, int], None],
        catches: type[BaseException] = Exception,
    ) -> None:
        self._config = config
        self._seed_all = seed_all
        self._catches = catches
        self._fetcher: Fetcher | None = None
        self._failure: BaseException | None = None  # what setting up failed with, until it is told
        self._why = ""  # the same in words; the answer to later requests
        self._is_set_up = False

    def begin(self, request: Begin) -> None:
        """Seed everything for a new pass, run the user's set-up once, start the stream over."""
        config = self._config
        self._fetcher = self._failure = None
        try:
            self._seed_all(config, request.base_seed)
            if not self._is_set_up and config.worker_init_fn is not None:
                config.worker_init_fn(config.number)
            self._is_set_up = True
            self._fetcher = make_fetcher(config.dataset, config.batched, config.collate_fn, config.drop_last)
        except StopIteration as error:  # raised by a __next__ it would end the loop
            self._failure = stopped(f"setting up worker {config.number}")
            self._failure.__cause__ = error
        except self._catches as error:
            self._failure = error
        if self._failure is not None:
            self._why = f"{type(self._failure).__name__}: {self._failure}"

    def fetch(self, request: Fetch) -> FetchResult:
        """The answer to `request`."""
        if self._fetcher is None:
            # an error that was raised holds the frames it went through, and with them the pass: it is let go
            failure, self._failure = self._failure, None
            again = f"DataLoader: worker {self._config.number} could not be set up: {self._why}"
            return FetchResult(request.epoch, error=failure or ResilinError(again))
        try:
            return FetchResult(request.epoch, batch=self._fetcher(request.index))
        except Exhausted:
            return FetchResult(request.epoch, exhausted=True)
        except self._catches as error:
            return FetchResult(request.epoch, error=error)


def seed_process(config: WorkerConfig, base_seed: int) -> None:
    """Seed the global generators of this worker process, as worker `config.number`; say who it is."""
    global _process_info
    seed = base_seed + config.number
    _process_info = WorkerInfo(id=config.number, num_workers=config.num_workers, seed=seed, dataset=config.dataset)
    rng.manual_seed(seed)
    random.seed(seed)
    numpy_random.seed(_numpy_state(config, base_seed))


def seed_thread(config: WorkerConfig, base_seed: int) -> None:
    """Seed the generators of this worker thread, as worker `config.number`; say who it is."""
    seed = base_seed + config.number
    generators = WorkerRNG(
        random_generator=random.Random(seed),
        torch_generator=_own_generator(seed),
        numpy_generator=numpy_random.default_rng(_numpy_state(config, base_seed)),
    )
    _own.info = WorkerInfo(
        id=config.number,
        num_workers=config.num_workers,
        seed=seed,
        dataset=config.dataset,
        rng=generators,
        worker_method="thread",
    )


def seed_prefetcher(config: WorkerConfig, base_seed: int) -> None:
    """Seed this thread, which fetches ahead in the place of the main one and is no worker."""
    _own_generator(base_seed)


def _own_generator(seed: int) -> rng.Generator:
    """What this thread draws from, whatever the others draw."""
    generator = rng.Generator().manual_seed(seed)
    rng.set_own_generator(generator)
    return generator


def _numpy_state(config: WorkerConfig, base_seed: int) -> Any:
    """32-bit words from all bits of the seed, so that numpy and `random` do not start from one state; as in PyTorch."""
    entropy = [config.number, base_seed & 0xFFFFFFFF, base_seed >> 32, 0]
    return numpy_random.SeedSequence(entropy).generate_state(4)
