"""GPipe: all forwards, then all backwards. One stage on each rank. Pure."""

from __future__ import annotations

from resilin.pipeline.plan.action import FORWARD, FULL_BACKWARD, Action
from resilin.pipeline.plan.placement import placement
from resilin.pipeline.plan.plan import PipelinePlan


def gpipe(ranks: int, microbatches: int) -> PipelinePlan:
    """Plan all forwards before the first backward: every rank holds all micro-batches at once."""
    rows = tuple(
        tuple(Action(rank, kind, number) for kind in (FORWARD, FULL_BACKWARD) for number in range(microbatches))
        for rank in range(ranks)
    )
    return PipelinePlan(rows, placement(ranks, ranks), microbatches, "GPipe")
