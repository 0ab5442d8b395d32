"""Times a plan: when each action starts and ends if computations and hops take given times. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from resilin.errors import UsageError
from resilin.pipeline.plan.action import (
    BACKWARD_INPUT,
    BACKWARD_WEIGHT,
    COMPUTATIONS,
    FORWARD,
    FULL_BACKWARD,
    Action,
)
from resilin.pipeline.plan.index import Index
from resilin.pipeline.plan.plan import PipelinePlan
from resilin.pipeline.plan.waits import Waits

Time = float | Sequence[float]  # of all stages, or by stage


@dataclass(frozen=True, kw_only=True)
class Times:
    """How long what takes, in any unit of time.

    Args:
        forward: an F, of every stage or by stage.
        backward_input: an I.
        backward_weight: a W.
        backward: a B. Default: an I and a W.
        overlap: an OVERLAP_F_B. Default: its parts, one after the other.
        hop: from the end of an action on one rank until another rank has what it gives.
    """

    forward: Time = 1.0
    backward_input: Time = 1.0
    backward_weight: Time = 1.0
    backward: Time | None = None
    overlap: float | None = None
    hop: float = 0.0

    def of(self, action: Action) -> float:
        """Give how long a computation takes; 0 for whatever else a rank does."""
        stage, kind, _, parts = action
        if parts is not None:
            return sum(map(self.of, parts)) if self.overlap is None else self.overlap
        if kind is FORWARD:
            return _at(self.forward, stage)
        if kind is BACKWARD_INPUT:
            return _at(self.backward_input, stage)
        if kind is BACKWARD_WEIGHT:
            return _at(self.backward_weight, stage)
        if kind is FULL_BACKWARD:
            if self.backward is None:
                return _at(self.backward_input, stage) + _at(self.backward_weight, stage)
            return _at(self.backward, stage)
        return 0.0


@dataclass(frozen=True)
class Timeline:
    """When what happens.

    Args:
        plan: whose actions these are.
        starts: by rank, when each action starts; idle slots end when they start.
        ends: by rank, when each action ends.
    """

    plan: PipelinePlan
    starts: tuple[tuple[float, ...], ...]
    ends: tuple[tuple[float, ...], ...]

    @cached_property
    def total(self) -> float:
        """When the last action of all ranks ends."""
        return max((end for row in self.ends for end in row), default=0.0)

    @cached_property
    def busy(self) -> tuple[float, ...]:
        """How long each rank computes."""
        return tuple(
            sum(
                end - start
                for action, start, end in zip(row, starts, ends, strict=True)
                if action is not None and action.computation_type in COMPUTATIONS
            )
            for row, starts, ends in zip(self.plan.actions, self.starts, self.ends, strict=True)
        )

    @property
    def bubble(self) -> float:
        """Which part of all ranks' time, from the first start to the last end, is idle: 0 to 1."""
        whole = self.total * self.plan.ranks
        return 1.0 - sum(self.busy) / whole if whole else 0.0


def simulate(plan: PipelinePlan, times: Times | None = None) -> Timeline:
    """Time a plan in which each rank does its actions in order, each as soon as it has what it needs.

    Communication takes a rank no time, but it waits in a RECV until the message is there: `hop` after the end of what
    is sent.

    Raises: UsageError when the plan deadlocks, or there are not as many times as stages.
    """
    times = times or Times()
    _check(times, plan.stages)
    clock = _Clock(plan, times)
    for rank, number in clock.waits.order():
        clock.run(rank, number)
    return clock.timeline()


class _Clock:
    def __init__(self, plan: PipelinePlan, times: Times) -> None:
        self.plan, self.times = plan, times
        self.index = Index(plan)
        self.waits = Waits(self.index)
        self._there = [0.0] * len(self.index.where)  # by key: since when it is there, on the rank that gives it
        self._per_stage = len(self._there) // plan.stages
        self._starts: list[list[float]] = [[] for _ in plan.actions]
        self._ends: list[list[float]] = [[] for _ in plan.actions]

    def run(self, rank: int, number: int) -> None:
        starts, ends = self._starts[rank], self._ends[rank]
        self._pass_by(rank, number)
        action = self.plan.actions[rank][number]
        if action is None:
            raise AssertionError(f"rank {rank} has no action {number}")
        keys = [self.index.key(stage, kind, number or 0) for stage, kind, number, _ in action.parts]
        start = max(
            [ends[-1] if ends else 0.0, *(self._ready(need, rank) for key in keys for need in self.waits.needs(key))]
        )
        end = start + self.times.of(action)
        reached = start
        for part, key in zip(action.parts, keys, strict=True):
            reached = end if self.times.overlap is not None else reached + self.times.of(part)
            self._there[self.waits.given(key)] = reached
        starts.append(start)
        ends.append(end)

    def timeline(self) -> Timeline:
        for rank, row in enumerate(self.plan.actions):
            self._pass_by(rank, len(row))
        return Timeline(self.plan, tuple(map(tuple, self._starts)), tuple(map(tuple, self._ends)))

    def _pass_by(self, rank: int, number: int) -> None:
        """Idle slots and what is done for a whole stage take no time."""
        starts, ends = self._starts[rank], self._ends[rank]
        while len(ends) < number:
            ends.append(ends[-1] if ends else 0.0)
            starts.append(ends[-1])

    def _ready(self, need: int, rank: int) -> float:
        if need >= len(self._there):  # nothing has to be there
            return 0.0
        hop = self.times.hop if self.plan.placement[need // self._per_stage] != rank else 0.0
        return self._there[need] + hop


def _at(time: Time, stage: int) -> float:
    return time[stage] if isinstance(time, Sequence) else time


def _check(times: Times, stages: int) -> None:
    for name in ("forward", "backward_input", "backward_weight", "backward"):
        given = getattr(times, name)
        if isinstance(given, Sequence) and len(given) != stages:
            raise UsageError(f"Times.{name}: expected one time or {stages}, one for each stage, got {len(given)}")
