"""What do the comparison of calls and the flight recorder, both always on, cost a collective?"""

from __future__ import annotations

import statistics
import sys
import tempfile
from collections.abc import Sequence

from benchmarks import harness
from benchmarks.harness import Options, Report, Row

KIB = 1 << 10
WHERE = (("shm", 2), ("shm", 4), ("tcp", 2), ("tcp", 4))

METHOD = """all_reduce (sum) of float32, back to back, on rank 0, one thread per process. {rounds} rounds, each
with new processes for each row; blocks of 100 calls alternate between the modes in the same processes, and a sample is
a block's time divided by 100. "Bare" is what nobody can have: the switches are inside the benchmark. "Adds" is the
median of the differences between neighbouring blocks; less than nothing means less than the noise. "Comparison": each
rank writes its call (80 bytes) where its peers compare it with their own before data moves; over sockets it sends it to
every peer, and data follows at once. "Recorder": group, number, operation, shape, the caller's line and three times are
written into the mapped file."""


def benchmark(options: Options) -> Report:
    """Shared memory and TCP on loopback, 2 and 4 ranks, 1 KiB and 64 KiB."""
    rounds, blocks = (1, 3) if options.quick else (3, 40)
    found: dict[tuple[str, int, str], dict[str, list[float]]] = {}
    for number in range(rounds):
        for transport, ranks in WHERE:
            with (
                harness.progress(f"round {number + 1} of {rounds}: {transport}, {ranks} ranks"),
                tempfile.TemporaryDirectory() as folder,
            ):
                arguments = ["--transport", transport, "--meet", f"{folder}/meet", "--blocks", str(blocks)]
                result = harness.run_ranks("resilin", options, "dist_overhead", arguments, ranks=ranks)
            for size, modes in result["samples"].items():
                of_place = found.setdefault((transport, ranks, size), {})
                for mode, values in modes.items():
                    of_place.setdefault(mode, []).extend(values)
    rows = []
    for (transport, ranks, size), modes in found.items():
        where = f"{transport}, {ranks} ranks, {int(size) // KIB} KiB"
        rows.append(_row(f"{where}: bare", modes["bare"]))
        rows.append(_row(f"{where}: comparison adds", _differences(modes["compared"], modes["bare"])))
        rows.append(_row(f"{where}: recorder adds", _differences(modes["recorded"], modes["bare"])))
        rows.append(_row(f"{where}: as it is, with both", modes["both"]))
    return Report(
        name="dist_overhead",
        question="What comparing calls between ranks and the flight recorder, both always on, add to one all_reduce.",
        method=METHOD.format(rounds=rounds),
        rows=rows,
        data={"samples_s": {" ".join(map(str, place)): modes for place, modes in found.items()}},
    )


def _differences(longer: Sequence[float], shorter: Sequence[float]) -> list[float]:
    return [a - b for a, b in zip(longer, shorter, strict=True)]


def _row(what: str, samples: Sequence[float]) -> Row:
    return Row(what=what, unit="us", ours=statistics.median(samples) * 1e6, spread=harness.spread(samples, 1e6))


if __name__ == "__main__":
    sys.exit(harness.main(benchmark))
