"""How long does a message between two processes of one host take, and how many get through, without RPC on top?"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

from benchmarks import harness
from benchmarks.harness import Options, Report, Row
from resilin._base.clock import Deadline
from resilin.rpc.transports.base import REQUESTS, ReceiveQueue, WorkerIdentity
from resilin.rpc.transports.host import HostTransport
from resilin.rpc.transports.native_queues import NativeQueues

KIB, MIB = 1 << 10, 1 << 20
SECRET = "benchmark" * 4
EVER = Deadline(None)
COUNT, ECHO, END = b"count", b"echo", b"end"
IDLE_S = 2.0

METHOD = """Two processes, each with one thread that sends and takes, {cores}. Echo: a message of two parts (which says
what to do, and the payload) and the payload back, {echoes} times after a tenth of it; the time is that of `send` and
`take` in Python. One way: {count} messages from one thread, until the other end, which takes up to 64 at once, has told
that it has all of them; {rounds} times. Idle: both ends connected, four threads of each in `take`; the process time of
the measuring process over {idle} s. Busy: as the echo, while two other processes compute without end."""


class End:
    """One of the two processes."""

    def __init__(self, number: int, core: int | None) -> None:
        if core is not None:
            os.sched_setaffinity(0, {core})
        self.queues = NativeQueues()
        self.requests, self.replies = self.queues.open(), self.queues.open()
        self.transport = HostTransport(
            WorkerIdentity(number, f"end{number}", "bench", SECRET), self.queues, lambda *_: None
        )

    def send(self, *parts: bytes, queue: int = REQUESTS) -> None:
        """Send to the other end; `queue` 1 is where it waits for answers."""
        self.transport.send(1 - self.transport._identity.id, parts, queue, EVER)

    def close(self) -> None:
        """End it."""
        self.transport.close()
        self.queues.close()


def serve(core: int | None) -> None:
    """Be the other end, until told to end."""
    end, count = End(1, core), 0
    print(end.transport.address, flush=True)
    while True:
        for message in end.requests.take():
            what = message.parts[0]
            if what == ECHO:
                end.send(*message.parts[1:], queue=1)
            elif what == COUNT:
                end.send(b"%d" % count, queue=1)
                count = 0
            elif what == END:
                end.close()
                return
            else:
                count += 1


@contextmanager
def ends(apart: bool) -> Iterator[End]:
    """This process's end, with another process at the other one; `apart`: each with a core of its own."""
    before = os.sched_getaffinity(0)
    cores = sorted(before)[:2] if apart and len(before) > 1 else [None, None]
    command = [
        sys.executable,
        "-m",
        "benchmarks.rpc_transport",
        "--serve",
        *([] if cores[1] is None else [str(cores[1])]),
    ]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=harness.ROOT) as other:
        assert other.stdout is not None
        end = End(0, cores[0])
        end.transport.connect(1, other.stdout.readline().strip(), Deadline(60.0))
        try:
            yield end
        finally:
            end.send(END)
            other.wait(60.0)
            end.close()
            os.sched_setaffinity(0, before)


def echo(end: End, size: int, count: int) -> list[float]:
    """Seconds of so many echoes."""
    samples, payload, replies = [], bytes(size), end.replies
    for _ in range(count + count // 10):
        began = time.perf_counter()
        end.send(ECHO, payload)
        replies.take(None, 1)
        samples.append(time.perf_counter() - began)
    return samples[count // 10 :]


def one_way(end: End, size: int, count: int) -> float:
    """Messages per second."""
    payload, send = (bytes(size),), end.transport.send
    began = time.perf_counter()
    for _ in range(count):
        send(1, payload, REQUESTS, EVER)
    end.send(COUNT)
    (message,) = end.replies.take()
    took = time.perf_counter() - began
    assert int(bytes(message.parts[0])) == count
    return count / took


def idle(end: End) -> float:
    """Per cent of a core that this process uses while it waits."""

    def wait(queue: ReceiveQueue) -> None:
        queue.take(IDLE_S + 1.0)

    threads = [threading.Thread(target=wait, args=(end.requests,)) for _ in range(4)]
    for thread in threads:
        thread.start()
    time.sleep(0.2)
    began = time.process_time()
    time.sleep(IDLE_S)
    used = time.process_time() - began
    for thread in threads:
        thread.join()
    return 100 * used / IDLE_S


@contextmanager
def busy() -> Iterator[None]:
    """Two processes that compute without end."""
    others = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(2)]
    try:
        yield
    finally:
        for other in others:
            other.kill()
            other.wait()


def benchmark(options: Options) -> Report:
    """Echoes of 4 B, 4 KiB and 64 KiB, messages of 64 B and 16 MiB one way, idle ends, busy cores."""
    echoes, count, rounds = (500, 5_000, 1) if options.quick else (20_000, 300_000, 5)
    found: dict[str, list[float]] = {}
    with harness.progress("a core each"), ends(apart=True) as end:
        for size, name in ((4, "4 B"), (4 * KIB, "4 KiB"), (64 * KIB, "64 KiB")):
            found[f"echo of {name}"] = echo(end, size, echoes)
        found["one way, 64 B"] = [one_way(end, 64, count) for _ in range(rounds)]
        found["one way, 16 MiB"] = [one_way(end, 16 * MIB, 8) for _ in range(rounds)]
        found["idle"] = [idle(end)]
    with harness.progress("both cores busy"), ends(apart=False) as end, busy():
        found["echo of 4 B, busy"] = echo(end, 4, echoes // 10)
    rows = [_times(name, found[name]) for name in found if name.startswith("echo")]
    rows += [_tail(name, found[name]) for name in found if name.startswith("echo")]
    each = [1e6 / rate for rate in found["one way, 64 B"]]
    rows.append(Row(what="one way, 64 B: each", unit="us", ours=statistics.median(each), spread=harness.spread(each)))
    long = [1e3 / rate for rate in found["one way, 16 MiB"]]
    rows.append(Row(what="one way, 16 MiB: each", unit="ms", ours=statistics.median(long), spread=harness.spread(long)))
    rows.append(Row(what="idle, 4 threads that wait", unit="% of a core", ours=found["idle"][0]))
    cores = "each with a core of its own"
    return Report(
        name="rpc_transport",
        question="What a message between two processes of one host costs, without RPC on top.",
        method=METHOD.format(cores=cores, echoes=echoes, count=f"{count:,}", rounds=rounds, idle=IDLE_S),
        rows=rows,
        notes=[f"Messages of 64 B one way: {statistics.median(found['one way, 64 B']):,.0f} per second."],
        data={"samples": found},
    )


def _times(name: str, samples: list[float]) -> Row:
    return Row(
        what=f"{name}: median", unit="us", ours=statistics.median(samples) * 1e6, spread=harness.spread(samples, 1e6)
    )


def _tail(name: str, samples: list[float]) -> Row:
    return Row(what=f"{name}: 99th percentile", unit="us", ours=harness.percentile(samples, 99) * 1e6)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--serve"]:
        serve(int(sys.argv[2]) if len(sys.argv) > 2 else None)
    else:
        sys.exit(harness.main(benchmark))
