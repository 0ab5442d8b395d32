"""What does it cost a call to the embedded store that its connections are accepted, judged and passed on by a front?"""

from __future__ import annotations

import contextlib
import json
import statistics
import sys
from collections.abc import Iterator, Sequence
from typing import Any

from benchmarks import harness
from benchmarks.harness import Options, Report, Row
from benchmarks.parts import programs
from benchmarks.parts.programs import Program
from resilin.store import server as store_server
from resilin.store.grpc_quiet import grpc
from resilin.store.memory import MemoryStore
from resilin.store.pool import DaemonPool

BLOCK = 50  # calls of one kind before the other has its turn
SIZES = (100, 100_000)
METHOD = """put of a value by one client in a process of its own, back to back, on loopback. One process serves the same
data through the front, and on a TCP port of gRPC's own ("bare", which accepts whoever comes). {blocks} blocks of
{block} calls alternate between both; a sample is one call, and "adds" are the differences of neighbouring blocks'
medians. Connecting is a new client's first answer."""

# the client: alternates between two servers
CLIENT = """
import json, sys, time
from resilin.store.client import ClientStore
ports, blocks, block, size, connects = sys.argv[1].split(","), *map(int, sys.argv[2:])
clients = [ClientStore([f"127.0.0.1:{port}"]) for port in ports]
value, found, connected = bytes(size), [[], []], [[], []]
for client in clients:
    for _ in range(200):
        client.put("warm", value)
for _ in range(blocks):
    for client, samples in zip(clients, found):
        for _ in range(block):
            begin = time.perf_counter()
            client.put("key", value)
            samples.append(time.perf_counter() - begin)
for _ in range(connects):
    for port, samples in zip(ports, connected):
        begin = time.perf_counter()
        with ClientStore([f"127.0.0.1:{port}"]) as client:
            client.ping()
            samples.append(time.perf_counter() - begin)
print(json.dumps([found, connected]))
"""


class _Everybody:
    """In a front's place: whoever calls has been let in."""

    admitted = True

    def connection(self, peer: str) -> _Everybody:
        """Whose call it is."""
        return self


@contextlib.contextmanager
def _bare(state: MemoryStore) -> Iterator[int]:
    """The port of gRPC's own server over `state`."""
    router = store_server._Router(state, None)
    router.front = _Everybody()  # type: ignore[assignment]
    server: Any = grpc.server(DaemonPool("bare"), options=store_server._OPTIONS)
    server.add_generic_rpc_handlers((router,))
    port = int(server.add_insecure_port("127.0.0.1:0"))
    server.start()
    try:
        yield port
    finally:
        server.stop(0).wait()


def benchmark(options: Options) -> Report:
    """Small and large values; blocks of both kinds alternate. Takes about 15 s."""
    blocks, connects = (3, 3) if options.quick else (40, 60)
    rows, data = [], {}
    for size in SIZES:
        with (
            harness.progress(f"{size} bytes"),
            MemoryStore() as state,
            store_server.StoreServer(state) as server,
            _bare(state) as port,
        ):
            words = [f"{server.port},{port}", blocks, BLOCK, size, connects]
            command = [sys.executable, "-c", CLIENT, *map(str, words)]
            output = programs.run_together([Program(command, harness.environment())], cwd=harness.ROOT, timeout_s=120)
        (fronted, bare), connected = json.loads(output.splitlines()[-1])
        adds = [a - b for a, b in zip(_medians(fronted), _medians(bare), strict=True)]
        rows += [_row(f"put of {size} bytes: bare", bare), _row(f"put of {size} bytes: the front adds", adds)]
        rows.append(_row(f"put of {size} bytes: as it is", fronted))
        data[str(size)] = {"front_s": fronted, "bare_s": bare}
    rows += [_row("connect: bare", connected[1]), _row("connect: as it is", connected[0])]
    return Report(
        name="store_front",
        question="What the front that accepts, judges and passes on a store's connections adds to one call.",
        method=METHOD.format(blocks=blocks, block=BLOCK),
        rows=rows,
        data=data,
    )


def _medians(samples: Sequence[float]) -> list[float]:
    return [statistics.median(samples[begin : begin + BLOCK]) for begin in range(0, len(samples), BLOCK)]


def _row(what: str, samples: Sequence[float]) -> Row:
    return Row(what=what, unit="us", ours=statistics.median(samples) * 1e6, spread=harness.spread(samples, 1e6))


if __name__ == "__main__":
    sys.exit(harness.main(benchmark))
