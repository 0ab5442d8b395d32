"""How fast do two processes on one machine sum a tensor?"""

from __future__ import annotations

import sys

from benchmarks import harness
from benchmarks.harness import Options, Report

RANKS = 2
KIB, MIB = 1 << 10, 1 << 20
SIZES = {"64 KiB": 64 * KIB, "1 MiB": MIB, "25 MiB": 25 * MIB, "100 MiB": 100 * MIB}

METHOD = """Median on rank 0 over all calls of {rounds} rounds, each round a new pair of processes per side, the sides
in turn, one thread per process, tensors made by the library itself; PyTorch uses gloo. "Back to back": both ranks
call in a loop. "With a short matrix product": each rank first multiplies two 256 x 256 matrices outside the clock, so
that ranks arrive at different moments, as in training; waiting for the other rank counts. Before and after each size
the whole result is compared with the exact sum."""


def benchmark(options: Options) -> Report:
    """Two ranks, four sizes, calls back to back and calls with arithmetic in between."""
    rounds, seconds = (1, 0.2) if options.quick else (5, 0.7)
    arguments = ["--sizes", ",".join(map(str, SIZES.values())), "--seconds", str(seconds)]
    samples: dict[str, dict[str, dict[str, list[float]]]] = {}
    for number in range(rounds):
        for side in harness.sides(options):
            with harness.progress(f"round {number + 1} of {rounds}: {side}"):
                result = harness.run_ranks(side, options, "all_reduce", arguments, ranks=RANKS)
            for kind in ("busy", "spaced"):
                for size, values in result[kind].items():
                    samples.setdefault(kind, {}).setdefault(size, {}).setdefault(side, []).extend(values)
    rows = []
    for kind, words in (("busy", "back to back"), ("spaced", "with a short matrix product before each call")):
        for label, size in SIZES.items():
            unit = "us" if size <= MIB else "ms"
            rows.append(harness.timing_row(f"{label}, {words}", samples[kind][str(size)], unit=unit))
    return Report(
        name="all_reduce",
        question=f"all_reduce (sum) of float32 between {RANKS} processes on this machine, one call.",
        method=METHOD.format(rounds=rounds),
        rows=rows,
        data={
            "median_us": {
                kind: {
                    label: {
                        side: harness.percentile(values, 50) * 1e6 for side, values in samples[kind][str(size)].items()
                    }
                    for label, size in SIZES.items()
                }
                for kind in samples
            }
        },
    )


if __name__ == "__main__":
    sys.exit(harness.main(benchmark))
