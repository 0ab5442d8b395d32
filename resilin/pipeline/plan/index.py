"""A plan as numbers: one for each stage, kind and micro-batch; thousands of actions are checked quickly. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from resilin.errors import UsageError
from resilin.pipeline.plan.action import (
    BACKWARD_INPUT,
    BACKWARD_WEIGHT,
    COMPUTATIONS,
    FORWARD,
    FULL_BACKWARD,
    OVERLAP_F_B,
    RECV_B,
    RECV_F,
    SEND_B,
    SEND_F,
    Action,
    ComputationType,
)
from resilin.pipeline.plan.plan import PipelinePlan

NUMBERED = (FORWARD, FULL_BACKWARD, BACKWARD_INPUT, BACKWARD_WEIGHT, SEND_F, RECV_F, SEND_B, RECV_B)
KINDS = len(NUMBERED)
DONE = -2
_NUMBERS: dict[ComputationType, int] = {kind: number for number, kind in enumerate(NUMBERED)}
_ALIVE = {FORWARD: 1, FULL_BACKWARD: -1, BACKWARD_WEIGHT: -1}


class Index:
    """Where in a plan everything is.

    Attributes:
        rows: by rank, the keys of what it does, in order; sub-actions one by one.
        numbers: by rank, for each of these keys, which of the rank's actions it is in.
        where: by key, which action of its rank does it; -1: none does; DONE: it is done before the plan begins.
        peaks: by rank, the most forwards whose gradients are not complete at once.

    Raises: UsageError for what is on the wrong rank, out of range, done twice, or malformed.
    """

    def __init__(self, plan: PipelinePlan) -> None:
        self.plan = plan
        self.rows: list[list[int]] = []
        self.numbers: list[list[int]] = []
        self.where = [-1] * (plan.stages * KINDS * plan.microbatches)
        self.peaks: list[int] = []
        for stage in range(plan.stages):
            self._mark(stage, FORWARD, plan.done_of(stage)[0])
            self._mark(stage, FULL_BACKWARD, plan.done_of(stage)[1])
        for rank, row in enumerate(plan.actions):
            self._read(rank, row)

    def key(self, stage: int, kind: ComputationType, microbatch: int) -> int:
        """Give the number of a stage, kind and micro-batch."""
        return (stage * KINDS + _NUMBERS[kind]) * self.plan.microbatches + microbatch

    def action(self, key: int) -> Action:
        """Give the action that has this number."""
        rest, microbatch = divmod(key, self.plan.microbatches)
        stage, kind = divmod(rest, KINDS)
        return Action(stage, NUMBERED[kind], microbatch)

    def of(self, stage: int, kind: ComputationType) -> list[int]:
        """Give, by micro-batch, which action of its rank does this for the stage."""
        start = self.key(stage, kind, 0)
        return self.where[start : start + self.plan.microbatches]

    def _mark(self, stage: int, kind: ComputationType, count: int) -> None:
        start = self.key(stage, kind, 0)
        self.where[start : start + count] = [DONE] * count

    def _read(self, rank: int, row: Sequence[Action | None]) -> None:
        keys: list[int] = []
        numbers: list[int] = []
        where, microbatches = self.where, self.plan.microbatches
        owned = frozenset(self.plan.stages_of(rank))
        alive = peak = sum(forwards - backwards for forwards, backwards in map(self.plan.done_of, owned))
        for number, action in enumerate(row):
            if action is None:
                continue
            if action[3] is not None or action[1] is OVERLAP_F_B:
                self._check_together(action, rank, number)
            for stage, kind, microbatch, _ in (action,) if action[3] is None else action[3]:
                code = _NUMBERS.get(kind)
                if stage not in owned or (
                    code is not None and (microbatch is None or not 0 <= microbatch < microbatches)
                ):
                    raise UsageError(self._out_of_range(action, rank, number, stage, microbatch))
                if code is None or microbatch is None:  # of a stage, not of a micro-batch: nobody waits for it
                    continue
                key = (stage * KINDS + code) * microbatches + microbatch
                if where[key] != -1:
                    how = " the plan begins" if where[key] == DONE else f", as action {where[key]}"
                    raise UsageError(f"rank {rank}, action {number}: {self.action(key)} was done before{how}")
                where[key] = number
                keys.append(key)
                numbers.append(number)
                if kind in _ALIVE:
                    alive += _ALIVE[kind]
                    if alive > peak:
                        peak = alive
        self.rows.append(keys)
        self.numbers.append(numbers)
        self.peaks.append(peak)

    @staticmethod
    def _check_together(action: Action, rank: int, number: int) -> None:
        parts = action.sub_actions or ()
        fine = parts and {part.computation_type for part in parts} <= COMPUTATIONS - {OVERLAP_F_B}
        if not fine or action.computation_type is not OVERLAP_F_B:
            raise UsageError(
                f"rank {rank}, action {number}: {action}: expected forwards and backwards in the brackets, such as "
                "(0F4;7B1)OVERLAP_F_B"
            )

    def _out_of_range(self, action: Action, rank: int, number: int, stage: int, microbatch: int | None) -> str:
        plan, here = self.plan, f"rank {rank}, action {number}: {action}"
        if not 0 <= stage < plan.stages:
            return f"{here} is of stage {stage}, but there are stages 0 to {plan.stages - 1}"
        if plan.placement[stage] != rank:
            return f"{here} is of stage {stage}, which is on rank {plan.placement[stage]}"
        return f"{here} is of micro-batch {microbatch}, expected one of 0 to {plan.microbatches - 1}"
