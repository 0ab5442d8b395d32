"""DualPipeV (arXiv 2412.19437, deepseek-ai/DualPipe): two stages a rank, in a V; forwards overlap backwards. Pure.

In the middle of a step each action is a forward of one of a rank's stages and a backward of its other, as one, whose
communication and computation a runtime may overlap.
"""

from __future__ import annotations

from collections import deque

from resilin.errors import UsageError
from resilin.pipeline.plan.action import (
    BACKWARD_INPUT,
    BACKWARD_WEIGHT,
    FORWARD,
    FULL_BACKWARD,
    OVERLAP_F_B,
    Action,
    ComputationType,
)
from resilin.pipeline.plan.placement import placement
from resilin.pipeline.plan.plan import PipelinePlan


def dual_pipe_v(ranks: int, microbatches: int, stages_per_rank: int = 2) -> PipelinePlan:
    """Plan pairs of a forward and a backward, with backwards in two halves at either end of the step."""
    if stages_per_rank != 2:
        raise UsageError(f"DualPipeV requires exactly 2 stages per rank, but got {stages_per_rank}.")
    if microbatches < 2 * ranks:
        raise UsageError(
            "DualPipeV requires at least as many microbatches as stages, but got "
            f"{microbatches} microbatches and {2 * ranks} stages."
        )
    rows = tuple(tuple(_Row(rank, ranks).fill(microbatches)) for rank in range(ranks))
    return PipelinePlan(rows, placement(ranks, 2 * ranks, "v"), microbatches, "DualPipeV")


class _Row:
    """Collects the actions of one rank; gradients of weights wait in a queue for a gap."""

    def __init__(self, rank: int, ranks: int) -> None:
        self.rank, self.ranks = rank, ranks
        self.down, self.up = rank, 2 * ranks - 1 - rank
        self.actions: list[Action] = []
        self.forwards = {self.down: 0, self.up: 0}
        self.backwards = {self.down: 0, self.up: 0}
        self.waiting: deque[Action] = deque()

    def fill(self, microbatches: int) -> list[Action]:
        behind = self.ranks - 1 - self.rank
        for _ in range(2 * behind):
            self._forward(self.down)
        for _ in range(self.rank + 1):
            self._forward(self.down)
            self._forward(self.up)
        for _ in range(behind):
            self._backward(self.up, BACKWARD_INPUT)
            self._weight()
            self._forward(self.up)
        self._steady(microbatches - 2 * self.ranks + self.rank + 1)
        for _ in range(behind):
            self._backward(self.up, FULL_BACKWARD)
            self._overlap(self.up, self.down)
        self._cool_down(behind)
        return self.actions

    def _steady(self, pairs: int) -> None:
        for n in range(pairs):
            if n == 0 and self.rank == self.ranks - 1:  # apart: the backward waits for this rank's own forward
                self._forward(self.down)
                self._backward(self.up, FULL_BACKWARD)
            else:
                self._overlap(self.down, self.up)
            self._overlap(self.up, self.down)

    def _cool_down(self, behind: int) -> None:
        # The later half of the backwards gives input gradients first; the weights' follow when they are through.
        both = self.rank + 1
        for n in range(2 * both):
            self._backward((self.up, self.down)[n % 2], FULL_BACKWARD if n < both else BACKWARD_INPUT)
        for _ in range(behind):
            self._weight()
            self._backward(self.down, BACKWARD_INPUT)
        while self.waiting:
            self._weight()

    def _forward(self, stage: int) -> None:
        self.actions.append(self._next(self.forwards, stage, FORWARD))

    def _backward(self, stage: int, kind: ComputationType) -> None:
        action = self._next(self.backwards, stage, kind)
        self.actions.append(action)
        if kind is BACKWARD_INPUT:
            self.waiting.append(action._replace(computation_type=BACKWARD_WEIGHT))

    def _weight(self) -> None:
        if self.waiting:
            self.actions.append(self.waiting.popleft())

    def _overlap(self, forward: int, backward: int) -> None:
        parts = (
            self._next(self.forwards, forward, FORWARD),
            self._next(self.backwards, backward, FULL_BACKWARD),
        )
        self.actions.append(Action(-1, OVERLAP_F_B, None, parts))

    @staticmethod
    def _next(counts: dict[int, int], stage: int, kind: ComputationType) -> Action:
        number = counts[stage]
        counts[stage] += 1
        return Action(stage, kind, number)
