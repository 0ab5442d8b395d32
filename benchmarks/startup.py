"""How long does it take until a distributed program has started, done one all_reduce and ended?"""

from __future__ import annotations

import compileall
import sys
import time
from collections.abc import Callable
from pathlib import Path

import resilin
from benchmarks import harness
from benchmarks.harness import Options, Report

RANKS = 2

METHOD = """Wall time of the whole command, `elastic-run` or `torchrun` with `--standalone --nproc-per-node {RANKS}`,
from start to exit; {rounds} rounds, the two sides in turn, files in the page cache and bytecode compiled. Import:
`python -c 'import resilin'` or `'import torch'` minus the median of `python -c pass` with the same interpreter; resilin
loads the engine with the first name that needs it, so the second row adds `zeros(1)`."""


def benchmark(options: Options) -> Report:
    """The launcher with two workers, and the bare imports."""
    rounds = 3 if options.quick else 11
    compileall.compile_dir(Path(resilin.__file__).parent, quiet=2)  # as after an installation: PyTorch's is compiled
    samples: dict[str, dict[str, list[float]]] = {what: {} for what in _MEASURES}
    for number in range(rounds):
        for side in harness.sides(options):
            with harness.progress(f"round {number + 1} of {rounds}: {side}"):
                for what, measure in _MEASURES.items():
                    samples[what].setdefault(side, []).append(measure(side, options))
    rows = [
        harness.timing_row(f"launcher, {RANKS} workers that form a group, all_reduce once and exit", samples["launch"]),
        harness.timing_row("import of the library", _difference(samples, "import")),
        harness.timing_row("import of the library and its first tensor", _difference(samples, "tensor")),
        harness.timing_row("interpreter alone (`python -c pass`)", samples["python"]),
    ]
    return Report(
        name="startup",
        question="How long from the command line to the end of a distributed program that does next to nothing?",
        method=METHOD.format(RANKS=RANKS, rounds=rounds),
        rows=rows,
        data={
            "launch_s": {side: harness.percentile(values, 50) for side, values in samples["launch"].items()},
            "samples_s": samples,
        },
    )


def _timed(command: list[str]) -> float:
    begin = time.perf_counter()
    harness.check_output(command, timeout_s=60)
    return time.perf_counter() - begin


def _launch(side: str, options: Options) -> float:
    module = harness.case_command(side, options, "startup", [])[2:]
    head = [harness.launcher(side, options), "--standalone", "--nproc-per-node", str(RANKS), "-m"]
    return _timed([*head, *module])


def _import(side: str, options: Options) -> float:
    return _timed([harness.interpreter(side, options), "-c", f"import {side}"])


def _tensor(side: str, options: Options) -> float:
    return _timed([harness.interpreter(side, options), "-c", f"import {side}; {side}.zeros(1)"])


def _python(side: str, options: Options) -> float:
    return _timed([harness.interpreter(side, options), "-c", "pass"])


_MEASURES: dict[str, Callable[[str, Options], float]] = {
    "launch": _launch,
    "import": _import,
    "tensor": _tensor,
    "python": _python,
}


def _difference(samples: dict[str, dict[str, list[float]]], what: str) -> dict[str, list[float]]:
    """Times of `what` with the median of the bare interpreter taken off."""
    bare = {side: harness.percentile(values, 50) for side, values in samples["python"].items()}
    return {side: [value - bare[side] for value in values] for side, values in samples[what].items()}


if __name__ == "__main__":
    sys.exit(harness.main(benchmark))
