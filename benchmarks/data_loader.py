"""How fast does a DataLoader bring batches, and how soon the first?"""

from __future__ import annotations

import json
import sys

from benchmarks import harness
from benchmarks.harness import Options, Report, Row

WORKERS = 2
BATCHES = {"images": 40, "tokens": 400}  # about a second per pass on the slower side
WHAT = {
    "images": "40 batches of 64 images (224 x 224 x 3 bytes, random crops)",
    "tokens": "400 batches of 32 windows of 256 tokens",
}

METHOD = """Passes over a data set that makes its samples from arrays in memory (`cases/data_loader.py`), shuffled, in
the order of the sampler; the loop reads a value from every page of each batch and checks their sum. Workers start anew
with each pass, as they do by default; the time to the first batch contains that. Medians over {rounds} rounds of
{passes} passes after one for warm-up, the sides in turn, a process each; {workers} workers, forked. PyTorch's loader
has no worker threads."""


def benchmark(options: Options) -> Report:
    """Both data sets without workers, with processes and with threads."""
    rounds, passes = (1, 1) if options.quick else (5, 3)
    found: dict[tuple[str, str], dict[str, dict[str, list[float]]]] = {}
    for number in range(rounds):
        for name in BATCHES:
            for how, arguments in _WAYS.items():
                for side in harness.sides(options):
                    if how == "threads" and side != "resilin":
                        continue
                    with harness.progress(f"round {number + 1} of {rounds}: {name}, {how}, {side}"):
                        result = _run(side, options, name, [*arguments, "--passes", str(passes)])
                    for what in ("first_s", "pass_s"):
                        found.setdefault((name, how), {}).setdefault(what, {}).setdefault(side, []).extend(result[what])
    return Report(
        name="data_loader",
        question=f"One pass with {WORKERS} workers or none: until its end, and until its first batch.",
        method=METHOD.format(rounds=rounds, passes=passes, workers=WORKERS),
        rows=[row for (name, how), samples in found.items() for row in _rows(name, how, samples)],
        data={"samples": {f"{name}, {how}": samples for (name, how), samples in found.items()}},
    )


_WAYS = {
    "in process": [],
    f"{WORKERS} processes": ["--workers", str(WORKERS)],
    "threads": ["--workers", str(WORKERS), "--threads"],
}


def _run(side: str, options: Options, name: str, arguments: list[str]) -> dict[str, list[float]]:
    command = harness.case_command(
        side, options, "data_loader", ["--set", name, "--batches", str(BATCHES[name]), *arguments]
    )
    result: dict[str, list[float]] = json.loads(harness.check_output(command, timeout_s=300).splitlines()[-1])
    return result


def _rows(name: str, how: str, samples: dict[str, dict[str, list[float]]]) -> list[Row]:
    how = f"{WORKERS} threads" if how == "threads" else how
    rows = [harness.timing_row(f"{WHAT[name]}, {how}", samples["pass_s"])]
    if how != "in process":
        rows.append(harness.timing_row(f"{name}, {how}: start to first batch", samples["first_s"]))
    return rows


if __name__ == "__main__":
    sys.exit(harness.main(benchmark))
