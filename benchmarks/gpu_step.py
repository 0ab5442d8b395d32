"""How long does a training step of one process take on a GPU?"""

from __future__ import annotations

import statistics
import sys
from itertools import product
from typing import Any

from benchmarks import harness
from benchmarks.cases.models import MODELS
from benchmarks.harness import Options, Report

METHOD = """Median over all steps of {rounds} rounds of about {seconds:g} s each, after {warmup} steps of warm-up, in
which kernels are compiled; the sides in turn, the same model code and a fixed batch on both sides; AdamW with its
defaults, float32 (PyTorch with its defaults, so convolutions may use TF32, matrices do not). Each step reads its loss,
so it waits for the GPU."""


def benchmark(options: Options) -> Report:
    """Every model, each side in turn."""
    rounds, seconds, warmup = (1, 0.3, 3) if options.quick else (3, 1.0, 10)
    results: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for number, model, side in product(range(rounds), MODELS, harness.sides(options)):
        arguments = ["--model", model, "--device", "cuda", "--seconds", str(seconds), "--warmup", str(warmup)]
        with harness.progress(f"round {number + 1} of {rounds}: {model}, {side}"):
            result = harness.run_ranks(side, options, "train_step", arguments, ranks=1)
        results.setdefault((model, side), []).append(result)
    samples = {key: [sample for result in of for sample in result["samples"]] for key, of in results.items()}
    gpus = sorted({result["gpu"] for of in results.values() for result in of})
    return Report(
        name="gpu_step",
        question="One training step in one process on a GPU: zero_grad, forward, cross entropy, backward, AdamW.",
        method=METHOD.format(rounds=rounds, seconds=seconds, warmup=warmup),
        rows=[
            harness.timing_row(MODELS[model].text, {side: samples[model, side] for side in harness.sides(options)})
            for model in MODELS
        ],
        notes=[f"GPU: {', '.join(gpus)}."],
        data={"median_ms": {"/".join(key): statistics.median(of) * 1e3 for key, of in samples.items()}},
    )


if __name__ == "__main__":
    sys.exit(harness.main(benchmark))
