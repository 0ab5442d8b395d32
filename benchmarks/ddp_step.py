"""What does DistributedDataParallel cost a training step, beside one process, two that train apart, and PyTorch's?"""

from __future__ import annotations

import sys
from functools import partial
from itertools import product

from benchmarks import harness
from benchmarks.cases.models import MODELS
from benchmarks.harness import Options, Report, Row
from benchmarks.parts.taken import Taken

NAMES = {name: MODELS[name].text for name in ("gpt", "mlp", "cnn")}
# what is run: library, number of processes, further arguments of the case
RUNS: dict[str, tuple[str, int, list[str]]] = {
    "alone": ("resilin", 1, []),
    "apart": ("resilin", 2, ["--apart"]),
    "in step": ("resilin", 2, ["--apart", "--in-step"]),
    "ddp": ("resilin", 2, []),
    "zero": ("resilin", 2, ["--zero"]),
    "torch alone": ("torch", 1, []),
    "torch": ("torch", 2, []),
    "torch fused": ("torch", 2, ["--fused"]),
    "torch zero": ("torch", 2, ["--zero"]),
}
FUSED = {"torch": "", "torch fused": "; PyTorch's with fused=True"}
ZERO = "AdamW in a ZeroRedundancyOptimizer"
METHOD = """Median on rank 0 over all steps of {rounds} rounds of about {seconds:g} s each, after 5 steps of warm-up;
the runs in turn, one thread per process, the same model code and a fixed batch for each rank. PyTorch: gloo,
DistributedDataParallel with its defaults; `fused=True` is the fastest optimizer PyTorch has on the CPU, not its
default. "Apart": two processes at once that train a model each and share nothing but the machine: what they are
slower than one process is due to caches and memory. "In step": the same two, which wait for one another before each
update, as all who average must, but exchange nothing: each step takes as long as that of the slower one, and both
update, which is limited by the memory, at the same moment. What DDP costs beyond that is averaging. By p10: the same
of the tenth percentiles, which other work of the machine changes less. "+ ZeRO": the optimizer is a
ZeroRedundancyOptimizer with parameters_as_bucket_view=True on both sides: of parameters and state each process reads
and writes a half only, and then gathers the other half."""


def benchmark(options: Options) -> Report:
    """Three models, all runs in turn."""
    rounds, seconds = (1, 0.5) if options.quick else (5, 1.2)
    runs = {name: run for name, run in RUNS.items() if run[0] in harness.sides(options)}
    taken = Taken(options, seconds=seconds)
    for number, model, (run, (side, ranks, more)) in product(range(rounds), NAMES, runs.items()):
        arguments = ["--model", model, "--seconds", str(seconds), *more]
        with harness.progress(f"round {number + 1} of {rounds}: {model}, {run}"):
            measure = partial(harness.run_ranks, side, options, "train_step", arguments, ranks=ranks)
            taken.run(number, f"{model}/{run}", measure, peer=side != "resilin")
    notes = ["\n".join([_HEAD, *(_line(taken, model, run) for model in NAMES for run in BESIDE if run in runs)])]
    return Report(
        name="ddp_step",
        question="One training step of two processes with DDP: zero_grad, forward, cross entropy, backward, AdamW.",
        method=METHOD.format(rounds=rounds, seconds=seconds),
        rows=[row for model in NAMES for row in _rows(taken, model)],
        notes=notes + taken.notes(),
        data={"samples_s": {f"{model}/{run}": taken.samples(f"{model}/{run}") for model in NAMES for run in runs}},
    )


def _rows(taken: Taken, model: str) -> list[Row]:
    peers = {f"{model}/{run}": text for run, text in FUSED.items()}
    return [
        *taken.rows(f"{NAMES[model]}, 2 processes, AdamW", f"{model}/ddp", peers),
        *taken.rows(f"{NAMES[model]}, 2 processes, {ZERO}", f"{model}/zero", {f"{model}/torch zero": ""}),
    ]


BESIDE = {
    "ddp": ("resilin", "alone", "apart", "in step"),
    "zero": ("resilin + ZeRO", "alone", "apart", "in step"),
    "torch": ("PyTorch", "torch alone", None, None),
    "torch zero": ("PyTorch + ZeRO", "torch alone", None, None),
}
_HEAD = """| ms of a step | | alone | apart | in step | DDP | over alone | by p10 | over in step | by p10 | waiting |
|---|---|---|---|---|---|---|---|---|---|---|"""


def _line(taken: Taken, model: str, run: str) -> str:
    """DDP of one library beside one process and two; our waiting as `stats()` says, a mean of all rounds."""
    library, *others = BESIDE[run]
    samples = [taken.samples(f"{model}/{name}") if name else [] for name in (*others, run)]
    ddp = samples.pop()
    cells = [harness.figure(harness.percentile(each, 50) * 1e3) if each else "" for each in (*samples, ddp)]
    for each in (samples[0], samples[-1]):
        ratios = [harness.percentile(ddp, p) / harness.percentile(each, p) for p in (50, 10)] if each and ddp else []
        cells += [f"{100 * (ratio - 1):+.1f} %" for ratio in ratios] or ["", ""]
    waits = [result["stats"] for result in taken.results(f"{model}/{run}") if result["stats"]]
    wait_s = sum(each["wait_s"] for each in waits) / max(1, sum(each["backwards"] for each in waits))
    cells.append(f"{harness.figure(1e3 * wait_s)} ms" if waits else "")
    return f"| {' | '.join([NAMES[model], library, *cells])} |"


if __name__ == "__main__":
    sys.exit(harness.main(benchmark, resumable=True))
