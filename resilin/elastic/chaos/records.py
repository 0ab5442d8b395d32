"""The folder through which workers and whoever disturbs their job tell one another what happened.

schedule.json     the faults; a worker reads them when it enters `@elastic.run`
fired-<n>.json    fault n has happened, written by the process that met its moment, before it suffers it: once
result-<pid>.json what a worker ended with: written when `@elastic.run` has returned
"""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass
from pathlib import Path

FOLDER = "RESILIN_CHAOS"
"""The environment variable that names the folder."""
NODE = "RESILIN_CHAOS_NODE"
"""The environment variable with the number of the node, as the schedule counts them."""
SCHEDULE = "schedule.json"


@dataclass(frozen=True, kw_only=True)
class Fired:
    """A fault that has happened."""

    fault: int
    """Its place in the schedule."""
    pid: int
    """Of the process that met the moment (for a worker: suffers it), or of the one that was hit from outside."""
    rank: int
    node: int
    generation: int = 0
    step: int = 0
    mono: float = 0.0
    """Seconds of CLOCK_MONOTONIC."""


@dataclass(frozen=True, kw_only=True)
class Result:
    """What one worker ended with."""

    pid: int
    rank: int
    fingerprint: str
    """`State.fingerprint()`."""
    step: int
    """Committed steps."""
    position: int
    """Of the sampler, in its epoch; 0: the epoch is complete."""


def claim(folder: Path, fired: Fired) -> bool:
    """Whether the fault had not happened before; from here on it has, whoever asks."""
    path = folder / f"fired-{fired.fault}.json"
    scratch = folder / f".fired-{fired.fault}-{os.getpid()}"
    scratch.write_text(json.dumps(asdict(fired)))
    try:
        os.link(scratch, path)  # with all of its contents, or not at all
    except FileExistsError:
        return False
    finally:
        scratch.unlink()
    return True


def fired(folder: Path) -> list[Fired]:
    """What has happened so far, in that order."""
    found = [Fired(**json.loads(path.read_text())) for path in folder.glob("fired-*.json")]
    return sorted(found, key=lambda one: one.mono)


def write_result(folder: Path, result: Result) -> None:
    """Leave `result` for whoever compares."""
    scratch = folder / f".result-{result.pid}"
    scratch.write_text(json.dumps(asdict(result)))
    scratch.rename(folder / f"result-{result.pid}.json")


def results(folder: Path) -> list[Result]:
    """What the workers ended with, by rank."""
    found = [Result(**json.loads(path.read_text())) for path in folder.glob("result-*.json")]
    return sorted(found, key=lambda one: one.rank)
