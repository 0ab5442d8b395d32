"""What does it cost to get the same bits whatever the number of workers?"""

from __future__ import annotations

import sys
from itertools import product

from benchmarks import harness
from benchmarks.cases.models import MODELS
from benchmarks.harness import Options, Report, Row
from benchmarks.parts import fixed_shards
from benchmarks.parts.taken import Taken

SHARDS = (2, 4, 8)
NAMES = {name: MODELS[name].text for name in ("cnn", "gpt", "residual_cnn", "mlp")}

METHOD = """Method as in `train_step`: median on rank 0, {rounds} rounds of about {seconds:g} s, both modes in turn.
Each rank works on the same number of samples in both modes; with V shards it runs V/2 smaller forward and backward
passes one after the other, and gradients are summed in the fixed tree. By p10: the same of the tenth percentiles, which
an otherwise busy moment of the machine changes less."""


def benchmark(options: Options) -> Report:
    """The step of `train_step` on two processes, in plain mode and with the batch cut in a fixed number of shards."""
    rounds, seconds = (1, 0.5) if options.quick else (5, 1.2)
    runs = {
        f"{model}/{shards}": ["--model", model, "--shards", str(shards)]
        for model, shards in product(NAMES, (0, *SHARDS))
    }
    taken = fixed_shards.take(options, runs, rounds=rounds, seconds=seconds)
    return Report(
        name="shard_mode",
        ours="fixed shards",
        question="One training step on two processes: fixed shards (`DDP(shards=V)`) beside plain mode (`DDP()`).",
        method=METHOD.format(rounds=rounds, seconds=seconds),
        rows=[_row(taken, model, shards) for model, shards in product(NAMES, SHARDS)],
        notes=["\n".join([_HEAD, *(_line(taken, model) for model in NAMES)])],
        data={"samples_s": {name: taken.samples(name) for name in taken.names()}},
    )


def _row(taken: Taken, model: str, shards: int) -> Row:
    return fixed_shards.row(
        taken, f"{NAMES[model]}, {shards} shards", f"{model}/{shards}", f"{model}/0", baseline="plain mode"
    )


_HEAD = "\n".join(
    [
        "| slower than plain mode by | " + " | ".join(f"{shards} shards | by p10" for shards in SHARDS) + " |",
        "|---|" + "---|---|" * len(SHARDS),
    ]
)


def _line(taken: Taken, model: str) -> str:
    plain = taken.samples(f"{model}/0")
    cells = [
        f"{100 * (harness.percentile(taken.samples(f'{model}/{shards}'), p) / harness.percentile(plain, p) - 1):+.1f} %"
        for shards in SHARDS
        for p in (50, 10)
    ]
    return f"| {' | '.join([NAMES[model], *cells])} |"


if __name__ == "__main__":
    sys.exit(harness.main(benchmark, resumable=True))
