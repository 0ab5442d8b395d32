"""The step of `train_step` on two processes, in fixed shards and without: what `shard_mode` and `zero_shards` share."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from itertools import product

from benchmarks import harness
from benchmarks.harness import Options, Row
from benchmarks.parts.taken import Taken

RANKS = 2


def take(options: Options, runs: Mapping[str, Sequence[str]], *, rounds: int, seconds: float) -> Taken:
    """The samples of `runs`, the case's arguments by their names: all in turn, `rounds` times for about `seconds`."""
    taken = Taken(options, seconds=seconds)
    for number, (name, more) in product(range(rounds), runs.items()):
        arguments = ["--seconds", str(seconds), *more]
        with harness.progress(f"round {number + 1} of {rounds}: {name}"):
            measure = partial(harness.run_ranks, "resilin", options, "train_step", arguments, ranks=RANKS)
            taken.run(number, name, measure)
    return taken


def row(taken: Taken, what: str, sharded: str, plain: str, baseline: str) -> Row:
    """The median of the run `sharded` beside that of `plain`; baseline: what the latter's column is called."""
    samples = taken.samples(sharded)
    return Row(
        what=what,
        unit="ms",
        ours=harness.percentile(samples, 50) * 1e3,
        peer=harness.percentile(taken.samples(plain), 50) * 1e3,
        spread=harness.spread(samples, 1e3),
        baseline=baseline,
    )
