"""One of two workers is killed: how long until the other one has committed its next step?"""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from benchmarks import harness
from benchmarks.harness import BenchmarkError, Options, Report, Row

RANKS = 2
SETTLED = 5  # commits of every rank in a generation before the next kill
POLL_S = 0.02  # the killer only reads a file; a slow poll leaves the cores to the workers
PATIENCE_S = 30.0

T = TypeVar("T")

METHOD = """`elastic-run` or `torchrun` with `--standalone --nproc-per-node 2`. A third process kills rank 0 and
rank 1 in turn with SIGKILL, at a random moment of a step: {kills} kills in {jobs} jobs. Recovery: from just
before the `kill` call to the first step that the survivor commits in a later generation, both times from
CLOCK_MONOTONIC, which the processes of one host share. Its moments: the agent knows of the death; it has the next
generation; training code runs again (group formed, state made equal); the commit. "Replacement": from the kill to
the first commit of the process that replaces the dead one. The model is small (64-256-10), so the figures are of
recovery and not of the step. PyTorch: torchrun stops all workers and starts them again, {peer_kills} kills; the
clock stops at the first step of any worker after it. No checkpoint is written or read."""


@dataclass(frozen=True)
class Event:
    """One line of `benchmarks.cases.recovery`."""

    kind: str
    rank: int
    world: int
    generation: int
    pid: int
    step: int
    at: float

    @classmethod
    def parse(cls, line: str) -> Event:
        """From its text."""
        kind, rank, world, generation, pid, step, at = line.split()
        return cls(kind, int(rank), int(world), int(generation), int(pid), int(step), float(at))


@dataclass(frozen=True, kw_only=True)
class Recovery:
    """What one kill cost, in milliseconds."""

    total_ms: float
    resumed_ms: float
    redone_ms: float
    replaced_ms: float
    noticed_ms: float | None = None
    """Until the agent knew of the death; None where a launcher does not tell."""
    agreed_ms: float | None = None
    """Until the agent had the next generation."""


class Job:
    """A launcher with two workers that train until the job is closed; `kill()` disturbs it."""

    def __init__(self, side: str, options: Options, folder: Path) -> None:
        self._restarts = side == "torch"
        self._log = folder / "log"
        self._events_path = folder / "events"
        self._events_path.touch()
        self._output = (folder / "output").open("w+")
        self._read_to = 0
        self._events: list[Event] = []
        case = harness.case_command(side, options, "recovery", ["--events", str(self._events_path)])[2:]
        head = [harness.launcher(side, options), "--standalone", "--nproc-per-node", str(RANKS)]
        head += ["--max-restarts", "1000", *([] if self._restarts else ["--event-log", str(self._log)]), "-m"]
        self._launcher = subprocess.Popen(
            [*head, *case],
            cwd=harness.ROOT,
            env=harness.environment(),
            stdout=self._output,
            stderr=subprocess.STDOUT,
        )

    def kill(self, victim: int, delay_s: float) -> Recovery:
        """Wait until the world has settled, kill rank `victim`, and wait until its replacement works."""
        before = self._wait("a settled world of two", self._settled)
        time.sleep(delay_s)  # not a wait for something: it picks the moment within a step
        dead = before[victim].pid
        killed_at = time.monotonic()
        os.kill(dead, signal.SIGKILL)
        generation = before[victim].generation
        old = {event.pid for event in before}
        fresh = self._restarts  # whether whoever commits next may be a new process
        first = self._wait("a commit after the kill", lambda: self._later(generation, "commit", old, fresh))
        resumed = self._later(generation, "enter", old, fresh)
        assert resumed is not None, "a commit without an enter before it"
        replaced = self._wait("a replacement's commit", lambda: self._later(generation, "commit", old, True))
        death = self._told("death", killed_at)
        generation_at = self._told("generation", death) if death is not None else None
        return Recovery(
            noticed_ms=(death - killed_at) * 1e3 if death is not None else None,
            agreed_ms=(generation_at - killed_at) * 1e3 if generation_at is not None else None,
            total_ms=(first.at - killed_at) * 1e3,
            resumed_ms=(resumed.at - killed_at) * 1e3,
            redone_ms=(first.at - resumed.at) * 1e3,
            replaced_ms=(replaced.at - killed_at) * 1e3,
        )

    def _told(self, name: str, after: float) -> float | None:
        """When `elastic-run` noted the first event `name` after that moment, on the same clock."""
        if not self._log.exists():
            return None
        events = map(json.loads, self._log.read_text().splitlines())
        return next((e["mono"] for e in events if e["event"] == name and e["mono"] > after), None)

    def _later(self, generation: int, kind: str, old: set[int], fresh: bool) -> Event | None:
        """The first event of `kind` after `generation`: by a process that is new (`fresh`) or by one of `old`."""
        later = [
            e for e in self._events if e.kind == kind and e.generation > generation and (e.pid not in old) == fresh
        ]
        return min(later, key=lambda event: event.at, default=None)

    def _settled(self) -> list[Event] | None:
        """The last commit of each rank of the newest generation, once it is a world of two with enough commits."""
        newest = max((event.generation for event in self._events), default=0)
        commits = [event for event in self._events if event.kind == "commit" and event.generation == newest]
        of_rank = [[event for event in commits if event.rank == rank and event.world == RANKS] for rank in range(RANKS)]
        return [events[-1] for events in of_rank] if all(len(events) >= SETTLED for events in of_rank) else None

    def _wait(self, what: str, look: Callable[[], T | None]) -> T:
        deadline = time.monotonic() + PATIENCE_S
        while True:
            self._read()
            found = look()
            if found is not None:
                return found
            if self._launcher.poll() is not None:
                raise BenchmarkError(
                    f"the launcher ended with {self._launcher.returncode} before {what}\n{self._tail()}"
                )
            if time.monotonic() > deadline:
                raise BenchmarkError(f"{what}: not seen within {PATIENCE_S:.0f} s\n{self._tail()}")
            time.sleep(POLL_S)

    def _read(self) -> None:
        with self._events_path.open("rb") as file:
            file.seek(self._read_to)
            data = file.read()
        whole = data[: data.rfind(b"\n") + 1]
        self._read_to += len(whole)
        self._events = self._recent() + [Event.parse(line) for line in whole.decode().splitlines()]

    def _recent(self) -> list[Event]:
        """Only the last generations matter: commits of a long job need not be kept."""
        newest = max((event.generation for event in self._events), default=0)
        return [event for event in self._events if event.generation >= newest - 3]

    def _tail(self) -> str:
        self._output.flush()
        return "\n".join(Path(self._output.name).read_text().splitlines()[-15:])

    def close(self) -> None:
        """End the launcher, which ends its workers."""
        self._launcher.terminate()
        try:
            self._launcher.wait(timeout=15)
        except subprocess.TimeoutExpired:
            self._launcher.kill()
            self._launcher.wait()
        self._output.close()


def benchmark(options: Options) -> Report:
    """Many kills over several jobs; with a peer, a few of its restarts in between."""
    jobs, kills, peer_kills = (1, 3, 1) if options.quick else (10, 10, 1)
    found: dict[str, list[Recovery]] = {side: [] for side in harness.sides(options)}
    failures: dict[str, list[str]] = {side: [] for side in found}
    moments = random.Random(0)
    for job in range(jobs):
        for side in found:
            with harness.progress(f"job {job + 1} of {jobs}: {side}"):
                count = kills if side == "resilin" else peer_kills
                _disturb(side, options, count, moments, found[side], failures[side])
    if not found["resilin"]:
        raise BenchmarkError(f"no recovery was measured; the first failure: {failures['resilin'][0]}")
    method = METHOD.format(kills=jobs * kills, jobs=jobs, peer_kills=jobs * peer_kills)
    notes = [
        f"{side}: {len(errors)} of {len(errors) + len(found[side])} kills were followed by no recovery; the first: "
        f"{errors[0].splitlines()[0]}"
        for side, errors in failures.items()
        if errors
    ]
    return Report(
        name="recovery",
        question="SIGKILL of one of two workers: how long until the survivor has committed its next step?",
        method=method,
        rows=_rows(found),
        notes=notes,
        data=_figures(found, failures),
    )


def _disturb(
    side: str, options: Options, kills: int, moments: random.Random, found: list[Recovery], failures: list[str]
) -> None:
    """One job with `kills` kills; a failure ends it and is recorded."""
    with tempfile.TemporaryDirectory(prefix="resilin-recovery-") as folder:
        job = Job(side, options, Path(folder))
        try:
            for number in range(kills):
                found.append(job.kill(victim=number % RANKS, delay_s=moments.uniform(0, 0.1)))
        except BenchmarkError as error:
            failures.append(str(error))
        finally:
            job.close()


PARTS = {
    "total_ms": "kill to the survivor's next commit",
    "noticed_ms": "... of it: until the agent knows of the death",
    "agreed_ms": "... of it: until it has the next generation",
    "resumed_ms": "... of it: until training code runs again",
    "redone_ms": "... of it: from there to the commit",
    "replaced_ms": "kill to the replacement's first commit",
}


def _values(part: str, recoveries: list[Recovery]) -> list[float]:
    return [value for recovery in recoveries if (value := getattr(recovery, part)) is not None]


def _rows(found: dict[str, list[Recovery]]) -> list[Row]:
    rows = []
    for percent in (50, 95, 100):
        for part, what in PARTS.items():
            if part != "total_ms" and percent != 50:
                continue
            values = {side: _values(part, recoveries) for side, recoveries in found.items()}
            if not values["resilin"]:
                continue
            rows.append(
                Row(
                    what=f"{what}, {'median' if percent == 50 else 'longest' if percent == 100 else f'p{percent}'}",
                    unit="ms",
                    ours=harness.percentile(values["resilin"], percent),
                    peer=harness.percentile(values["torch"], percent) if values.get("torch") else None,
                    spread=harness.spread(values["resilin"]),
                )
            )
    return rows


def _figures(found: dict[str, list[Recovery]], failures: dict[str, list[str]]) -> dict[str, object]:
    """The keys that others read: p50_ms, p95_ms, max_ms, kills, and the split."""

    def summary(side: str) -> dict[str, object]:
        total = [recovery.total_ms for recovery in found[side]]
        return {
            "p50_ms": harness.percentile(total, 50) if total else None,
            "p95_ms": harness.percentile(total, 95) if total else None,
            "max_ms": max(total, default=None),
            "kills": len(total) + len(failures[side]),
            "failed": len(failures[side]),
            "split": {
                part: {f"p{percent}": harness.percentile(values, percent) for percent in (50, 95)}
                for part in PARTS
                if (values := _values(part, found[side]))
            },
            "samples_ms": total,
        }

    return {**summary("resilin"), **({"peer": summary("torch")} if "torch" in found else {})}


if __name__ == "__main__":
    sys.exit(harness.main(benchmark))
