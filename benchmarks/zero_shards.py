"""What does it cost divided modules (ZeRO-2 and 3) to get the same bits whatever the number of workers?"""

from __future__ import annotations

import sys
from itertools import product

from benchmarks import harness
from benchmarks.cases.models import MODELS
from benchmarks.harness import Options, Report, Row
from benchmarks.parts import fixed_shards
from benchmarks.parts.taken import Taken

SHARDS = (2, 8)
STAGES = (2, 3)
NAMES = ("gpt", "mlp")
METHOD = """Method as in `shard_mode`: median on rank 0, {rounds} rounds of about {seconds:g} s, all ways in turn. Each
rank works on the same number of samples in both modes; with V shards it runs V/2 smaller forward and backward passes
one after the other, in stage 3 with parameters gathered for each, and ranks exchange the gradients of every pass. What
shards cost DistributedDataParallel is in `shard_mode`."""


def benchmark(options: Options) -> Report:
    """The step of `train_step` on two processes, without and with shards, by stage."""
    rounds, seconds = (1, 0.5) if options.quick else (2, 1.5)
    runs = {
        f"{model}/{stage}/{shards}": ["--model", model, "--shards", str(shards), "--stage", str(stage)]
        for model, stage, shards in product(NAMES, STAGES, (0, *SHARDS))
    }
    taken = fixed_shards.take(options, runs, rounds=rounds, seconds=seconds)
    return Report(
        name="zero_shards",
        ours="fixed shards",
        question="One training step on two processes: `zero.shard(shards=V)` beside `zero.shard()`.",
        method=METHOD.format(rounds=rounds, seconds=seconds),
        rows=[_row(taken, *key) for key in product(NAMES, STAGES, SHARDS)],
        data={"samples_s": {name: taken.samples(name) for name in taken.names()}},
    )


def _row(taken: Taken, model: str, stage: int, shards: int) -> Row:
    what, of = f"{MODELS[model].text}: stage {stage}, {shards} shards", f"{model}/{stage}"
    return fixed_shards.row(taken, what, f"{of}/{shards}", f"{of}/0", baseline="without shards")


if __name__ == "__main__":
    sys.exit(harness.main(benchmark, resumable=True))
