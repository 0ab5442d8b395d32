"""How fast are single operations, over many of them, at three sizes and in several dtypes?"""

from __future__ import annotations

import json
import math
import statistics
import sys
from functools import partial
from itertools import product
from typing import Any

from benchmarks import harness
from benchmarks.cases.op_table import GROUPS, SIZES
from benchmarks.harness import Options, Report, Row
from benchmarks.parts.taken import Taken

OTHERS = ("float64", "float16", "bfloat16")
SLOW = 0.8  # rows below it are listed
SAMPLES = 3
ROUNDS = 2  # apart in time: a machine that takes a core away slows threads that wait by spinning down for a while
BELOW = 0.8, 0.5, 0.3  # how many rows are below these is told
METHOD = """Expressions over tensors of about 1e3, 1e5 and 1e7 elements, the same texts on both sides, {threads}
threads, the sides in turn, a process for each group, size and dtype, in {rounds} rounds. A sample is as many calls as
take 20 ms; the least of {samples} samples of each round counts, on both sides. Groups: {groups}.
In other floating point dtypes than float32 the groups flat and rows are run at 1e5, in int64 one of its own. Times
are geometric means; the notes name what is below {slow:g} times PyTorch's speed, the slowest first."""


def benchmark(options: Options) -> Report:
    """Run every group on both sides, the largest tensors last."""
    sizes = SIZES[:1] if options.quick else SIZES
    groups = {"float32": [group for group in GROUPS if group != "integers"]}
    if not options.quick:
        groups["int64"] = ["integers"]
    cases = [(dtype, group, size) for size in sizes for dtype, of in groups.items() for group in of]
    if not options.quick:
        cases += [(dtype, group, SIZES[1]) for dtype, group in product(OTHERS, ("flat", "rows"))]
    taken = Taken(options, samples=SAMPLES)
    times: dict[str, dict[str, dict[str, float]]] = {}
    refused: dict[str, dict[str, str]] = {side: {} for side in harness.sides(options)}
    rounds = range(1 if options.quick else ROUNDS)
    for number, (dtype, group, size), side in product(rounds, cases, harness.sides(options)):
        where = f"{dtype} {size:g} {group}"
        with harness.progress(f"round {number + 1}, {where}: {side}"):
            measure = partial(_run, side, options, group, size, dtype)
            taken.run(number, f"{where}, {side}", measure, peer=side != "resilin")
    for dtype, group, size in cases:
        where = f"{dtype} {size:g} {group}"
        for side in harness.sides(options):
            for result in taken.results(f"{where}, {side}"):
                for text, found in result["samples"].items():
                    if isinstance(found, str):
                        refused[side][f"{where}: {text}"] = found
                    else:
                        of = times.setdefault(where, {}).setdefault(text, {})
                        of[side] = min(of.get(side, math.inf), *found)
    return Report(
        name="op_table",
        question="Single operations and forms of them, forward and with their gradients, beside PyTorch.",
        method=METHOD.format(threads=2, rounds=ROUNDS, samples=SAMPLES, groups=", ".join(GROUPS), slow=SLOW),
        rows=_rows(times),
        notes=_shares(times)
        + _slow(times)
        + [f"{side} refuses {what}: {why}" for side, of in refused.items() for what, why in of.items()]
        + taken.notes(),
        data={"seconds": times},
    )


def _run(side: str, options: Options, group: str, size: int, dtype: str) -> dict[str, Any]:
    more = ["--group", group, "--size", str(size), "--dtype", dtype, "--samples", str(SAMPLES)]
    output = harness.check_output(harness.case_command(side, options, "op_table", more), timeout_s=900)
    return dict(json.loads(output.splitlines()[-1]))


def _ratios(of: dict[str, dict[str, float]]) -> dict[str, float]:
    return {text: taken["torch"] / taken["resilin"] for text, taken in of.items() if len(taken) == 2}


def _rows(times: dict[str, dict[str, dict[str, float]]]) -> list[Row]:
    """Geometric means of both sides over all expressions, and by case."""
    together = {f"{where}: {text}": found for where, of in times.items() for text, found in of.items()}
    return [_mean_row("all together", together), *(_mean_row(where, of) for where, of in times.items())]


def _mean_row(where: str, of: dict[str, dict[str, float]]) -> Row:
    both = [found for found in of.values() if len(found) == 2] or list(of.values())
    ours, peer = (_mean_us([found[side] for found in both if side in found]) for side in ("resilin", "torch"))
    return Row(what=f"{where}: {len(both)} expressions", unit="us", ours=ours or math.nan, peer=peer)


def _mean_us(seconds: list[float]) -> float | None:
    return math.exp(statistics.fmean(map(math.log, seconds))) * 1e6 if seconds else None


def _shares(times: dict[str, dict[str, dict[str, float]]]) -> list[str]:
    """A table of how the ratios of each case lie."""
    lines = ["| case | median of the ratios | below 0.8 | below 0.5 | below 0.3 |", "|---|---|---|---|---|"]
    for where, of in times.items():
        if ratios := list(_ratios(of).values()):
            shares = " | ".join(
                f"{sum(ratio < most for ratio in ratios) / len(ratios):.0%}" for most in (0.8, 0.5, 0.3)
            )
            lines.append(f"| {where} | {statistics.median(ratios):.2f} | {shares} |")
    return ["\n".join(["How many expressions PyTorch is faster at:", "", *lines])] if len(lines) > 2 else []


def _slow(times: dict[str, dict[str, dict[str, float]]]) -> list[str]:
    """What is below 0.8, the slowest first."""
    found = [(ratio, where, text) for where, of in times.items() for text, ratio in _ratios(of).items() if ratio < SLOW]
    return [f"{ratio:.2f}: {where}: `{text}`" for ratio, where, text in sorted(found)]


if __name__ == "__main__":
    sys.exit(harness.main(benchmark, resumable=True))
