"""How long do matrix products of 16-bit floats take, beside those of float32?"""

from __future__ import annotations

import json
import statistics
import sys
from itertools import product

from benchmarks import harness
from benchmarks.cases.half_products import KINDS, SHAPES, name_of
from benchmarks.harness import Options, Report

THREADS = (1, 2)
METHOD = """Median over {rounds} rounds of about {seconds:g} s per product, type and number of threads; the types in
turn sample by sample, the sides in turn, the same operands on both sides. "As in linear": the right operand is the
transpose of a matrix that lies in rows. What the CPU has of 16-bit arithmetic: {cpu}."""


def benchmark(options: Options) -> Report:
    """Every product on one thread and on two, a process per round and side."""
    rounds, seconds = (1, 0.02) if options.quick else (2, 0.3)
    found: dict[tuple[int, str], dict[str, list[float]]] = {}
    for number, threads, side in product(range(rounds), THREADS, harness.sides(options)):
        arguments = ["--seconds", str(seconds), "--threads", str(threads)]
        command = harness.case_command(side, options, "half_products", arguments)
        with harness.progress(f"round {number + 1} of {rounds}: {threads} threads, {side}"):
            environment = harness.environment(OMP_NUM_THREADS=str(threads))
            output = harness.check_output(command, timeout_s=300, env=environment)
        for name, values in json.loads(output.splitlines()[-1])["samples"].items():
            found.setdefault((threads, name), {}).setdefault(side, []).extend(values)
    return Report(
        name="half_products",
        question="Matrix products of bfloat16 and float16, summed in float32, beside those of float32.",
        method=METHOD.format(rounds=rounds, seconds=seconds, cpu=_sixteen_bits()),
        rows=[
            harness.timing_row(f"{name}, {threads} thread{'s' * (threads > 1)}", of, unit="us")
            for (threads, name), of in sorted(found.items(), key=lambda item: item[0][0])
        ],
        notes=[_beside_float32(found)],
        data={
            "median_us": {
                f"{name}/{threads}": {side: statistics.median(values) * 1e6 for side, values in of.items()}
                for (threads, name), of in found.items()
            }
        },
    )


def _sixteen_bits() -> str:
    with open("/proc/cpuinfo", encoding="utf-8") as file:
        flags = next((line.split() for line in file if line.startswith("flags")), [])
    return ", ".join(flag for flag in ("f16c", "avx512_bf16", "avx512_fp16", "amx_bf16") if flag in flags) or "nothing"


def _beside_float32(found: dict[tuple[int, str], dict[str, list[float]]]) -> str:
    """How many times as fast as float32 resilin's products are, in the table's order."""
    lines = []
    for threads, kind in product(THREADS, KINDS[:-1]):
        ratios = []
        for shape, turned in product(SHAPES, (False, True)):
            half, single = (found[threads, name_of(shape, k, turned)]["resilin"] for k in (kind, "float32"))
            ratios.append(statistics.median(single) / statistics.median(half))
        what = f"{kind}, {threads} thread{'s' * (threads > 1)}"
        lines.append(f"float32's time divided by that of {what}: {', '.join(f'{ratio:.2f}' for ratio in ratios)}.")
    return "\n\n".join(lines)


if __name__ == "__main__":
    sys.exit(harness.main(benchmark))
