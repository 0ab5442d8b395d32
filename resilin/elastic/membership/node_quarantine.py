"""Take a node out for a while whose workers keep failing while those of other nodes are well, or on which alone one
step failed as often as it may (`repeated_failures`). No clock, no I/O.

Each agent judges its own node by its own clock, and says so in the node's record; what that means for the world is
`sizing.adjusted`'s: such a node looks as if it were leaving, unless fewer than MIN nodes would be left.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from resilin.elastic.membership import queries
from resilin.elastic.membership.view import View


@dataclass(frozen=True, kw_only=True)
class Rules:
    """Set when a node is taken out, and for how long. Times in seconds."""

    failures: int = 3
    """So many of its own workers ..."""
    within_s: float = 600.0
    """... within this time, while no other node had a `failures`th part of that."""
    first_s: float = 60.0
    """How long it is out the first time; doubled each time that follows."""
    longest_s: float = 3600.0


class NodeQuarantine:
    """Of one node, `node_id`. `reason` says why it is out; empty: it is not. `say` takes lines for people."""

    def __init__(self, node_id: str, rules: Rules, say: Callable[[str], None]) -> None:
        self._say = say
        self._node_id = node_id
        self._rules = rules
        self._own: deque[float] = deque()  # when a worker here failed, monotonic
        self._others: dict[str, tuple[int, deque[float]]] = {}  # by node: its count, and when that was seen to grow
        self._suspected = ""  # why it is to go whatever the others' failures are
        self._times = 0  # exclusions in a row
        self._until = 0.0
        self.failures = 0
        """Of workers here since the start, those left out that another's end had caused."""
        self.reason = ""

    def failed(self, now: float) -> None:
        """A worker of this node failed, and not because another one had."""
        self.failures += 1
        self._own.append(now)

    def accuse(self, why: str) -> None:
        """One step failed as often as it may, and here alone, while others can take over."""
        self._suspected = why

    def update(self, view: View, min_nodes: int, now: float) -> float | None:
        """Judge, and say when to do so again. `now`: monotonic, in seconds."""
        self._notice(view, now)
        if self.reason:
            if now < self._until:
                self._suspected = ""
                return self._until
            self.reason = ""
            self._say("this node takes part again")
        if self._times and now - self._until > self._rules.longest_s:
            self._times = 0  # it has been well for long: the next time is a first one
        why, self._suspected = self._suspected or self._habit(view, min_nodes, now), ""
        if not why:
            return None
        pause_s = min(self._rules.longest_s, self._rules.first_s * 2.0 ** min(self._times, 30))
        self.reason = f"{why}: it takes no part for {pause_s:.0f} s"
        self._say(f"this node is excluded: {self.reason}")
        self._times, self._until = self._times + 1, now + pause_s
        self._own.clear()
        return self._until

    def _habit(self, view: View, min_nodes: int, now: float) -> str:
        """What its failures of late come to, if that is enough."""
        horizon = now - self._rules.within_s
        while self._own and self._own[0] < horizon:
            self._own.popleft()
        if len(self._own) < self._rules.failures or not self._may_go(view, min_nodes, horizon):
            return ""
        took_s = max(1.0, now - self._own[0])
        return f"{len(self._own)} of its workers failed within {took_s:.0f} s while those of other nodes were well"

    def _notice(self, view: View, now: float) -> None:
        for seen in view.nodes:
            node = seen.node
            if node.id != self._node_id:
                count, times = self._others.setdefault(node.id, (node.failures, deque(maxlen=self._rules.failures)))
                times.extend([now] * min(node.failures - count, self._rules.failures))
                self._others[node.id] = node.failures, times

    def _may_go(self, view: View, min_nodes: int, horizon: float) -> bool:
        """Whether enough other nodes are there that have workers, and all of them are well."""
        there = [s.node for s in view.nodes if s.node.id != self._node_id and not s.node.leaving]
        others = [node for node in there if not queries.is_emptied(node)]
        if len(others) < max(1, min_nodes):
            return False
        allowed = len(self._own) / self._rules.failures
        return all(sum(at >= horizon for at in self._others[node.id][1]) < allowed for node in others)
