"""How fast is 1 GB of state saved and loaded by two processes, and what does saving behind training cost?"""

from __future__ import annotations

import resource
import statistics
import sys
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks import harness
from benchmarks.harness import Options, Report, Row
from benchmarks.parts.taken import Taken

RANKS = 2
CHUNK_MIB = 16
STATE = {"save": "save", "load, cold": "load, files not in memory", "load, warm": "load, files in memory"}
DISK = {"disk, write": "save", "disk, read cold": "load, cold", "disk, read warm": "load, warm"}

METHOD = """Two processes with one thread each; {mib:.0f} MiB of float32 in 16 tensors that both hold, saved into a new
folder, loaded in place, and compared. Every save ends with fsync of all files. Disk: one process writes as many bytes
into a new file in pieces of 16 MiB, with fsync at the end, or reads them; cold: after the system was told to forget
the files. Sides take turns by whole runs; medians of {rounds} rounds after one that is not counted; the disk is
measured before the checkpoint in one round and after it in the next. A virtual machine's disk is its host's: one file
may take four times as long as the one before it, whoever writes, so the quickest of each are compared, too.
Training: the GPT of `train_step` with AdamW and DDP, {state:.0f} MiB of state; a save behind it every 10 steps. The
copy alone: a tensor as large as a rank's share, copied into another. PyTorch: torch.distributed.checkpoint with its
defaults.
Files go through the system's cache. O_DIRECT is not used: it needs one more copy of every block, into aligned memory,
and other calls for a file's end; tried beside other load it wrote 256 MiB at 0.65 to 1.4 GB/s, the cache at 0.2 to 1.4,
which is no gain that can be told from the load."""


def benchmark(options: Options) -> Report:
    """Both parts on both sides."""
    nbytes, rounds = (64 << 20, 1) if options.quick else (1 << 30, 9)
    taken = Taken(options, nbytes=nbytes, rounds=rounds)
    found: dict[str, dict[str, Any]] = {"state": {}, "training": {}}

    def measure(side: str, what: str) -> dict[str, Any]:
        with tempfile.TemporaryDirectory(prefix="checkpoint-", dir=Path.cwd()) as folder:
            arguments = ["--folder", folder, "--what", what, "--nbytes", str(nbytes), "--rounds", str(rounds)]
            return harness.run_ranks(side, options, "checkpoint", arguments, ranks=RANKS)

    for side in harness.sides(options):
        for what, sides in found.items():
            with harness.progress(f"{what}: {side}"):
                taken.run(0, f"{what}: {side}", partial(measure, side, what), peer=side != "resilin")
            sides.update((side, result) for result in taken.results(f"{what}: {side}"))
    state, training = found["state"], found["training"]
    return Report(
        name="checkpoint",
        question="1 GB of state saved and loaded by two processes, and the pause of training for a save behind it.",
        method=METHOD.format(mib=nbytes / 2**20, rounds=rounds, state=training["resilin"]["nbytes"] / 2**20),
        rows=[*_state_rows(state), *_training_rows(training)],
        notes=_notes(state["resilin"], training["resilin"]) + taken.notes(),
        data={"state": state, "training": training},
    )


def _state_rows(state: dict[str, Any]) -> list[Row]:
    rows = [
        harness.timing_row(text, {side: found["samples"][what] for side, found in state.items()}, unit="ms")
        for what, text in STATE.items()
    ]
    rows += [harness.timing_row(what, {"resilin": state["resilin"]["samples"][what]}, unit="ms") for what in DISK]
    return rows + [
        Row(
            what=f"peak memory beyond the state: {what}",
            unit="MiB",
            ours=_mib(state["resilin"]["peaks"][what]),
            peer=_mib(state["torch"]["peaks"][what]) if "torch" in state else None,
        )
        for what in STATE
    ]


def _mib(peak: float) -> float:
    """Of memory that the system counts in pages: less than one is not told from none."""
    return max(peak, resource.getpagesize()) / 2**20


def _training_rows(training: dict[str, Any]) -> list[Row]:
    return [
        harness.timing_row(f"GPT: {text}", {side: found["samples"][what] for side, found in training.items()})
        for what, text in (
            ("step", "step"),
            ("pause", "pause for a save behind training, its copy included"),
            ("copy", "the copy alone"),
        )
    ] + _while_writing(training)


def _while_writing(training: dict[str, Any]) -> list[Row]:
    samples = {side: found["samples"]["step while writing"] for side, found in training.items()}
    return [harness.timing_row("GPT: step while a save is written", samples)] if all(samples.values()) else []


def _notes(state: dict[str, Any], training: dict[str, Any]) -> list[str]:
    def shares(typical: Callable[[list[float]], float]) -> str:
        found = {what: typical(samples) for what, samples in state["samples"].items()}
        return ", ".join(f"{STATE[ours]} {100 * found[disk] / found[ours]:.0f} %" for disk, ours in DISK.items())

    pause, copy, step = (statistics.median(training["samples"][what]) for what in ("pause", "copy", "step"))
    return [
        f"resilin's rate beside the disk's own, by medians: {shares(statistics.median)}.",
        f"The same by the quickest of each: {shares(min)}.",
        f"The pause beyond the copy is {100 * (pause - copy) / step:.1f} % of a step.",
        f"A block, which is read, written and hashed at once, has {CHUNK_MIB} MiB.",
    ]


if __name__ == "__main__":
    sys.exit(harness.main(benchmark, resumable=True))
