"""One process's trace, whichever file it came from: events with whole nanoseconds, and what is known of the process."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

STEP = "ProfilerStep#"
_STEP = re.compile(rf"{STEP}([0-9]{{1,18}})")


@dataclass(slots=True)
class TraceEvent:
    """One span. Times are nanoseconds: of its own process's clock, and once traces are aligned of the first one's."""

    name: str
    category: str
    """As trace files call it: cpu_op, user_annotation, python_function, kernel."""
    thread: int | str
    start_ns: int
    end_ns: int
    args: dict[str, Any]
    open: bool = False
    """It had not ended when the recording did, which is taken for its end."""

    @property
    def duration_ns(self) -> int:
        """How long it took, or has taken so far."""
        return self.end_ns - self.start_ns


@dataclass
class RankTrace:
    """What one process recorded."""

    source: str
    """Its file's name."""
    rank: int
    """In the world, at last; -1: its file does not say."""
    host: str
    process: int
    clock: str
    """Processes that say the same share a clock: their times can be compared as they are."""
    events: list[TraceEvent]
    """By start, of two that start together the longer one first."""
    others: list[dict[str, Any]]
    """Arrows, moments and names of threads, as they stood in the file."""
    start_ns: int
    stop_ns: int
    """When the recording began and ended; of a process that was killed, the last time that it wrote."""
    to_wall_ns: int = 0
    """What its clock's times lack of the wall clock's."""
    world_size: int = -1
    alive: bool | None = None
    """Whether the process runs; None: unknown."""
    unfinished: bool = False
    """Whether nobody ended the recording: its process runs, or ended amid it."""
    dropped: int = 0
    """Spans that newer ones took the place of."""
    owners: list[tuple[int, int, int]] = field(default_factory=list)
    """Address, bytes and category of memory that parameters, gradients and optimizers had when it ended."""
    notes: list[str] = field(default_factory=list)

    @property
    def killed(self) -> bool:
        """Whether the process ended while spans were open."""
        return self.unfinished and self.alive is False and any(event.open for event in self.events)

    @cached_property
    def by_thread(self) -> dict[int | str, list[TraceEvent]]:
        """The events of each thread, in order."""
        found: dict[int | str, list[TraceEvent]] = {}
        for event in self.events:
            found.setdefault(event.thread, []).append(event)
        return found

    @cached_property
    def main_thread(self) -> int | str:
        """The thread that steps, else the process's first one, which has its number; else the one busy longest."""
        stepping = [event.thread for event in self.events if event.name.startswith(STEP)]
        if stepping:
            return stepping[0]
        if self.process in self.by_thread:
            return self.process
        busy = {thread: sum(each.duration_ns for each in events) for thread, events in self.by_thread.items()}
        return max(busy, key=lambda thread: busy[thread], default=0)

    def learn_rank(self) -> None:
        """Take rank and size of the world from the last collective of the largest group; else they stay."""
        most = 0
        for event in self.events:
            ranks, place = ranks_of(event.args), event.args.get("Rank")
            if len(ranks) >= most and isinstance(place, int) and 0 <= place < len(ranks):
                most, self.rank = len(ranks), ranks[place]
        self.world_size = max(most, self.world_size)

    def cut(self, since_ns: int) -> None:
        """Forget what was over before a time. Spans that were not stay whole."""
        self.events = [event for event in self.events if event.end_ns >= since_ns]
        self.others = [one for one in self.others if one.get("ph") == "M" or one.get("ts", since_ns) >= since_ns]
        self.start_ns = max(self.start_ns, since_ns)

    def sort(self) -> None:
        """Bring the events in order."""
        self.events.sort(key=lambda event: (event.start_ns, -event.end_ns))


def step_number(name: str) -> int | None:
    """Return the number of the profile's step that a span of this name is; None: it is none, or has no number."""
    found = _STEP.fullmatch(name)
    return int(found[1]) if found else None


def ranks_of(args: dict[str, Any]) -> Sequence[int]:
    """The world's ranks in the group of a collective's arguments; empty when they do not say."""
    given = args.get("Process Group Ranks", ())
    if isinstance(given, str):  # PyTorch writes a list as text, perhaps cut: "[0, 1, ...]"
        parts = given.strip("[] ").split(",")
        return [int(part) for part in parts] if all(part.strip().isdigit() for part in parts) else []
    return [rank for rank in given if isinstance(rank, int)] if isinstance(given, (list, tuple)) else []
