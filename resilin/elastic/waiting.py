"""Whom an agent waits for, said once after a while, and when it gives up on workers that never come. No clock, no I/O.

too few nodes         ──some seconds──> "waiting for 1 more node at HOST:PORT"    (the agent gives up by itself)
a rank without hello  ──some seconds──> "waiting for rank 1 (host, pid)"  ──join_timeout──> the job is closed
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from resilin.elastic import membership
from resilin.elastic.membership import Situation, View
from resilin.elastic.records import Closed, GenerationMember

NOTICE_S = 5.0  # shorter waits are normal: programs import and load for as long
_NAMES_SHOWN = 4


@dataclass
class _Wait:
    """One reason to wait. `key` tells it from the one before."""

    key: int = 0  # 0: none
    since: float = 0.0
    told: bool = False

    def at(self, key: int, now: float) -> None:
        if key != self.key:
            self.key, self.since, self.told = key, now, False


class Waiting:
    """Remembers since when what is waited for, and what was said of it.

    say:            takes a line for people
    join_timeout_s: how long a worker may be on its way to its first world while others are there
    meeting:        where nodes meet, for people; may be empty
    """

    def __init__(self, say: Callable[[str], None], join_timeout_s: float, min_nodes: int, meeting: str) -> None:
        self._say = say
        self._join_timeout_s = join_timeout_s
        self._min_nodes = min_nodes
        self._meeting = meeting
        self._nodes, self._ranks = _Wait(), _Wait()

    def look(self, view: View, situation: Situation, now: float) -> tuple[float | None, Closed | None]:
        """When to look again, and the job's end, if it is time for it. `now`: monotonic, in seconds."""
        members = membership.awaited(view) if situation.action == "steady" else ()
        number = view.generation.number if view.generation is not None else 0
        self._ranks.at(number if members else 0, now)
        self._nodes.at(1 if situation.action == "wait" and situation.until is None else 0, now)
        until = [self._notice(self._nodes, now, lambda: self._nodes_wanted(view, situation))]
        if not members:
            return until[0], None
        who = _names(view, members)
        until.append(self._notice(self._ranks, now, lambda: f"waiting for {who} to enter @elastic.run"))
        end = self._ranks.since + self._join_timeout_s
        if now < end:
            return min(at for at in (*until, end) if at is not None), None
        reason = (
            f"gave up after {self._join_timeout_s:g} s: {who} did not enter @elastic.run, where the others wait; "
            "find out what the program does before it there, or allow more time with --rdzv-conf join_timeout=SECONDS"
        )
        return None, Closed(outcome="failed", reason=reason, code=4)

    def _notice(self, wait: _Wait, now: float, text: Callable[[], str]) -> float | None:
        """Say `text` once it is time; until then, when that is."""
        if not wait.key or wait.told:
            return None
        at = wait.since + min(NOTICE_S, self._join_timeout_s / 2)
        if now < at:
            return at
        wait.told = True
        self._say(text())
        return None

    def _nodes_wanted(self, view: View, situation: Situation) -> str:
        missing = max(1, self._min_nodes - sum(not seen.node.leaving for seen in view.nodes))
        place = f" at {self._meeting}" if self._meeting else ""
        return f"waiting for {missing} more node{'s' if missing != 1 else ''}{place} ({situation.reason})"


def _names(view: View, members: Sequence[GenerationMember]) -> str:
    """ "rank 1 (host a, pid 17), rank 2 (host b, pid 4)": the first few, and how many more."""
    found = []
    for member in members[:_NAMES_SHOWN]:
        node = view.node(member.node)
        pid = node.slots[member.slot].pid if node is not None else 0
        where = f"host {node.host}" if node is not None else f"node {member.node}"
        found.append(f"rank {member.rank} ({where}, {f'pid {pid}' if pid else 'not started yet'})")
    more = len(members) - len(found)
    return ", ".join(found) + (f" and {more} more" if more else "")
