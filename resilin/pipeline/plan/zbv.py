"""ZBV (arXiv 2401.10241, section 6): two stages on each rank, in a V, backwards in two halves. Pure.

Rank r of p has stage r, where micro-batches come down, and stage 2p-1-r, where they come back up: the last stage is on
rank 0, so that backwards begin where forwards began. A rank never holds more than 2p forwards of half a rank's layers.
"""

from __future__ import annotations

from dataclasses import replace

from resilin.errors import UsageError
from resilin.pipeline.plan.action import BACKWARD_INPUT, BACKWARD_WEIGHT, FORWARD, Action, ComputationType
from resilin.pipeline.plan.list_schedule import list_schedule
from resilin.pipeline.plan.placement import placement
from resilin.pipeline.plan.plan import PipelinePlan


def zbv_zero_bubble(ranks: int, microbatches: int, stages_per_rank: int = 2) -> PipelinePlan:
    """Plan forwards, input gradients and gradients of weights without gaps where the three take equal time."""
    if stages_per_rank != 2:
        raise UsageError(f"ZBV requires exactly 2 stages per rank, but got {stages_per_rank}.")
    stages = placement(ranks, 2 * ranks, "v")
    if microbatches <= ranks:
        # Where micro-batches are missing the pattern has gaps. With so few, memory bounds nothing, and this is shorter.
        few = list_schedule(stages, microbatches, split_backward=True, limits=[microbatches] * len(stages))
        return replace(few, schedule="ZBVZeroBubble")
    pattern = max(2 * ranks - 1, microbatches)
    rows = (
        tuple(action for action in _Row(rank, ranks).fill(pattern) if (action.microbatch_index or 0) < microbatches)
        for rank in range(ranks)
    )
    return PipelinePlan(tuple(rows), stages, microbatches, "ZBVZeroBubble")


class _Row:
    """Collects the actions of one rank; the next micro-batch of each kind follows from those before."""

    def __init__(self, rank: int, ranks: int) -> None:
        self.rank, self.ranks = rank, ranks
        self.down, self.up = rank, 2 * ranks - 1 - rank
        self.actions: list[Action] = []
        self.counts = {
            (stage, kind): 0
            for stage in (self.down, self.up)
            for kind in (FORWARD, BACKWARD_INPUT, BACKWARD_WEIGHT)
        }  # fmt: skip

    def add(self, stage: int, *kinds: ComputationType) -> None:
        for kind in kinds:
            self.actions.append(Action(stage, kind, self.counts[stage, kind]))
            self.counts[stage, kind] += 1

    def fill(self, microbatches: int) -> list[Action]:
        self._warm_up()
        while self.counts[self.up, FORWARD] < microbatches:
            if self.counts[self.down, FORWARD] < microbatches:
                self.add(self.down, FORWARD)
            self.add(self.down, BACKWARD_INPUT, BACKWARD_WEIGHT)
            self.add(self.up, FORWARD, BACKWARD_INPUT, BACKWARD_WEIGHT)
        self._cool_down(microbatches)
        return self.actions

    def _warm_up(self) -> None:
        for _ in range(2 * (self.ranks - self.rank) - 1):
            self.add(self.down, FORWARD)
        for _ in range(self.rank):
            self.add(self.up, FORWARD)
            self.add(self.down, FORWARD)
        for _ in range(self.ranks - self.rank):
            self.add(self.up, FORWARD, BACKWARD_INPUT, BACKWARD_WEIGHT)

    def _cool_down(self, microbatches: int) -> None:
        for _ in range(self.rank):
            self.add(self.down, BACKWARD_INPUT)
            self.add(self.up, BACKWARD_INPUT)
        for _ in range(self.ranks - self.rank):
            self.add(self.down, BACKWARD_INPUT, BACKWARD_WEIGHT)
        for stage in (self.up, self.down):
            while self.counts[stage, BACKWARD_WEIGHT] < microbatches:
                self.add(stage, BACKWARD_WEIGHT)
