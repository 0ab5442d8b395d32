"""How long does a whole training step take, alone and with two processes?"""

from __future__ import annotations

import sys
from itertools import product

from benchmarks import harness
from benchmarks.cases.models import MODELS
from benchmarks.harness import Options, Report

NAMES = {name: MODELS[name].text for name in ("mlp", "gpt")}
METHOD = """Median on rank 0 over all steps of {rounds} rounds of about {seconds:g} s each, after 5 steps of warm-up;
the sides in turn, one thread per process, the same model code and a fixed batch on both sides. PyTorch: gloo,
DistributedDataParallel with its defaults. `fused=True` is the fastest optimizer PyTorch has on the CPU; it is not its
default."""


def benchmark(options: Options) -> Report:
    """Two models, one and two processes; PyTorch also with its fused optimizer."""
    rounds, seconds = (1, 0.5) if options.quick else (3, 1.5)
    variants = {"resilin": [], "torch": [], "torch fused": ["--fused"]} if options.peer_python else {"resilin": []}
    samples: dict[tuple[str, int], dict[str, list[float]]] = {}
    for number in range(rounds):
        for model, ranks in product(NAMES, (1, 2)):
            for variant, extra in variants.items():
                arguments = ["--model", model, "--seconds", str(seconds), *extra]
                with harness.progress(f"round {number + 1} of {rounds}: {model}, {ranks} ranks, {variant}"):
                    result = harness.run_ranks(variant.split()[0], options, "train_step", arguments, ranks=ranks)
                samples.setdefault((model, ranks), {}).setdefault(variant, []).extend(result["samples"])
    rows = []
    for (model, ranks), of in samples.items():
        what = f"{NAMES[model]}, {'1 process' if ranks == 1 else f'{ranks} processes with DDP'}"
        rows.append(harness.timing_row(f"{what}, AdamW", of))
        if options.peer_python:
            both = {"resilin": of["resilin"], "torch": of["torch fused"]}
            rows.append(harness.timing_row(f"{what}, AdamW; PyTorch's with fused=True", both))
    return Report(
        name="train_step",
        question="One training step: zero_grad, forward, cross entropy, backward with all_reduce, AdamW.",
        method=METHOD.format(rounds=rounds, seconds=seconds),
        rows=rows,
        data={
            "median_ms": {
                f"{model}/{ranks}": {variant: harness.percentile(values, 50) * 1e3 for variant, values in of.items()}
                for (model, ranks), of in samples.items()
            }
        },
    )


if __name__ == "__main__":
    sys.exit(harness.main(benchmark))
