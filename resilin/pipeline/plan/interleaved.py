"""Interleaved 1F1B (arXiv 2104.04473) and its zero-bubble form, ZB1P (arXiv 2401.10241). Pure.

Each rank has several stages, in a loop. Micro-batches go in rounds, of as many as there are ranks or some more: a rank
runs a round through its first stage, then through its next, and so on; backwards likewise from its last stage.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from resilin.errors import UsageError
from resilin.pipeline.plan.action import (
    BACKWARD_INPUT,
    BACKWARD_WEIGHT,
    FORWARD,
    FULL_BACKWARD,
    Action,
    ComputationType,
)
from resilin.pipeline.plan.placement import placement
from resilin.pipeline.plan.plan import PipelinePlan


def interleaved_1f1b(ranks: int, microbatches: int, stages_per_rank: int) -> PipelinePlan:
    """Plan one backward for each forward once the ranks are busy: 1/`stages_per_rank` of the bubble of 1F1B."""
    rounds = _Rounds.of("Interleaved 1F1B", ranks, microbatches, stages_per_rank)
    rows = tuple(tuple(rounds.one_f_one_b(rank)) for rank in range(ranks))
    return PipelinePlan(rows, placement(ranks, ranks * stages_per_rank), microbatches, "Interleaved1F1B")


def interleaved_zero_bubble(ranks: int, microbatches: int, stages_per_rank: int) -> PipelinePlan:
    """Plan input gradients as early as can be; gradients of weights fill the gaps, later on later ranks."""
    rounds = _Rounds.of("Zero bubble", ranks, microbatches, stages_per_rank)
    rows = tuple(tuple(rounds.zero_bubble(rank)) for rank in range(ranks))
    return PipelinePlan(rows, placement(ranks, ranks * stages_per_rank), microbatches, "InterleavedZeroBubble")


@dataclass(frozen=True)
class _Rounds:
    """Which stage and micro-batch is the n-th of a rank."""

    ranks: int
    microbatches: int
    stages_per_rank: int
    per_round: int

    @staticmethod
    def of(title: str, ranks: int, microbatches: int, stages_per_rank: int) -> _Rounds:
        count = max(1, microbatches // ranks)
        if microbatches % count:
            raise UsageError(
                f"{title} requires the number of microbatches to be a multiple of the number of rounds ({count}), "
                f"but got {microbatches}."
            )
        return _Rounds(ranks, microbatches, stages_per_rank, microbatches // count)

    @property
    def total(self) -> int:
        """How many forwards a rank has."""
        return self.microbatches * self.stages_per_rank

    def warm_up(self, rank: int, per_hop: int) -> int:
        """How many forwards a rank runs before its first backward: `per_hop` for each rank behind it, and more."""
        first = (self.stages_per_rank - 1) * self.per_round
        return min(first + per_hop * (self.ranks - 1 - rank), self.total)

    def one_f_one_b(self, rank: int) -> Iterator[Action]:
        ahead = self.warm_up(rank, per_hop=2)
        yield from (self._forward(rank, n) for n in range(ahead))
        for n in range(self.total):
            if n + ahead < self.total:
                yield self._forward(rank, n + ahead)
            yield self._backward(rank, n, FULL_BACKWARD)

    def zero_bubble(self, rank: int) -> Iterator[Action]:
        ahead = self.warm_up(rank, per_hop=1)
        yield from (self._forward(rank, n) for n in range(ahead))
        for n in range(self.total):
            if n + ahead < self.total:
                yield self._forward(rank, n + ahead)
            yield self._backward(rank, n, BACKWARD_INPUT)
            if n >= rank:
                yield self._backward(rank, n - rank, BACKWARD_WEIGHT)
        yield from (self._backward(rank, n, BACKWARD_WEIGHT) for n in range(max(0, self.total - rank), self.total))

    def _forward(self, rank: int, n: int) -> Action:
        turn, number = self._nth(n)
        return Action(turn * self.ranks + rank, FORWARD, number)

    def _backward(self, rank: int, n: int, kind: ComputationType) -> Action:
        turn, number = self._nth(n)
        return Action((self.stages_per_rank - 1 - turn) * self.ranks + rank, kind, number)

    def _nth(self, n: int) -> tuple[int, int]:
        """Which of its stages, counted from the side where work comes in, and which micro-batch is a rank's n-th."""
        before, within = divmod(n, self.per_round * self.stages_per_rank)
        turn, offset = divmod(within, self.per_round)
        return turn, before * self.per_round + offset
