"""How fast are single operations, over many of them, at three sizes and in several dtypes?"""

from __future__ import annotations

import json
import math
import sys
from itertools import product
from typing import Any

from benchmarks import harness
from benchmarks.cases.op_table import GROUPS, SIZES
from benchmarks.harness import Options, Report, Row

OTHERS = ("float64", "float16", "bfloat16")
SLOW = 0.8  # rows below it are listed
METHOD = """Expressions over tensors of about 1e3, 1e5 and 1e7 elements, the same texts on both sides, {threads}
threads, the sides in turn, a process for each group, size and dtype. A sample is as many calls as take 20 ms; the
least of {samples} samples counts, on both sides. Groups: {groups}. In other floating point dtypes than float32 the
groups flat and rows are run at 1e5, in int64 one of its own. Times are geometric means; the notes name what is below
{slow:g} times PyTorch's speed, the slowest first."""


def benchmark(options: Options) -> Report:
    """Run every group on both sides."""
    sizes = SIZES[:1] if options.quick else SIZES
    cases = [("float32", group, size) for group, size in product(GROUPS, sizes) if group != "integers"]
    if not options.quick:
        cases += [("int64", "integers", size) for size in sizes]
        cases += [(dtype, group, SIZES[1]) for dtype, group in product(OTHERS, ("flat", "rows"))]
    times: dict[str, dict[str, dict[str, float]]] = {}
    refused: dict[str, dict[str, str]] = {side: {} for side in harness.sides(options)}
    for dtype, group, size in cases:
        where = f"{dtype} {size:g} {group}"
        for side in harness.sides(options):
            with harness.progress(f"{where}: {side}"):
                samples = _run(side, options, group, size, dtype)
            for text, found in samples.items():
                if isinstance(found, str):
                    refused[side][f"{where}: {text}"] = found
                else:
                    times.setdefault(where, {}).setdefault(text, {})[side] = min(found)
    return Report(
        name="op_table",
        question="Single operations and forms of them, forward and with their gradients, beside PyTorch.",
        method=METHOD.format(threads=2, samples=3 if options.quick else 5, groups=", ".join(GROUPS), slow=SLOW),
        rows=_rows(times),
        notes=_slow(times)
        + [f"{side} refuses {what}: {why}" for side, of in refused.items() for what, why in of.items()],
        data={"seconds": times},
    )


def _run(side: str, options: Options, group: str, size: int, dtype: str) -> dict[str, Any]:
    more = ["--group", group, "--size", str(size), "--dtype", dtype, "--samples", "3" if options.quick else "5"]
    output = harness.check_output(harness.case_command(side, options, "op_table", more), timeout_s=600)
    return dict(json.loads(output.splitlines()[-1])["samples"])


def _ratios(of: dict[str, dict[str, float]]) -> dict[str, float]:
    return {text: taken["torch"] / taken["resilin"] for text, taken in of.items() if len(taken) == 2}


def _rows(times: dict[str, dict[str, dict[str, float]]]) -> list[Row]:
    """By case: the geometric means of both sides, the share below 0.8 of PyTorch's speed, the slowest."""
    rows = []
    for where, of in times.items():
        ours, peer = (_mean_us([t[side] for t in of.values() if side in t]) for side in ("resilin", "torch"))
        if ours is not None:
            rows.append(Row(what=f"{where}: {len(of)} expressions", unit="us", ours=ours, peer=peer))
        if ratios := sorted(_ratios(of).values()):
            share = sum(ratio < SLOW for ratio in ratios) / len(ratios)
            rows.append(Row(what=f"{where}: below {SLOW:g} times PyTorch's speed", unit="%", ours=share * 100))
            rows.append(Row(what=f"{where}: the slowest beside PyTorch", unit="times its time", ours=1 / ratios[0]))
    return rows


def _mean_us(seconds: list[float]) -> float | None:
    return math.exp(sum(map(math.log, seconds)) / len(seconds)) * 1e6 if seconds else None


def _slow(times: dict[str, dict[str, dict[str, float]]]) -> list[str]:
    """What is below 0.8, the slowest first."""
    found = [(ratio, where, text) for where, of in times.items() for text, ratio in _ratios(of).items() if ratio < SLOW]
    return [f"{ratio:.2f}: {where}: `{text}`" for ratio, where, text in sorted(found)]


if __name__ == "__main__":
    sys.exit(harness.main(benchmark))
