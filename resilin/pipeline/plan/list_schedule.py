"""Plans a step for stages that lie anywhere: several on a rank, neighbours or not, as after the loss of a rank. Pure.

A list scheduler: whenever a rank is free, it does what it has the inputs for, forwards and backwards in turn, of its
deepest stage first; a forward waits while its stage holds as many micro-batches as it may. The oldest that is not
finished can always go on, so no plan deadlocks; each stage's gradients come in the order of micro-batches.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence

from resilin.errors import UsageError
from resilin.pipeline.plan.action import (
    BACKWARD_INPUT,
    BACKWARD_WEIGHT,
    FORWARD,
    FULL_BACKWARD,
    Action,
    ComputationType,
)
from resilin.pipeline.plan.plan import PipelinePlan
from resilin.pipeline.plan.simulate import Times

_NEVER = float("inf")


def list_schedule(
    placement: Sequence[int],
    microbatches: int,
    *,
    times: Times | None = None,
    split_backward: bool = False,
    limits: Sequence[int] | None = None,
    done: Sequence[tuple[int, int]] = (),
) -> PipelinePlan:
    """Plan one step, or what is left of one, for a given place of each stage.

    Args:
        placement: by stage, its rank; each of the ranks 0, 1, ... has at least one.
        microbatches: of how many a step consists; any number from 1.
        times: how long what takes, for an order that suits it. Default: as `Times`.
        split_backward: whether gradients of weights (W) are computed apart from those of inputs (I), in gaps.
        limits: by stage, how many micro-batches it may hold at once, at least 1. Default: what makes the step short,
            but for stage s of S never more than S - s, as in 1F1B, whatever the number of micro-batches.
        done: by stage, of how many micro-batches the forwards and of how many the backwards are done: what is left is
            planned. A stage whose rank was lost has done less than others, and gets from them what they gave, again.

    Raises: UsageError for a placement or limits that do not fit.
    """
    placement = tuple(placement)
    _check(placement, microbatches, limits)
    _check_done(placement, microbatches, done)
    times = times or Times()
    tried = [tuple(limits)] if limits is not None else _limits(placement, microbatches)
    schedulers = [_Scheduler(placement, microbatches, times, split_backward, limit, done) for limit in tried]
    for scheduler in schedulers:
        scheduler.run()
    return min(schedulers, key=lambda one: max(one.free)).plan()  # of equal ones the first, which holds the least


def _check(placement: Sequence[int], microbatches: int, limits: Sequence[int] | None) -> None:
    ranks = set(placement)
    if not placement or ranks != set(range(len(ranks))):
        raise UsageError(
            f"placement gives each stage its rank, and each of the ranks 0, 1, ... a stage; got {list(placement)}"
        )
    if microbatches < 1:
        raise UsageError(f"microbatches must be at least 1, got {microbatches}")
    if limits is not None and (len(limits) != len(placement) or min(limits) < 1):
        raise UsageError(f"limits: expected {len(placement)} numbers from 1, one for each stage, got {list(limits)}")


def _check_done(placement: Sequence[int], microbatches: int, done: Sequence[tuple[int, int]]) -> None:
    if done and len(done) != len(placement):
        raise UsageError(f"done: expected {len(placement)} pairs of numbers, one for each stage, got {list(done)}")
    for stage, (forwards, backwards) in enumerate(done):
        if not 0 <= backwards <= forwards <= microbatches:
            raise UsageError(
                f"done: expected 0 <= backwards <= forwards <= {microbatches}, got {forwards} forwards and {backwards} "
                f"backwards of stage {stage}"
            )


def _limits(placement: Sequence[int], microbatches: int) -> list[tuple[int, ...]]:
    """What stages may hold: from as much as the busiest rank can use at once up to 1F1B's."""
    stages = len(placement)
    busiest = max(placement.count(rank) for rank in set(placement))
    result: list[tuple[int, ...]] = []
    more = 0
    while True:
        limit = tuple(
            min(microbatches, stages - stage, -(-(stages - stage) // busiest) + more) for stage in range(stages)
        )
        if result and limit == result[-1]:
            return result
        result.append(limit)
        more = 2 * more or 1


class _Scheduler:
    """The state of one run: the next micro-batch of each stage and kind, and since when things are there."""

    def __init__(
        self,
        placement: tuple[int, ...],
        microbatches: int,
        times: Times,
        split: bool,
        limits: Sequence[int],
        done: Sequence[tuple[int, int]],
    ) -> None:
        self.done = tuple(done)
        started = self.done or ((0, 0),) * len(placement)
        self.placement, self.microbatches, self.times, self.limits = placement, microbatches, times, limits
        self.backward: ComputationType = BACKWARD_INPUT if split else FULL_BACKWARD
        self.last = len(placement) - 1
        self.of = [[stage for stage in reversed(range(len(placement))) if placement[stage] == rank]
                   for rank in range(max(placement) + 1)]  # fmt: skip
        self.forwards = [[0.0] * forwards for forwards, _ in started]  # by stage and micro-batch: when it ended
        self.backwards = [[0.0] * backwards for _, backwards in started]
        self.weights = [backwards for _, backwards in started]
        self.rows: list[list[Action]] = [[] for _ in self.of]
        self.free = [0.0] * len(self.of)
        # What was done before is there at once, or after a hop.
        self.events = [(time, rank) for time in sorted({0.0, times.hop}) for rank in range(len(self.of))]

    def run(self) -> None:
        while self.events:
            now, rank = heapq.heappop(self.events)
            if now >= self.free[rank]:
                action = self._choose(rank, now)
                if action is not None:
                    self._do(rank, action, now)

    def plan(self) -> PipelinePlan:
        return PipelinePlan(tuple(map(tuple, self.rows)), self.placement, self.microbatches, "list", self.done)

    def _choose(self, rank: int, now: float) -> Action | None:
        stages, row = self.of[rank], self.rows[rank]
        forward = next((stage for stage in stages if self._forward_ready(stage) <= now), None)
        backward = next((stage for stage in stages if self._backward_ready(stage) <= now), None)
        after_forward = bool(row) and row[-1].computation_type is FORWARD
        if forward is not None and (backward is None or not after_forward):
            return Action(forward, FORWARD, len(self.forwards[forward]))
        if backward is not None:
            return Action(backward, self.backward, len(self.backwards[backward]))
        late = next((stage for stage in stages if self.weights[stage] < len(self.backwards[stage])), None)
        return None if late is None else Action(late, BACKWARD_WEIGHT, self.weights[late])

    def _forward_ready(self, stage: int) -> float:
        number = len(self.forwards[stage])
        if number == self.microbatches or number - self.weights[stage] >= self.limits[stage]:
            return _NEVER
        return self._given(self.forwards, stage, stage - 1, number) if stage else 0.0

    def _backward_ready(self, stage: int) -> float:
        number = len(self.backwards[stage])
        if number == len(self.forwards[stage]):
            return _NEVER
        own = self.forwards[stage][number]
        return own if stage == self.last else max(own, self._given(self.backwards, stage, stage + 1, number))

    def _given(self, ended: list[list[float]], stage: int, source: int, number: int) -> float:
        if number >= len(ended[source]):
            return _NEVER
        return ended[source][number] + self._hop(stage, source)

    def _hop(self, stage: int, other: int) -> float:
        return self.times.hop if self.placement[stage] != self.placement[other] else 0.0

    def _do(self, rank: int, action: Action, now: float) -> None:
        stage, kind, _, _ = action
        end = now + self.times.of(action)
        self.rows[rank].append(action)
        self.free[rank] = end
        heapq.heappush(self.events, (end, rank))
        target = None
        if kind is FORWARD:
            self.forwards[stage].append(end)
            target = stage + 1 if stage < self.last else None
        elif kind is self.backward:
            self.backwards[stage].append(end)
            target = stage - 1 if stage else None
        if kind in (BACKWARD_WEIGHT, FULL_BACKWARD):
            self.weights[stage] += 1
        if target is not None:
            heapq.heappush(self.events, (end + self._hop(stage, target), self.placement[target]))
