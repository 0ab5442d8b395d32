"""How long does a training step of one process take, on one thread and on two, and how much memory?"""

from __future__ import annotations

import statistics
import sys
from itertools import product
from typing import Any

from benchmarks import harness
from benchmarks.cases.models import MODELS
from benchmarks.harness import Options, Report, Row

THREADS = (1, 2)
SCALED = ("mlp", "cnn", "gpt")
METHOD = """Median over all steps of {rounds} rounds of about {seconds:g} s each, after 5 steps of warm-up; the sides in
turn, the same model code and a fixed batch on both sides; AdamW with its defaults. Memory: the most that a process of
one round had resident, less what it had before it built the model; the median of rounds."""


def benchmark(options: Options) -> Report:
    """Every model on one thread and on two, each side in turn."""
    rounds, seconds = (1, 0.3) if options.quick else (3, 1.5)
    results: dict[tuple[str, int, str], list[dict[str, Any]]] = {}
    for number, model, threads, side in product(range(rounds), MODELS, THREADS, harness.sides(options)):
        arguments = ["--model", model, "--threads", str(threads), "--seconds", str(seconds)]
        with harness.progress(f"round {number + 1} of {rounds}: {model}, {threads} threads, {side}"):
            result = harness.run_ranks(side, options, "train_step", arguments, ranks=1)
        results.setdefault((model, threads, side), []).append(result)
    rows = []
    for model, threads in product(MODELS, THREADS):
        samples = {side: _samples(results[model, threads, side]) for side in harness.sides(options)}
        rows.append(harness.timing_row(f"{MODELS[model].text}, {threads} thread{'s' * (threads > 1)}", samples))
    rows += [_memory_row(model, results, options) for model in MODELS]
    return Report(
        name="models_step",
        question="One training step in one process: zero_grad, forward, cross entropy, backward, AdamW.",
        method=METHOD.format(rounds=rounds, seconds=seconds),
        rows=rows,
        notes=[_scaling(model, results, options) for model in SCALED],
        data={
            "median_ms": {
                f"{model}/{threads}/{side}": statistics.median(_samples(of)) * 1e3
                for (model, threads, side), of in results.items()
            }
        },
    )


def _samples(results: list[dict[str, Any]]) -> list[float]:
    return [sample for result in results for sample in result["samples"]]


def _memory_row(model: str, results: dict[tuple[str, int, str], list[dict[str, Any]]], options: Options) -> Row:
    """The peak of training on as many threads as measured."""
    mib = {
        side: [result["peak_bytes"] / 2**20 for result in results[model, THREADS[-1], side]]
        for side in harness.sides(options)
    }
    return Row(
        what=f"peak memory: {MODELS[model].text}",
        unit="MiB",
        ours=statistics.median(mib["resilin"]),
        peer=statistics.median(mib["torch"]) if "torch" in mib else None,
        spread=harness.spread(mib["resilin"]),
    )


def _scaling(model: str, results: dict[tuple[str, int, str], list[dict[str, Any]]], options: Options) -> str:
    """How many times as fast two threads are."""
    times = []
    for side in harness.sides(options):
        one, two = (statistics.median(_samples(results[model, threads, side])) for threads in THREADS)
        times.append(f"{'PyTorch' if side == 'torch' else side} {one / two:.2f}")
    return f"Two threads over one, {MODELS[model].text}: {', '.join(times)}."


if __name__ == "__main__":
    sys.exit(harness.main(benchmark))
