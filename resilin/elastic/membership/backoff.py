"""Compute how long a restart waits after failures that came one upon the other. No clock, no I/O.

The first restart is at once. Only failures of a worker's own doing count: a kill from outside says nothing of the next.
"""

from __future__ import annotations

from resilin.elastic.membership import queries
from resilin.elastic.membership.view import Situation, View

QUICK_S = 10.0  # who lives for longer had a life: its failure is the first of a row
FIRST_S = 0.25
LONGEST_S = 30.0


class Backoff:
    """Failures in a row of one thing that is started again each time."""

    def __init__(self) -> None:
        self._in_a_row = 0

    def failed(self, lived_s: float) -> float:
        """It failed after so many seconds. How many to wait before the next start: 0, then 0.25, 0.5, ... 30."""
        self._in_a_row = self._in_a_row + 1 if lived_s < QUICK_S else 1
        return 0.0 if self._in_a_row == 1 else min(LONGEST_S, FIRST_S * 2.0 ** min(self._in_a_row - 2, 10))


class Restarts:
    """Of a whole program, generation by generation, as one agent sees them."""

    def __init__(self) -> None:
        self._backoff = Backoff()
        self._number = 0
        self._since = 0.0
        self._until: float | None = None

    def until(self, view: View, situation: Situation, now: float) -> float | None:
        """Until when the next generation is not formed; None: it may be. `now`: monotonic, in seconds."""
        current = view.generation
        if current is None or queries.recovers_in_place(view):
            return None
        if current.number != self._number:
            self._number, self._since, self._until = current.number, now, None
        if self._until is None and queries.failed_by_itself(view):
            self._until = now + self._backoff.failed(now - self._since)
        return self._until if situation.action == "form" and self._until is not None and now < self._until else None
