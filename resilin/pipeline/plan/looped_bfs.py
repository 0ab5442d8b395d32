"""Looped BFS (arXiv 2211.05953): several stages on each rank, all micro-batches through one before the next. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from resilin.pipeline.plan.action import FORWARD, FULL_BACKWARD, Action
from resilin.pipeline.plan.placement import placement
from resilin.pipeline.plan.plan import PipelinePlan


def looped_bfs(ranks: int, microbatches: int, stages_per_rank: int) -> PipelinePlan:
    """Plan all forwards of a rank's first stage, then of its next, ..., and the backwards from its last to its first.

    Backwards are in the order of the micro-batches, so that gradients are summed in it (PyTorch's are in reverse, in
    the same time).
    """
    rows = tuple(tuple(_row(rank, ranks, microbatches, stages_per_rank)) for rank in range(ranks))
    return PipelinePlan(rows, placement(ranks, ranks * stages_per_rank), microbatches, "LoopedBFS")


def _row(rank: int, ranks: int, microbatches: int, stages_per_rank: int) -> Iterator[Action]:
    stages = range(rank, ranks * stages_per_rank, ranks)
    for stage in stages:
        yield from (Action(stage, FORWARD, number) for number in range(microbatches))
    for stage in reversed(stages):
        yield from (Action(stage, FULL_BACKWARD, number) for number in range(microbatches))
