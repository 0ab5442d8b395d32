"""Keep the folder through which workers and whoever disturbs their job tell one another what happened.

schedule.json     the faults; a worker reads them when it enters `@elastic.run`
fired-<n>.json    fault n has happened, written by the process that met its moment, before it suffers it: once
result-<pid>.json what a worker ended with: written when `@elastic.run` has returned
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TypeVar

from resilin._base import json_text
from resilin.errors import UsageError

T = TypeVar("T")

FOLDER = "RESILIN_CHAOS"
"""The environment variable that names the folder."""
NODE = "RESILIN_CHAOS_NODE"
"""The environment variable with the number of the node, as the schedule counts them."""
SCHEDULE = "schedule.json"
LAST_TIMES = 4


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
    """Record what one worker ended with."""

    pid: int
    rank: int
    fingerprint: str
    """`State.fingerprint()`."""
    step: int
    """Committed steps."""
    position: int
    """Of the sampler, in its epoch; 0: the epoch is complete."""
    moments: Mapping[str, Sequence[int]] = field(default_factory=dict)
    """By moment: the steps at which it came to it the last times, see `LAST_TIMES`."""


def claim(folder: Path, fired: Fired) -> bool:
    """Claim a fault: return whether it had not happened before; from here on it has, whoever asks."""
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
    """Return what has happened so far, in that order."""
    found = [_read(Fired, path) for path in folder.glob("fired-*.json")]
    return sorted(found, key=lambda one: one.mono)


def write_result(folder: Path, result: Result) -> None:
    """Leave `result` for whoever compares."""
    scratch = folder / f".result-{result.pid}"
    scratch.write_text(json.dumps(asdict(result)))
    scratch.rename(folder / f"result-{result.pid}.json")


def results(folder: Path) -> list[Result]:
    """Return what the workers ended with, by rank."""
    found = [_read(Result, path) for path in folder.glob("result-*.json")]
    return sorted(found, key=lambda one: one.rank)


def _read(kind: type[T], path: Path) -> T:
    """What a process of the job left at `path`. UsageError for anything else."""
    try:
        with path.open("rb") as file:
            return kind(**json_text.parse(json_text.read(file)))
    except (ValueError, TypeError) as error:
        raise UsageError(
            f"{path}: expected what a process of the job wrote, a {kind.__name__}: {error!s:.200}"
        ) from None
