"""Decide who gives state and who takes it when a generation starts. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from resilin._base.text import shown
from resilin.elastic.worker.sharded_part import Stand
from resilin.errors import StateError

_MOST_STEPS = 1 << 62


@dataclass(frozen=True, kw_only=True)
class Report:
    """Record what a member says of itself."""

    settled: bool
    """Whether it was ever made equal to others; False for a newcomer."""
    step: int
    """Its last committed step."""
    intact: bool
    """Whether its parameters and optimizer state are those of that step."""
    digests: Mapping[str, bytes]
    """Hash of each small part."""
    generation: int = 0
    """The generation that step was applied in: one that the others redid later has other bits (0: none)."""
    work: tuple[int, int, int] = (0, 0, 0)
    """A commit, how many works were due at it, and how many of these were done on all ranks (`due_work`)."""
    divided: Mapping[str, Stand] = field(default_factory=dict)
    """What it says of objects whose state is divided."""

    def validate(self) -> None:
        """ValueError for steps that nobody can have done."""
        if not (0 <= self.step < _MOST_STEPS and 0 <= self.generation < _MOST_STEPS):
            raise ValueError(f"step {shown(self.step)}, generation {shown(self.generation)}")


@dataclass(frozen=True, kw_only=True)
class Choice:
    """Hold who gives and who takes. Every rank is in one of the two."""

    sources: tuple[int, ...]
    receivers: tuple[int, ...]
    agreed: bool
    """Whether the small parts of all sources are equal."""
    holders: tuple[int, ...] = ()
    """Whose slices of divided state count."""


def choose(reports: Sequence[Report]) -> Choice:
    """Sources are the intact members at the highest step that any settled member committed.

    Where some of them applied it in an earlier generation, cut off from the others, who redid it: the later one counts.
    When nobody is settled (the start of a job, or a start from checkpoints) the lowest rank at the highest step is the
    only source: initial weights may differ, as they may under DDP. StateError when no member at that step is intact.
    """
    settled = [rank for rank, report in enumerate(reports) if report.settled]
    among = settled or range(len(reports))
    step = max(reports[rank].step for rank in among)
    sources = [rank for rank in among if reports[rank].step == step and reports[rank].intact]
    if not sources:
        raise StateError(
            f"nobody holds the state of step {step} any more: every rank was interrupted between optimizer.step() and "
            "state.commit(). Call commit() right after optimizer.step(), with no collective between the two, or use "
            "State(..., snapshot=True), which copies everything at each commit"
        )
    newest = max(reports[rank].generation for rank in sources)
    sources = [rank for rank in sources if reports[rank].generation == newest]
    if not settled:
        sources = sources[:1]
    agreed = all(reports[rank].digests == reports[sources[0]].digests for rank in sources)
    receivers = tuple(rank for rank in range(len(reports)) if rank not in sources)
    return Choice(sources=tuple(sources), receivers=receivers, agreed=agreed, holders=tuple(settled or sources))
