"""How many bytes does a rank hold at most when gradients and parameters are divided, too?"""

from __future__ import annotations

import math
import sys
from itertools import product
from typing import Any

from benchmarks import harness
from benchmarks.cases.zero_memory import LAYERS, ROWS, SHARDS, STATES, STEPS, WAYS, WIDTH
from benchmarks.harness import Options, Report, Row

RANKS = (2, 4)
METHOD = """{layers} blocks of a LayerNorm and four Linear layers of width {width} and {inner}, {parameters:,} float32
parameters, AdamW, {steps} steps on {rows} rows, so that activations take next to nothing. Shown is the most that a
process's allocator ever had in use, on the rank that had most, beyond what there was before the model was made: with
the whole model before it is divided, what operations hold for a moment, and sizes rounded up. Expected of stage 3 is
(parameters + gradients + state) / N and two units; of stage 2 the parameters, (gradients + state) / N and buckets.
With {shards} shards there are partial sums of gradients, as many at most as log2 says, and a unit that comes in."""


def benchmark(options: Options) -> Report:
    """Every way with two and four processes."""
    found: dict[tuple[int, str], dict[str, Any]] = {}
    for ranks, way in product(RANKS, WAYS):
        with harness.progress(f"{ranks} ranks, {way}"):
            found[ranks, way] = harness.run_ranks("resilin", options, "zero_memory", ["--way", way], ranks=ranks)
    parameters = int(found[RANKS[0], "stage 3"]["parameter_bytes"]) // 4
    return Report(
        name="zero_memory",
        question="The most memory that a rank ever takes with gradients and parameters divided (ZeRO-2 and 3).",
        method=METHOD.format(
            layers=LAYERS, width=WIDTH, inner=3 * WIDTH, parameters=parameters, rows=ROWS, steps=STEPS, shards=SHARDS
        ),
        rows=[_row(ranks, way, of) for (ranks, way), of in found.items()],
        notes=[_beside_formula(ranks, found[ranks, "stage 3"]) for ranks in RANKS]
        + [_beside_formula(ranks, found[ranks, f"stage 3, {SHARDS} shards"], SHARDS) for ranks in RANKS],
        data={"results": {f"{ranks}/{way}": of for (ranks, way), of in found.items()}},
    )


def _row(ranks: int, way: str, of: dict[str, Any]) -> Row:
    return Row(what=f"{ranks} processes: {way}", unit="MiB", ours=of["peak_bytes"] / 2**20)


def _beside_formula(ranks: int, of: dict[str, Any], shards: int = 1) -> str:
    sums, units = math.ceil(math.log2(shards)) if shards > 1 else 1, 2 + (shards > 1)
    expected = (STATES - 1 + sums) * of["parameter_bytes"] / ranks + units * max(of["unit_bytes"])
    text = f"(parameters + gradients + state) / {ranks} and the two largest units"
    if shards > 1:
        text = f"in {shards} shards, (parameters + {sums} x gradients + state) / {ranks} and three units"
    return (
        f"Stage 3 with {ranks} processes: {text} are {expected / 2**20:.1f} MiB; measured "
        f"{of['peak_bytes'] / expected:.1%} of that."
    )


if __name__ == "__main__":
    sys.exit(harness.main(benchmark))
