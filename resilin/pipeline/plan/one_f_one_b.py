"""1F1B: forwards and backwards in turn. One stage on each rank, which holds at most `ranks` micro-batches. Pure."""

from __future__ import annotations

from resilin.errors import UsageError
from resilin.pipeline.plan.action import FORWARD, FULL_BACKWARD, Action
from resilin.pipeline.plan.placement import placement
from resilin.pipeline.plan.plan import PipelinePlan


def one_f_one_b(ranks: int, microbatches: int) -> PipelinePlan:
    """Plan as many forwards as fill the ranks behind, then one backward for each forward: rank r holds `ranks` - r."""
    if microbatches < ranks:
        raise UsageError(
            f"Number of microbatches ({microbatches}) must be greater than or equal to the number of stages ({ranks})."
        )
    rows = tuple(tuple(_row(rank, ranks - 1 - rank, microbatches)) for rank in range(ranks))
    return PipelinePlan(rows, placement(ranks, ranks), microbatches, "1F1B")


def _row(rank: int, ahead: int, microbatches: int) -> list[Action]:
    row = [Action(rank, FORWARD, number) for number in range(ahead)]
    for number in range(microbatches):
        if number + ahead < microbatches:
            row.append(Action(rank, FORWARD, number + ahead))
        row.append(Action(rank, FULL_BACKWARD, number))
    return row
