"""RPC's network transports alone: echo of 4 B, and 16 and 100 MiB one way, over TCP on loopback.

    python -m benchmarks.rpc_transport_nets [--turns N]

Two processes; the way back of the one-way rows is an answer of one byte. Keys of CURVE and TLS are made of the secret.
Each figure is of the best half of the turns' median, for others use the machine, too.
"""

from __future__ import annotations

import argparse
import importlib
import os
import statistics
import sys
import time
from typing import Any

import numpy as np

from resilin._base.clock import Deadline
from resilin.rpc.transports.base import WorkerIdentity
from resilin.rpc.transports.thread_queues import ThreadQueues
from resilin.testing.job_secret import SECRET
from resilin.testing.rpc_peer import PeerProcess, Worker, spec

ROWS: dict[str, tuple[str, dict[str, Any]]] = {
    "ZeroMQ, TCP, plain": ("zeromq:ZeroMQTransport", {"near": False}),
    "ZeroMQ, Unix sockets, plain": ("zeromq:ZeroMQTransport", {}),
    "ZeroMQ, TCP, CURVE": ("zeromq:ZeroMQTransport", {"near": False, "encrypt": True}),
    "gRPC, plain": ("grpc:GrpcTransport", {}),
    "gRPC, TLS": ("grpc:GrpcTransport", {"encrypt": True}),
}
ECHOES, WARM = 2000, 300


def measure(place: str, options: dict[str, Any], turns: int) -> list[float]:
    """p50 and p99 of an echo in microseconds, GB/s of 16 and 100 MiB."""
    module, _, name = place.partition(":")
    transport = getattr(importlib.import_module(f"resilin.rpc.transports.{module}"), name)
    forever = Deadline(None)
    with PeerProcess(spec(WorkerIdentity(1, "callee", "bench", SECRET), transport, ThreadQueues, options)) as process:
        worker = Worker(WorkerIdentity(0, "caller", "bench", SECRET), transport, ThreadQueues, options)
        worker.transport.connect(1, process.address, Deadline(30))
        replies = worker.queues.open()
        back = replies.number.to_bytes(2, "little")
        times = []
        for turn in range(ECHOES + WARM):
            begun = time.perf_counter()
            worker.transport.send(1, (back, b"echo"), 0, forever)
            replies.take()
            if turn >= WARM:
                times.append((time.perf_counter() - begun) * 1e6)
        found = [statistics.median(times), statistics.quantiles(times, n=100)[98]]
        for size in (16 << 20, 100 << 20):
            data = np.ones(size, np.uint8).data
            rates = []
            for _ in range(turns + 2):
                begun = time.perf_counter()
                worker.transport.send(1, (b"?", back, data), 0, forever)
                replies.take()
                rates.append(size / (time.perf_counter() - begun) / 1e9)
            found.append(statistics.median(sorted(rates[2:])[turns // 2 :]))
        worker.close()
    return found


def main(argv: list[str]) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--turns", type=int, default=10, help="of each one-way row")
    turns = parser.parse_args(argv).turns
    print(f"load {os.getloadavg()[0]:.1f}, {os.cpu_count()} cores")
    print("| transport | echo 4 B p50 | p99 | 16 MiB one way | 100 MiB one way |\n|---|---|---|---|---|")
    for row, (place, options) in ROWS.items():
        p50, p99, *rates = measure(place, options, turns)
        print(f"| {row} | {p50:.0f} us | {p99:.0f} us |", *(f"{rate:.2f} GB/s |" for rate in rates), flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
