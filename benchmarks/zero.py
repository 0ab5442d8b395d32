"""What does dividing the state of the optimizer among the ranks cost a step, and what does it save?"""

from __future__ import annotations

import statistics
import sys
from itertools import product
from typing import Any

from benchmarks import harness
from benchmarks.cases.models import MODELS
from benchmarks.harness import Options, Report, Row

MODEL, RANKS = "gpt", (2, 4)
WAYS = {  # as the case calls them: what the rows say, and the sides that have it
    "undivided": ("AdamW undivided", ("resilin", "torch")),
    "divided": ("stage 1", ("resilin", "torch")),
    "divided, as view": ("stage 1, parameters_as_bucket_view", ("resilin", "torch")),
    "overlapped": ("stage 1, as view, overlap_with_ddp", ("resilin",)),
}
METHOD = """{text}, {parameters:,} parameters; one thread per
process, DistributedDataParallel with its defaults, a fixed batch on each rank; the same code on both sides, which take
turns. Step: median on rank 0 of {steps} steps in {rounds} runs; the ways of one side take turns in one process,
{block} steps each, each with a model of its own. Update alone: `optimizer.step()` on the last gradients and a barrier.
State: bytes of tensors on the rank that holds most; undivided, two floats per parameter. PyTorch: gloo and its
ZeroRedundancyOptimizer. Four processes share two cores."""

Found = dict[tuple[int, str], dict[str, dict[str, Any]]]  # by (processes, way), then by side


def benchmark(options: Options) -> Report:
    """Every way with two and four processes."""
    rounds, cycles, block = (1, 1, 2) if options.quick else (2, 2, 3)
    found: Found = {}
    for number, ranks in product(range(rounds), RANKS):
        for side in harness.sides(options):
            ways = [way for way, (_, having) in WAYS.items() if side in having]
            arguments = ["--model", MODEL, "--ways", ";".join(ways), "--cycles", str(cycles), "--block", str(block)]
            with harness.progress(f"round {number + 1} of {rounds}: {ranks} processes, {side}"):
                result = harness.run_ranks(side, options, "zero", arguments, ranks=ranks)
            for way, measured in result["ways"].items():
                known = found.setdefault((ranks, way), {}).setdefault(side, measured)
                if known is not measured:
                    for what in ("samples", "updates"):
                        known[what] += measured[what]
    method = METHOD.format(
        text=MODELS[MODEL].text,
        parameters=result["parameters"],
        steps=rounds * cycles * block,
        rounds=rounds,
        block=block,
    )
    return Report(
        name="zero",
        question="A training step with the optimizer's state divided among the ranks (ZeRO), and that state's bytes.",
        method=method,
        rows=[
            *(_time("step", "samples", key, of) for key, of in found.items()),
            *(_time("update alone", "updates", key, of) for key, of in found.items() if of["resilin"]["updates"]),
            *(_bytes(key, of) for key, of in found.items()),
        ],
        notes=[_beside_undivided(ranks, found) for ranks in RANKS],
        data={"results": {f"{ranks}/{way}": of for (ranks, way), of in found.items()}},
    )


def _time(text: str, what: str, key: tuple[int, str], of: dict[str, dict[str, Any]]) -> Row:
    samples = {side: measured[what] for side, measured in of.items()}
    return harness.timing_row(f"{text}, {key[0]} processes: {WAYS[key[1]][0]}", samples)


def _bytes(key: tuple[int, str], of: dict[str, dict[str, Any]]) -> Row:
    held = {side: measured["state_bytes"] / 2**20 for side, measured in of.items()}
    return Row(
        what=f"state per rank, {key[0]} processes: {WAYS[key[1]][0]}",
        unit="MiB",
        ours=held["resilin"],
        peer=held.get("torch"),
    )


def _beside_undivided(ranks: int, found: Found) -> str:
    """Our own ways in one sentence: how long a step takes, in per cent of the undivided one."""
    ours = {way: found[ranks, way]["resilin"] for way in WAYS}
    base = ours.pop("undivided")
    parts = [
        f"{WAYS[way][0]}: {statistics.median(each['samples']) / statistics.median(base['samples']):.1%} of the time, "
        f"{each['state_bytes'] / base['state_bytes']:.2%} of the state"
        for way, each in ours.items()
    ]
    return f"With {ranks} processes, beside resilin's undivided AdamW: {'; '.join(parts)}."


if __name__ == "__main__":
    sys.exit(harness.main(benchmark))
