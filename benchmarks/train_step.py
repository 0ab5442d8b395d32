"""How long does a whole training step take, alone and with two processes?"""

from __future__ import annotations

import sys
from functools import partial
from itertools import product

from benchmarks import harness
from benchmarks.cases.models import MODELS
from benchmarks.harness import Options, Report, Row
from benchmarks.parts.taken import Taken

NAMES = {name: MODELS[name].text for name in ("mlp", "gpt")}
FUSED = {"torch": "", "torch fused": "; PyTorch's with fused=True"}
METHOD = """Median on rank 0 over all steps of {rounds} rounds of about {seconds:g} s each, after 5 steps of warm-up;
the sides in turn, one thread per process, the same model code and a fixed batch on both sides. PyTorch: gloo,
DistributedDataParallel with its defaults. `fused=True` is the fastest optimizer PyTorch has on the CPU; it is not its
default."""


def benchmark(options: Options) -> Report:
    """Two models, one and two processes; PyTorch also with its fused optimizer."""
    rounds, seconds = (1, 0.5) if options.quick else (3, 1.5)
    variants = {"resilin": [], "torch": [], "torch fused": ["--fused"]} if options.peer_python else {"resilin": []}
    taken = Taken(options, seconds=seconds)
    for number, model, ranks in product(range(rounds), NAMES, (1, 2)):
        for variant, extra in variants.items():
            arguments, side = ["--model", model, "--seconds", str(seconds), *extra], variant.split()[0]
            with harness.progress(f"round {number + 1} of {rounds}: {model}, {ranks} ranks, {variant}"):
                measure = partial(harness.run_ranks, side, options, "train_step", arguments, ranks=ranks)
                taken.run(number, f"{model}/{ranks}/{variant}", measure, peer=side != "resilin")
    return Report(
        name="train_step",
        question="One training step: zero_grad, forward, cross entropy, backward with all_reduce, AdamW.",
        method=METHOD.format(rounds=rounds, seconds=seconds),
        rows=[row for model, ranks in product(NAMES, (1, 2)) for row in _rows(taken, model, ranks)],
        notes=taken.notes(),
        data={
            "samples_s": {
                f"{model}/{ranks}": {variant: taken.samples(f"{model}/{ranks}/{variant}") for variant in variants}
                for model, ranks in product(NAMES, (1, 2))
            }
        },
    )


def _rows(taken: Taken, model: str, ranks: int) -> list[Row]:
    what = f"{NAMES[model]}, {'1 process' if ranks == 1 else f'{ranks} processes with DDP'}, AdamW"
    of = f"{model}/{ranks}"
    return taken.rows(what, f"{of}/resilin", {f"{of}/{variant}": text for variant, text in FUSED.items()})


if __name__ == "__main__":
    sys.exit(harness.main(benchmark, resumable=True))
