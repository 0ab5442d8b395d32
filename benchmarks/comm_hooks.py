"""What does each communication hook send, what does it cost, and how well does training go on with it?"""

from __future__ import annotations

import statistics
import sys
from typing import Any

from benchmarks import harness
from benchmarks.cases import comm_hooks as case
from benchmarks.harness import Options, Report, Row

RANKS, STEPS, WARMUP = 2, 300, 30
MODELS = {"gpt": "GPT", "digits": "digits"}
PLAIN = next(iter(case.WAYS))

METHOD = """Two processes with one thread each over shared memory, AdamW at 2e-3, {steps} steps from the same start on
the same batches, of which the first {warmup} average plainly (DiLoCo: none of them). Bytes: what a rank sends in a step
over a ring, after warm-up, as counted by `stats()["traffic"]`. Time: median of a step on rank 0 after warm-up; over
shared memory nothing is saved by sending less, so it shows what compression computes. Loss: of held-out data after the
last step, the mean of the ranks. GPT: {layers} layers, width {width}, {context} characters, batch {gpt} per rank;
digits: an MLP 64-256-128-10, batch {digits} per rank."""


def benchmark(options: Options) -> Report:
    """Every way of communicating, on both models."""
    steps, warmup = (24, 4) if options.quick else (STEPS, WARMUP)
    results: dict[tuple[str, str], dict[str, Any]] = {}
    for model in MODELS:
        for way in case.WAYS:
            arguments = ["--model", model, "--way", way, "--steps", str(steps), "--warmup", str(warmup)]
            with harness.progress(f"{model}: {way}"):
                results[model, way] = harness.run_ranks("resilin", options, "comm_hooks", arguments, ranks=RANKS)
    rows = [row for model in MODELS for row in _rows(model, results)]
    sizes = ", ".join(f"{text} {results[model, PLAIN]['parameters']:,}" for model, text in MODELS.items())
    return Report(
        name="comm_hooks",
        question="Communication hooks and averagers: bytes, time and loss beside plain averaging.",
        method=METHOD.format(
            steps=steps, warmup=warmup, layers=case.LAYERS, width=case.WIDTH, context=case.CONTEXT, **case.BATCH
        ),
        rows=rows,
        notes=[f"Parameters: {sizes}."],
        data={"results": {f"{model}/{way}": result for (model, way), result in results.items()}},
    )


def _rows(model: str, results: dict[tuple[str, str], dict[str, Any]]) -> list[Row]:
    """Bytes, loss and time of each way; the peer is plain averaging."""
    rows = []
    for what, unit, figure in (
        ("bytes per step", "KiB", lambda result: result["wire_bytes"] / 1024),
        ("held-out loss", "nats", lambda result: result["loss"]),
        ("step", "ms", lambda result: statistics.median(result["samples"]) * 1e3),
    ):
        plain = figure(results[model, PLAIN])
        rows += [
            Row(
                what=f"{MODELS[model]}, {what}: {way}",
                unit=unit,
                ours=figure(results[model, way]),
                peer=plain,
                spread=harness.spread(results[model, way]["samples"], 1e3) if what == "step" else "",
                baseline=PLAIN,
            )
            for way in case.WAYS
            if way != PLAIN
        ]
    return rows


if __name__ == "__main__":
    sys.exit(harness.main(benchmark))
