"""How fast are the collectives between two hosts?"""

from __future__ import annotations

import sys
from collections.abc import Sequence

from benchmarks import harness
from benchmarks.cases import collectives as case
from benchmarks.collectives import MIB, collect
from benchmarks.harness import BenchmarkError, Options, Place, Report
from resilin.testing.hosts import Host, NotPermitted, two_hosts

SIZES = {"1 MiB": MIB, "4 MiB": 4 * MIB, "25 MiB": 25 * MIB, "100 MiB": 100 * MIB}
ROUNDS = {2: 3, 4: 2}  # rounds for each number of ranks, half of them on each host

METHOD = """Median on rank 0 over all calls of {rounds} rounds with 2 and 4 processes, half of them in each of two
network namespaces of this machine that a veth pair joins: what the kernel's TCP costs both ends is shared by the
machine's cores, and the link itself is as fast as they are. Each round a new set of processes per side, the sides in
turn, one thread per process, float32, tensors made by the library itself; PyTorch uses gloo on the same interface.
Sizes are those of the whole tensor: of all_gather's and gather's output, of reduce_scatter's and scatter's input.
Messages go between ranks 0 and 1, 2 and 3. Before and after each size the whole result is compared with what it must
be."""


def benchmark(options: Options) -> Report:
    """Every collective and message between two hosts, with one rank and with two on each. Needs CAP_SYS_ADMIN."""
    rounds = dict.fromkeys(ROUNDS, 1) if options.quick else ROUNDS
    samples: dict[tuple[int, str, str], dict[str, list[float]]] = {}
    try:
        with two_hosts() as hosts:
            for ranks, count in rounds.items():
                for number in range(count):
                    for side in harness.sides(options):
                        with harness.progress(f"{ranks} ranks, round {number + 1} of {count}: {side}"):
                            collect(samples, _run(side, options, hosts, ranks), ranks, side)
    except NotPermitted as error:
        raise BenchmarkError(f"network namespaces are not permitted here: {error}") from None
    labels = {str(size): label for label, size in SIZES.items()}
    rows = [
        harness.timing_row(f"{ranks // 2} per host, {name} {labels[size]}", samples[ranks, name, size])
        for ranks in rounds
        for name in [*case.OPERATIONS, case.SPACED]
        for size in labels
        if (ranks, name, size) in samples
    ]
    return Report(
        name="collectives_hosts",
        question="Collectives and messages of float32 between two hosts joined by a veth pair, one call.",
        method=METHOD.format(rounds=" and ".join(map(str, rounds.values()))),
        rows=rows,
        data={"samples_s": {", ".join(map(str, key)): by_side for key, by_side in samples.items()}},
    )


def _run(side: str, options: Options, hosts: Sequence[Host], ranks: int) -> dict[str, dict[str, list[float]]]:
    def place(rank: int) -> Place:
        host = hosts[rank * 2 // ranks]
        return host.enter, {"GLOO_SOCKET_IFNAME": host.links[0].device, "RESILIN_SECRET": "the secret of a benchmark"}

    sizes = [size for size in SIZES.values() if not options.quick or size <= 4 * MIB]
    arguments = ["--sizes", ",".join(map(str, sizes)), "--seconds", "0.02" if options.quick else "0.3"]
    found = harness.run_ranks(
        side, options, "collectives", arguments, ranks=ranks, master=hosts[0].address, place=place
    )
    samples: dict[str, dict[str, list[float]]] = found["samples"]
    return {name: by_size for name, by_size in samples.items() if name != "barrier"}


if __name__ == "__main__":
    sys.exit(harness.main(benchmark))
