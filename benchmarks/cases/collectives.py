"""Times every collective, and a message there and back, on tensors of the library or on arrays made elsewhere."""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np

from benchmarks.library import Library

FLOAT_BYTES = 4
MOST_CALLS, FEWEST_CALLS = 3000, 4
MATRIX = 256  # a product of two such matrices between calls lets ranks arrive at different moments, as in training
BUCKET_BYTES = 25 << 20
OVERLAPS = 15


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Sizes and length of the run."""
    parser.add_argument("--sizes", required=True, help="bytes of the whole tensor, separated by commas")
    parser.add_argument("--seconds", type=float, default=0.1, help="about how long to measure each operation and size")
    parser.add_argument("--elsewhere", action="store_true", help="also time all_reduce of arrays made elsewhere")
    parser.add_argument("--overlap", action="store_true", help="also time all_reduce under a matrix product")


@dataclass(frozen=True, kw_only=True)
class Place:
    """Where an operation is timed: this rank's part in it, and how its tensors are made."""

    library: Library
    rank: int
    world: int
    count: int
    """Elements of the whole tensor; a multiple of the world's size."""
    elsewhere: bool = False

    def zeros(self, count: int) -> Any:
        """A tensor of `count` zeros; in memory that the library did not make, when `elsewhere`."""
        if self.elsewhere:
            return self.library.torch.from_numpy(np.frombuffer(bytearray(count * FLOAT_BYTES), np.float32))
        return self.library.torch.zeros(count)

    def pattern(self, count: int, factor: int = 1) -> Any:
        """Small whole numbers, whose sums are exact."""
        torch = self.library.torch
        return (torch.arange(count) % 1000).to(torch.float32) * factor

    def same(self, got: Any, expected: Any, what: str) -> None:
        """Compare the whole result, element by element, with what every rank can compute alone."""
        wrong = int((got != expected).sum().item())
        if wrong:
            raise SystemExit(f"rank {self.rank}: {what}: {wrong} of {len(expected)} elements are wrong")


@dataclass(frozen=True)
class Operation:
    """One collective, ready to be timed."""

    call: Callable[[], Any]
    check: Callable[[], None]
    """Fills the tensors, calls once and compares; leaves zeros, whose sums stay zeros however often they are summed."""


def _all_reduce(at: Place) -> Operation:
    tensor, dist = at.zeros(at.count), at.library.dist

    def check() -> None:
        tensor.copy_(at.pattern(at.count, at.rank + 1))
        dist.all_reduce(tensor)
        at.same(tensor, at.pattern(at.count, at.world * (at.world + 1) // 2), "all_reduce")
        tensor.zero_()

    return Operation(lambda: dist.all_reduce(tensor), check)


def _broadcast(at: Place) -> Operation:
    tensor, dist = at.zeros(at.count), at.library.dist

    def check() -> None:
        tensor.copy_(at.pattern(at.count, at.rank + 1))
        dist.broadcast(tensor, 0)
        at.same(tensor, at.pattern(at.count), "broadcast")
        tensor.zero_()

    return Operation(lambda: dist.broadcast(tensor, 0), check)


def _reduce(at: Place) -> Operation:
    tensor, dist = at.zeros(at.count), at.library.dist

    def check() -> None:
        tensor.copy_(at.pattern(at.count, at.rank + 1))
        dist.reduce(tensor, 0)
        if at.rank == 0:
            at.same(tensor, at.pattern(at.count, at.world * (at.world + 1) // 2), "reduce")
        tensor.zero_()

    return Operation(lambda: dist.reduce(tensor, 0), check)


def _all_gather(at: Place) -> Operation:
    mine, whole, dist = at.zeros(at.count // at.world), at.zeros(at.count), at.library.dist

    def check() -> None:
        mine.copy_(at.pattern(len(mine), at.rank + 1))
        dist.all_gather_into_tensor(whole, mine)
        for rank, part in enumerate(whole.chunk(at.world)):
            at.same(part, at.pattern(len(mine), rank + 1), "all_gather")

    return Operation(lambda: dist.all_gather_into_tensor(whole, mine), check)


def _reduce_scatter(at: Place) -> Operation:
    mine, whole, dist = at.zeros(at.count // at.world), at.zeros(at.count), at.library.dist

    def check() -> None:
        whole.copy_(at.pattern(at.count, at.rank + 1))
        dist.reduce_scatter_tensor(mine, whole)
        total = at.pattern(at.count, at.world * (at.world + 1) // 2)
        at.same(mine, total[at.rank * len(mine) : (at.rank + 1) * len(mine)], "reduce_scatter")
        whole.zero_()

    return Operation(lambda: dist.reduce_scatter_tensor(mine, whole), check)


def _gather(at: Place) -> Operation:
    mine, whole, dist = at.zeros(at.count // at.world), at.zeros(at.count), at.library.dist
    parts = list(whole.chunk(at.world)) if at.rank == 0 else None

    def check() -> None:
        mine.copy_(at.pattern(len(mine), at.rank + 1))
        dist.gather(mine, parts, 0)
        for rank, part in enumerate(parts or ()):
            at.same(part, at.pattern(len(mine), rank + 1), "gather")

    return Operation(lambda: dist.gather(mine, parts, 0), check)


def _scatter(at: Place) -> Operation:
    mine, whole, dist = at.zeros(at.count // at.world), at.zeros(at.count), at.library.dist
    parts = list(whole.chunk(at.world)) if at.rank == 0 else None

    def check() -> None:
        for rank, part in enumerate(parts or ()):
            part.copy_(at.pattern(len(mine), rank + 1))
        dist.scatter(mine, parts, 0)
        at.same(mine, at.pattern(len(mine), at.rank + 1), "scatter")

    return Operation(lambda: dist.scatter(mine, parts, 0), check)


def _all_to_all(at: Place) -> Operation:
    inputs, outputs, dist = at.zeros(at.count), at.zeros(at.count), at.library.dist

    def check() -> None:
        inputs.copy_(at.pattern(at.count, at.rank + 1))
        dist.all_to_all_single(outputs, inputs)
        part, sent = at.count // at.world, at.pattern(at.count)
        for rank, got in enumerate(outputs.chunk(at.world)):
            at.same(got, sent[at.rank * part : (at.rank + 1) * part] * (rank + 1), "all_to_all")

    return Operation(lambda: dist.all_to_all_single(outputs, inputs), check)


def _send_recv(at: Place) -> Operation:
    tensor, back, dist = at.zeros(at.count), at.zeros(at.count), at.library.dist
    peer = at.rank ^ 1

    def call() -> None:
        if at.rank % 2 == 0:
            dist.send(tensor, peer)
            dist.recv(back, peer)
        else:
            dist.recv(back, peer)
            dist.send(tensor, peer)

    def check() -> None:
        tensor.copy_(at.pattern(at.count, at.rank + 1))
        call()
        at.same(back, at.pattern(at.count, peer + 1), "send and recv")

    return Operation(call, check)


def _barrier(at: Place) -> Operation:
    return Operation(at.library.dist.barrier, lambda: None)


OPERATIONS: dict[str, Callable[[Place], Operation]] = {
    "all_reduce": _all_reduce,
    "broadcast": _broadcast,
    "reduce": _reduce,
    "all_gather": _all_gather,
    "reduce_scatter": _reduce_scatter,
    "gather": _gather,
    "scatter": _scatter,
    "all_to_all": _all_to_all,
    "send and recv, there and back": _send_recv,
}
SPACED = "all_reduce after a matrix product"
ELSEWHERE = "all_reduce of an array from elsewhere"


def run(library: Library, args: argparse.Namespace) -> dict[str, Any]:
    """Samples in seconds per operation and size; operations that the library lacks, with its words; the overlap."""
    library.torch.set_num_threads(1)
    library.dist.init_process_group(library.backend)
    rank, world = library.dist.get_rank(), library.dist.get_world_size()
    samples: dict[str, dict[str, list[float]]] = {}
    lacking: dict[str, str] = {}
    for size in map(int, args.sizes.split(",")):
        count = size // FLOAT_BYTES // world * world
        place = Place(library=library, rank=rank, world=world, count=count)
        for name, operation, spaced in _operations(place, args.elsewhere):
            try:
                operation.check()
            except (RuntimeError, NotImplementedError, ValueError) as error:  # before anything was sent, on all ranks
                lacking[name] = str(error).splitlines()[0]
                continue
            samples.setdefault(name, {})[str(size)] = _measure(library, operation, args.seconds, spaced)
    samples["barrier"] = {"0": _measure(library, _barrier(place), args.seconds, False)}
    overlap = _overlap(place) if args.overlap else {}
    library.dist.destroy_process_group()
    return {"samples": samples, "lacking": lacking, "overlap": overlap}


def _operations(at: Place, elsewhere: bool) -> Iterable[tuple[str, Operation, bool]]:
    """Name, operation, whether a matrix product comes before each call. Made one by one: memory is freed between."""
    for name, make in OPERATIONS.items():
        yield name, make(at), False
    yield SPACED, _all_reduce(at), True
    if elsewhere:
        yield (
            ELSEWHERE,
            _all_reduce(Place(library=at.library, rank=at.rank, world=at.world, count=at.count, elsewhere=True)),
            False,
        )


def _measure(library: Library, operation: Operation, seconds: float, spaced: bool) -> list[float]:
    """Duration of each call on this rank. All ranks make the same number of calls, agreed beforehand."""
    spacer = library.torch.randn(MATRIX, MATRIX)
    for _ in range(2):
        operation.call()
    begin = time.perf_counter()
    for _ in range(3):
        operation.call()
    once = (time.perf_counter() - begin) / 3
    calls = library.torch.tensor([float(min(MOST_CALLS, max(FEWEST_CALLS, seconds / once)))])
    library.dist.broadcast(calls, 0)
    samples = []
    library.dist.barrier()
    for _ in range(int(calls.item())):
        if spaced:
            spacer @ spacer
        begin = time.perf_counter()
        operation.call()
        samples.append(time.perf_counter() - begin)
    return samples


def _overlap(at: Place) -> dict[str, list[float]]:
    """Seconds of: the reduction alone, the product alone, both at once, and the wait after the product in that."""
    torch, dist = at.library.torch, at.library.dist
    bucket, side = torch.zeros(BUCKET_BYTES // FLOAT_BYTES), 1536
    matrix = torch.randn(side, side)
    times: dict[str, list[float]] = {"alone": [], "product": [], "both": [], "wait": []}
    for _ in range(OVERLAPS):
        dist.barrier()
        begin = time.perf_counter()
        dist.all_reduce(bucket, async_op=True).wait()
        times["alone"].append(time.perf_counter() - begin)
        dist.barrier()
        begin = time.perf_counter()
        matrix @ matrix
        times["product"].append(time.perf_counter() - begin)
        dist.barrier()
        begin = time.perf_counter()
        work = dist.all_reduce(bucket, async_op=True)
        matrix @ matrix
        done = time.perf_counter()
        work.wait()
        end = time.perf_counter()
        times["both"].append(end - begin)
        times["wait"].append(end - done)
    return times
