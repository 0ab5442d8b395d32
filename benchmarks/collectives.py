"""How fast are the collectives between 2, 4 and 8 processes on one machine?"""

from __future__ import annotations

import statistics
import sys
from typing import Any

from benchmarks import harness
from benchmarks.cases import collectives as case
from benchmarks.harness import Options, Report, Row

KIB, MIB = 1 << 10, 1 << 20
SIZES = {
    "1 KiB": KIB,
    "64 KiB": 64 * KIB,
    "1 MiB": MIB,
    "4 MiB": 4 * MIB,
    "25 MiB": 25 * MIB,
    "100 MiB": 100 * MIB,
}
ROUNDS = {2: 3, 4: 2, 8: 1}  # rounds for each number of ranks: gloo's calls get slow when ranks outnumber cores
TIMEOUT_S = 300

METHOD = """Median on rank 0 over all calls of {rounds} rounds with 2, 4 and 8 processes, each round a new set of
processes per side, the sides in turn, one thread per process, float32, tensors made by the library itself; PyTorch uses
gloo. Sizes are those of the whole tensor: of all_gather's and gather's output, of reduce_scatter's and scatter's input.
"After a matrix product": each rank first multiplies two 256 x 256 matrices outside the clock, so that ranks arrive at
different moments, as in training; waiting for the others counts. "From elsewhere": memory that peers cannot map.
Messages go between ranks 0 and 1, 2 and 3, ... at once. Before each operation and size is timed, its whole result is
compared with what it must be.

"Under a matrix product": all_reduce of 25 MiB is started, a product of two 1536 x 1536 matrices computed, then the
reduction waited for. The row is how long that last wait takes, and the words say which share of the reduction's time
alone it is. With a process per core the reduction's own work takes the product's time on the same cores, so the sum
is also given."""


def benchmark(options: Options) -> Report:
    """Every collective and message, six sizes, three numbers of ranks; overlap with two ranks."""
    rounds = dict.fromkeys(ROUNDS, 1) if options.quick else ROUNDS
    samples: dict[tuple[int, str, str], dict[str, list[float]]] = {}
    overlap: dict[str, dict[str, list[float]]] = {}
    lacking: dict[str, str] = {}
    for ranks, count in rounds.items():
        for number in range(count):
            for side in harness.sides(options):
                with harness.progress(f"{ranks} ranks, round {number + 1} of {count}: {side}"):
                    found = harness.run_ranks(
                        side, options, "collectives", _arguments(options, ranks), ranks=ranks, timeout_s=TIMEOUT_S
                    )
                collect(samples, found["samples"], ranks, side)
                for what, seconds in found["overlap"].items():
                    overlap.setdefault(what, {}).setdefault(side, []).extend(seconds)
                lacking.update({f"{side} ({ranks} ranks): {name}": text for name, text in found["lacking"].items()})
    return Report(
        name="collectives",
        question="Collectives and messages of float32 between processes on this machine, one call.",
        method=METHOD.format(rounds=", ".join(map(str, rounds.values()))),
        rows=[*_rows(samples), *_overlap_rows(overlap)],
        notes=[*_overlap_notes(overlap), *(f"Not there: {what}: {text}" for what, text in sorted(lacking.items()))],
        data={
            "median_us": {
                f"{ranks} ranks, {name}, {size}": {
                    side: harness.percentile(values, 50) * 1e6 for side, values in by_side.items()
                }
                for (ranks, name, size), by_side in samples.items()
            },
            "overlap_s": overlap,
        },
    )


def _arguments(options: Options, ranks: int) -> list[str]:
    sizes = [size for size in SIZES.values() if not options.quick or size <= MIB]
    arguments = ["--sizes", ",".join(map(str, sizes)), "--seconds", "0.02" if options.quick else "0.15", "--elsewhere"]
    return [*arguments, "--overlap"] if ranks == min(ROUNDS) else arguments


def collect(
    samples: dict[tuple[int, str, str], dict[str, list[float]]], found: dict[str, Any], ranks: int, side: str
) -> None:
    """Add one run's samples to those of all, by ranks, operation, size and side."""
    for name, by_size in found.items():
        for size, seconds in by_size.items():
            samples.setdefault((ranks, name, size), {}).setdefault(side, []).extend(seconds)


def _rows(samples: dict[tuple[int, str, str], dict[str, list[float]]]) -> list[Row]:
    """Ordered by ranks, then operation, then size."""
    labels = {str(size): label for label, size in SIZES.items()} | {"0": ""}
    order = [*case.OPERATIONS, case.SPACED, case.ELSEWHERE, "barrier"]
    keys = sorted(samples, key=lambda key: (key[0], order.index(key[1]), int(key[2])))
    rows = []
    for key in keys:
        ranks, name, size = key
        unit = "us" if int(size) <= MIB else "ms"
        rows.append(harness.timing_row(f"{ranks} ranks, {name} {labels[size]}".rstrip(), samples[key], unit=unit))
    return rows


def _overlap_rows(overlap: dict[str, dict[str, list[float]]]) -> list[Row]:
    return [harness.timing_row("2 ranks, wait for all_reduce 25 MiB under a matrix product", overlap["wait"])]


def _overlap_notes(overlap: dict[str, dict[str, list[float]]]) -> list[str]:
    notes = []
    for side in overlap["wait"]:
        alone, product, both, wait = (
            statistics.median(overlap[what][side]) * 1e3 for what in ("alone", "product", "both", "wait")
        )
        notes.append(
            f"Overlap, {side}: all_reduce of 25 MiB alone {harness.figure(alone)} ms, the product alone "
            f"{harness.figure(product)} ms, both at once {harness.figure(both)} ms, of which the wait after the "
            f"product {harness.figure(wait)} ms: {100 * (1 - wait / alone):.0f} % of the reduction is hidden."
        )
    return notes


if __name__ == "__main__":
    sys.exit(harness.main(benchmark))
