"""What does it cost to lend a tensor to a worker of the same host, beside copying it?"""

from __future__ import annotations

import sys
import time
from collections import deque
from collections.abc import Callable
from typing import Any

import numpy as np

import resilin
from benchmarks import harness
from benchmarks.harness import Options, Report
from resilin.core.kernels.common import address_of
from resilin.core.machine import memory
from resilin.rpc.channels.base import Block, Packed
from resilin.rpc.channels.lent import LentChannel

SIZES_KIB = (16, 64, 256, 1 << 10, 16 << 10, 100 << 10)
METHOD = """Two channels of one process, joined by queues; a sample is one message, its ends of loans delivered.
"lent": the same tensor, which nobody touches meanwhile. "echo": sent back, too. "new": a tensor made for the message
(making it is not counted) that the receiver reads whole. "snapshot": a copy, of memory that is no arena's, which the
receiver reads whole. "copied": that by one memcpy into memory that was used before, read whole; "memcpy": the copy
alone. Median of {samples} samples, in turns."""


class Pair:
    """Two workers."""

    def __init__(self) -> None:
        memory.install()
        self._posts: list[deque[bytes]] = [deque(), deque()]
        self.channels = [
            LentChannel(lambda to, note: self._posts[to].append(note), "x" * 22),
            LentChannel(lambda to, note: self._posts[to].append(note), "x" * 22),
        ]

    def send(self, owner: Any, source: int) -> Any:
        """One message with one tensor; what the other worker makes of it."""
        packed: Packed = self.channels[source].pack(
            Block(owner, address_of(owner), owner.nbytes, [], "cpu"), 1 - source
        )
        return self.channels[1 - source].unpack(packed.note, packed.parts, source)

    def settle(self) -> None:
        """Deliver the ends of loans."""
        for worker, channel in enumerate(self.channels):
            channel._tell_now()
            while self._posts[worker]:
                channel.handle(1 - worker, self._posts[worker].popleft())
        for worker, channel in enumerate(self.channels):
            while self._posts[worker]:
                channel.handle(1 - worker, self._posts[worker].popleft())


def _timed(run: Callable[[], Any]) -> float:
    begin = time.perf_counter()
    run()
    return time.perf_counter() - begin


def _measure(pair: Pair, size: int, samples: int) -> dict[str, list[float]]:
    kept = np.ones(size, np.uint8)
    foreign = np.frombuffer(bytearray(size), np.uint8)
    target = np.ones(size, np.uint8)
    words = size // 8

    def read(array: Any) -> None:
        array.view(np.float64)[:words].sum()

    def lent() -> None:
        pair.send(kept, 0)
        pair.settle()

    def echo() -> None:
        pair.send(pair.send(kept, 0), 1)
        pair.settle()

    def snapshot() -> None:
        read(pair.send(foreign, 0))
        pair.settle()

    def copied() -> None:
        np.copyto(target, foreign)
        read(target)

    found: dict[str, list[float]] = {name: [] for name in ("lent", "echo", "new", "snapshot", "copied", "memcpy")}
    for number in range(samples + 1):
        for name, run in (("lent", lent), ("echo", echo), ("snapshot", snapshot), ("copied", copied)):
            run()
            found[name].append(_timed(run))
        found["memcpy"].append(_timed(lambda: np.copyto(target, foreign)))
        made = [np.full(size, number % 100, np.uint8)]

        def new(made: list[Any] = made) -> None:
            received = pair.send(made.pop(), 0)
            read(received)
            del received
            pair.settle()

        found["new"].append(_timed(new))
    return {name: values[1:] for name, values in found.items()}


def benchmark(options: Options) -> Report:
    """All sizes, in one process."""
    samples = 20 if options.quick else 100
    pair = Pair()
    rows, data = [], {}
    try:
        for kib in SIZES_KIB:
            with harness.progress(f"{kib} KiB"):
                found = _measure(pair, kib << 10, samples)
            size = f"{kib} KiB" if kib < 1024 else f"{kib >> 10} MiB"
            rows += [harness.timing_row(f"{size}, {name}", {"resilin": of}, unit="us") for name, of in found.items()]
            data[size] = {name: harness.percentile(of, 50) * 1e6 for name, of in found.items()}
    finally:
        for channel in pair.channels:
            channel.close()
    return Report(
        name="rpc_lending",
        question="A tensor from one worker to another of the same host: the channel's part, without the message.",
        method=METHOD.format(samples=samples),
        rows=rows,
        data={"median_us": data, "version": resilin.__version__},
    )


if __name__ == "__main__":
    sys.exit(harness.main(benchmark))
