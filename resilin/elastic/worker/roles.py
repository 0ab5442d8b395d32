"""Decides who gives state and who takes it when a generation starts. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from resilin.errors import StateError


@dataclass(frozen=True, kw_only=True)
class Report:
    """What a member says of itself."""

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
    divided: Mapping[str, Any] = field(default_factory=dict)
    """What it says of objects whose state is divided (`divided.Stand`)."""


@dataclass(frozen=True, kw_only=True)
class Choice:
    """Who gives and who takes. Every rank is in one of the two."""

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
