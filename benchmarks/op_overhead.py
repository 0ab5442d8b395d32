"""What does one operation cost when the tensors are tiny?"""

from __future__ import annotations

import json
import sys

from benchmarks import harness
from benchmarks.harness import Options, Report

METHOD = """Median over {rounds} rounds of {samples} samples per operation, a sample being the mean of 200 calls after
as many for warm-up; the sides in turn, one thread, the same calls on both sides, tensors of 64 float32 elements."""


def benchmark(options: Options) -> Report:
    """The same calls on both sides, a process per round and side."""
    rounds, samples = (1, 3) if options.quick else (3, 30)
    found: dict[str, dict[str, list[float]]] = {}
    for number in range(rounds):
        for side in harness.sides(options):
            command = harness.case_command(side, options, "op_overhead", ["--samples", str(samples)])
            with harness.progress(f"round {number + 1} of {rounds}: {side}"):
                result = json.loads(harness.check_output(command, timeout_s=300).splitlines()[-1])
            for name, values in result["samples"].items():
                found.setdefault(name, {}).setdefault(side, []).extend(values)
    return Report(
        name="op_overhead",
        question="One call on tensors of 64 elements: the cost of the call itself.",
        method=METHOD.format(rounds=rounds, samples=samples),
        rows=[harness.timing_row(f"`{name}`", of, unit="us") for name, of in found.items()],
        data={
            "median_us": {
                name: {side: harness.percentile(values, 50) * 1e6 for side, values in of.items()}
                for name, of in found.items()
            }
        },
    )


if __name__ == "__main__":
    sys.exit(harness.main(benchmark))
