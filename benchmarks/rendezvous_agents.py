"""A thousand nodes come at once: how long until all of them are in the first generation?"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import gc
import queue
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar

from benchmarks import harness
from benchmarks.harness import Options, Report, Row
from resilin._base.threads import OwnedThread
from resilin.elastic import records
from resilin.elastic.membership import decision
from resilin.elastic.membership.view import Config
from resilin.elastic.records import Node, Slot
from resilin.elastic.rendezvous import store_executor
from resilin.elastic.rendezvous.options import RendezvousOptions as Membership
from resilin.elastic.rendezvous.rendezvous import Rendezvous
from resilin.store.client import ClientStore
from resilin.store.memory import MemoryStore
from resilin.store.server import StoreServer
from resilin.testing.etcd import EtcdCluster

_T = TypeVar("_T")
SIZES = (10, 100, 1_000)
ROUNDS = 3
PROCESSES = 2
CONNECTIONS = 10  # clients of each process, each with two connections: one for calls, one for its watches
TIMEOUT_S = 60.0

METHOD = f"""Each node is the code of a real agent that deals with the store (`resilin.elastic.rendezvous`),
and `membership.decide` in the one that leads), with a lease of 5 s; its workers are not started. The nodes live in
{PROCESSES} processes, each with {CONNECTIONS} clients of the store that its nodes share; the store is a third process:
the embedded server of resilin, or one member of a real etcd that does not sync its disk. Time: from the moment at which
all nodes may begin, until the last one has found itself in the generation that all are in. Everything runs on this
machine; the figures are medians of {ROUNDS} rounds, each with a new store. CPU: of all nodes together, without the
store. What each node does with the records of all, on its own machine, is done once in each process, and measured apart
for one of them ("one looks at all"): it parses the generation, and looks at the nodes, which are in the same message.
Garbage collection is off in the processes of the nodes, and their clients are connected when the time begins."""


def benchmark(options: Options) -> Report:
    """Times at each size and store."""
    report = Report(name="rendezvous_agents", question=(__doc__ or "").strip(), method=METHOD, ours="figure")
    for nodes in SIZES[:2] if options.quick else SIZES:
        for name, store in (("embedded store", _embedded), ("etcd", _etcd)):
            rounds = [_measure(store, nodes) for _ in range(1 if options.quick else ROUNDS)]
            took, cpu, look = (sorted(figures) for figures in zip(*rounds, strict=True))
            row = Row(
                what=f"{nodes:,} nodes, {name}",
                unit="s",
                ours=statistics.median(took),
                spread=f"{took[0]:.2f} to {took[-1]:.2f}",
            )
            report.rows.append(row)
            of_all = Row(what=f"{nodes:,} nodes, {name}: CPU of all", unit="s", ours=statistics.median(cpu))
            of_one = Row(
                what=f"{nodes:,} nodes, {name}: one looks at all", unit="ms", ours=1e3 * statistics.median(look)
            )
            report.rows += [of_all, of_one]
            report.data[f"{name}, {nodes}"] = rounds
    return report


# ------------------------------------------------------------------------------------------------- one round


@contextlib.contextmanager
def _embedded() -> Iterator[str]:
    command = [sys.executable, "-m", "benchmarks.rendezvous_agents", "--serve"]
    server = _start(command)
    try:
        yield _line(server, "the store")
    finally:
        server.kill()
        server.wait()


@contextlib.contextmanager
def _etcd() -> Iterator[str]:
    with EtcdCluster() as cluster:
        yield cluster.endpoints[0]


def _measure(store: Callable[[], contextlib.AbstractContextManager[str]], nodes: int) -> tuple[float, float, float]:
    """Seconds, seconds of processor time of all nodes, seconds of one node's look at all records."""
    with store() as endpoint:
        counts = [len(range(place, nodes, PROCESSES)) for place in range(PROCESSES)]
        command = [sys.executable, "-m", "benchmarks.rendezvous_agents", "--nodes", endpoint, str(nodes)]
        processes = [_start([*command, str(place), str(count)]) for place, count in enumerate(counts)]
        try:
            for process in processes:
                _line(process, "the nodes")
            begin = time.monotonic()
            for process in processes:
                _write(process, "go")
            cpu = [float(_line(process, "the nodes")) for process in processes]
            seconds = time.monotonic() - begin
            _write(processes[-1], "look")
            return seconds, sum(cpu), float(_line(processes[-1], "the nodes"))
        finally:
            for process in processes:
                process.kill()
                process.wait()


def _start(command: Sequence[str]) -> subprocess.Popen[str]:
    return subprocess.Popen(
        command,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=harness.environment(),
        cwd=harness.ROOT,
        bufsize=1,
    )


def _write(process: subprocess.Popen[str], line: str) -> None:
    assert process.stdin is not None
    process.stdin.write(f"{line}\n")


def _line(process: subprocess.Popen[str], who: str) -> str:
    assert process.stdout is not None
    line = process.stdout.readline().strip()
    if not line:
        raise harness.BenchmarkError(f"{who} ended with {process.wait()}")
    return line


# ------------------------------------------------------------------------------------------------- the nodes


class _Shared:
    """A caller that several nodes share: a few threads make their calls, each node's one after the other."""

    def __init__(self, threads: int) -> None:
        self._calls: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        for number in range(threads):
            OwnedThread(f"caller-{number}", self._run)  # ends with the process

    async def __call__(self, call: Callable[[], _T]) -> _T:
        loop = asyncio.get_running_loop()
        future: asyncio.Future[_T] = loop.create_future()

        def make() -> None:
            try:
                result = call()
            except Exception as error:  # noqa: BLE001 - goes to whoever awaits the call
                loop.call_soon_threadsafe(future.set_exception, error)
            else:
                loop.call_soon_threadsafe(future.set_result, result)

        self._calls.put(make)
        return await future

    def close(self) -> None:
        """Others go on."""

    def _run(self) -> None:
        while True:
            self._calls.get()()


class _Agent:
    """What an agent does until it has its first generation. `arrived`: called when it has."""

    def __init__(
        self, store: ClientStore, caller: store_executor.Caller, name: str, config: Config, arrived: Callable[[], None]
    ) -> None:
        self._config = config
        self._arrived = arrived
        self._name = name
        options = Membership(job="job", node_id=name, caller=caller)
        self._rendezvous = Rendezvous(store, options, self._look)
        self._done = False

    def look_at_all(self) -> None:
        """What an agent does with the records of all nodes when it has a generation."""
        agreed = self._rendezvous.agreed
        assert agreed is not None
        records.generation.__wrapped__("generation", records.to_bytes(agreed))  # not the one that all here share
        view = self._rendezvous.view
        assert len(view.nodes) == self._config.min_nodes, "the records come with the generation"
        decision.assess(view, self._config, time.monotonic())

    async def join(self) -> None:
        node = Node(id=self._name, host=self._name, address="127.0.0.1", master_port=1, slots=(Slot(index=0),))
        await self._rendezvous.join(node)
        self._look()

    def _look(self) -> None:
        agreed = self._rendezvous.agreed
        if agreed is None and self._rendezvous.leads:
            new, _ = decision.decide(self._rendezvous.view, self._config, time.monotonic())
            if new is not None:
                self._rendezvous.propose(new)
        elif agreed is not None and not self._done:
            self._done = True
            assert any(member.node == self._name for member in agreed.members)
            self._arrived()


async def _nodes(endpoint: str, total: int, place: int, count: int) -> None:
    """`count` of `total` nodes."""
    stores = [ClientStore([endpoint], timeout_s=30.0) for _ in range(CONNECTIONS)]
    for store in stores:
        store.ping()
    callers = [_Shared(1) for _ in stores]
    config = Config(min_nodes=total, max_nodes=total, max_restarts=0)
    gc.disable()  # it would look again and again at what hundreds of agents hold; one has next to nothing
    arrived = 0
    done = asyncio.Event()

    def count_one() -> None:
        nonlocal arrived
        arrived += 1
        if arrived == count:
            done.set()

    agents = [
        _Agent(stores[n % CONNECTIONS], callers[n % CONNECTIONS], f"node{place}x{n}", config, count_one)
        for n in range(count)
    ]
    print("ready", flush=True)
    await asyncio.to_thread(sys.stdin.readline)
    cpu = time.process_time()
    await asyncio.gather(*(agent.join() for agent in agents))
    await asyncio.wait_for(done.wait(), TIMEOUT_S)
    print(time.process_time() - cpu, flush=True)
    if await asyncio.to_thread(sys.stdin.readline):
        begin = time.perf_counter()
        agents[-1].look_at_all()
        print(time.perf_counter() - begin, flush=True)
    await asyncio.to_thread(sys.stdin.readline)  # until it is killed


def _serve() -> None:
    with MemoryStore() as state, StoreServer(state) as server:
        print(f"127.0.0.1:{server.port}", flush=True)
        sys.stdin.read()


def main(argv: Sequence[str]) -> int:
    """As a benchmark, or as one of its processes."""
    parser = argparse.ArgumentParser(add_help=False)
    parser.add_argument("--serve", action="store_true")
    parser.add_argument("--nodes", nargs=4)
    inside, rest = parser.parse_known_args(argv)
    if inside.serve:
        _serve()
    elif inside.nodes:
        endpoint, *numbers = inside.nodes
        asyncio.run(_nodes(endpoint, *map(int, numbers)))
    else:
        return harness.main(benchmark, rest)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
