"""What does the caching allocator of CPU memory gain, beside malloc?"""

from __future__ import annotations

import json
import statistics
import sys
from dataclasses import replace
from itertools import product
from typing import Any

from benchmarks import harness
from benchmarks.cases.allocator import HELD, TRAINED, WARM_UP
from benchmarks.harness import Options, Report, Row

MALLOC, KEEPING = "malloc", "malloc that keeps"
SIDES = ("arenas", MALLOC, KEEPING)
# glibc gives freed memory back to the kernel unless told otherwise; 32 MiB is as large as it takes blocks from its heap
KEEPS = {
    "MALLOC_TRIM_THRESHOLD_": str(1 << 40),
    "MALLOC_MMAP_THRESHOLD_": str(32 << 20),
    "MALLOC_TOP_PAD_": str(64 << 20),
}
Sides = dict[str, list[dict[str, Any]]]  # what each round found, of each side
METHOD = """One thread. Models train with AdamW on one fixed batch. "One at a time": x + 1 is made and dropped, per
call; "{held} at once": {held} of them are made, then dropped, per tensor. Both sides are resilin: "arenas"
is the allocator as it is, "malloc" is numpy's own, in a context without resilin's handler (NEP 49). Median
over {rounds} rounds of {seconds:g} s, a process per round and side, the sides in turn; memory is the most
that the process ever took beyond what it had before the model was made (VmHWM), the median of the rounds.
Page faults are those of the measuring thread, after {warm} calls."""


def benchmark(options: Options) -> Report:
    """Every model, then tensors that come and go, in turn from arenas and from two mallocs."""
    rounds, seconds = (1, 0.01) if options.quick else (5, 1.0)
    found: dict[str, Sides] = {}
    stats: dict[str, dict[str, dict[str, int]]] = {}
    for number, model, side in product(range(rounds), (*TRAINED, None), SIDES):
        arguments = ["--seconds", str(seconds), *(["--model", model] if model else [])]
        arguments += [] if side == "arenas" else ["--malloc"]
        environment = harness.environment(**(KEEPS if side == KEEPING else {}))
        command = harness.case_command("resilin", options, "allocator", arguments)
        with harness.progress(f"round {number + 1} of {rounds}: {model or 'tensors'}, {side}"):
            result = json.loads(harness.check_output(command, timeout_s=300, env=environment).splitlines()[-1])
        for what, figures in result["found"].items():
            found.setdefault(what, {}).setdefault(side, []).append(figures)
            if side == "arenas" and model:
                stats[what] = {"stats": result["stats"], "after": result["after"]}
    return Report(
        name="allocator",
        question="The caching allocator of CPU memory, whose arenas other processes can map, beside malloc.",
        method=METHOD.format(held=HELD, rounds=rounds, seconds=seconds, warm=WARM_UP),
        ours="arenas",
        rows=[row for what, of in found.items() for row in _rows(what, of)],
        notes=[_kept_table(found), _stats_table(stats)],
        data={"found": found, "stats": stats},
    )


def _rows(what: str, of: Sides) -> list[Row]:
    samples = {side: [each for one in rounds for each in one["samples"]] for side, rounds in of.items()}
    unit = "ms" if min(map(statistics.median, samples.values())) >= 1e-3 else "us"
    both = {"resilin": samples["arenas"], "torch": samples[MALLOC]}  # as the harness calls ours and what is beside it
    rows = [replace(harness.timing_row(what, both, unit=unit), baseline=MALLOC)]
    if "peak_bytes" in of["arenas"][0]:
        ours, theirs = (_median(of[side], "peak_bytes") / 2**20 for side in ("arenas", MALLOC))
        rows.append(Row(what=f"{what}: memory", unit="MiB", ours=ours, peer=theirs, baseline=MALLOC))
    return rows


def _median(rounds: list[dict[str, Any]], key: str) -> float:
    return statistics.median(one[key] for one in rounds)


def _kept_table(found: dict[str, Sides]) -> str:
    """How often the kernel was asked for a page, and what a malloc takes that asks as seldom."""
    settings = ", ".join(f"{name}={value}" for name, value in KEEPS.items())
    lines = [
        f"Page faults of each tensor or step; a {KEEPING} is glibc's with {settings}:",
        "",
        f"| what | arenas | {MALLOC} | {KEEPING} | time with it, us | memory with it, MiB |",
        "|---|---|---|---|---|---|",
    ]
    for what, of in found.items():
        faults = [harness.figure(_median(of[side], "faults")) for side in SIDES]
        time = harness.figure(1e6 * statistics.median(each for one in of[KEEPING] for each in one["samples"]))
        has_memory = "peak_bytes" in of[KEEPING][0]
        memory = harness.figure(_median(of[KEEPING], "peak_bytes") / 2**20) if has_memory else ""
        lines.append(f"| {what} | {' | '.join(faults)} | {time} | {memory} |")
    return "\n".join(lines)


def _stats_table(stats: dict[str, dict[str, dict[str, int]]]) -> str:
    """What the allocator says of itself."""
    lines = [
        "What the allocator says of each training (`memory.stats()`), and when all is dropped and its cache emptied:",
        "",
        "| model | most in use | in arenas | blocks from the cache | in arenas after `empty_cache()` |",
        "|---|---|---|---|---|",
    ]
    for what, of in stats.items():
        then, after = of["stats"], of["after"]
        share = then["hits"] / max(1, then["hits"] + then["misses"])
        cells = [_mib(then["peak"]), _mib(then["reserved"]), f"{share:.1%}", _mib(after["reserved"])]
        lines.append(f"| {what} | {' | '.join(cells)} |")
    return "\n".join(lines)


def _mib(size: int) -> str:
    return f"{size / 2**20:.1f} MiB"


if __name__ == "__main__":
    sys.exit(harness.main(benchmark))
