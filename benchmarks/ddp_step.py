"""What does DistributedDataParallel cost a training step, beside one process, two that train apart, and PyTorch's?"""

from __future__ import annotations

import sys
from itertools import product
from typing import Any

from benchmarks import harness
from benchmarks.cases.models import MODELS
from benchmarks.harness import Options, Report

NAMES = {name: MODELS[name].text for name in ("gpt", "mlp", "cnn")}
# what is run: library, number of processes, further arguments of the case
RUNS: dict[str, tuple[str, int, list[str]]] = {
    "alone": ("resilin", 1, []),
    "apart": ("resilin", 2, ["--apart"]),
    "ddp": ("resilin", 2, []),
    "torch": ("torch", 2, []),
    "torch fused": ("torch", 2, ["--fused"]),
}
METHOD = """Median on rank 0 over all steps of {rounds} rounds of about {seconds:g} s each, after 5 steps of warm-up;
the runs in turn, one thread per process, the same model code and a fixed batch for each rank. PyTorch: gloo,
DistributedDataParallel with its defaults; `fused=True` is the fastest optimizer PyTorch has on the CPU, not its
default. "Apart": two processes at once that train a model each and share nothing but the machine: what they are
slower than one process is due to caches and memory, the rest of what DDP costs is averaging."""


def benchmark(options: Options) -> Report:
    """Three models, all runs in turn."""
    rounds, seconds = (1, 0.5) if options.quick else (2, 0.8)
    results: dict[tuple[str, str], list[dict[str, Any]]] = {}
    runs = {name: run for name, run in RUNS.items() if run[0] in harness.sides(options)}
    for number, model, (run, (side, ranks, more)) in product(range(rounds), NAMES, runs.items()):
        with harness.progress(f"round {number + 1} of {rounds}: {model}, {run}"):
            arguments = ["--model", model, "--seconds", str(seconds), *more]
            results.setdefault((model, run), []).append(
                harness.run_ranks(side, options, "train_step", arguments, ranks=ranks)
            )
    samples = {key: [sample for result in of for sample in result["samples"]] for key, of in results.items()}
    rows = []
    for model, text in NAMES.items():
        for peer, name in (("torch", ""), ("torch fused", "; PyTorch's with fused=True")):
            of = {"resilin": samples[model, "ddp"]}
            if peer in runs:
                of["torch"] = samples[model, peer]
                rows.append(harness.timing_row(f"{text}, 2 processes, AdamW{name}", of))
            elif not name:
                rows.append(harness.timing_row(f"{text}, 2 processes, AdamW", of))
    medians = {key: harness.percentile(values, 50) * 1e3 for key, values in samples.items()}
    return Report(
        name="ddp_step",
        question="One training step of two processes with DDP: zero_grad, forward, cross entropy, backward, AdamW.",
        method=METHOD.format(rounds=rounds, seconds=seconds),
        rows=rows,
        notes=["\n".join([_HEAD, *(_line(model, medians, results[model, "ddp"][-1]["stats"]) for model in NAMES)])],
        data={"median_ms": {f"{model}/{run}": value for (model, run), value in medians.items()}},
    )


_HEAD = """| resilin, ms of a step | alone | two apart | DDP | over alone | over apart | of it waiting | overlap |
|---|---|---|---|---|---|---|---|"""


def _line(model: str, medians: dict[tuple[str, str], float], stats: dict[str, Any]) -> str:
    """One model beside one process, and two apart; what `stats()` says of averaging, as means of the last round."""
    alone, apart, ddp = (medians[model, run] for run in ("alone", "apart", "ddp"))
    waiting = f"{harness.figure(1e3 * stats['wait_s'] / stats['backwards'])} ms"
    shown = [harness.figure(value) for value in (alone, apart, ddp)]
    shown += [f"{100 * (ddp / other - 1):+.1f} %" for other in (alone, apart)]
    return f"| {' | '.join([NAMES[model], *shown, waiting, '{:.0f} %'.format(100 * stats['overlap'])])} |"


if __name__ == "__main__":
    sys.exit(harness.main(benchmark))
