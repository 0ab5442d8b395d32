"""How long does a whole training step take, alone and with two processes?"""

from __future__ import annotations

import sys

from benchmarks import harness
from benchmarks.harness import Options, Report

NAMES = {"mlp": "MLP 784-1024-1024-10, batch 128", "gpt": "GPT 4 layers, width 256, 4 heads, 128 tokens, batch 8"}
KINDS = [
    ("{}, {}, AdamW", []),
    ("{}, {}, AdamW(fused=True)", ["--fused"]),
]

METHOD = """Median on rank 0 over all steps of {rounds} rounds of about {seconds:g} s each, after 5 steps of warm-up;
the sides in turn, one thread per process, the same model code and a fixed batch on both sides. PyTorch: gloo,
DistributedDataParallel with its defaults. `fused=True` is the fastest optimizer PyTorch has on the CPU; it is not its
default."""


def benchmark(options: Options) -> Report:
    """Two models, one and two processes, the optimizer as it comes and in its fused form."""
    rounds, seconds = (1, 0.5) if options.quick else (4, 2.0)
    samples: dict[tuple[str, int, int], dict[str, list[float]]] = {}
    for number in range(rounds):
        for model in NAMES:
            for ranks in (1, 2):
                for kind, (_, extra) in enumerate(KINDS):
                    for side in harness.sides(options):
                        arguments = ["--model", model, "--seconds", str(seconds), *extra]
                        with harness.progress(f"round {number + 1} of {rounds}: {model}, {ranks} ranks, {side}"):
                            result = harness.run_ranks(side, options, "train_step", arguments, ranks=ranks)
                        samples.setdefault((model, ranks, kind), {}).setdefault(side, []).extend(result["samples"])
    rows = []
    for (model, ranks, kind), values in samples.items():
        processes = "1 process" if ranks == 1 else f"{ranks} processes with DDP"
        rows.append(harness.timing_row(KINDS[kind][0].format(NAMES[model], processes), values))
    return Report(
        name="train_step",
        question="One training step: zero_grad, forward, cross entropy, backward with all_reduce, AdamW.",
        method=METHOD.format(rounds=rounds, seconds=seconds),
        rows=rows,
        data={
            "median_ms": {
                f"{model}/{ranks}/{'fused' if kind else 'default'}": {
                    side: harness.percentile(values, 50) * 1e3 for side, values in of_sides.items()
                }
                for (model, ranks, kind), of_sides in samples.items()
            }
        },
    )


if __name__ == "__main__":
    sys.exit(harness.main(benchmark))
