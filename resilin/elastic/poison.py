"""Counts failures at one and the same step: a fault of that step, which restarts would only meet again. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from resilin.elastic.failure import fault_of
from resilin.elastic.records import Generation


def tally(current: Generation, failures: Iterable[Mapping[str, Any]]) -> tuple[int, int]:
    """A step, and how many generations in a row ended by a failure at it, `current` with these `failures` included.

    (-1, 0): none. Only a worker's own doing counts (an exception, an exit status, SIGSEGV): a kill may hit any step.
    Several workers that fail at the same time count once: those after the first did not work in `current`.
    Without such a failure it stays what it was: nodes may come and go between two failures of one step.
    """
    steps = {
        body["step"]
        for body in failures
        if isinstance(body.get("step"), int) and _is_own(body) and body.get("worked_in") == current.number
    }
    if not steps:
        return current.failed_step, current.failed_times
    if current.failed_step in steps:
        return current.failed_step, current.failed_times + 1
    return min(steps), 1


def verdict(step: int, times: int) -> str:
    """Why the job ends."""
    return (
        f"step {step} has failed {times} times in a row: the fault is of that step, its data or the program, and not "
        "of a machine or a moment, so restarts would only meet it again (--max-step-failures allows more)"
    )


def _is_own(failure: Mapping[str, Any]) -> bool:
    return bool(failure.get("type")) or fault_of(int(failure.get("code", 0))) == "own"
