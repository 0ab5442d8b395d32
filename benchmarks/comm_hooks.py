"""What does each communication hook send, what does it cost, and how well does training go on with it?"""

from __future__ import annotations

import statistics
import sys
from typing import Any

from benchmarks import harness
from benchmarks.cases import comm_hooks as case
from benchmarks.harness import Options, Report, Row

RANKS, STEPS, WARMUP = 2, 300, 30
PLAIN = next(iter(case.WAYS))
POWER_SGD = [PLAIN, *(way for way in case.WAYS if way.startswith("PowerSGD"))]
SETTINGS = {  # model, optimizer: what the rows say, and the ways that are tried
    ("gpt", "sgd"): ("GPT, SGD", POWER_SGD),
    ("gpt", "adamw"): ("GPT, AdamW", list(case.WAYS)),
    ("digits", "adamw"): ("digits, AdamW", list(case.WAYS)),
}

METHOD = """Two processes with one thread each over shared memory; SGD at {rate} with momentum 0.9 or AdamW at 2e-3;
{steps} steps from the same start on the same batches, of which the first {warmup} average plainly (DiLoCo: none of
them). Bytes: what a rank sends in a step over a ring, after warm-up, as counted by `stats()["traffic"]`. Time: median
of a step on rank 0 after warm-up; over shared memory nothing is saved by sending less, so it shows what compression
computes. Loss: of held-out data after the last step, the mean of the ranks. GPT: {layers} layers, width {width},
{context} characters, batch {gpt} per rank; digits: an MLP 64-256-128-10, batch {digits} per rank."""


def benchmark(options: Options) -> Report:
    """Every way of communicating with AdamW, on both models; PowerSGD with SGD."""
    steps, warmup = (24, 4) if options.quick else (STEPS, WARMUP)
    results: dict[tuple[str, str, str], dict[str, Any]] = {}
    for (model, optimizer), (text, ways) in SETTINGS.items():
        for way in ways:
            arguments = ["--model", model, "--way", way, "--optimizer", optimizer]
            arguments += ["--steps", str(steps), "--warmup", str(warmup)]
            with harness.progress(f"{text}: {way}"):
                result = harness.run_ranks("resilin", options, "comm_hooks", arguments, ranks=RANKS)
            results[model, optimizer, way] = result
    rows = [row for model, optimizer in SETTINGS for row in _rows(model, optimizer, results)]
    sizes = {model: f"{result['parameters']:,}" for (model, _, _), result in results.items()}
    return Report(
        name="comm_hooks",
        question="Communication hooks and averagers: bytes, time and loss beside plain averaging.",
        method=METHOD.format(
            steps=steps,
            warmup=warmup,
            rate=case.SGD_RATE,
            layers=case.LAYERS,
            width=case.WIDTH,
            context=case.CONTEXT,
            **case.BATCH,
        ),
        rows=rows,
        notes=[f"Parameters: GPT {sizes['gpt']}, digits {sizes['digits']}."],
        data={"results": {"/".join(key): result for key, result in results.items()}},
    )


def _rows(model: str, optimizer: str, results: dict[tuple[str, str, str], dict[str, Any]]) -> list[Row]:
    """Bytes, loss and time of each way; the peer is plain averaging."""
    text, ways = SETTINGS[model, optimizer]
    rows = []
    for what, unit, figure in (
        ("bytes per step", "KiB", lambda result: result["wire_bytes"] / 1024),
        ("held-out loss", "nats", lambda result: result["loss"]),
        ("step", "ms", lambda result: statistics.median(result["samples"]) * 1e3),
    ):
        plain = figure(results[model, optimizer, PLAIN])
        rows += [
            Row(
                what=f"{text}, {what}: {way}",
                unit=unit,
                ours=figure(results[model, optimizer, way]),
                peer=plain,
                spread=harness.spread(results[model, optimizer, way]["samples"], 1e3) if what == "step" else "",
                baseline=PLAIN,
            )
            for way in ways
            if way != PLAIN
        ]
    return rows


if __name__ == "__main__":
    sys.exit(harness.main(benchmark))
