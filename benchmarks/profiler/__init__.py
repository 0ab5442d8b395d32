"""What does a profile cost what it looks at?"""

from __future__ import annotations

import json
import statistics
from collections.abc import Sequence

from benchmarks import harness
from benchmarks.cases.profiler import CALLS, STEPS
from benchmarks.harness import Options, Report, Row

WHAT = {"op": "a + b of 8 x 8", "tiny": "step of the tiny MLP", "gpt": "step of the GPT"}
MODES = {"on": "a profile adds", "shapes": "with shapes it adds"}
METHOD = """One thread; AdamW. {rounds} rounds, with a new process for each row and side. Blocks of {calls} calls, or
of {tiny} and {gpt} steps, alternate between the modes in one process: no profile, one, one with record_shapes; a sample
is a block's time divided by its calls. Starting, stopping and reading a profile is not in it. "Adds" is the median of
the differences between neighbouring blocks, where it says so divided by the events that a profile tells of."""


def benchmark(options: Options) -> Report:
    """One operation, a tiny step, a step of a GPT, on both sides."""
    rounds, blocks = (1, 2) if options.quick else (2, 10)  # 20 pairs
    found: dict[str, dict[str, dict[str, list[float]]]] = {what: {} for what in WHAT}
    events: dict[str, dict[str, float]] = {what: {} for what in WHAT}
    for number in range(rounds):
        for what in WHAT:
            for side in harness.sides(options):
                arguments = ["--what", what, "--blocks", str(blocks)]
                command = harness.case_command(side, options, "profiler", arguments)
                with harness.progress(f"round {number + 1} of {rounds}: {what}, {side}"):
                    result = json.loads(harness.check_output(command, timeout_s=300).splitlines()[-1])
                events[what][side] = result["events"]
                modes = found[what].setdefault(side, {})
                for mode, samples in result["samples"].items():
                    modes.setdefault(mode, []).extend(samples)
    rows = []
    for what, text in WHAT.items():
        off = {side: modes["off"] for side, modes in found[what].items()}
        rows.append(harness.timing_row(f"{text}: no profile", off, unit="us"))
        for mode, adds in MODES.items():
            added = {side: _differences(modes[mode], modes["off"]) for side, modes in found[what].items()}
            rows.append(harness.timing_row(f"{text}: {adds}", added, unit="us"))
            if what != "op":  # which is one event
                rows.append(_share(f"{text}: {adds}, of the step", added, off))
                each = {side: [one / events[what][side] for one in samples] for side, samples in added.items()}
                rows.append(harness.timing_row(f"{text}: {adds}, per event", each, unit="us"))
    return Report(
        name="profiler",
        question="What a profile adds to an operation and to a training step, beside torch.profiler.",
        method=METHOD.format(rounds=rounds, calls=CALLS, **STEPS),
        rows=rows,
        data={"samples_s": found, "events": events},
    )


def _differences(longer: Sequence[float], shorter: Sequence[float]) -> list[float]:
    return [a - b for a, b in zip(longer, shorter, strict=True)]


def _share(what: str, added: dict[str, list[float]], off: dict[str, list[float]]) -> Row:
    shares = {side: statistics.median(samples) / statistics.median(off[side]) * 100 for side, samples in added.items()}
    return Row(what=what, unit="%", ours=shares["resilin"], peer=shares.get("torch"))
