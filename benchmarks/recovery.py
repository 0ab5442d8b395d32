"""A worker is killed: how long until those left have committed their next step, and until all are back?"""

from __future__ import annotations

import os
import random
import signal
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from benchmarks import harness
from benchmarks.harness import BenchmarkError, Options, Report, Row
from benchmarks.parts import disturbed

SIZES = (2, 3, 4)
DIVIDED = "ZeRO stage 3"
PLAIN = "benchmarks/cases/plain_python.py"

METHOD = """`elastic-run` or `torchrun` with `--standalone --nproc-per-node N`. A third process kills the ranks in turn
with SIGKILL, at a random moment of a step: {kills} kills in {jobs} jobs for each N. Recovery: from just before the
`kill` call to the first step that a survivor commits in a later generation, both times from CLOCK_MONOTONIC, which the
processes of one host share. Its parts: the agent knows of the death; it has the next generation; training code runs
again (group formed, state made equal); the commit. "Full strength": from the kill to the first commit of the process
that replaces the dead one. The model is small (64-256-10), so the figures are of recovery and not of the step.
Restart: two workers of a program without `resilin.elastic`, which its launcher stops and starts again; from the kill
to the first step that all workers have done since, {restarts} kills; the same model with DistributedDataParallel, or
plain Python that imports nothing of either library. PyTorch: {peer_kills} kills each. ZeRO stage 3: the
same model, its parameters and AdamW's state divided among the workers, each range with a second copy at a buddy's.
No checkpoint is written or read."""


@dataclass(frozen=True, kw_only=True)
class Recovery:
    """What one kill cost, in milliseconds."""

    total_ms: float
    strength_ms: float
    detect_ms: float | None = None
    """Until the agent knew of the death; None where a launcher does not tell."""
    agree_ms: float | None = None
    """From there until the agent had the next generation."""
    rewire_ms: float | None = None
    """From there until training code ran again."""
    step_ms: float | None = None
    """From there to the commit."""


@dataclass(frozen=True)
class Program:
    """What is launched, and how its workers come back."""

    name: str
    size: int
    in_place: bool

    def start(self, side: str, options: Options, folder: Path) -> disturbed.Node:
        """Launch it."""
        flags = ["--standalone", "--nproc-per-node", str(self.size), "--max-restarts", "1000"]
        if self.name == "plain Python":
            return disturbed.Node(side, options, folder, flags, [PLAIN])
        words = ["--shards", str(self.size), *([] if self.in_place else ["--restart"])]
        words += ["--divided"] if self.name == DIVIDED else []
        case = harness.case_command(side, options, "recovery", words)[2:]
        return disturbed.Node(side, options, folder, [*flags, "-m"], case)


IN_PLACE = (
    *(Program("recovers in place", size, True) for size in SIZES),
    *(Program(DIVIDED, size, True) for size in (2, 4)),
)
RESTARTED = (Program("DistributedDataParallel", 2, False), Program("plain Python", 2, False))


def kill(program: Program, node: disturbed.Node, victim: int, delay_s: float) -> Recovery:
    """Wait until the world has settled, kill rank `victim`, and wait until all work again."""
    ranks = range(program.size)
    before = node.wait("a settled world", lambda: node.settled(program.size, ranks))
    time.sleep(delay_s)  # not a wait for something: it picks the moment within a step
    generation, old = before[victim].generation, {event.pid for event in before}
    killed_at = time.monotonic()
    os.kill(before[victim].pid, signal.SIGKILL)
    return (_in_place if program.in_place else _restarted)(node, generation, old, killed_at, program.size)


def _in_place(node: disturbed.Node, generation: int, old: set[int], killed_at: float, size: int) -> Recovery:
    first = node.wait("a commit after the kill", lambda: node.first("commit", generation, lambda e: e.pid in old))
    resumed = node.first("enter", generation, lambda e: e.pid in old)
    assert resumed is not None, "a commit without an enter before it"
    back = node.wait("a replacement's commit", lambda: node.first("commit", generation, lambda e: e.pid not in old))
    death = node.told("death", killed_at)
    agreed = node.told("generation", death) if death is not None else None
    if death is None or agreed is None:
        raise BenchmarkError("the event log has no death or no generation after it")
    return Recovery(
        total_ms=(first.at - killed_at) * 1e3,
        strength_ms=(back.at - killed_at) * 1e3,
        detect_ms=(death - killed_at) * 1e3,
        agree_ms=(agreed - death) * 1e3,
        rewire_ms=(resumed.at - agreed) * 1e3,
        step_ms=(first.at - resumed.at) * 1e3,
    )


def _restarted(node: disturbed.Node, generation: int, old: set[int], killed_at: float, size: int) -> Recovery:
    def all_back() -> float | None:
        firsts: dict[int, float] = {}
        for event in node.commits(generation):
            firsts.setdefault(event.rank, event.at)
        return max(firsts.values()) if len(firsts) == size else None

    last_ms = (node.wait("a step of all restarted workers", all_back) - killed_at) * 1e3
    return Recovery(total_ms=last_ms, strength_ms=last_ms)


Found = dict[tuple[Program, str], list[Recovery]]  # by program and side


def benchmark(options: Options) -> Report:
    """Many kills over several jobs; with a peer, a few of its restarts in between."""
    jobs, kills, restarts, peer_jobs = (1, 3, 2, 1) if options.quick else (5, 40, 8, 3)
    found: Found = {}
    failures: dict[str, list[str]] = {side: [] for side in harness.sides(options)}
    moments = random.Random(0)
    for job in range(jobs):
        for program in (*IN_PLACE, *RESTARTED):
            for side in failures:
                if side == "torch" and (program.in_place or job >= peer_jobs):
                    continue
                count = 1 if side == "torch" else kills if program.in_place else restarts
                with harness.progress(f"job {job + 1} of {jobs}: {program.name}, {program.size} workers, {side}"):
                    some = found.setdefault((program, side), [])
                    failures[side] += _disturb(program, side, options, count, moments, some)
    if not all(some for (_, side), some in found.items() if side == "resilin"):
        raise BenchmarkError(f"a program never recovered; the first failure: {failures['resilin'][0]}")
    notes = [
        f"{side}: {len(errors)} kills were followed by no recovery; the first: {errors[0].splitlines()[0]}"
        for side, errors in failures.items()
        if errors
    ]
    return Report(
        name="recovery",
        question="SIGKILL of one worker: how long until the next committed step, and until all workers are back?",
        method=METHOD.format(kills=jobs * kills, jobs=jobs, restarts=jobs * restarts, peer_kills=peer_jobs),
        rows=[row for program in (*IN_PLACE, *RESTARTED) for row in _rows(program, found)],
        notes=notes,
        data=_figures(found, failures),
    )


def _disturb(
    program: Program, side: str, options: Options, kills: int, moments: random.Random, found: list[Recovery]
) -> list[str]:
    """One job with `kills` kills; a failure ends it and is returned."""
    with tempfile.TemporaryDirectory(prefix="resilin-recovery-") as folder:
        node = program.start(side, options, Path(folder))
        try:
            for number in range(kills):
                found.append(kill(program, node, number % program.size, moments.uniform(0, 0.1)))
        except BenchmarkError as error:
            return [str(error)]
        finally:
            node.close()
    return []


PARTS = {
    "total_ms": "kill to a survivor's next commit",
    "detect_ms": "... of it: detect",
    "agree_ms": "... of it: agree",
    "rewire_ms": "... of it: rewire",
    "step_ms": "... of it: first step",
    "strength_ms": "kill to full strength",
}


def _values(part: str, recoveries: list[Recovery]) -> list[float]:
    return [value for recovery in recoveries if (value := getattr(recovery, part)) is not None]


def _rows(program: Program, found: Found) -> list[Row]:
    ours = found[program, "resilin"]
    # what a torchrun of that size does is a restart, whatever the program
    peer = found.get((RESTARTED[0] if program == IN_PLACE[0] else program, "torch"), [])
    rows = []
    for part, what in PARTS.items() if program.in_place else [("total_ms", f"restart of {program.name}")]:
        for percent in (50,) if what.startswith("...") else (50, 95):
            values, theirs = _values(part, ours), _values(part, peer) if part in ("total_ms", "strength_ms") else []
            rows.append(
                Row(
                    what=f"{_named(program)}: {what}, {'median' if percent == 50 else f'p{percent}'}",
                    unit="ms",
                    ours=harness.percentile(values, percent),
                    peer=harness.percentile(theirs, percent) if theirs else None,
                    spread=harness.spread(values),
                )
            )
    return rows


def _named(program: Program) -> str:
    return f"{program.size} workers" + (f", {DIVIDED}" if program.name == DIVIDED else "")


def _figures(found: Found, failures: dict[str, list[str]]) -> dict[str, object]:
    """By program and side: p50, p95 and longest of each part, and all samples, in ms."""
    figures: dict[str, object] = {"failures": failures}
    for (program, side), some in found.items():
        parts = {part: values for part in PARTS if (values := _values(part, some))}
        figures[f"{program.name}, {program.size} workers, {side}"] = {
            part: {
                **{f"p{percent}": harness.percentile(values, percent) for percent in (50, 95, 100)},
                "samples": values,
            }
            for part, values in parts.items()
        }
    return figures


if __name__ == "__main__":
    sys.exit(harness.main(benchmark))
