"""RPC's network transports alone: echo of 4 B, alone and beside long messages, and 1, 16 and 100 MiB one way.

    python -m benchmarks.rpc_transport_nets [--hosts] [--limit MBIT] [--turns N] [--only WORDS]

Two processes, on loopback, or (--hosts) each in a network namespace of its own, which a veth pair joins; that needs
CAP_SYS_ADMIN. --limit: the pair gives each connection so many Mbit/s (eight classes by port, so that some share one),
as networks do whose rate is far above that of a connection. Beside: another thread sends messages of 16 MiB to the same
queue, each after the answer to the one before. The way back of the one-way rows is an answer of one byte. Keys of CURVE
and TLS are made of the secret. Each figure is of the best half of the turns' median, for others use the machine, too.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import json
import os
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from typing import Any

import numpy as np

from resilin._base.clock import Deadline
from resilin.rpc.transports.base import WorkerIdentity
from resilin.rpc.transports.thread_queues import ThreadQueues
from resilin.testing.hosts import Host, two_hosts
from resilin.testing.job_secret import SECRET
from resilin.testing.rpc_peer import PeerProcess, Worker, spec

ZEROMQ, GRPC = "zeromq:ZeroMQTransport", "grpc:GrpcTransport"
ROWS: dict[str, tuple[str, dict[str, Any]]] = {
    **{
        f"ZeroMQ, TCP, plain, {lanes} lanes": (ZEROMQ, {"near": False, "encrypt": False, "num_lanes": lanes})
        for lanes in (1, 2, 4, 8)
    },
    "ZeroMQ, Unix sockets, plain": (ZEROMQ, {"encrypt": False}),
    **{
        f"ZeroMQ, TCP, CURVE, {lanes} lanes": (ZEROMQ, {"near": False, "encrypt": True, "num_lanes": lanes})
        for lanes in (1, 2, 4, 8)
    },
    "gRPC, plain": (GRPC, {"encrypt": False}),
    "gRPC, TLS": (GRPC, {"encrypt": True}),
}
ECHOES, WARM = 1000, 100
MIB = 1 << 20
SIZES = (MIB, 16 * MIB, 100 * MIB)
BESIDE = 16 * MIB  # the long messages that a second thread sends while echoes are measured


def measure(place: str, options: dict[str, Any], turns: int, addresses: list[str], enter: list[str]) -> list[float]:
    """p50 and p99 of an echo, alone and beside long messages, in microseconds; GB/s of each size."""
    module, _, name = place.partition(":")
    transport = getattr(importlib.import_module(f"resilin.rpc.transports.{module}"), name)
    callee, caller = (
        WorkerIdentity(number, name, "bench", SECRET, host=at)
        for number, name, at in ((1, "callee", addresses[1]), (0, "caller", addresses[0]))
    )
    with PeerProcess(spec(callee, transport, ThreadQueues, options), enter=enter) as process:
        worker = Worker(caller, transport, ThreadQueues, options)
        worker.transport.connect(1, process.address, Deadline(30))
        found = _echoes(worker, ECHOES)
        with _beside(worker):
            found += _echoes(worker, ECHOES // 4)
        found += [_rate(worker, size, turns) for size in SIZES]
        worker.close()
    return found


def _echoes(worker: Worker, count: int) -> list[float]:
    replies = worker.queues.open()
    back = replies.number.to_bytes(2, "little")
    times = []
    for turn in range(count + WARM):
        begun = time.perf_counter()
        worker.transport.send(1, (back, b"echo"), 0, Deadline(None))
        replies.take()
        if turn >= WARM:
            times.append((time.perf_counter() - begun) * 1e6)
    replies.close()
    return [statistics.median(times), statistics.quantiles(times, n=100)[98]]


@contextlib.contextmanager
def _beside(worker: Worker) -> Iterator[None]:
    """Long messages are on their way all the time."""
    end = threading.Event()

    def send() -> None:
        data = np.ones(BESIDE, np.uint8).data
        replies = worker.queues.open()
        back = replies.number.to_bytes(2, "little")
        while not end.is_set():
            worker.transport.send(1, (b"?", back, data), 0, Deadline(None))
            replies.take()
        replies.close()

    thread = threading.Thread(target=send)
    thread.start()
    try:
        yield
    finally:
        end.set()
        thread.join()


def _rate(worker: Worker, size: int, turns: int) -> float:
    replies = worker.queues.open()
    back = replies.number.to_bytes(2, "little")
    data = np.ones(size, np.uint8).data
    rates = []
    for _ in range(turns + 2):
        begun = time.perf_counter()
        worker.transport.send(1, (b"?", back, data), 0, Deadline(None))
        replies.take()
        rates.append(size / (time.perf_counter() - begun) / 1e9)
    replies.close()
    return statistics.median(sorted(rates[2:])[turns // 2 :])


def _told(row: str, turns: int, hosts: list[Host]) -> list[float]:
    """What `measure` says in a process of its own, on the first host where there are two."""
    addresses = [host.address for host in hosts] or ["127.0.0.1", "127.0.0.1"]
    enters = [host.enter for host in hosts] or [[], []]
    told = json.dumps([*ROWS[row], turns, addresses, enters[1]])
    command = [*enters[0], sys.executable, "-m", "benchmarks.rpc_transport_nets", "--one", told]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    found: list[float] = json.loads(done.stdout)
    return found


def _limit(host: Host, mbit: int) -> None:
    """Have each of eight classes of connections, by the client's port, send no faster than that."""
    device = host.links[0].device
    of_class = ("htb", "rate", f"{mbit}mbit", "burst", "256k", "cburst", "256k", "quantum", "60000")
    _tc(host, "qdisc", "add", "dev", device, "root", "handle", "1:", "htb", "default", "9")
    for number in range(1, 10):
        _tc(host, "class", "add", "dev", device, "parent", "1:", "classid", f"1:{number}", *of_class)
    for number in range(8):  # clients' ports are even or odd, most of them alike: the next three bits tell them apart
        match = ("match", "ip", "sport", str(number << 1), "0x000e")
        at = ("dev", device, "parent", "1:", "protocol", "ip")
        _tc(host, "filter", "add", *at, "u32", *match, "flowid", f"1:{number + 1}")


def _tc(host: Host, *words: str) -> None:
    subprocess.run(["tc", "-n", host.name, *words], check=True)


def main(argv: list[str]) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--turns", type=int, default=10, help="of each one-way row")
    parser.add_argument("--hosts", action="store_true", help="between two network namespaces")
    parser.add_argument("--limit", type=int, default=0, help="Mbit/s of each connection, between namespaces")
    parser.add_argument("--only", default="", help="rows that have this in their names")
    parser.add_argument("--one", help=argparse.SUPPRESS)
    args = parser.parse_args(argv)
    if args.one:
        print(json.dumps(measure(*json.loads(args.one))))
        return
    between = bool(args.hosts or args.limit)
    where = "two namespaces" if between else "loopback"
    limit = f", {args.limit} Mbit/s for each connection" if args.limit else ""
    print(f"load {os.getloadavg()[0]:.1f}, {os.cpu_count()} cores, {where}{limit}")
    print("| transport | echo 4 B p50 | p99 | beside 16 MiB p50 | p99 | 1 MiB one way | 16 MiB | 100 MiB |")
    print("|---|---|---|---|---|---|---|---|")
    with two_hosts() if between else contextlib.nullcontext([]) as hosts:
        for host in hosts if args.limit else []:
            _limit(host, args.limit)
        for row in ROWS:
            if args.only in row:
                *times, one, two, three = _told(row, args.turns, list(hosts))
                cells = [*(f"{each:.0f} us" for each in times), *(f"{each:.2f} GB/s" for each in (one, two, three))]
                print(f"| {row} |", *(f"{cell} |" for cell in cells), flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
