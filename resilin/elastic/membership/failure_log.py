"""Collect the failures of one node's workers, as its record and its outcome tell them. No clock, no I/O."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from resilin.elastic.failure import Failure
from resilin.elastic.membership import early_failures, world_spec
from resilin.elastic.records import Closed, EarlyFailures, Generation, GenerationMember


class FailureLog:
    """Of node `node_id`."""

    def __init__(self, node_id: str) -> None:
        self._node_id = node_id
        self._of: dict[tuple[int, int], Failure] = {}  # by slot and incarnation, in the order they occurred
        self.late: Failure | None = None
        """Of a worker that failed after all were done."""
        self.unjoined = 0
        """Workers that failed while they were no members."""
        self.early: EarlyFailures | None = None
        """Errors at one line before `@elastic.run`."""

    def forget_all_but(self, mine: Sequence[GenerationMember]) -> None:
        """A new generation has these members here: failures of others are answered."""
        current = {(member.slot, member.incarnation) for member in mine}
        self._of = {who: what for who, what in self._of.items() if who in current}

    def add(self, slot: int, incarnation: int, what: Failure, current: Generation | None) -> bool:
        """A worker failed; whether it was a member."""
        joined = current is not None and any(
            (m.node, m.slot, m.incarnation) == (what.node, slot, incarnation) for m in current.members
        )
        self._of[slot, incarnation] = what
        if what.early and not what.follows:
            self.early = early_failures.counted(self.early, what.early, slot, what.generation)
        self.unjoined += not joined
        return joined

    def passed(self, slot: int) -> None:
        """A worker has come to `@elastic.run`."""
        self.early = early_failures.passed(self.early, slot)

    def add_late(self, what: Failure, closed: Closed | None) -> None:
        """A worker failed while the job ends: the first one counts, where it had succeeded."""
        if self.late is None and closed is not None and closed.outcome == "succeeded":
            self.late = replace(what, step=None, at="", late=True)

    def first(self, current: Generation | None) -> Failure | None:
        """The first cause here among the members of the current generation."""
        members = current.members if current is not None else ()
        mine = {(m.slot, m.incarnation) for m in members if m.node == self._node_id}
        return world_spec.first_cause([what for who, what in self._of.items() if who in mine])
