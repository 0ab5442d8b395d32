"""Jobs that somebody disturbs: launchers started for a case that notes what its workers do, and what they noted."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from benchmarks import harness
from benchmarks.harness import BenchmarkError, Options

SETTLED = 5  # commits of every rank in a generation before the next disturbance
POLL_S = 0.02  # whoever watches only reads a file; a slow poll leaves the cores to the workers
PATIENCE_S = 30.0

T = TypeVar("T")


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


class Node:
    """One launcher, whose workers append events to a file until it is closed."""

    def __init__(self, side: str, options: Options, folder: Path, flags: Sequence[str], case: Sequence[str]) -> None:
        """case: the case's own command, without its options; `flags` are the launcher's."""
        self.log = folder / "log"
        self._events_path = folder / "events"
        self._events_path.touch()
        self._output = (folder / "output").open("w+")
        self._read_to = 0
        self._events: list[Event] = []
        more = ["--event-log", str(self.log)] if side == "resilin" else []
        self.launcher = subprocess.Popen(
            [harness.launcher(side, options), *flags, *more, *case, "--events", str(self._events_path)],
            cwd=harness.ROOT,
            env=harness.environment(),
            stdout=self._output,
            stderr=subprocess.STDOUT,
        )

    def commits(self, after: int = 0) -> list[Event]:
        """Commits in generations after `after`, of those that are kept, in the order of the file."""
        return [event for event in self._events if event.kind == "commit" and event.generation > after]

    def first(self, kind: str, after: int, wanted: Callable[[Event], bool]) -> Event | None:
        """The earliest event of `kind` in a generation after `after`."""
        events = (e for e in self._events if e.kind == kind and e.generation > after and wanted(e))
        return min(events, key=lambda event: event.at, default=None)

    def settled(self, world: int, ranks: Sequence[int] = ()) -> list[Event] | None:
        """The last commit of each of `ranks` in the newest generation, once it is a world of that size with enough.

        ranks: empty for those that are seen here.
        """
        newest = max((event.generation for event in self._events), default=0)
        commits = [event for event in self.commits(newest - 1) if event.world == world]
        wanted = ranks or sorted({event.rank for event in commits}) or [0]
        of_rank = [[event for event in commits if event.rank == rank] for rank in wanted]
        return [events[-1] for events in of_rank] if all(len(events) >= SETTLED for events in of_rank) else None

    def told(self, name: str, after: float) -> float | None:
        """When `elastic-run` noted the first event `name` after that moment, on the same clock."""
        if not self.log.exists():
            return None
        events = map(json.loads, self.log.read_text().splitlines())
        return next((e["mono"] for e in events if e["event"] == name and e["mono"] > after), None)

    def wait(self, what: str, look: Callable[[], T | None], patience_s: float = PATIENCE_S) -> T:
        """Read events until `look` returns something. BenchmarkError when it does not in time, or the launcher ends."""
        deadline = time.monotonic() + patience_s
        while True:
            self.read()
            found = look()
            if found is not None:
                return found
            if self.launcher.poll() is not None:
                raise BenchmarkError(
                    f"the launcher ended with {self.launcher.returncode} before {what}\n{self._tail()}"
                )
            if time.monotonic() > deadline:
                raise BenchmarkError(f"{what}: not seen within {patience_s:.0f} s\n{self._tail()}")
            time.sleep(POLL_S)

    def read(self) -> None:
        """Take in what was noted since."""
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

    def kill_everything(self) -> None:
        """What the loss of a machine is: SIGKILL for launcher, workers and all they started, at once."""
        doomed = [self.launcher.pid, *descendants(self.launcher.pid)]
        for stop in (signal.SIGSTOP, signal.SIGKILL):  # stopped first: nobody hears of the death of another
            for pid in doomed:
                with suppress(ProcessLookupError):
                    os.kill(pid, stop)

    def close(self) -> None:
        """End the launcher, which ends its workers."""
        self.launcher.terminate()
        try:
            self.launcher.wait(timeout=15)
        except subprocess.TimeoutExpired:
            self.kill_everything()
            self.launcher.wait()
        self._output.close()


def descendants(pid: int) -> list[int]:
    """All processes that `pid` and its children have started and that are their children still."""
    found = []
    for task in Path(f"/proc/{pid}/task").glob("*/children"):
        for child in task.read_text().split():
            found += [int(child), *descendants(int(child))]
    return found
