"""Find cycles of waiting calls in what workers have said. Pure.

A call is known by who made it and its number. It ends when it is run, so it waits for what the thread that runs it
waits for; before it is begun it waits for any thread of its callee. Calls whose worker has not answered, and those that
no thread runs (their future ends them), may end.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

Key = tuple[int, int]


class Calls:
    """All calls of a group of workers."""

    def __init__(self, workers: Sequence[dict[str, Any]]) -> None:
        self.workers = {each["id"]: each for each in workers if "error" not in each}
        self.made: dict[Key, dict[str, Any]] = {}
        """What is waited for, by who has made it and its number."""
        self.runs: dict[Key, dict[str, Any]] = {}
        """What is run, by the same."""
        self.within: dict[Key, Key] = {}
        """What the thread that runs a call waits for."""
        for id, worker in self.workers.items():
            for wait in worker["waits"]:
                key = (id, wait["number"])
                self.made[key] = wait
                if wait["within"] is not None and wait["blocks"]:
                    self.within[tuple(wait["within"])] = key
            for run in worker["runs"]:
                self.runs[run["from_id"], run["number"]] = run

    def is_begun(self, worker: dict[str, Any], wait: dict[str, Any]) -> bool | None:
        """Return whether the callee has begun a call; None: it has not answered, or the value itself is awaited."""
        if wait["to_id"] not in self.workers or wait["function"] == "to_here":
            return None
        return (worker["id"], wait["number"]) in self.runs

    def run_of(self, worker: dict[str, Any], within: Any) -> dict[str, Any] | None:
        """Return the call that a worker runs in which it waits."""
        return None if within is None else self.runs.get(tuple(within))

    def waits_for(self, key: Key) -> list[Key] | None:
        """Return the calls of which one must end before this one can; None: it may end by itself."""
        wait = self.made.get(key)
        callee = None if wait is None else self.workers.get(wait["to_id"])
        if wait is None or callee is None or wait["function"] == "to_here":
            return None
        run = self.runs.get(key)
        if run is not None:
            return [self.within[key]] if run["thread"] and key in self.within else None
        busy = [(each["from_id"], each["number"]) for each in callee["runs"] if each["thread"]]
        if len(busy) < callee["threads"] or any(each not in self.within for each in busy):
            return None
        return [self.within[each] for each in busy]

    def step(self, key: Key) -> dict[str, Any]:
        """Return a call, for a sentence."""
        wait = self.made[key]
        return {
            "worker": self.workers[key[0]]["worker"],
            "waits_for": wait["to"],
            "function": wait["function"],
            "age_s": wait["age_s"],
            "begun": key in self.runs,
        }


def endless(workers: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return calls of which each waits for the next, the last for the first: only timeouts end them; [] without any."""
    calls = Calls(workers)
    stuck = {key: after for key in calls.made if (after := calls.waits_for(key)) is not None}
    while ends := [key for key, after in stuck.items() if any(each not in stuck for each in after)]:
        for key in ends:
            del stuck[key]
    if not stuck:
        return []
    key = max(stuck, key=lambda each: float(calls.made[each]["age_s"]))
    way: list[Key] = []
    while key not in way:
        way.append(key)
        key = max(stuck[key], key=lambda each: float(calls.made[each]["age_s"]))
    return [calls.step(each) for each in way[way.index(key) :]]


def coming_back(workers: Sequence[dict[str, Any]], after_s: float) -> list[list[dict[str, Any]]]:
    """Return chains of calls that are run, older than `after_s`, whose last is run by the worker that made the first.

    They may end: the last does something. Where that waits for what its worker does until the first has ended (a lock),
    they do not.
    """
    calls = Calls(workers)
    found = []
    for key, wait in calls.made.items():
        if wait["within"] is not None or wait["age_s"] < after_s:
            continue
        way, seen = [key], {key}
        while way[-1] in calls.runs and (inner := calls.within.get(way[-1])) is not None and inner not in seen:
            way.append(inner)
            seen.add(inner)
        if len(way) > 1 and way[-1] in calls.runs and calls.made[way[-1]]["to_id"] == key[0]:
            found.append([calls.step(each) for each in way])
    return found


def sentence(what: str, steps: Sequence[dict[str, Any]]) -> str:
    """Return a cycle in words."""
    parts = [
        f"{each['worker']} waits for {each['function']} at {each['waits_for']}"
        f" ({each['age_s']:.1f} s{'' if each['begun'] else ', not begun: all its threads wait'})"
        for each in steps
    ]
    return f"{what}: {'; '.join(parts)}"
