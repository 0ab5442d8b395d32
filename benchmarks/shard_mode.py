"""What does it cost to get the same bits whatever the number of workers?"""

from __future__ import annotations

import statistics
import sys

from benchmarks import harness
from benchmarks.cases.models import MODELS
from benchmarks.harness import Options, Report, Row

RANKS = 2
SHARDS = (2, 4, 8)
NAMES = {name: MODELS[name].text for name in ("mlp", "cnn", "residual_cnn", "gpt")}

METHOD = """Method as in `train_step`: median on rank 0, {rounds} rounds, both modes in turn. Each rank works on the
same number of samples in both modes; with V shards it runs V/2 smaller forward and backward passes one after the
other, and gradients are summed in the fixed tree."""


def benchmark(options: Options) -> Report:
    """The step of `train_step` on two processes, in plain mode and with the batch cut in a fixed number of shards."""
    rounds, seconds = (1, 0.5) if options.quick else (4, 2.0)
    samples: dict[tuple[str, int], list[float]] = {}
    for number in range(rounds):
        for model in NAMES:
            for shards in (0, *SHARDS):
                arguments = ["--model", model, "--seconds", str(seconds), "--shards", str(shards)]
                with harness.progress(f"round {number + 1} of {rounds}: {model}, {shards} shards"):
                    result = harness.run_ranks("resilin", options, "train_step", arguments, ranks=RANKS)
                samples.setdefault((model, shards), []).extend(result["samples"])
    medians = {key: statistics.median(values) * 1e3 for key, values in samples.items()}
    rows = [
        Row(
            what=f"{NAMES[model]}, {shards} shards",
            unit="ms",
            ours=medians[model, shards],
            peer=medians[model, 0],
            spread=harness.spread(samples[model, shards], 1e3),
            baseline="plain mode",
        )
        for model in NAMES
        for shards in SHARDS
    ]
    return Report(
        name="shard_mode",
        ours="fixed shards",
        question="One training step on two processes: fixed shards (`DDP(shards=V)`) beside plain mode (`DDP()`).",
        method=METHOD.format(rounds=rounds),
        rows=rows,
        data={"median_ms": {f"{model}/{shards}": value for (model, shards), value in medians.items()}},
    )


if __name__ == "__main__":
    sys.exit(harness.main(benchmark))
